/* engine=command: runs a shell command that saves or loads, measures its time and the size of its files, and reads the
 * metrics that it reports. Nothing is verified, since the command's format is unknown. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/buf.h"
#include "core/json.h"
#include "engine/external/engine_command.h"
#include "engine/external/external_engine.h"

#define COMMAND_MAX_BYTES (128 * 1024)
#define VALUE_MAX 1e18 /* larger than any real value, but sums of it stay finite */
#define VALUE_COUNT 6

struct command_engine {
    struct engine base;
    struct engine_setup setup;
};

/* Quotes a text as one word for the shell, such as 'it'"'"'s'. */
static void append_quoted(struct buf *out, const char *text)
{
    buf_append_char(out, '\'');
    for (; *text; text++) {
        if (*text == '\'')
            buf_append_text(out, "'\"'\"'");
        else
            buf_append_char(out, *text);
    }
    buf_append_char(out, '\'');
}

int command_expand(const char *template, const struct command_value *values, size_t count, struct buf *out,
                   struct cb_err *err)
{
    for (const char *at = template; *at;) {
        size_t i = 0, len = 0;
        for (; i < count && *at == '{'; i++) {
            len = strlen(values[i].name);
            if (strncmp(at + 1, values[i].name, len) == 0 && at[1 + len] == '}')
                break;
        }
        if (*at != '{' || i == count) {
            buf_append_char(out, *at++); /* other braces are the shell's */
            continue;
        }
        append_quoted(out, values[i].text);
        at += len + 2;
    }
    return buf_check(out, "the command", err);
}

/* Sample metrics by name, from {"metrics": {name: value}}. */
static int take_metrics(const struct json_value *metrics, struct sample *sample, struct cb_err *err)
{
    size_t position = 0;
    const char *name;
    const struct json_value *value;
    while (json_next(metrics, &position, &name, &value)) {
        enum metric_id id;
        double number = NAN;
        if (!metric_find(name, &id) || metric_row(id)->scope != METRIC_OF_SAMPLE)
            return cb_fail(err, CB_ERR_USAGE,
                           "the command reports metric '%s', which is none of an operation (see docs/metrics.md)",
                           name);
        if (!json_is_null(value) && !json_as_double(value, &number))
            return cb_fail(err, CB_ERR_USAGE, "the command reports metric '%s' with a value that is no number", name);
        if (number < 0 || number > VALUE_MAX)
            return cb_fail(err, CB_ERR_USAGE, "the command reports metric '%s' as %g: expected 0 … %g", name, number,
                           VALUE_MAX);
        bool is_state = metric_row(id)->group == METRIC_GROUP_STATE && id != METRIC_OTHER_S && id != METRIC_WAIT_S;
        if (is_state)
            external_attribute(sample, id, number);
        else if (!json_is_null(value))
            sample->values[id] = number;
    }
    return 0;
}

int command_take_report(const char *output, size_t len, struct sample *sample, struct cb_err *err)
{
    while (len > 0 && (output[len - 1] == '\n' || output[len - 1] == '\r' || output[len - 1] == ' '))
        len--;
    size_t start = len;
    while (start > 0 && output[start - 1] != '\n')
        start--;
    if (start == len || output[start] != '{')
        return 0; /* only an object on the last line is a report */
    struct json_value *root;
    int rc = json_parse(output + start, len - start, &root, err);
    if (rc)
        return cb_context(err, "the command's last line looks like a report, but is not JSON");
    const struct json_value *metrics = json_get(root, "metrics");
    if (metrics && !json_is_object(metrics))
        rc = cb_fail(err, CB_ERR_FORMAT, "the command's report: metrics: expected an object");
    else if (metrics)
        rc = take_metrics(metrics, sample, err);
    json_value_free(root);
    return rc;
}

static int read_output(int fd, struct buf *out, struct cb_err *err)
{
    char bytes[65536];
    off_t at = 0;
    for (ssize_t len = pread(fd, bytes, sizeof bytes, at); len > 0; len = pread(fd, bytes, sizeof bytes, at)) {
        buf_append(out, bytes, (size_t)len);
        at += len;
    }
    return buf_check(out, "the command's output", err);
}

