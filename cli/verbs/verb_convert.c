/* ckptbench convert: writes a stored checkpoint in another format or layout. */
#include <inttypes.h>
#include <string.h>

#include "ckpt/convert/convert.h"
#include "ckpt/format/format_ops.h"
#include "ckpt/layout/layout.h"
#include "ckpt/stored.h"
#include "ckpt/stored/stored_read.h"
#include "cli/cli.h"
#include "cli/jobs/run_here.h"
#include "cli/plan/checkpoint_arg.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "core/json.h"
#include "core/units.h"
#include "setup/checkpoint_options.h"
#include "store/kind.h"

#define DEFAULT_MEMORY (UINT64_C(256) << 20)
#define MAX_VALUE_BYTES (UINT64_C(64) << 20)
#define ALIGNMENT 64

struct conversion {
    struct cli *cli;
    const char *target;
    struct checkpoint_arg source;
    struct stored_checkpoint *checkpoint;
    struct experiment *experiment;
    struct plan_options options;
    struct stored_value *values;
    size_t value_count;
    const struct stored_tensor **lost; /* values that the target format cannot represent */
    size_t lost_count;
    struct layout *layout;
    struct plan *plan;
    uint64_t memory_bytes;
    struct convert_result result;
    uint64_t took_ns;
};

/* --- arguments --- */

static const char *const keys[] = {"format",   "ranks",     "tp",       "pp",       "dp",
                                   "ep",       "zero",      "sharding", "mesh",     "pp.split",
                                   "io.files", "io.fanout", "io.fsync", "checksum", "save.dedup"};

/* Treats a word KEY=VALUE as a setting if KEY is an option; all other words are checkpoints. */
static int read_setting(struct conversion *self, const char *word, bool *is_setting, struct cb_err *err)
{
    size_t len = strcspn(word, "="), i = 0;
    enum option_id id;
    char key[64];
    *is_setting = false;
    if (word[len] != '=' || len >= sizeof key)
        return 0;
    memcpy(key, word, len);
    key[len] = '\0';
    *is_setting = option_find(key, &id, NULL) == 0;
    if (!*is_setting)
        return 0;
    while (i < sizeof keys / sizeof *keys && strcmp(keys[i], key) != 0)
        i++;
    if (i < sizeof keys / sizeof *keys)
        return experiment_set(self->experiment, key, word + len + 1, "convert", err);
    return cb_fail(err, CB_ERR_USAGE,
                   "convert has no key %s: it takes format, ranks, tp, pp, dp, ep, zero, sharding, mesh, pp.split, "
                   "save.dedup, io.files, io.fanout, io.fsync and checksum",
                   key);
}

static int read_words(struct conversion *self, const char **from, struct cb_err *err)
{
    const struct cli *cli = self->cli;
    int code = 0;
    for (size_t i = 0; i < cli->word_count && !code; i++) {
        const char *word = cli->words[i];
        bool is_setting;
        code = read_setting(self, word, &is_setting, err);
        if (is_setting)
            continue;
        if (!*from)
            *from = word;
        else if (!self->target)
            self->target = word;
        else
            code = cb_fail(err, CB_ERR_USAGE, "convert takes two places, SRC and DST: what is %s?", word);
    }
    if (!code && !self->target)
        code = cb_fail(err, CB_ERR_USAGE,
                       "convert takes two places, as in `ckptbench convert SRC DST format=safetensors`");
    self->memory_bytes = DEFAULT_MEMORY;
    if (!code)
        code = cli_parse_flag(cli, "memory", units_parse_bytes, &self->memory_bytes, err);
    if (!code)
        code = experiment_validate(self->experiment, err);
    return code ? code : plan_options_read(self->experiment, ALIGNMENT, &self->options, err);
}

/* --- conversion --- */

static int read_value(struct conversion *self, struct stored_reader *reader, const struct stored_tensor *tensor,
                      struct stored_value *value, struct cb_err *err)
{
    struct buf blob, literal;
    *value = (struct stored_value){.tensor = tensor};
    if (tensor->literal) {
        value->literal = strdup(tensor->literal);
        return value->literal ? 0 : alloc_fail(err, "for %s", tensor->fqn);
    }
    buf_init(&blob, MAX_VALUE_BYTES);
    buf_init(&literal, MAX_VALUE_BYTES);
    int code = stored_reader_value(reader, tensor, &blob, err);
    if (!code)
        code = stored_reader_literal(reader, tensor, &blob, &literal, err);
    if (!code && literal.len > 0)
        value->literal = buf_take(&literal);
    if (!code && format_ops_of(self->checkpoint->format)->keeps_objects) {
        value->blob_bytes = blob.len;
        value->blob = buf_take(&blob);
    }
    buf_release(&blob);
    buf_release(&literal);
    return code;
}

