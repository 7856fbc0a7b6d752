/* ckptbench inspect: prints the contents and the origin of a stored checkpoint. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/plan/duplicates.h"
#include "ckpt/stored/inspect.h"
#include "cli/cli.h"
#include "cli/plan/checkpoint_arg.h"
#include "cli/report/table.h"
#include "core/alloc.h"
#include "core/json.h"
#include "core/units.h"

#define SHOWN_TENSORS 10
#define SHOWN_FILES 16
#define SHOWN_GROUPS 5 /* groups of parts with the same bytes */
#define SHOWN_PARTS 3
#define CONTENTS_MEMORY (UINT64_C(64) << 20)

struct view {
    struct cli *cli;
    const struct checkpoint_arg *source;
    const struct stored_checkpoint *checkpoint;
    const struct inspection *inspection;
    const struct duplicates *same;        /* NULL unless requested */
    const struct stored_tensor **tensors; /* the tensors to print */
    size_t tensor_count;
};

static uint64_t bytes_of(const struct stored_tensor *tensor)
{
    struct region whole = region_whole(tensor->dims, tensor->shape);
    return tensor->is_bytes ? 0 : region_elements(&whole) * dtype_bytes(tensor->dtype);
}

static char *shape_text(const struct stored_tensor *tensor, char text[160])
{
    size_t len = 0;
    memcpy(text, "scalar", 7);
    for (uint32_t i = 0; i < tensor->dims; i++)
        len += (size_t)snprintf(text + len, 160 - len, "%s%" PRIu64, i ? "x" : "", tensor->shape[i]);
    return text;
}

/* The largest first; tensors of one size by name. */
static int compare_tensors(const void *a, const void *b)
{
    const struct stored_tensor *x = *(const struct stored_tensor *const *)a,
                               *y = *(const struct stored_tensor *const *)b;
    uint64_t x_bytes = bytes_of(x), y_bytes = bytes_of(y);
    return x_bytes != y_bytes ? (x_bytes < y_bytes ? 1 : -1) : strcmp(x->fqn, y->fqn);
}

/* All tensors by name with --tensors, otherwise the largest. */
static int choose_tensors(struct view *self, struct cb_err *err)
{
    const struct stored_checkpoint *checkpoint = self->checkpoint;
    bool all = cli_has_flag(self->cli, "tensors");
    self->tensors = calloc(checkpoint->tensor_count + 1, sizeof *self->tensors);
    if (!self->tensors)
        return alloc_fail(err, "for %zu tensors", checkpoint->tensor_count);
    for (size_t i = 0; i < checkpoint->tensor_count; i++)
        if (all || !checkpoint->tensors[i].is_bytes)
            self->tensors[self->tensor_count++] = &checkpoint->tensors[i];
    if (all)
        return 0;
    qsort(self->tensors, self->tensor_count, sizeof *self->tensors, compare_tensors);
    if (self->tensor_count > SHOWN_TENSORS)
        self->tensor_count = SHOWN_TENSORS;
    return 0;
}

/* --- text --- */

static const struct stored_chunk *chunk_of(const struct view *self, const struct duplicate_part *part)
{
    return &self->checkpoint->chunks[part->chunk];
}

static const char *name_of(const struct view *self, const struct duplicate_part *part)
{
    return self->checkpoint->tensors[chunk_of(self, part)->tensor].fqn;
}

/* The end of the group that starts with part `first`. */
static size_t end_of_group(const struct duplicates *same, size_t first)
{
    size_t end = first + 1;
    while (end < same->count && memcmp(same->parts[end].digest, same->parts[first].digest, HASH_SHA256_BYTES) == 0)
        end++;
    return end;
}

static void write_same(const struct view *self)
{
    struct buf *out = &self->cli->out;
    const struct duplicates *same = self->same;
    char bytes[32];
    if (same->count == 0) {
        buf_append_text(out, "contents   no part has the bytes of another\n");
        return;
    }
    buf_printf(out, "contents   %zu part%s with the bytes of another, %s could be saved\n", same->count,
               units_plural(same->count), units_format_bytes((double)same->extra_bytes, bytes));
    size_t shown = 0;
    for (size_t first = 0, end; first < same->count && shown < SHOWN_GROUPS; first = end, shown++) {
        end = end_of_group(same, first);
        buf_append_text(out, "          ");
        for (size_t i = first; i < end && i < first + SHOWN_PARTS; i++)
            buf_printf(out, "%s%s", i == first ? " " : " = ", name_of(self, &same->parts[i]));
        if (end - first > SHOWN_PARTS)
            buf_printf(out, " = %zu more", end - first - SHOWN_PARTS);
        buf_append_char(out, '\n');
    }
    if (same->groups > shown)
        buf_printf(out, "           and %zu more group%s: --json has all\n", same->groups - shown,
                   units_plural(same->groups - shown));
}

