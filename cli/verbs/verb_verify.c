/* ckptbench verify: checks that a stored checkpoint is complete and correct. */
#include <stdio.h>
#include <string.h>

#include "ckpt/stored/verify.h"
#include "cli/cli.h"
#include "cli/plan/checkpoint_arg.h"
#include "core/alloc.h"
#include "core/json.h"
#include "core/units.h"

/* A file that is too short: its first missing item is printed, the others are only counted. */
struct short_file {
    char *name; /* owned */
    uint64_t more;
};

struct answer {
    struct cli *cli;
    struct json_writer *writer;
    struct short_file *files;
    size_t file_count;
};

/* Returns false for problems that must be printed; if memory is short, for all of them. */
static bool is_counted(struct answer *self, const struct verify_problem *problem)
{
    if (problem->kind != VERIFY_SHORT || cli_has_flag(self->cli, "all"))
        return false;
    for (size_t i = self->file_count; i-- > 0;) {
        if (strcmp(self->files[i].name, problem->file) == 0) {
            self->files[i].more++;
            return true;
        }
    }
    if (alloc_grow(&self->files, self->file_count, sizeof *self->files, NULL))
        return false;
    self->files[self->file_count] = (struct short_file){.name = strdup(problem->file)};
    self->file_count += self->files[self->file_count].name != NULL;
    return false;
}

static void report(void *context, const struct verify_problem *problem)
{
    struct answer *self = context;
    const char *kind = verify_problem_name(problem->kind);
    if (self->cli->json) {
        json_write_begin_object(self->writer);
        json_member_text(self->writer, "kind", kind);
        json_member_text(self->writer, "file", problem->file);
        json_member_text(self->writer, "tensor", problem->tensor);
        json_member_u64_or_null(self->writer, "offset", problem->file != NULL, problem->offset);
        json_member_text(self->writer, "text", problem->text);
        json_write_end_object(self->writer);
    } else if (!is_counted(self, problem)) {
        buf_printf(&self->cli->out, "%-10s %s\n", kind, problem->text);
    }
}

static const char *contents_of(const struct verify_result *result, char text[VERIFY_CONTENTS_BYTES])
{
    return result->format
               ? verify_contents(result->format, result->unproven, result->checksums + result->values_checked, text)
               : "not checked: it is not known what they are";
}

static void write_result_json(struct json_writer *writer, const struct checkpoint_arg *source,
                              const struct verify_result *result)
{
    char text[VERIFY_CONTENTS_BYTES];
    json_member_text(writer, "path", source->path);
    json_member_text(writer, "chosen", *source->how ? source->how : NULL);
    json_member_bool(writer, "complete", result->format != NULL);
    json_member_bool(writer, "verified", result->problems == 0);
    json_member_text(writer, "format", result->format);
    json_member_u64(writer, "tensors", result->counts.tensors);
    json_member_u64(writer, "value_count", result->counts.values);
    json_member_u64(writer, "items", result->counts.items);
    json_member_u64(writer, "files", result->counts.files);
    json_member_u64(writer, "tensor_bytes", result->counts.tensor_bytes);
    json_member_u64(writer, "payload_bytes", result->payload_bytes);
    json_member_u64(writer, "checksums", result->checksums);
    json_member_u64(writer, "values_checked", result->values_checked);
    json_member_text(writer, "values", result->values);
    json_member_u64(writer, "unproven_items", result->unproven);
    json_member_text(writer, "contents", contents_of(result, text));
}

/* The number of problems, and advice. */
static void write_advice(const struct verify_result *result, struct buf *out)
{
    bool empty = result->format && result->counts.tensors + result->counts.values == 0;
    buf_printf(out, "wrong      %llu problem%s: %s\n", (unsigned long long)result->problems,
               units_plural(result->problems),
               !result->format ? "without its marker it must not be used; go back to an older checkpoint"
               : empty         ? "nothing can be loaded from it"
                               : "do not go on from it; restore the files named from a copy, or go back to an older "
                                 "checkpoint");
}