struct invocation {
    char rank[16], ranks[16], iteration[16], bytes[32];
    struct command_value values[VALUE_COUNT];
    char environment_text[VALUE_COUNT][PATH_MAX + 32], endpoint[600], region[128];
    const char *environment[VALUE_COUNT + 3];
    struct buf line;
    int stdout_fd, stderr_fd;
};

/* The s3.* keys, under the names of the AWS environment variables. */
static void add_bucket(struct invocation *self, const struct engine_config *config)
{
    const char *endpoint = config->s3_endpoint, *region = config->s3_region;
    size_t count = VALUE_COUNT;
    snprintf(self->endpoint, sizeof self->endpoint, "AWS_ENDPOINT_URL=%s", endpoint);
    snprintf(self->region, sizeof self->region, "AWS_REGION=%s", region);
    if (*endpoint)
        self->environment[count++] = self->endpoint;
    if (*region)
        self->environment[count++] = self->region;
}

static int fill_invocation(struct invocation *self, const struct command_engine *engine,
                           const struct external_operation *operation, uint64_t bytes, struct cb_err *err)
{
    static const char *const variables[VALUE_COUNT] = {"CKPTBENCH_OP",    "CKPTBENCH_PATH",      "CKPTBENCH_RANK",
                                                       "CKPTBENCH_RANKS", "CKPTBENCH_ITERATION", "CKPTBENCH_BYTES"};
    snprintf(self->rank, sizeof self->rank, "%u", comm_rank(engine->setup.comm));
    snprintf(self->ranks, sizeof self->ranks, "%u", comm_size(engine->setup.comm));
    snprintf(self->iteration, sizeof self->iteration, "%u", operation->options->iteration);
    snprintf(self->bytes, sizeof self->bytes, "%" PRIu64, bytes);
    const char *op = operation_name((enum operation)operation->sample->op);
    const struct command_value values[VALUE_COUNT] = {
        {"op", op},
        {"path", operation->path},
        {"rank", self->rank},
        {"ranks", self->ranks},
        {"iteration", self->iteration},
        {"bytes", self->bytes},
    };
    memcpy(self->values, values, sizeof values);
    for (size_t i = 0; i < VALUE_COUNT; i++) {
        snprintf(self->environment_text[i], sizeof self->environment_text[i], "%s=%s", variables[i],
                 self->values[i].text);
        self->environment[i] = self->environment_text[i];
    }
    add_bucket(self, &engine->setup.config);
    return command_expand(engine->setup.config.command, self->values, VALUE_COUNT, &self->line, err);
}

static int invocation_init(struct invocation *self, struct cb_err *err)
{
    memset(self, 0, sizeof *self);
    buf_init(&self->line, COMMAND_MAX_BYTES);
    self->stdout_fd = memfd_create("ckptbench-stdout", MFD_CLOEXEC);
    self->stderr_fd = memfd_create("ckptbench-stderr", MFD_CLOEXEC);
    if (self->stdout_fd < 0 || self->stderr_fd < 0)
        return cb_fail_errno(err, errno, "a memory file for the command's output");
    return 0;
}

static void invocation_release(struct invocation *self)
{
    buf_release(&self->line);
    if (self->stdout_fd >= 0)
        close(self->stdout_fd);
    if (self->stderr_fd >= 0)
        close(self->stderr_fd);
}

/* The timed part: one shell. */
static int invoke(struct invocation *self, const struct external_operation *operation, struct cb_err *err)
{
    const char *argv[] = {"/bin/sh", "-c", self->line.data, NULL};
    struct child_options options = {.argv = argv,
                                    .environment = self->environment,
                                    .stdin_fd = -1,
                                    .stdout_fd = self->stdout_fd,
                                    .stderr_fd = self->stderr_fd};
    const int output_fds[EXTERNAL_OUTPUTS] = {self->stdout_fd, self->stderr_fd};
    struct child child = {0};
    char how[64], last[512];
    int rc = child_start(&child, &options, err);
    if (!rc)
        rc = external_wait(operation, &child, output_fds, err);
    if (rc || child.status == 0)
        return rc;
    external_last_line(self->stderr_fd, last);
    return cb_fail(err, CB_ERR_CORRUPT, "the command failed at %s of %s: %s%s%s",
                   operation_name((enum operation)operation->sample->op), operation->path, child_describe(&child, how),
                   last[0] ? ": " : "", last);
}