static void write_summary(const struct view *self)
{
    struct buf *out = &self->cli->out;
    const struct inspection *found = self->inspection;
    char bytes[32], frame[32], outside[32], counts[STORED_TEXT_BYTES];
    stored_describe(format_name(self->checkpoint->format), &found->counts, counts);
    checkpoint_arg_write_name(self->source, out);
    buf_printf(out, ": %s%s\n", counts, self->checkpoint->marked ? "" : "; no marker says that these are all");
    buf_append_text(out, "types     ");
    for (int i = 0; i < DTYPE_COUNT; i++) {
        if (found->types[i].tensors > 0)
            buf_printf(out, " %s %" PRIu64 " (%s)", dtype_name((enum dtype)i), found->types[i].tensors,
                       units_format_bytes((double)found->types[i].bytes, bytes));
    }
    buf_printf(out, "\nlayout     %s\n", found->layout);
    if (found->rank_count > 0)
        buf_printf(out, "written by %zu rank%s, the largest %.3f x the mean\n", found->rank_count,
                   units_plural(found->rank_count), found->imbalance);
    buf_printf(out, "overhead   %s around payloads, %s of the files in no item\n",
               units_format_bytes((double)found->frame_bytes, frame),
               units_format_bytes((double)found->outside_bytes, outside));
    if (self->checkpoint->duplicates > 0)
        buf_printf(out, "duplicates %zu part%s stored a second time\n", self->checkpoint->duplicates,
                   units_plural(self->checkpoint->duplicates));
    if (self->same)
        write_same(self);
    if (found->overlap_bytes > 0)
        buf_printf(out, "overlap    items share %s of the files\n",
                   units_format_bytes((double)found->overlap_bytes, bytes));
    if (found->compressed > 0)
        buf_printf(out, "compressed %" PRIu64 " item%s (zstd)\n", found->compressed, units_plural(found->compressed));
    if (found->missing_files > 0)
        buf_printf(out, "missing    %" PRIu64 " file%s: `ckptbench verify` names what is gone\n", found->missing_files,
                   units_plural(found->missing_files));
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
    return cli_end_table(self->cli, &table, err);
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
    int code = cli_end_table(self->cli, &table, err);
    if (!code && shown < count)
        buf_printf(&self->cli->out, "and %zu more file%s: --files lists all\n", count - shown,
                   units_plural(count - shown));
    return code;
}

static int write_text(const struct view *self, struct cb_err *err)
{
    write_summary(self);
    buf_append_char(&self->cli->out, '\n');
    int code = write_tensors(self, err);
    if (!code && self->tensor_count < self->inspection->counts.tensors)
        buf_printf(&self->cli->out, "the largest; --tensors lists all %zu and the values\n",
                   self->checkpoint->tensor_count);
    buf_append_char(&self->cli->out, '\n');
    if (!code)
        code = write_files(self, err);
    return code ? code : buf_check(&self->cli->out, "the answer", err);
}

/* --- JSON --- */

static void write_tensor_json(struct json_writer *json, const struct stored_tensor *tensor)
{
    json_write_begin_object(json);
    json_member_text(json, "name", tensor->fqn);
    json_member_text(json, "dtype", tensor->is_bytes ? NULL : dtype_name(tensor->dtype));
    json_member_array(json, "shape");
    for (uint32_t i = 0; i < tensor->dims; i++)
        json_write_u64(json, tensor->shape[i]);
    json_write_end_array(json);
    json_member_u64(json, "parts", tensor->chunk_count);
    json_member_u64(json, "bytes", bytes_of(tensor));
    if (tensor->literal)
        json_member_text(json, "value", tensor->literal);
    json_write_end_object(json);
}

static void write_file_json(struct json_writer *json, const struct inspect_file *file)
{
    json_write_begin_object(json);
    json_member_text(json, "name", file->name);
    json_member_u64_or_null(json, "rank", file->rank != INSPECT_NO_RANK, file->rank);
    json_member_bool(json, "missing", file->missing);
    json_member_u64(json, "bytes", file->bytes);
    json_member_u64(json, "items", file->items);
    json_member_u64(json, "payload_bytes", file->payload_bytes);
    json_member_u64(json, "outside_bytes", file->outside_bytes);
    json_write_end_object(json);
}

static void write_parts_json(struct json_writer *json, const struct inspection *found)
{
    json_member_object(json, "types");
    for (int i = 0; i < DTYPE_COUNT; i++) {
        if (found->types[i].tensors == 0)
            continue;
        json_member_object(json, dtype_name((enum dtype)i));
        json_member_u64(json, "tensors", found->types[i].tensors);
        json_member_u64(json, "bytes", found->types[i].bytes);
        json_write_end_object(json);
    }
    json_write_end_object(json);
    json_member_array(json, "ranks");
    for (size_t i = 0; i < found->rank_count; i++) {
        json_write_begin_object(json);
        json_member_u64(json, "rank", found->ranks[i].rank);
        json_member_u64(json, "files", found->ranks[i].files);
        json_member_u64(json, "payload_bytes", found->ranks[i].payload_bytes);
        json_write_end_object(json);
    }
    json_write_end_array(json);
    json_member_double(json, "imbalance", found->rank_count > 0 ? found->imbalance : NAN);
}

