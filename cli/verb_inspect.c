/* ckptbench inspect: what is in a stored checkpoint, and who wrote it? */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/inspect.h"
#include "cli/cli.h"
#include "cli/source.h"
#include "cli/table.h"
#include "core/json.h"
#include "core/units.h"

#define SHOWN_TENSORS 10
#define SHOWN_FILES 16

struct view {
    struct cli *cli;
    const struct source *source;
    const struct stored_checkpoint *checkpoint;
    const struct inspection *inspection;
    const struct stored_tensor **tensors; /* those that are shown */
    size_t tensor_count;
};

static uint64_t bytes_of(const struct stored_tensor *tensor)
{
    struct box whole = box_whole(tensor->dims, tensor->shape);
    return tensor->is_bytes ? 0 : box_elements(&whole) * dtype_bytes(tensor->dtype);
}

static char *shape_text(const struct stored_tensor *tensor, char text[160])
{
    size_t len = 0;
    memcpy(text, "scalar", 7);
    for (uint32_t i = 0; i < tensor->dims; i++)
        len += (size_t)snprintf(text + len, 160 - len, "%s%" PRIu64, i ? "x" : "", tensor->shape[i]);
    return text;
}

static int compare_sizes(const void *a, const void *b)
{
    const struct stored_tensor *x = *(const struct stored_tensor *const *)a,
                               *y = *(const struct stored_tensor *const *)b;
    uint64_t x_bytes = bytes_of(x), y_bytes = bytes_of(y);
    if (x_bytes != y_bytes)
        return x_bytes > y_bytes ? -1 : 1;
    return strcmp(x->fqn, y->fqn);
}

/* All by name with --tensors, else the largest. */
static int choose_tensors(struct view *self, struct cb_err *err)
{
    const struct stored_checkpoint *checkpoint = self->checkpoint;
    self->tensors = calloc(checkpoint->tensor_count + 1, sizeof *self->tensors);
    if (!self->tensors)
        return cb_fail(err, CB_ERR_MEMORY, "no memory for %zu tensors", checkpoint->tensor_count);
    bool all = cli_has_flag(self->cli, "tensors");
    for (size_t i = 0; i < checkpoint->tensor_count; i++) {
        if (all || !checkpoint->tensors[i].is_bytes)
            self->tensors[self->tensor_count++] = &checkpoint->tensors[i];
    }
    if (all || self->tensor_count == 0)
        return 0;
    qsort(self->tensors, self->tensor_count, sizeof *self->tensors, compare_sizes);
    self->tensor_count = self->tensor_count < SHOWN_TENSORS ? self->tensor_count : SHOWN_TENSORS;
    return 0;
}

/* --- text --- */

static void write_summary(const struct view *self)
{
    struct buf *out = &self->cli->out;
    const struct inspection *found = self->inspection;
    char bytes[32], frame[32], outside[32];
    buf_printf(out, "%s: %s, %" PRIu64 " tensors (%s), %" PRIu64 " values, %" PRIu64 " items in %zu files%s\n",
               self->source->path, format_name(self->checkpoint->format), found->tensors,
               units_format_bytes((double)found->tensor_bytes, bytes), found->values, found->items,
               self->checkpoint->file_count, self->checkpoint->marked ? "" : "; no marker says that these are all");
    buf_append_text(out, "types     ");
    for (int i = 0; i < DTYPE_COUNT; i++) {
        if (found->types[i].tensors > 0)
            buf_printf(out, " %s %" PRIu64 " (%s)", dtype_name((enum dtype)i), found->types[i].tensors,
                       units_format_bytes((double)found->types[i].bytes, bytes));
    }
    buf_printf(out, "\nlayout     %s\n", found->layout);
    if (found->rank_count > 0)
        buf_printf(out, "written by %zu ranks, the largest %.3f x the mean\n", found->rank_count, found->imbalance);
    buf_printf(out, "overhead   %s around payloads, %s of the files in no item\n",
               units_format_bytes((double)found->frame_bytes, frame),
               units_format_bytes((double)found->outside_bytes, outside));
    if (self->checkpoint->duplicates > 0)
        buf_printf(out, "duplicates %zu parts are stored a second time\n", self->checkpoint->duplicates);
    if (found->overlap_bytes > 0)
        buf_printf(out, "overlap    items share %s of the files\n",
                   units_format_bytes((double)found->overlap_bytes, bytes));
    if (found->compressed > 0)
        buf_printf(out, "compressed %" PRIu64 " items (zstd)\n", found->compressed);
    if (found->missing_files > 0)
        buf_printf(out, "missing    %" PRIu64 " files: `ckptbench verify` names what is gone\n", found->missing_files);
}

