/* Models from any bytes, as an HF config.json and as a YAML list; what reads must lay out. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ckpt/layout/layout.h"
#include "ckpt/model/model_shape.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

/* Over four ranks, flat optimizer shards: a model that cannot be split so is refused with a sentence. */
static void lay_out(const struct model *model)
{
    const struct layout_options options = {.dp = 2,
                                           .tp = 2,
                                           .pp = 1,
                                           .ep = 1,
                                           .zero = 1,
                                           .mesh = "",
                                           .sharding = "none",
                                           .pp_split = "balanced",
                                           .state = "auto",
                                           .seed = "0"};
    struct layout *layout;
    struct cb_err err = {0};
    if (layout_new(model, &options, &layout, &err) == 0) {
        uint64_t held = 0;
        for (uint32_t rank = 0; rank < layout_world_size(layout); rank++)
            held += layout_rank_bytes(layout, rank);
        if (held < layout_total_bytes(layout))
            __builtin_trap();
        layout_free(layout);
    } else if (err.message[0] == '\0') {
        __builtin_trap();
    }
}

typedef int (*read_fn)(struct model *self, const char *path, const struct model_choice *choice, struct cb_err *err);

static void read_as(read_fn read_model, const char *path)
{
    struct cb_err err = {0};
    struct model *model = calloc(1, sizeof *model);
    if (!model || asprintf(&model->name, "fuzz") < 0)
        __builtin_trap();
    model->default_state = "weights+adam";
    if (read_model(model, path, &(struct model_choice){.layers = 4}, &err) == 0 && model->count < 10000)
        lay_out(model);
    model_free(model);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    char path[64];
    int fd = memfd_create("fuzz_model", 0);
    if (fd < 0 || write(fd, bytes, len) != (ssize_t)len)
        __builtin_trap();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    read_as(model_read_config, path);
    read_as(model_read_list, path);
    close(fd);
    return 0;
}