/* DCP can store any torch.save value, and literals that can be pickled again; the other formats only literals. */
static bool can_hold(const struct conversion *self, const struct stored_value *value)
{
    struct state_tensor tensor = {.fqn = value->tensor->fqn, .kind = KIND_BYTES, .literal = value->literal};
    struct buf payload;
    struct cb_err why;
    if (!format_ops_of(self->options.format)->keeps_objects)
        return value->literal != NULL;
    if (value->blob || !value->literal)
        return value->blob != NULL;
    buf_init(&payload, MAX_VALUE_BYTES);
    int code = format_bytes_payload(self->options.format, &tensor, 0, &payload, &why);
    buf_release(&payload);
    return code == 0;
}

static int read_values(struct conversion *self, struct cb_err *err)
{
    const struct stored_checkpoint *checkpoint = self->checkpoint;
    struct stored_reader *reader = NULL;
    self->values = calloc(checkpoint->tensor_count + 1, sizeof *self->values);
    self->lost = calloc(checkpoint->tensor_count + 1, sizeof *self->lost);
    if (!self->values || !self->lost)
        return alloc_fail(err, "for the values of %s", self->source.path);
    int code = stored_reader_new(self->source.store, checkpoint, MAX_VALUE_BYTES, NULL, &reader, err);
    for (size_t i = 0; i < checkpoint->tensor_count && !code; i++) {
        const struct stored_tensor *tensor = &checkpoint->tensors[i];
        struct stored_value *value = &self->values[self->value_count];
        if (!tensor->is_bytes)
            continue;
        code = read_value(self, reader, tensor, value, err);
        if (!code && can_hold(self, value)) {
            self->value_count++;
        } else if (!code) {
            free(value->literal);
            free(value->blob);
            self->lost[self->lost_count++] = tensor;
        }
    }
    stored_reader_free(reader);
    return code;
}

static int make_plan(struct conversion *self, struct cb_err *err)
{
    int code = 0;
    for (size_t i = 0; i < self->checkpoint->tensor_count && !code; i++) {
        const struct stored_tensor *tensor = &self->checkpoint->tensors[i];
        const char *refused = convert_refuses(self->options.format, tensor);
        code = stored_check_coverage(self->checkpoint, tensor, err);
        if (!code && refused)
            code = cb_fail(err, CB_ERR_USAGE, "%s is %s, which format=%s does not have", tensor->fqn, refused,
                           format_name(self->options.format));
    }
    if (!code)
        code = read_values(self, err);
    const struct layout_options layout = layout_options_of(self->experiment);
    if (!code)
        code = layout_from_stored(self->checkpoint, &layout, self->values, self->value_count, &self->layout, err);
    return code ? code : plan_compute(self->layout, &self->options, &self->plan, err);
}

static int watch(void *context, struct cb_err *err)
{
    const struct conversion *self = context;
    return launch_was_stopped()
               ? cb_fail(err, CB_ERR_ABORTED,
                         "stopped: %s is no checkpoint yet; the same command goes on from what it holds", self->target)
               : 0;
}

static int do_it(struct conversion *self, struct cb_err *err)
{
    struct convert_job job = {.source = self->source.path,
                              .checkpoint = self->checkpoint,
                              .target = self->target,
                              .layout = self->layout,
                              .plan = self->plan,
                              .format = self->options.format,
                              .memory_bytes = self->memory_bytes,
                              .threads = cli_cores(),
                              .durable = experiment_bool(self->experiment, OPT_IO_FSYNC),
                              .checksum = experiment_is(self->experiment, OPT_CHECKSUM, "crc32"),
                              .watch = watch,
                              .watch_context = self};
    launch_catch_signals(true);
    uint64_t start_ns = clock_monotonic_ns();
    int code = convert_checkpoint(&job, &self->result, err);
    self->took_ns = clock_monotonic_ns() - start_ns;
    return code;
}

/* --- output --- */