static int write_tensors(const struct view *self, struct cb_err *err)
{
    static const char *const headings[] = {"tensor", "type", "shape", "parts", "bytes"};
    struct table table;
    char shape[160], bytes[32];
    table_init(&table, "lllrr");
    table_add_headings(&table, headings);
    for (size_t i = 0; i < self->tensor_count; i++) {
        const struct stored_tensor *tensor = self->tensors[i];
        table_add(&table, TABLE_PLAIN, tensor->fqn);
        table_add(&table, TABLE_PLAIN, tensor->is_bytes ? "value" : dtype_name(tensor->dtype));
        table_add(&table, TABLE_PLAIN, tensor->is_bytes ? tensor->literal : shape_text(tensor, shape));
        table_addf(&table, TABLE_PLAIN, "%u", tensor->chunk_count);
        table_add(&table, TABLE_PLAIN, tensor->is_bytes ? NULL : units_format_bytes((double)bytes_of(tensor), bytes));
    }
    int code = table_write(&table, 0, self->cli->colour, &self->cli->out, err);
    table_release(&table);
    return code;
}

static int write_files(const struct view *self, struct cb_err *err)
{
    static const char *const headings[] = {"file", "rank", "items", "bytes", "payload", "in no item"};
    struct table table;
    char bytes[32], payload[32], outside[32];
    size_t count = self->checkpoint->file_count, shown = count < SHOWN_FILES ? count : SHOWN_FILES;
    if (cli_has_flag(self->cli, "files"))
        shown = count;
    table_init(&table, "lrrrrr");
    table_add_headings(&table, headings);
    for (size_t i = 0; i < shown; i++) {
        const struct inspect_file *file = &self->inspection->files[i];
        table_add(&table, TABLE_PLAIN, file->name);
        if (file->rank == INSPECT_NO_RANK)
            table_add(&table, TABLE_PLAIN, NULL);
        else
            table_addf(&table, TABLE_PLAIN, "%u", file->rank);
        table_addf(&table, TABLE_PLAIN, "%" PRIu64, file->items);
        table_add(&table, file->missing ? TABLE_BAD : TABLE_PLAIN,
                  file->missing ? "missing" : units_format_bytes((double)file->bytes, bytes));
        table_add(&table, TABLE_PLAIN, units_format_bytes((double)file->payload_bytes, payload));
        table_add(&table, TABLE_PLAIN, units_format_bytes((double)file->outside_bytes, outside));
    }
    int code = table_write(&table, 0, self->cli->colour, &self->cli->out, err);
    table_release(&table);
    if (!code && shown < count)
        buf_printf(&self->cli->out, "and %zu more files: --files lists all\n", count - shown);
    return code;
}

static int write_text(const struct view *self, struct cb_err *err)
{
    write_summary(self);
    buf_append_char(&self->cli->out, '\n');
    int code = write_tensors(self, err);
    if (!code && self->tensor_count < self->inspection->tensors)
        buf_printf(&self->cli->out, "the largest; --tensors lists all %zu and the values\n",
                   self->checkpoint->tensor_count);
    buf_append_char(&self->cli->out, '\n');
    if (!code)
        code = write_files(self, err);
    return code ? code : buf_check(&self->cli->out, "the answer", err);
}

/* --- JSON --- */

static void write_count(struct json_writer *json, const char *key, uint64_t value)
{
    json_write_key(json, key);
    json_write_u64(json, value);
}

static void write_tensor_json(struct json_writer *json, const struct stored_tensor *tensor)
{
    json_write_begin_object(json);
    json_write_key(json, "name");
    json_write_text(json, tensor->fqn);
    json_write_key(json, "dtype");
    json_write_text(json, tensor->is_bytes ? NULL : dtype_name(tensor->dtype));
    json_write_key(json, "shape");
    json_write_begin_array(json);
    for (uint32_t i = 0; i < tensor->dims; i++)
        json_write_u64(json, tensor->shape[i]);
    json_write_end_array(json);
    write_count(json, "parts", tensor->chunk_count);
    write_count(json, "bytes", bytes_of(tensor));
    if (tensor->literal) {
        json_write_key(json, "value");
        json_write_text(json, tensor->literal);
    }
    json_write_end_object(json);
}

static void write_file_json(struct json_writer *json, const struct inspect_file *file)
{
    json_write_begin_object(json);
    json_write_key(json, "name");
    json_write_text(json, file->name);
    json_write_key(json, "rank");
    if (file->rank == INSPECT_NO_RANK)
        json_write_null(json);
    else
        json_write_u64(json, file->rank);
    json_write_key(json, "missing");
    json_write_bool(json, file->missing);
    write_count(json, "bytes", file->bytes);
    write_count(json, "items", file->items);
    write_count(json, "payload_bytes", file->payload_bytes);
    write_count(json, "outside_bytes", file->outside_bytes);
    json_write_end_object(json);
}