static void write_result(struct cli *cli, const struct checkpoint_arg *source, const struct verify_result *result)
{
    char counts[STORED_TEXT_BYTES], text[VERIFY_CONTENTS_BYTES];
    const char *contents = contents_of(result, text);
    if (!result->format) {
        write_advice(result, &cli->out);
        return;
    }
    stored_describe(result->format, &result->counts, counts);
    checkpoint_arg_write_name(source, &cli->out);
    buf_printf(&cli->out, ": %s\n", counts);
    buf_printf(&cli->out, "checksums  %llu compared\n", (unsigned long long)result->checksums);
    if (result->values)
        buf_printf(&cli->out, "values     %llu item%s recomputed (payload=%s)\n",
                   (unsigned long long)result->values_checked, units_plural(result->values_checked), result->values);
    else
        buf_append_text(&cli->out, "values     not ours: nothing to compare with\n");
    if (result->problems > 0)
        write_advice(result, &cli->out);
    else if (strcmp(contents, "checked") != 0)
        buf_printf(&cli->out, "complete   every element of every tensor is there once; contents %s\n", contents);
    else
        buf_append_text(&cli->out, "verified   every element of every tensor is there once\n");
}

static int verify_path(struct cli *cli, const char *path, const uint64_t *seed, struct cb_err *err)
{
    struct checkpoint_arg source;
    int rc = checkpoint_arg_open(&source, path, err);
    if (rc)
        return rc;
    struct json_writer writer;
    struct answer answer = {.cli = cli, .writer = &writer};
    struct verify_result result;
    json_writer_init(&writer, &cli->out, 2);
    if (cli->json) {
        json_write_begin_object(&writer);
        json_member_array(&writer, "problems");
    }
    struct verify_job job = {.place = source.path, .file = source.file, .seed = seed, .threads = cli_cores()};
    rc = verify_checkpoint(&job, report, &answer, &result, err);
    for (size_t i = 0; i < answer.file_count; i++) {
        const struct short_file *file = &answer.files[i];
        if (file->more > 0)
            buf_printf(&cli->out, "%-10s %s: %llu more item%s beyond its end; --all names each\n",
                       verify_problem_name(VERIFY_SHORT), file->name, (unsigned long long)file->more,
                       units_plural(file->more));
        free(file->name);
    }
    free(answer.files);
    checkpoint_arg_release(&source);
    if (rc)
        return rc;
    if (result.problems > 0)
        cli->exit_code = CB_EXIT_BENCHMARK;
    if (!cli->json) {
        write_result(cli, &source, &result);
        return buf_check(&cli->out, "the answer", err);
    }
    json_write_end_array(&writer);
    write_result_json(&writer, &source, &result);
    return cli_end_json(cli, &writer, err);
}

static int run_verify(struct cli *cli, struct cb_err *err)
{
    if (cli->word_count != 1)
        return cb_fail(err, CB_ERR_USAGE,
                       "verify takes the folder of one checkpoint, as in `ckptbench verify ./ckpt/RUN`");
    const char *text = cli_flag_value(cli, "seed");
    uint64_t seed = 0;
    if (text) {
        char *end;
        seed = strtoull(text, &end, 10);
        if (end == text || *end != '\0')
            return cb_fail(err, CB_ERR_USAGE, "--seed %s: expected a whole number", text);
    }
    return verify_path(cli, cli->words[0], text ? &seed : NULL, err);
}

static const struct verb_flag flags[] = {
    {"seed", "SEED", "the seed of the values, where the checkpoint does not store it (state=weights)"},
    {"all", NULL, "name each item of a file that is too short, not the first one alone"},
};

const struct verb verb_verify = {
    .name = "verify",
    .arguments = "PATH",
    .summary = "is a stored checkpoint complete, and is every byte right?",
    .about = "PATH is the folder of a checkpoint (DCP, safetensors, DCP over safetensors, raw; ours or others'), a "
             "safetensors file, or the folder of a run: then the last checkpoint in it. Any other folder may have one "
             "checkpoint directly in it. Each element of each tensor "
             "must be stored exactly once, files must be long enough, checksums must hold, and values that this "
             "program wrote must be what the seed gives. Every missing, short or corrupt item is named with file, "
             "tensor and offset. Exit code 3 when something is wrong.",
    .example = "ckptbench verify ./ckpt/20261121-k3f9",
    VERB_FLAGS(flags),
    .reads_checkpoint = true,
    .run = run_verify,
};
