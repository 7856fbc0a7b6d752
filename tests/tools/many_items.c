/* A DCP checkpoint of many small items without their bytes (its files are holes), to measure who only reads metadata.
 * usage: many_items FOLDER ITEMS     a multiple of 8; FOLDER must be there; prints how many */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "ckpt/format/format.h"
#include "tests/unit/layout_words.h"

#define PARTS 8

static int write_model(const char *path, unsigned long tensors)
{
    FILE *file = fopen(path, "w");
    if (!file)
        return -1;
    for (unsigned long i = 0; i < tensors; i++)
        fprintf(file, "- {name: layers.%lu.block.weight, shape: 64x32, tp_dim: 0}\n", i);
    return fclose(file);
}

static int write_files(const char *folder, const struct words *words, const struct plan *plan, struct cb_err *err)
{
    char path[4096];
    struct buf metadata;
    struct metadata_sink sink = metadata_sink_to(&metadata);
    buf_init(&metadata, UINT64_C(4) << 30);
    snprintf(path, sizeof path, "%s/" STORED_MARKER, folder);
    int code = format_write_metadata(PLAN_DCP, words->layout, plan, folder, 0, &sink, err);
    if (!code)
        code = buf_write_file(&metadata, path, 0644, err);
    buf_release(&metadata);
    for (uint32_t i = 0; i < plan->file_count && !code; i++) {
        char name[PLAN_NAME_BYTES];
        plan_file_name(plan, i, name);
        snprintf(path, sizeof path, "%s/%s", folder, name);
        int fd = open(path, O_WRONLY | O_CREAT, 0644);
        if (fd < 0 || ftruncate(fd, (off_t)plan_file_length(plan, i)) != 0)
            code = cb_fail(err, CB_ERR_SYSTEM, "%s", path);
        if (fd >= 0)
            close(fd);
    }
    return code;
}

int main(int argc, char **argv)
{
    struct words words;
    struct plan *plan = NULL;
    struct cb_err err;
    char model[4096], text[512];
    if (argc != 3)
        return 2;
    snprintf(model, sizeof model, "%s/model.yaml", argv[1]);
    snprintf(text, sizeof text, "model=%.400s state=weights tp=%d ranks=%d", model, PARTS, PARTS);
    if (write_model(model, strtoul(argv[2], NULL, 10) / PARTS) != 0)
        return 1;
    struct plan_options options = {.format = PLAN_DCP, .files_per_rank = 1, .payload_alignment = 64};
    int code = words_make(&words, text, &err);
    if (!code)
        code = plan_compute(words.layout, &options, &plan, &err);
    if (!code)
        code = write_files(argv[1], &words, plan, &err);
    if (code)
        fprintf(stderr, "many_items: %s\n", err.message);
    else
        printf("%zu\n", plan->item_count);
    plan_free(plan);
    words_release(&words);
    return code != 0;
}
