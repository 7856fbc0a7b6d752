/* The end of an attempt: outcome, records, manifest. */
#include "agent/attempt/seal.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "agent/attempt/node_peers.h"
#include "core/clock.h"
#include "core/memory.h"
#include "core/units.h"
#include "run/record.h"
#include "run/results.h"
#include "run/workload_kind.h"

#define LOG_MAX_BYTES (64 << 20)
#define LINE_MAX_BYTES 400
#define MPIRUN_FRAME " -*\t" /* mpirun prints a frame around its messages */

/* The rank whose failure is the reason: the lowest, but ranks that only stopped because of others come last. False if
 * no rank failed. */
static bool find_failed(const struct attempt *attempt, uint32_t *rank, int *code, uint32_t *count)
{
    bool found = false;
    *count = 0;
    for (uint32_t i = 0; i < attempt->pages.count; i++) {
        int own = -(int)atomic_load(&attempt->pages.page[i]->failure_code);
        if (own == 0)
            continue;
        (*count)++;
        if (!found || (*code == CB_ERR_ABORTED && own != CB_ERR_ABORTED)) {
            found = true;
            *rank = i;
            *code = own;
        }
    }
    return found;
}

static bool all_done(const struct attempt *attempt)
{
    for (uint32_t rank = 0; rank < attempt->pages.count; rank++) {
        if (atomic_load(&attempt->pages.page[rank]->phase) != PHASE_DONE)
            return false;
    }
    return attempt->pages.count > 0;
}

/* Whether all requested iterations had begun: then a later request to stop changed nothing. */
static bool all_iterations(const struct attempt *attempt)
{
    for (uint32_t rank = 0; rank < attempt->pages.count; rank++) {
        if (atomic_load(&attempt->pages.page[rank]->iteration) + UINT64_C(1) < attempt->warmup + attempt->iterations)
            return false;
    }
    return experiment_u64(attempt->experiment, OPT_DURATION) == 0;
}

/* A fact reported by a rank; "" if the rank did not report it. */
static void find_fact(const struct status_page *page, const char *key, char value[LINE_MAX_BYTES])
{
    uint32_t left = atomic_load_explicit(&page->facts_length, memory_order_acquire);
    const char *line = page->facts;
    size_t key_len = strlen(key);
    value[0] = '\0';
    for (left = left > STATUS_PAGE_TEXT_BYTES ? STATUS_PAGE_TEXT_BYTES : left; left > 0;) {
        const char *end = memchr(line, '\n', left);
        size_t len = end ? (size_t)(end - line) : left;
        if (len > key_len && strncmp(line, key, key_len) == 0 && line[key_len] == '=')
            snprintf(value, LINE_MAX_BYTES, "%.*s",
                     (int)(len - key_len - 1 < LINE_MAX_BYTES ? len - key_len - 1 : LINE_MAX_BYTES - 1),
                     line + key_len + 1);
        left -= (uint32_t)(end ? len + 1 : len);
        line += end ? len + 1 : len;
    }
}

static bool is_late(const struct attempt *attempt)
{
    return *attempt->time_is_up || attempt->limit_is_near;
}

/* Whether the rank was stopped by a signal that this agent did not send. */
static bool was_stopped(const struct attempt *attempt)
{
    char how[LINE_MAX_BYTES] = "";
    for (uint32_t rank = 0; rank < attempt->pages.count && !*how; rank++)
        find_fact(attempt->pages.page[rank], STATUS_FACT_STOPPED, how);
    return *how != '\0';
}

/* "srun: error: n2: task 3: Killed", "srun: error: n2: tasks 2-3: Segmentation fault (core dumped)": the first such
 * line names the first rank that died, since srun then ends the others. After a line "Exited with exit code 2",
 * SIGTERM is srun's own. */
static bool find_killed_task(const char *log, uint32_t *rank, int *signal_number)
{
    bool exited = false;
    for (const char *line = strstr(log, "srun: error: "); line; line = strstr(line + 1, "srun: error: ")) {
        size_t len = strcspn(line, "\n");
        char copy[LINE_MAX_BYTES];
        snprintf(copy, sizeof copy, "%.*s", (int)(len < sizeof copy ? len : sizeof copy - 1), line);
        const char *task = strstr(copy, ": task"), *reason = task ? strstr(task + 1, ": ") : NULL;
        if (!reason || (sscanf(task, ": task %" SCNu32, rank) != 1 && sscanf(task, ": tasks %" SCNu32, rank) != 1))
            continue;
        exited = exited || strncmp(reason, ": Exited with", strlen(": Exited with")) == 0;
        for (int number = 1; number < SIGRTMIN; number++) {
            const char *name = sigdescr_np(number);
            if (name && strncmp(reason + 2, name, strlen(name)) == 0 && !(exited && number == SIGTERM)) {
                *signal_number = number;
                return true;
            }
        }
    }
    return false;
}

