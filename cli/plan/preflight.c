/* Compares the needs of a run with the resources of this machine. The ranks check again when they start. */
#include "cli/plan/preflight.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "cli/plan/store_location.h"
#include "core/memory.h"
#include "core/units.h"
#include "setup/memory_estimate.h"
#include "store/kind.h"

/* Memory of one of our ranks without any state (Open MPI 4.1: 16 MiB and 5 threads). */
#define PROCESS_BYTES (16 * MIB)
#define PROCESS_THREADS 4

static uint64_t read_limit(const char *path)
{
    struct buf text;
    buf_init(&text, 256);
    uint64_t limit = UINT64_MAX;
    if (buf_read_file(&text, path, NULL) == 0 && text.len > 0 && text.data[0] >= '0' && text.data[0] <= '9')
        limit = strtoull(text.data, NULL, 10);
    buf_release(&text);
    return limit;
}

/* The smallest limit on processes and threads, and its name. */
static uint64_t thread_limit(const char **name)
{
    static const char *const files[] = {"/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"};
    static const char *const names[] = {"kernel.pid_max", "kernel.threads-max"};
    struct rlimit processes;
    uint64_t least = UINT64_MAX;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        uint64_t limit = read_limit(files[i]);
        if (limit < least) {
            least = limit;
            *name = names[i];
        }
    }
    if (getrlimit(RLIMIT_NPROC, &processes) == 0 && processes.rlim_cur != RLIM_INFINITY && processes.rlim_cur < least) {
        least = processes.rlim_cur;
        *name = "ulimit -u";
    }
    return least;
}

static int check_ranks(uint32_t ranks, struct cb_err *err)
{
    const char *name = "";
    uint64_t threads = thread_limit(&name), available;
    char need[32], have[32];
    if ((uint64_t)ranks * PROCESS_THREADS > threads)
        return cb_fail(err, CB_ERR_USAGE,
                       "%" PRIu32 " ranks cannot be started on this machine: they take about %" PRIu64
                       " processes and threads, and %s is %" PRIu64
                       ". `ckptbench plan` looks at any number without starting them",
                       ranks, (uint64_t)ranks * PROCESS_THREADS, name, threads);
    if (memory_available(&available, NULL) || (uint64_t)ranks * PROCESS_BYTES <= available)
        return 0;
    return cb_fail(
        err, CB_ERR_USAGE,
        "%" PRIu32 " ranks cannot be started on this machine: their processes alone take about %s of memory, "
        "and %s is free. `ckptbench plan` looks at any number without starting them",
        ranks, units_format_bytes((double)ranks * PROCESS_BYTES, need), units_format_bytes((double)available, have));
}

static int check_memory(const struct experiment *experiment, const struct workload *workload, struct cb_err *err)
{
    uint64_t largest, available, needed = estimate_memory_bytes(&workload->layouts, experiment, &largest);
    char need[32], each[32], have[32];
    if (memory_available(&available, NULL) || needed <= available)
        return 0;
    return cb_fail(
        err, CB_ERR_USAGE,
        "the state of %" PRIu32 " rank%s needs %s of memory (up to %s a rank), and this machine has %s free: "
        "use fewer ranks, a smaller model, or layers=N",
        workload->layouts.ranks, units_plural(workload->layouts.ranks), units_format_bytes((double)needed, need),
        units_format_bytes((double)largest, each), units_format_bytes((double)available, have));
}

static int check_space(const struct experiment *experiment, const struct workload *workload, struct cb_err *err)
{
    struct store_uri uri = store_uri_of(experiment_text(experiment, OPT_STORE));
    uint64_t needed = estimate_store_bytes(&workload->layouts, experiment), available;
    char need[32], have[32];
    if (uri.inner[0] != '/' || store_location_free_bytes(uri.inner, &available) || needed <= available)
        return 0;
    return cb_fail(
        err, CB_ERR_USAGE,
        "this run needs about %s in store %s, but only %s is free: use a smaller model, layers=N, or another "
        "store",
        units_format_bytes((double)needed, need), uri.inner, units_format_bytes((double)available, have));
}

int preflight_check(const struct experiment *experiment, const struct workload *workload, struct cb_err *err)
{
    if (!workload->layout)
        return 0; /* the cluster suite has no model; its sections check their own needs */
    if (*experiment_text(experiment, OPT_HOSTS) || experiment_u64(experiment, OPT_NODES) > 1)
        return 0;
    int rc = check_ranks(workload->layouts.ranks, err);
    if (rc || !workload->layout) /* the suite has no state; its ranks check their own needs */
        return rc;
    rc = check_memory(experiment, workload, err);
    return rc ? rc : check_space(experiment, workload, err);
}