static void write_types_json(struct json_writer *json, const struct inspection *found)
{
    json_write_key(json, "types");
    json_write_begin_object(json);
    for (int i = 0; i < DTYPE_COUNT; i++) {
        if (found->types[i].tensors == 0)
            continue;
        json_write_key(json, dtype_name((enum dtype)i));
        json_write_begin_object(json);
        write_count(json, "tensors", found->types[i].tensors);
        write_count(json, "bytes", found->types[i].bytes);
        json_write_end_object(json);
    }
    json_write_end_object(json);
}

static void write_ranks_json(struct json_writer *json, const struct inspection *found)
{
    json_write_key(json, "ranks");
    json_write_begin_array(json);
    for (size_t i = 0; i < found->rank_count; i++) {
        json_write_begin_object(json);
        write_count(json, "rank", found->ranks[i].rank);
        write_count(json, "files", found->ranks[i].files);
        write_count(json, "payload_bytes", found->ranks[i].payload_bytes);
        json_write_end_object(json);
    }
    json_write_end_array(json);
    json_write_key(json, "imbalance");
    if (found->rank_count > 0)
        json_write_double(json, found->imbalance);
    else
        json_write_null(json);
}

static int write_json(const struct view *self, struct cb_err *err)
{
    const struct inspection *found = self->inspection;
    struct json_writer json;
    json_writer_init(&json, &self->cli->out, 1);
    json_write_begin_object(&json);
    json_write_key(&json, "path");
    json_write_text(&json, self->source->path);
    json_write_key(&json, "format");
    json_write_text(&json, format_name(self->checkpoint->format));
    json_write_key(&json, "marked");
    json_write_bool(&json, self->checkpoint->marked);
    write_count(&json, "tensors", found->tensors);
    write_count(&json, "values", found->values);
    write_count(&json, "items", found->items);
    write_count(&json, "files", self->checkpoint->file_count);
    write_count(&json, "missing_files", found->missing_files);
    write_count(&json, "tensor_bytes", found->tensor_bytes);
    write_count(&json, "file_bytes", found->file_bytes);
    write_count(&json, "payload_bytes", found->payload_bytes);
    write_count(&json, "frame_bytes", found->frame_bytes);
    write_count(&json, "outside_bytes", found->outside_bytes);
    write_count(&json, "overlap_bytes", found->overlap_bytes);
    write_count(&json, "duplicates", self->checkpoint->duplicates);
    write_count(&json, "compressed", found->compressed);
    json_write_key(&json, "layout");
    json_write_text(&json, found->layout);
    write_types_json(&json, found);
    write_ranks_json(&json, found);
    json_write_key(&json, cli_has_flag(self->cli, "tensors") ? "all_tensors" : "largest_tensors");
    json_write_begin_array(&json);
    for (size_t i = 0; i < self->tensor_count; i++)
        write_tensor_json(&json, self->tensors[i]);
    json_write_end_array(&json);
    json_write_key(&json, "file_list");
    json_write_begin_array(&json);
    for (size_t i = 0; i < self->checkpoint->file_count; i++)
        write_file_json(&json, &found->files[i]);
    json_write_end_array(&json);
    json_write_end_object(&json);
    return cli_end_json(self->cli, err);
}

static int run_inspect(struct cli *cli, struct cb_err *err)
{
    struct source source = {0};
    struct stored_checkpoint *checkpoint = NULL;
    struct inspection inspection = {0};
    if (cli->word_count != 1)
        return cb_fail(err, CB_ERR_USAGE, "inspect takes one checkpoint, as in `ckptbench inspect ./ckpt/RUN`");
    int code = source_open(&source, cli->words[0], err);
    if (!code)
        code = source_read(&source, &checkpoint, err);
    if (!code)
        code = inspect_checkpoint(source.store, checkpoint, &inspection, err);
    struct view view = {.cli = cli, .source = &source, .checkpoint = checkpoint, .inspection = &inspection};
    if (!code)
        code = choose_tensors(&view, err);
    if (!code)
        code = cli->json ? write_json(&view, err) : write_text(&view, err);
    free(view.tensors);
    inspection_release(&inspection);
    stored_checkpoint_free(checkpoint);
    source_release(&source);
    return code;
}

static const struct verb_flag flags[] = {
    {"tensors", NULL, "list all tensors and values, by name"},
    {"files", NULL, "list all files"},
};

const struct verb verb_inspect = {
    .name = "inspect",
    .arguments = "PATH",
    .summary = "what is in a stored checkpoint, and who wrote what",
    .about =
        "PATH is a checkpoint of any format and any writer, as for verify. Only its metadata and headers are read: "
        "tensors, types, shapes and parts; files, ranks and how even they are; bytes that are neither tensor nor "
        "value; parts that are stored twice; and a guess at the layout.",
    .example = "ckptbench inspect ./ckpt/20261121-k3f9 --tensors",
    VERB_FLAGS(flags),
    .run = run_inspect,
};