/* "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)". The process that it names is any of those that
 * it killed after the first one died. */
static bool find_killed_by_mpich(const char *log, uint32_t *rank, int *signal_number)
{
    const char *line = strstr(log, "WITH THE EXIT STRING: "), *number = line ? strstr(line, "(signal ") : NULL;
    *rank = SEAL_RANK_UNKNOWN;
    return number && sscanf(number, "(signal %d", signal_number) == 1;
}

/* "mpirun noticed that process rank 2 with PID 4711 on node n exited on signal 9 (Killed)." */
bool seal_find_killed(const char *log, uint32_t *rank, int *signal_number)
{
    if (find_killed_task(log, rank, signal_number) || find_killed_by_mpich(log, rank, signal_number))
        return true;
    const char *line = strstr(log, "noticed that process rank ");
    const char *number = line ? strstr(line, "exited on signal ") : NULL;
    return number && sscanf(line, "noticed that process rank %" SCNu32, rank) == 1 &&
           sscanf(number, "exited on signal %d", signal_number) == 1;
}

static bool find_killed(const struct attempt *attempt, const char *log, uint32_t *rank, int *signal_number)
{
    if (attempt->has_launcher) {
        bool found = seal_find_killed(log, rank, signal_number);
        if (*rank == SEAL_RANK_UNKNOWN && attempt->pages.count == 1)
            *rank = 0;
        return found && (*rank == SEAL_RANK_UNKNOWN || *rank < attempt->pages.count);
    }
    *rank = 0;
    *signal_number = WTERMSIG(attempt->launcher.status);
    return attempt->launcher.exited && WIFSIGNALED(attempt->launcher.status);
}

/* SIGKILL is sent by people, by launchers, and by the OOM killer; the kernel counts OOM kills. */
static bool decide_out_of_memory(struct attempt *attempt, uint32_t rank, const char *place)
{
    char needed[LINE_MAX_BYTES], node[NODE_NAME_BYTES + 16];
    if (memory_oom_kills() <= attempt->oom_kills || nodes_are_remote(&attempt->nodes))
        return false;
    find_fact(attempt->pages.page[rank], "memory.needed", needed);
    bool trains = workload_kind_of(attempt->experiment)->trains;
    attempt_decide(attempt, OUTCOME_BENCHMARK_FAILED, CB_ERR_MEMORY,
                   "rank %u%s was killed in %s, when the kernel had no memory left%s%s: %s", rank,
                   node_peers_describe_node(attempt, rank, node), place, *needed ? ": it needs " : "", needed,
                   trains ? "use a smaller train.batch_size or train.seq_length, a smaller model, or fewer ranks here"
                          : "use a smaller model, layers=N, or fewer ranks here");
    return true;
}

static void decide_killed(struct attempt *attempt, uint32_t rank, int signal_number)
{
    char place[96], node[NODE_NAME_BYTES + 16];
    const char *name = sigabbrev_np(signal_number);
    if (rank == SEAL_RANK_UNKNOWN) {
        attempt_decide(attempt, OUTCOME_INFRASTRUCTURE, CB_ERR_SYSTEM,
                       "a rank was killed by signal %d (SIG%s): MPICH does not say which%s", signal_number,
                       name ? name : "?",
                       memory_oom_kills() > attempt->oom_kills ? "; the kernel had no memory left" : "");
        return;
    }
    if (signal_number == SIGKILL && decide_out_of_memory(attempt, rank, attempt_describe_place(attempt, rank, place)))
        return;
    attempt_decide(attempt, OUTCOME_INFRASTRUCTURE, CB_ERR_SYSTEM, "rank %u%s was killed by signal %d (SIG%s) in %s",
                   rank, node_peers_describe_node(attempt, rank, node), signal_number, name ? name : "?",
                   attempt_describe_place(attempt, rank, place));
}

