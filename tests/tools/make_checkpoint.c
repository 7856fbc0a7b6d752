/* Writes a whole checkpoint serially: what all ranks of a layout would write, through layout, plan, payload
 * and format alone. usage: make_checkpoint FOLDER ALIGNMENT [KEY=VALUE…] */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/format.h"
#include "ckpt/payload.h"
#include "core/hash.h"

static void die(const struct cb_err *err)
{
    fprintf(stderr, "make_checkpoint: %s\n", err->message);
    exit(1);
}

static struct experiment *read_experiment(char **words)
{
    struct cb_err err;
    struct experiment *experiment;
    if (experiment_new(&experiment, &err))
        die(&err);
    for (; *words; words++) {
        char *value = strchr(*words, '=');
        if (!value)
            exit(2);
        *value++ = '\0';
        if (experiment_set(experiment, *words, value, "argument", &err))
            die(&err);
    }
    return experiment;
}

/* Header, payload and trailer of one item. */
static void build_item(const struct layout *layout, const struct plan_options *options, const struct plan_item *item,
                       uint64_t seed, struct buf *out)
{
    struct cb_err err;
    const struct state_tensor *tensor = layout_tensor(layout, item->tensor);
    if (format_item_header(options->format, tensor, item, out, &err))
        die(&err);
    uint32_t crc = 0;
    if (tensor->kind == KIND_BYTES) {
        if (format_bytes_payload(options->format, tensor, out, &err))
            die(&err);
    } else {
        struct payload_source source = {PAYLOAD_WEIGHTS, tensor->dtype, payload_key(seed, tensor->fqn)};
        void *payload = buf_extend(out, item->payload_bytes);
        if (!payload)
            exit(1);
        payload_fill_box(&source, tensor->shape, &item->box, payload);
        crc = crc32_zip(0, payload, item->payload_bytes);
    }
    if (format_item_trailer(options->format, tensor, item, crc, out, &err))
        die(&err);
    if (out->len != item->length) {
        fprintf(stderr, "make_checkpoint: %s: %zu bytes, planned %zu\n", tensor->fqn, out->len, (size_t)item->length);
        exit(1);
    }
}

static void make_folders(const char *path)
{
    char part[4096];
    for (const char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        snprintf(part, sizeof part, "%.*s", (int)(slash - path), path);
        mkdir(part, 0777);
    }
}

static void write_at(const char *folder, const char *name, const struct buf *bytes, uint64_t offset, uint64_t length)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    make_folders(path);
    int fd = open(path, O_WRONLY | O_CREAT, 0666);
    if (fd < 0 || pwrite(fd, bytes->data, bytes->len, (off_t)offset) != (ssize_t)bytes->len ||
        ftruncate(fd, (off_t)length) != 0) {
        perror(path);
        exit(1);
    }
    close(fd);
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    struct experiment *experiment = read_experiment(argv + 3);
    struct cb_err err;
    struct model *model;
    struct layout *layout;
    struct plan *plan;
    struct plan_options options;
    if (model_load(experiment_text(experiment, OPT_MODEL), 0, NULL, &model, &err) ||
        layout_new(model, experiment, &layout, &err) ||
        plan_options_read(experiment, (uint32_t)strtoul(argv[2], NULL, 10), &options, &err) ||
        plan_compute(layout, &options, &plan, &err))
        die(&err);
    struct buf bytes;
    buf_init(&bytes, UINT32_MAX);
    for (size_t i = 0; i < plan->item_count; i++) {
        const struct plan_item *item = &plan->items[i];
        buf_clear(&bytes);
        build_item(layout, &options, item, experiment_u64(experiment, OPT_SEED), &bytes);
        write_at(argv[1], plan->files[item->file].name, &bytes, item->offset, plan->files[item->file].length);
    }
    buf_clear(&bytes);
    if (format_write_metadata(options.format, layout, plan, argv[1], &bytes, &err))
        die(&err);
    write_at(argv[1], FORMAT_MARKER, &bytes, 0, bytes.len);
    printf("%zu items, %zu files, %zu bytes of metadata\n", plan->item_count, plan->file_count, bytes.len);
    buf_release(&bytes);
    plan_free(plan);
    layout_free(layout);
    model_free(model);
    experiment_free(experiment);
    return 0;
}
