/* Shared by saves and loads of the native engine: agreement of ranks, names, timing, the sample. */
#include "engine/native.h"

#include <inttypes.h>
#include <stdio.h>

#include "engine/store_metrics.h"

/* Extra time for the last agreement after the deadline, so that all ranks learn the reason of a rank that hangs, instead of
 * reporting only their own time-out. */
#define AGREE_GRACE_NS (10 * UINT64_C(1000000000))

void native_begin(struct native_operation *operation, enum rank_state state)
{
    struct status_page *page = operation->engine->setup.page;
    atomic_store_explicit(&page->bytes_done, 0, memory_order_relaxed);
    atomic_store_explicit(&page->bytes_total, 0, memory_order_relaxed);
    atomic_store_explicit(&page->iteration, operation->options->iteration, memory_order_relaxed);
    if (!operation->options->async) /* else the save's thread resets them */
        store_metrics_begin(operation->lane->store);
    getrusage(operation->usage_of, &operation->usage);
    timeline_start(&operation->timeline, page, (enum operation)operation->sample->op, state);
    timeline_watch_backoff(&operation->timeline, operation->lane->store);
    if (atomic_load_explicit(&page->first_operation_ns, memory_order_relaxed) == 0)
        atomic_store_explicit(&page->first_operation_ns, operation->timeline.start_ns, memory_order_relaxed);
}

static double seconds_between(const struct timeval *from, const struct timeval *to)
{
    return (double)(to->tv_sec - from->tv_sec) + (double)(to->tv_usec - from->tv_usec) / 1e6;
}

double native_cpu_seconds(const struct native_operation *operation)
{
    struct rusage now;
    getrusage(operation->usage_of, &now);
    return seconds_between(&operation->usage.ru_utime, &now.ru_utime) +
           seconds_between(&operation->usage.ru_stime, &now.ru_stime);
}

void native_end(struct native_operation *operation)
{
    timeline_stop(&operation->timeline);
    native_fill(operation);
}

void native_fill(struct native_operation *operation)
{
    struct sample *sample = operation->sample;
    struct rusage now;
    timeline_fill(&operation->timeline, sample);
    getrusage(RUSAGE_SELF, &now);
    sample->values[METRIC_CPU_S] = operation->cpu_s + native_cpu_seconds(operation);
    sample->values[METRIC_RSS_BYTES] = (double)now.ru_maxrss * 1024;
    sample->values[METRIC_BYTES_NEEDED] = (double)operation->bytes_needed;
    sample->values[METRIC_BYTES_MOVED] = (double)operation->counts.bytes;
    sample->values[METRIC_BYTES_COPIED] = (double)operation->bytes_copied;
    sample->values[METRIC_REQUESTS] = (double)operation->counts.requests;
    sample->values[METRIC_ERRORS] = (double)operation->counts.errors;
    sample->values[METRIC_RETRIES] = 0;
    if (!transfer_is_stuck(operation->lane->transfer))
        store_metrics_fill(operation->lane->store, sample, operation->engine->setup.page);
}

int native_agree(struct native_operation *operation, int code, uint64_t number, struct agreement *agreement,
                 struct cb_err *err)
{
    uint64_t unused = 0;
    return native_agree_and_share(operation, code, number, &unused, agreement, err);
}

int native_agree_and_share(struct native_operation *operation, int code, uint64_t number, uint64_t *word,
                           struct agreement *agreement, struct cb_err *err)
{
    struct comm *comm = operation->lane->comm;
    uint64_t deadline_ns = operation->options->deadline_ns;
    struct cb_err own_failure;
    char reason[COMM_REASON_BYTES] = "";
    deadline_ns = deadline_ns < UINT64_MAX - AGREE_GRACE_NS ? deadline_ns + AGREE_GRACE_NS : UINT64_MAX;
    int rc = comm_agree_and_share(comm, code, number, word, deadline_ns, agreement, code ? &own_failure : err);
    if (!rc && agreement->code)
        comm_share_reason(comm, agreement, code ? err->message : "", deadline_ns, reason);
    if (code)
        return code;
    if (!rc && agreement->code)
        rc = cb_fail(err, CB_ERR_ABORTED, "rank %" PRIu32 " failed (%s)%s: %s%s%s", agreement->failed_rank,
                     cb_code_name(agreement->code), agreement->failed_count > 1 ? " and others" : "",
                     *reason ? reason : "nothing of ", *reason ? "" : operation->path, *reason ? "" : " counts");
    return rc;
}

int native_name(const char *path, const char *name, char text[PATH_MAX], struct cb_err *err)
{
    int len = snprintf(text, PATH_MAX, "%s/%s", path, name);
    return len < PATH_MAX ? 0 : cb_fail(err, CB_ERR_USAGE, "the name %s/%s is too long", path, name);
}

int native_copy_name(const char *path, uint32_t copy, const char *name, char text[PATH_MAX], struct cb_err *err)
{
    if (copy == 0)
        return native_name(path, name, text, err);
    int len = snprintf(text, PATH_MAX, "%s/copy-%" PRIu32 "/%s", path, copy, name);
    return len < PATH_MAX ? 0
                          : cb_fail(err, CB_ERR_USAGE, "the name %s/copy-%" PRIu32 "/%s is too long", path, copy, name);
}