/* The first line that the rank reported, from an offset. */
static void first_failure(const struct status_page *page, uint32_t from, char line[LINE_MAX_BYTES])
{
    uint32_t len = atomic_load_explicit(&page->failure_length, memory_order_acquire);
    len = len > STATUS_PAGE_TEXT_BYTES ? STATUS_PAGE_TEXT_BYTES : len;
    from = from < len ? from : 0;
    const char *start = page->failures + from, *end = memchr(start, '\n', len - from);
    size_t used = end ? (size_t)(end - start) : len - from;
    snprintf(line, LINE_MAX_BYTES, "%.*s", (int)(used < LINE_MAX_BYTES ? used : LINE_MAX_BYTES - 1), start);
}

static void decide_failed(struct attempt *attempt, uint32_t rank, int code, uint32_t count)
{
    char line[LINE_MAX_BYTES], more[48] = "";
    enum outcome outcome = OUTCOME_BENCHMARK_FAILED;
    first_failure(attempt->pages.page[rank], atomic_load(&attempt->pages.page[rank]->passed_length), line);
    if (count > 1)
        snprintf(more, sizeof more, " (and %u more rank%s)", count - 1, units_plural(count - 1));
    if (code == CB_ERR_TIMEOUT)
        outcome = OUTCOME_TIMEOUT;
    else if (code == CB_ERR_LIMIT)
        outcome = OUTCOME_INFRASTRUCTURE;
    else if (code == CB_ERR_ABORTED)
        outcome = is_late(attempt)        ? OUTCOME_TIMEOUT
                  : *attempt->signals > 0 ? OUTCOME_CANCELLED
                                          : OUTCOME_INFRASTRUCTURE;
    attempt_decide(attempt, outcome, code, "rank %u: %s%s", rank, line, more);
}

/* Stopped before the end, on request or because a time limit was near. */
static void decide_stopped(struct attempt *attempt)
{
    bool late = is_late(attempt);
    const char *why = *attempt->time_is_up     ? "the job's time limit came near"
                      : attempt->limit_is_near ? "timeout.run came near"
                                               : "stopped on request";
    enum outcome outcome = late ? OUTCOME_TIMEOUT : OUTCOME_CANCELLED;
    int code = late ? CB_ERR_TIMEOUT : CB_ERR_ABORTED;
    uint64_t done = atomic_load(&attempt->pages.page[0]->iteration) + UINT64_C(1);
    char stopped[LINE_MAX_BYTES];
    if (workload_kind_of(attempt->experiment)->trains) { /* training counts steps and reports the last one */
        find_fact(attempt->pages.page[0], "stopped", stopped);
        attempt_decide(attempt, outcome, code, "%s %s", why, *stopped ? stopped : "before the first step");
        return;
    }
    attempt_decide(attempt, outcome, code, "%s after %llu of %llu iterations", why,
                   (unsigned long long)(done > attempt->warmup ? done - attempt->warmup : 0),
                   (unsigned long long)attempt->iterations);
}

/* With on_error=continue a run passes with failed iterations: the message names them. */
static void decide_passed(struct attempt *attempt)
{
    char failed[LINE_MAX_BYTES], line[LINE_MAX_BYTES] = "";
    find_fact(attempt->pages.page[0], STATUS_FACT_FAILED, failed);
    uint32_t rank = 0;
    while (rank + 1 < attempt->pages.count && atomic_load(&attempt->pages.page[rank]->failure_length) == 0)
        rank++;
    if (*failed)
        first_failure(attempt->pages.page[rank], 0, line);
    attempt_decide(attempt, OUTCOME_PASS, 0, "%s%s%s", failed, *line ? "; " : "", line);
}

