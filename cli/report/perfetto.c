/* Prints traces of requests as Chrome trace events. */
#include "cli/report/perfetto.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/json.h"
#include "core/path.h"
#include "run/request_trace.h"
#include "run/status_page.h"

#define PRINT_BYTES (1 << 20) /* printed at once */

static int is_trace(const struct dirent *entry)
{
    size_t len = strlen(entry->d_name), ending = strlen(REQUEST_TRACE_ENDING);
    return len > ending && strcmp(entry->d_name + len - ending, REQUEST_TRACE_ENDING) == 0;
}

static int by_start(const void *a, const void *b)
{
    const struct traced_request *left = a, *right = b;
    return (left->start_ns > right->start_ns) - (left->start_ns < right->start_ns);
}

/* Threads of a process: the time until which each has a request. Events of a thread must not overlap. */
struct threads {
    uint64_t *until_ns;
    size_t count;
};

/* The first thread that is free. */
static int find_thread(struct threads *self, const struct traced_request *request, size_t *thread, struct cb_err *err)
{
    for (*thread = 0; *thread < self->count && self->until_ns[*thread] > request->start_ns; (*thread)++)
        ;
    if (*thread == self->count) {
        int rc = alloc_grow(&self->until_ns, self->count, sizeof *self->until_ns, err);
        if (rc)
            return rc;
        self->count++;
    }
    self->until_ns[*thread] = request->start_ns + request->latency_ns;
    return 0;
}

static void begin_event(struct json_writer *json, const char *name, const char *phase, uint32_t rank, size_t thread)
{
    json_write_begin_object(json);
    json_member_text(json, "name", name);
    json_member_text(json, "ph", phase);
    json_member_u64(json, "pid", rank + UINT64_C(1)); /* readers give process and thread 0 a meaning of their own */
    json_member_u64(json, "tid", thread + 1);
}

static void write_name(struct json_writer *json, const char *what, uint32_t rank, size_t thread, const char *name)
{
    begin_event(json, what, "M", rank, thread);
    json_member_object(json, "args");
    json_member_text(json, "name", name);
    json_write_end_object(json);
    json_write_end_object(json);
}

static void write_request(struct json_writer *json, const struct run_info *run, uint32_t rank, size_t thread,
                          const struct traced_request *request)
{
    char file[REQUEST_TRACE_FILE_BYTES + 1] = "";
    memcpy(file, request->file, REQUEST_TRACE_FILE_BYTES);
    begin_event(json, timed_kind_name(request->kind), "X", rank, thread);
    json_member_text(json, "cat", operation_name((enum operation)request->op));
    json_member_double(json, "ts", (double)request->start_ns / 1e3);
    json_member_double(json, "dur", (double)request->latency_ns / 1e3);
    json_member_object(json, "args");
    json_member_i64(json, "iteration",
                    (int64_t)request->iteration + 1 - (int64_t)experiment_u64(run->experiment, OPT_WARMUP));
    json_member_text(json, "file", file);
    json_member_u64(json, "offset", request->offset);
    json_member_u64(json, "bytes", request->bytes);
    if (request->failed)
        json_member_bool(json, "failed", true);
    json_write_end_object(json);
    json_write_end_object(json);
}

static int write_trace(struct cli *cli, struct json_writer *json, const struct run_info *run, bool async,
                       struct request_trace_file *trace, struct cb_err *err)
{
    struct threads threads = {0};
    char name[64];
    int rc = 0;
    snprintf(name, sizeof name, "rank %u", trace->rank);
    write_name(json, "process_name", trace->rank, 0, name);
    qsort(trace->requests, trace->count, sizeof *trace->requests, by_start);
    size_t first = async ? 1 << 16 : 0; /* a rank's asynchronous saves have threads of their own */
    for (size_t i = 0; i < trace->count && !rc; i++) {
        size_t thread = 0, before = threads.count;
        rc = find_thread(&threads, &trace->requests[i], &thread, err);
        if (rc)
            break;
        snprintf(name, sizeof name, "%srequest %zu", async ? "asynchronous " : "", thread + 1);
        if (threads.count > before)
            write_name(json, "thread_name", trace->rank, first + thread, name);
        write_request(json, run, trace->rank, first + thread, &trace->requests[i]);
        if (cli->out.len > PRINT_BYTES)
            rc = cli_flush(cli, err);
    }
    free(threads.until_ns);
    return rc;
}

int perfetto_write(struct cli *cli, const struct run_info *run, struct cb_err *err)
{
    char folder[PATH_MAX], path[PATH_MAX];
    struct dirent **entries = NULL;
    struct json_writer json;
    int rc = path_format(folder, sizeof folder, err, "%s/attempts/%u/traces", run->folder, run->attempt);
    if (rc)
        return rc;
    int count = scandir(folder, &entries, is_trace, versionsort);
    if (count < 0 && errno != ENOENT)
        return cb_fail_errno(err, errno, "listing %s", folder);
    if (count <= 0)
        rc = cb_fail(err, CB_ERR_NOT_FOUND, "run %s has no traces: they are kept with trace=full", run->run);
    json_writer_init(&json, &cli->out, 0);
    if (!rc) {
        json_write_begin_object(&json);
        json_member_text(&json, "displayTimeUnit", "ms");
        json_member_array(&json, "traceEvents");
    }
    for (int i = 0; i < count && !rc; i++) {
        struct request_trace_file trace;
        rc = path_format(path, sizeof path, err, "%s/%s", folder, entries[i]->d_name);
        if (!rc)
            rc = request_trace_read(path, &trace, err);
        if (rc)
            break;
        rc = write_trace(cli, &json, run, strstr(entries[i]->d_name, ".async.") != NULL, &trace, err);
        request_trace_release(&trace);
    }
    for (int i = 0; i < count; i++)
        free(entries[i]);
    free(entries);
    return rc ? rc : cli_end_json(cli, &json, err);
}