static void write_same_json(struct json_writer *json, const struct view *self)
{
    const struct duplicates *same = self->same;
    json_member_object(json, "same_contents");
    json_member_u64(json, "parts", same->count);
    json_member_u64(json, "extra_bytes", same->extra_bytes);
    json_member_u64(json, "read_bytes", same->read_bytes);
    json_member_array(json, "groups");
    for (size_t first = 0, end; first < same->count; first = end) {
        end = end_of_group(same, first);
        json_write_begin_array(json);
        for (size_t i = first; i < end; i++) {
            const struct stored_chunk *chunk = chunk_of(self, &same->parts[i]);
            json_write_begin_object(json);
            json_member_text(json, "tensor", name_of(self, &same->parts[i]));
            json_member_text(json, "file", self->checkpoint->files[chunk->file]);
            json_member_u64(json, "offset", chunk->offset);
            json_write_end_object(json);
        }
        json_write_end_array(json);
    }
    json_write_end_array(json);
    json_write_end_object(json);
}

static int write_json(const struct view *self, struct cb_err *err)
{
    const struct inspection *found = self->inspection;
    struct json_writer json;
    json_writer_init(&json, &self->cli->out, 1);
    json_write_begin_object(&json);
    json_member_text(&json, "path", self->source->path);
    json_member_text(&json, "chosen", *self->source->how ? self->source->how : NULL);
    json_member_text(&json, "format", format_name(self->checkpoint->format));
    json_member_bool(&json, "marked", self->checkpoint->marked);
    json_member_u64(&json, "tensors", found->counts.tensors);
    json_member_u64(&json, "values", found->counts.values);
    json_member_u64(&json, "items", found->counts.items);
    json_member_u64(&json, "files", self->checkpoint->file_count);
    json_member_u64(&json, "missing_files", found->missing_files);
    json_member_u64(&json, "tensor_bytes", found->counts.tensor_bytes);
    json_member_u64(&json, "file_bytes", found->file_bytes);
    json_member_u64(&json, "payload_bytes", found->payload_bytes);
    json_member_u64(&json, "frame_bytes", found->frame_bytes);
    json_member_u64(&json, "outside_bytes", found->outside_bytes);
    json_member_u64(&json, "overlap_bytes", found->overlap_bytes);
    json_member_u64(&json, "duplicates", self->checkpoint->duplicates);
    json_member_u64(&json, "compressed", found->compressed);
    json_member_text(&json, "layout", found->layout);
    if (self->same)
        write_same_json(&json, self);
    write_parts_json(&json, found);
    json_member_array(&json, cli_has_flag(self->cli, "tensors") ? "all_tensors" : "largest_tensors");
    for (size_t i = 0; i < self->tensor_count; i++)
        write_tensor_json(&json, self->tensors[i]);
    json_write_end_array(&json);
    json_member_array(&json, "file_list");
    for (size_t i = 0; i < self->checkpoint->file_count; i++)
        write_file_json(&json, &found->files[i]);
    return cli_end_json(self->cli, &json, err);
}

static int run_inspect(struct cli *cli, struct cb_err *err)
{
    struct checkpoint_arg source = {0};
    struct stored_checkpoint *checkpoint = NULL;
    struct inspection inspection = {0};
    struct duplicates same = {0};
    bool contents = cli_has_flag(cli, "contents");
    if (cli->word_count != 1)
        return cb_fail(err, CB_ERR_USAGE, "inspect takes one checkpoint, as in `ckptbench inspect ./ckpt/RUN`");
    int code = checkpoint_arg_open(&source, cli->words[0], err);
    if (!code)
        code = checkpoint_arg_read(&source, &checkpoint, err);
    if (!code)
        code = inspect_checkpoint(source.store, checkpoint, &inspection, err);
    if (!code && contents)
        code = duplicates_find(source.store, checkpoint, CONTENTS_MEMORY, &same, err);
    struct view view = {.cli = cli,
                        .source = &source,
                        .checkpoint = checkpoint,
                        .inspection = &inspection,
                        .same = contents ? &same : NULL};
    if (!code)
        code = choose_tensors(&view, err);
    if (!code)
        code = cli->json ? write_json(&view, err) : write_text(&view, err);
    free(view.tensors);
    duplicates_release(&same);
    inspection_release(&inspection);
    stored_checkpoint_free(checkpoint);
    checkpoint_arg_release(&source);
    return code;
}

static const struct verb_flag flags[] = {
    {"tensors", NULL, "list all tensors and values, by name"},
    {"files", NULL, "list all files"},
    {"contents", NULL, "read the data, too: which parts have the same bytes, whatever they are called"},
};

const struct verb verb_inspect = {
    .name = "inspect",
    .arguments = "PATH",
    .summary = "what is in a stored checkpoint, and who wrote what",
    .about = "PATH is a checkpoint of any format and any writer, as for verify. Without --contents only its metadata "
             "and headers "
             "are read: "
             "tensors, types, shapes and parts; files, ranks and how even they are; bytes that are neither tensor nor "
             "value; parts that are stored twice; and a guess at the layout.",
    .example = "ckptbench inspect ./ckpt/20261121-k3f9 --tensors",
    VERB_FLAGS(flags),
    .reads_checkpoint = true,
    .run = run_inspect,
};