/* Decides an attempt that failed although no rank reported a failure. */
static void decide_silent(struct attempt *attempt, const char *log)
{
    char how[64], line[LINE_MAX_BYTES], place[96];
    uint32_t rank = 0;
    while (rank + 1 < attempt->pages.count && atomic_load(&attempt->pages.page[rank]->phase) == PHASE_DONE)
        rank++;
    text_last_line(log, MPIRUN_FRAME, line, sizeof line);
    child_describe(&attempt->launcher, how);
    const char *who = attempt->has_launcher ? attempt->launcher_name : "the worker";
    if (attempt->has_launcher && attempt->launcher.exited && WIFSIGNALED(attempt->launcher.status))
        attempt_decide(attempt, OUTCOME_INFRASTRUCTURE, CB_ERR_SYSTEM,
                       "%s, which had started the ranks, was %s; rank %u was in %s", who, how, rank,
                       attempt_describe_place(attempt, rank, place));
    else if (all_done(attempt))
        attempt_decide(attempt, OUTCOME_INFRASTRUCTURE, CB_ERR_SYSTEM, "%s ended with %s after all ranks were done: %s",
                       who, how, line);
    else if (!attempt->launched_ns && atomic_load(&attempt->pages.page[rank]->phase) == PHASE_STARTING) {
        /* The first line of a rank that ended before it had a page; launchers report on it only afterwards. */
        const char *at = strstr(log, "ckptbench-worker: ");
        if (at)
            snprintf(line, sizeof line, "%.*s",
                     (int)(strcspn(at, "\n") < sizeof line ? strcspn(at, "\n") : sizeof line - 1), at);
        attempt_decide(attempt, OUTCOME_INFRASTRUCTURE, CB_ERR_SYSTEM, "the ranks did not start: %s ended with %s%s%s",
                       who, how, *line ? ": " : "", line);
    } else
        attempt_decide(attempt, OUTCOME_INFRASTRUCTURE, CB_ERR_SYSTEM,
                       "rank %u left in %s without a reason (%s ended with %s)%s%s", rank,
                       attempt_describe_place(attempt, rank, place), who, how, *line ? ": " : "", line);
}

void seal_decide(struct attempt *attempt)
{
    if (attempt->verdict.decided || attempt->pages.count == 0)
        return;
    struct buf log;
    char path[PATH_MAX];
    uint32_t rank = 0, count;
    int code = 0, signal_number;
    buf_init(&log, LOG_MAX_BYTES);
    snprintf(path, sizeof path, "%.4000s/logs/ranks.log", attempt->path.data);
    if (buf_read_file(&log, path, NULL) != 0)
        buf_clear(&log); /* absent, or too long to be useful */
    bool failed = find_failed(attempt, &rank, &code, &count);
    bool secondary = failed && (code == CB_ERR_ABORTED || code == CB_ERR_TIMEOUT || code == CB_ERR_SYSTEM);
    uint32_t killed_rank;
    if ((!failed || secondary) && find_killed(attempt, log.data, &killed_rank, &signal_number))
        decide_killed(attempt, killed_rank, signal_number);
    else if (failed)
        decide_failed(attempt, rank, code, count);
    else if ((*attempt->signals > 0 || is_late(attempt) || was_stopped(attempt)) &&
             !(all_done(attempt) && all_iterations(attempt)))
        decide_stopped(attempt);
    else if (all_done(attempt) && attempt->launcher.exited && attempt->launcher.status == 0)
        decide_passed(attempt);
    else
        decide_silent(attempt, log.data);
    buf_release(&log);
}

static double seconds_between(uint64_t from_ns, uint64_t to_ns)
{
    return from_ns && to_ns >= from_ns ? (double)(to_ns - from_ns) / (double)NS_PER_S : NAN;
}

static void fill_times(const struct attempt *attempt, double values[METRIC_COUNT])
{
    uint64_t first_ns = 0, ready_ns = 0;
    bool all_ready = true;
    for (uint32_t rank = 0; rank < attempt->pages.count; rank++) {
        uint64_t up_ns = atomic_load(&attempt->pages.page[rank]->ready_ns);
        all_ready = all_ready && up_ns;
        ready_ns = up_ns > ready_ns ? up_ns : ready_ns;
        uint64_t own_ns = atomic_load(&attempt->pages.page[rank]->first_operation_ns);
        if (own_ns && (!first_ns || own_ns < first_ns))
            first_ns = own_ns;
    }
    values[METRIC_RENDEZVOUS_S] = node_peers_seconds(attempt);
    if (all_ready) {
        values[METRIC_LAUNCH_S] = seconds_between(attempt->started_ns, ready_ns);
        values[METRIC_SETUP_S] = seconds_between(ready_ns, first_ns);
    }
    values[METRIC_RUN_S] =
        attempt->started_wall_ns && attempt->ended_wall_ns /* sealed after the end, by another process */
            ? seconds_between(attempt->started_wall_ns, attempt->ended_wall_ns)
            : seconds_between(attempt->started_ns, clock_monotonic_ns());
}

