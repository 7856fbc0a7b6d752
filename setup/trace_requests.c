/* Turns the completions of a store into records of a trace. */
#include "setup/trace_requests.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "core/path.h"
#include "core/units.h"
#include "run/request_trace.h"

/* While no request is in flight, what is in the buffer is written at most this often: a killed rank loses little. */
#define FLUSH_NS (50 * NS_PER_MS)
#define FACT "trace"

struct trace_requests {
    struct request_trace *trace;
    struct status_page *page; /* borrowed */
    struct store *store;      /* borrowed */
    bool async;
    uint64_t flushed_ns;
    char name[64]; /* of the file */
};

/* Copies the end of a name; NUL-terminated only if there is room. */
static void copy_end(char *to, size_t bytes, const char *name)
{
    size_t len = strlen(name), skip = len > bytes ? len - bytes : 0;
    memcpy(to, name + skip, len - skip);
}

static void record(void *context, const struct store_completion *completion)
{
    static const uint8_t kinds[] = {
        [STORE_WRITE] = REQUEST_WRITE, [STORE_READ] = REQUEST_READ, [STORE_FINISH] = REQUEST_FINISH};
    struct trace_requests *self = context;
    const struct status_page *page = self->page;
    uint32_t op = self->async ? atomic_load_explicit(&page->behind_op, memory_order_relaxed)
                              : atomic_load_explicit(&page->op, memory_order_relaxed);
    struct traced_request request = {
        .start_ns = completion->submitted_ns - page->time_origin_ns,
        .latency_ns = completion->completed_ns - completion->submitted_ns,
        .offset = completion->offset,
        .bytes = completion->bytes,
        .iteration = self->async ? atomic_load_explicit(&page->behind_iteration, memory_order_relaxed)
                                 : atomic_load_explicit(&page->iteration, memory_order_relaxed),
        .op = (uint16_t)op,
        .kind = kinds[completion->kind],
        .failed = completion->code != 0,
    };
    copy_end(request.file, sizeof request.file, store_object_name(completion->object));
    request_trace_add(self->trace, &request);
    if (store_in_flight(self->store) == 0 && completion->completed_ns > self->flushed_ns + FLUSH_NS) {
        self->flushed_ns = completion->completed_ns;
        request_trace_flush(self->trace);
    }
}

int trace_requests_start(const struct experiment *experiment, const struct trace_place *place, struct status_page *page,
                         struct store *store, bool async, struct trace_requests **trace, struct cb_err *err)
{
    char attempt[PATH_MAX], path[PATH_MAX];
    *trace = NULL;
    if (!experiment_is(experiment, OPT_TRACE, "full"))
        return 0;
    int rc = path_format(attempt, sizeof attempt, err, "%s/attempts/%u", place->run_folder, place->attempt);
    if (rc)
        return rc;
    if (access(attempt, W_OK) < 0) {
        status_page_add_fact(page, FACT, "none: the run's folder is not on this node");
        return 0;
    }
    struct trace_requests *self = calloc(1, sizeof *self);
    if (!self)
        return alloc_fail(err, "for a trace of requests");
    self->page = page;
    self->store = store;
    self->async = async;
    snprintf(self->name, sizeof self->name, "rank-%u%s" REQUEST_TRACE_ENDING, page->rank, async ? ".async" : "");
    rc = path_format(path, sizeof path, err, "%s/traces/%s", attempt, self->name);
    if (!rc)
        rc = request_trace_open(path, page->rank, &self->trace, err);
    if (rc) {
        free(self);
        return rc;
    }
    store_watch(store, record, self);
    *trace = self;
    return 0;
}

void trace_requests_end(struct trace_requests *self)
{
    uint64_t written, lost;
    char text[160], more[64] = "";
    if (!self)
        return;
    store_watch(self->store, NULL, NULL);
    request_trace_close(self->trace, &written, &lost);
    if (lost > 0)
        snprintf(more, sizeof more, "; %" PRIu64 " could not be written", lost);
    snprintf(text, sizeof text, "%" PRIu64 " request%s in traces/%s%s", written, units_plural(written), self->name,
             more);
    status_page_add_fact(self->page, FACT, text);
    free(self);
}