/* If the command replaced its folder by a link, its contents are not the command's. */
static bool leads_elsewhere(const struct external_operation *operation)
{
    struct stat status;
    return !strstr(operation->path, "://") && lstat(operation->path, &status) == 0 && S_ISLNK(status.st_mode);
}

/* The size is known only for the whole folder, so rank 0 reports it. */
static int size_it(const struct external_operation *operation, const struct state *state, struct cb_err *err)
{
    struct sample *sample = operation->sample;
    uint64_t bytes = 0, files = 0;
    /* Which rank writes what is not known: of a save, each counts an equal share of the checkpoint. */
    sample->values[METRIC_BYTES_NEEDED] =
        sample->op == OP_SAVE ? (double)layout_total_bytes(operation->setup->layout) / comm_size(operation->setup->comm)
                              : (double)state->bytes;
    if (isnan(sample->values[METRIC_BYTES_MOVED]))
        sample->values[METRIC_BYTES_MOVED] = 0;
    if (comm_rank(operation->setup->comm) != 0)
        return 0;
    int rc =
        leads_elsewhere(operation) ? 0 : store_measure(operation->setup->plain, operation->name, &bytes, &files, err);
    if (rc)
        return rc;
    sample->values[METRIC_BYTES_MOVED] = (double)bytes;
    if (bytes == 0)
        return cb_fail(err, CB_ERR_CORRUPT, "the command's %s ended well, but %s holds no bytes",
                       operation_name((enum operation)sample->op), operation->path);
    return 0;
}

static double children_cpu_s(void)
{
    struct rusage usage;
    getrusage(RUSAGE_CHILDREN, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static int take_report(const struct invocation *invocation, struct sample *sample, struct cb_err *err)
{
    struct buf output;
    buf_init(&output, EXTERNAL_OUTPUT_MAX_BYTES);
    int rc = read_output(invocation->stdout_fd, &output, err);
    if (!rc)
        rc = command_take_report(output.data, output.len, sample, err);
    buf_release(&output);
    return rc;
}

static int run_command(struct engine *engine, const char *path, struct state *state,
                       const struct engine_options *options, struct sample *sample, struct cb_err *err)
{
    struct command_engine *self = (struct command_engine *)engine;
    struct external_operation operation;
    struct invocation invocation;
    int rc = invocation_init(&invocation, err);
    rc = external_begin(&operation, &self->setup, path, state->bytes, options, sample, rc, err);
    if (!rc) {
        double cpu_s = children_cpu_s();
        rc = fill_invocation(&invocation, self, &operation, state->bytes, err);
        if (!rc)
            rc = invoke(&invocation, &operation, err);
        rc = external_end(&operation, rc, err);
        sample->values[METRIC_CPU_S] = children_cpu_s() - cpu_s;
    }
    if (!rc) {
        rc = take_report(&invocation, sample, err);
        if (!rc)
            rc = size_it(&operation, state, err);
        rc = external_join(&operation, rc, err);
    }
    invocation_release(&invocation);
    return rc;
}

static int command_open(const struct engine_setup *setup, struct engine **engine, struct cb_err *err)
{
    struct command_engine *self = calloc(1, sizeof *self);
    if (!self)
        return alloc_fail(err, "for the engine");
    self->base.ops = &engine_command_ops;
    self->setup = *setup;
    *engine = &self->base;
    return 0;
}

static void command_close(struct engine *engine)
{
    free(engine);
}

const struct engine_ops engine_command_ops = {
    .name = "command",
    .open = command_open,
    .save = run_command,
    .load = run_command,
    .close = command_close,
};