/* Goodput at the best interval, from the stall and the duration of a save and the time of a load. */
static int fill_goodput(const struct attempt *attempt, struct record *record, struct cb_err *err)
{
    struct results results;
    int rc = results_compute(record, &results, err);
    if (rc)
        return rc;
    const struct result_row *stall = results_find(&results, OP_SAVE, METRIC_STALL_S);
    const struct result_row *save = stall ? stall : results_find(&results, OP_SAVE, METRIC_SAVE_S);
    const struct result_row *load = results_find(&results, OP_LOAD, METRIC_LOAD_S);
    const struct result_row *persist = results_find(&results, OP_SAVE, METRIC_PERSIST_S);
    double mtbf_s = (double)experiment_u64(attempt->experiment, OPT_MTBF) / (double)NS_PER_S;
    if (save && load && save->summary.median > 0)
        record->run_values[METRIC_GOODPUT] =
            stats_best_goodput(save->summary.median, persist ? persist->summary.median : 0, load->summary.median,
                               mtbf_s, &record->run_values[METRIC_BEST_INTERVAL_S]);
    results_release(&results);
    return 0;
}

/* Leaves out the page of a rank that damaged it; the outcome reports it. */
static int write_records(struct attempt *attempt, struct manifest *manifest, struct cb_err *err)
{
    struct record record;
    char path[PATH_MAX];
    record_init(&record, attempt->run, attempt->number, attempt->ranks);
    for (uint32_t rank = 0; rank < attempt->pages.count; rank++) {
        struct cb_err spoiled;
        if (record_add_page(&record, attempt->pages.page[rank], &spoiled) != 0) {
            attempt->verdict.decided = false;
            attempt_decide(attempt, OUTCOME_INFRASTRUCTURE, spoiled.code, "%s", spoiled.message);
        }
    }
    fill_times(attempt, record.run_values);
    if (attempt->nodes.own >= 0)
        counters_fill(&attempt->counters, record.run_values);
    if (attempt->peers || (attempt->launcher_name && strcmp(attempt->launcher_name, "srun") == 0))
        record.run_values[METRIC_HOST_OTHERS_CPU_FRACTION] =
            NAN; /* ranks that we did not fork look like other programs */
    int rc = fill_goodput(attempt, &record, err);
    snprintf(path, sizeof path, "%.4000s/records", attempt->path.data);
    if (!rc)
        rc = record_write(&record, path, err);
    manifest->ranks = record.rank_count;
    for (uint32_t i = 0; i < record.rank_count; i++)
        manifest->samples += record.ranks[i].sample_count;
    record_release(&record);
    return rc ? rc : manifest_hash_records(attempt->path.data, manifest->records_sha256, err);
}

int seal_write(struct attempt *attempt, struct cb_err *err)
{
    struct manifest manifest = {
        .attempt = attempt->number, .started_wall_ns = attempt->started_wall_ns, .sealed_by = "agent"};
    const struct progress progress = {
        .state = "sealing", .iterations = (uint32_t)attempt->iterations, .slowest_rank = -1};
    struct manifest before;
    struct cb_err own;
    if (manifest_read(attempt->path.data, &before, NULL) == 0 &&
        *before.records_sha256) /* its seal covers the records that are there */
        return cb_fail(err, CB_ERR_EXISTS, "attempt %u of run %s is sealed already", attempt->number, attempt->run);
    (void)!progress_write(attempt->path.data, &progress, NULL); /* only informative, and the manifest follows */
    if (attempt->pages.count > 0 && write_records(attempt, &manifest, &own) != 0) {
        manifest.ranks = manifest.samples = 0;
        manifest.records_sha256[0] = '\0';
        attempt->verdict.decided = false;
        attempt_decide(attempt, OUTCOME_INFRASTRUCTURE, own.code, "the records could not be kept: %s", own.message);
    }
    snprintf(manifest.run, sizeof manifest.run, "%s", attempt->run);
    manifest.outcome = attempt->verdict.outcome;
    size_t used = (size_t)snprintf(manifest.message, sizeof manifest.message, "%.700s", attempt->verdict.message);
    if (*attempt->stuck)
        snprintf(manifest.message + used, sizeof manifest.message - used, "; could not be ended: %.255s",
                 attempt->stuck);
    manifest.ended_wall_ns = attempt->ended_wall_ns ? attempt->ended_wall_ns : clock_wall_ns();
    return manifest_write(attempt->path.data, &manifest, err);
}