static int write_text(struct conversion *self, struct cb_err *err)
{
    struct buf *out = &self->cli->out;
    const struct convert_result *result = &self->result;
    char read[32], written[32], rate[32];
    double seconds = (double)self->took_ns / 1e9;
    size_t tensors = self->checkpoint->tensor_count - self->value_count - self->lost_count;
    buf_printf(out, "%s: %s, %zu tensor%s and %zu value%s in %" PRIu64 " file%s\n", self->target,
               format_name(self->options.format), tensors, units_plural(tensors), self->value_count,
               units_plural(self->value_count), result->files, units_plural(result->files));
    if (*self->source.how) {
        buf_append_text(out, "source     ");
        checkpoint_arg_write_name(&self->source, out);
        buf_append_char(out, '\n');
    }
    for (size_t i = 0; i < self->lost_count; i++)
        buf_printf(out, "left out   %s: it is no tensor, and format=%s cannot hold it\n", self->lost[i]->fqn,
                   format_name(self->options.format));
    if (result->was_complete)
        buf_append_text(out, "complete   an earlier attempt had done all of it\n");
    else
        buf_printf(out, "converted  %s read, %s written in %.2f s, %s\n",
                   units_format_bytes((double)result->bytes_read, read),
                   units_format_bytes((double)result->bytes_written, written), seconds,
                   units_format_rate((double)result->bytes_written / (seconds > 0 ? seconds : 1), rate));
    if (result->files_kept > 0 && !result->was_complete)
        buf_printf(out, "kept       %" PRIu64 " file%s of an earlier attempt, checksums right\n", result->files_kept,
                   units_plural(result->files_kept));
    buf_printf(out, "checksums  %" PRIu64 " of the source compared\n", result->checksums);
    return buf_check(out, "the answer", err);
}

static int write_json(struct conversion *self, struct cb_err *err)
{
    struct json_writer json;
    json_writer_init(&json, &self->cli->out, 2);
    json_write_begin_object(&json);
    json_member_text(&json, "source", self->source.path);
    json_member_text(&json, "target", self->target);
    json_member_text(&json, "format", format_name(self->options.format));
    json_member_u64(&json, "tensors", self->checkpoint->tensor_count - self->value_count - self->lost_count);
    json_member_u64(&json, "values", self->value_count);
    json_member_u64(&json, "files", self->result.files);
    json_member_u64(&json, "files_kept", self->result.files_kept);
    json_member_u64(&json, "bytes_read", self->result.bytes_read);
    json_member_u64(&json, "bytes_written", self->result.bytes_written);
    json_member_u64(&json, "checksums", self->result.checksums);
    json_member_bool(&json, "was_complete", self->result.was_complete);
    json_member_double(&json, "seconds", (double)self->took_ns / 1e9);
    json_member_array(&json, "left_out");
    for (size_t i = 0; i < self->lost_count; i++)
        json_write_text(&json, self->lost[i]->fqn);
    return cli_end_json(self->cli, &json, err);
}

static void release(struct conversion *self)
{
    for (size_t i = 0; i < self->value_count; i++) {
        free(self->values[i].literal);
        free(self->values[i].blob);
    }
    free(self->values);
    free(self->lost);
    plan_free(self->plan);
    layout_free(self->layout);
    stored_checkpoint_free(self->checkpoint);
    checkpoint_arg_release(&self->source);
    experiment_free(self->experiment);
}

static int run_convert(struct cli *cli, struct cb_err *err)
{
    struct conversion self = {.cli = cli};
    const char *from = NULL;
    int code = experiment_new(&self.experiment, err);
    if (!code)
        code = read_words(&self, &from, err);
    if (!code)
        code = checkpoint_arg_open(&self.source, from, err);
    if (!code)
        code = checkpoint_arg_read(&self.source, &self.checkpoint, err);
    if (!code)
        code = make_plan(&self, err);
    if (!code)
        code = do_it(&self, err);
    if (!code)
        code = cli->json ? write_json(&self, err) : write_text(&self, err);
    release(&self);
    return code;
}

static const struct verb_flag flags[] = {
    {"memory", "BYTES", "how much may be held of the data at once (256MiB)"},
};

const struct verb verb_convert = {
    .name = "convert",
    .arguments = "SRC DST [key=value…]",
    .summary = "a stored checkpoint in another format or layout",
    .about = "SRC is a checkpoint of any format and any writer (as for verify), DST a new folder, or " STORE_S3
             "BUCKET/PREFIX. The keys say what is "
             "made: format (dcp, raw, safetensors, dcp+safetensors), the layout (ranks, tp, pp, dp, ep, zero, "
             "sharding, mesh, pp.split, save.dedup) and the files (io.files, io.fanout, io.fsync, checksum). Data "
             "streams through --memory. The source's checksums are compared before the new checkpoint becomes one. A "
             "conversion that was stopped leaves none, and goes on when it is started again. What is no tensor is "
             "kept where the format can; what is left out is named.",
    .example = "ckptbench convert ./ckpt/20261121-k3f9 ./hf format=safetensors io.files=4",
    VERB_FLAGS(flags),
    .reads_checkpoint = true,
    .run = run_convert,
};
