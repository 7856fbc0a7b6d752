/* One attempt from start to seal: the order of the steps, which are in files of their own. */
#include "agent/attempt/attempt_run.h"

#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "agent/attempt/broadcast.h"
#include "agent/attempt/launch_ranks.h"
#include "agent/attempt/node_peers.h"
#include "agent/attempt/rank_watch.h"
#include "agent/attempt/seal.h"
#include "agent/attempt/slurm_end.h"
#include "agent/attempt/watch_command.h"
#include "agent/give_back.h"
#include "core/clock.h"
#include "core/memory.h"
#include "core/units.h"
#include "run/workload_kind.h"
#include "setup/folder/claim.h"
#include "setup/s3_keys.h"
#include "store/kind.h"

#define LEAVE_GRACE_NS (2 * NS_PER_S) /* from SIGTERM to SIGKILL for the launcher */
#define EXPERIMENT_MAX_BYTES (1 << 20)
#define PROBE_GRACE_NS (3 * NS_PER_S) /* for a probe that still runs when the ranks have ended */
#define WAIT_LOOK_NS (500 * NS_PER_MS)
#define WAIT_PROGRESS_NS (5 * NS_PER_S)
#define DAY_NS (24 * 3600 * NS_PER_S)
#define CLEAN_DEADLINE_NS (15 * NS_PER_S) /* of a request to an object store */
#define CLEAN_TRIES 4

/* Appends to logs/agent.log a message that does not affect the result. */
static void log_line(const struct attempt *self, const char *format, ...) CB_PRINTF(2, 3);
static void log_line(const struct attempt *self, const char *format, ...)
{
    char path[PATH_MAX];
    va_list arguments;
    snprintf(path, sizeof path, "%.4000s/logs/agent.log", self->path.data);
    FILE *log = fopen(path, "ae");
    if (!log)
        return;
    va_start(arguments, format);
    vfprintf(log, format, arguments);
    va_end(arguments);
    fputc('\n', log);
    fclose(log);
}

/* Name, experiment and folder of the attempt: without them there is nothing to seal. */
static int open_attempt(struct attempt *self, const char *run_folder, char absolute[PATH_MAX], struct cb_err *err)
{
    if (!realpath(run_folder, absolute))
        return cb_fail(err, CB_ERR_NOT_FOUND, "there is no run folder %s", run_folder);
    self->run_folder = absolute;
    const char *name = strrchr(absolute, '/') + 1;
    if (strlen(name) >= sizeof self->run)
        return cb_fail(err, CB_ERR_USAGE, "the run's name %s is too long", name);
    snprintf(self->run, sizeof self->run, "%s", name);
    int rc = run_folder_read_experiment(absolute, &self->experiment, err);
    if (!rc)
        rc = run_folder_new_attempt(absolute, &self->number, &self->path, err);
    if (rc)
        return rc;
    self->ranks = attempt_world_size(self->experiment);
    self->warmup = experiment_u64(self->experiment, OPT_WARMUP);
    self->iterations = experiment_u64(self->experiment, OPT_ITERATIONS);
    return 0;
}

static int start_ranks(struct attempt *self, struct cb_err *err)
{
    const char *store = experiment_text(self->experiment, OPT_STORE);
    char path[PATH_MAX], disk[64] = "";
    uint32_t samples =
        status_page_samples(self->iterations, self->warmup, experiment_u64(self->experiment, OPT_DURATION) > 0);
    pages_remove_stale();
    self->oom_kills = memory_oom_kills();
    int rc = nodes_find(self->experiment, self->ranks, &self->nodes, err);
    if (!rc)
        rc = broadcast_programs(self, err);
    if (!rc && nodes_are_remote(&self->nodes))
        rc = node_peers_open(self, samples, err);
    else if (!rc)
        rc = pages_create(&self->pages, self->run, self->number, self->ranks, samples, err);
    if (rc)
        return rc;
    pages_set_origin(&self->pages, self->started_ns);
    launch_ask_ahead(self);
    node_peers_await(self);
    if (self->verdict.decided)
        return 0;
    rc = launch_start(self, err);
    if (!rc)
        rc = node_peers_write_report(self, err); /* once the ranks are starting */
    if (probe_store_path(store, path))
        probe_disk(path, disk, sizeof disk);
    counters_start(&self->counters, disk, self->started_ns);
    if (!rc && self->nodes.own >= 0)
        rc = probe_start(self->path.data, store, &self->probe, err);
    return rc;
}

/* The progress is also a heartbeat for a controller that gets no reply from Slurm. */
static void show_waiting(const struct attempt *attempt, uint64_t left_ns)
{
    struct progress progress = {.state = "running", .slowest_rank = -1};
    snprintf(progress.note, sizeof progress.note, "waits for another %.0f s", (double)left_ns / (double)NS_PER_S);
    if (progress_write(attempt->path.data, &progress, NULL) != 0)
        return; /* ignored: progress is only informative */
}

/* workload=wait: holds the allocation and does nothing. Sleeps for wait.for, or until asked to stop, and decides the
 * attempt. */
static void wait_for_end(struct attempt *attempt)
{
    uint64_t whole_ns = experiment_u64(attempt->experiment, OPT_WAIT_FOR), shown_ns = 0;
    const char *whole = experiment_text(attempt->experiment, OPT_WAIT_FOR);
    struct cb_err err;
    if (nodes_find(attempt->experiment, attempt->ranks, &attempt->nodes, &err)) {
        attempt_decide(attempt, OUTCOME_INFRASTRUCTURE, err.code, "%s", err.message);
        return;
    }
    for (;;) {
        uint64_t now_ns = clock_monotonic_ns(), waited_ns = now_ns - attempt->started_ns;
        double waited_s = (double)waited_ns / (double)NS_PER_S;
        if (getppid() != attempt->parent)
            attempt_decide(attempt, OUTCOME_CANCELLED, CB_ERR_ABORTED, "the controller that started this run died");
        else if (*attempt->signals > 0 || *attempt->time_is_up) {
            slurm_end_explain(attempt);
            if (*attempt->time_is_up)
                attempt_decide(attempt, OUTCOME_TIMEOUT, CB_ERR_TIMEOUT,
                               "the job's time limit came near after %.0f s of %s", waited_s, whole);
            attempt_decide(attempt, OUTCOME_CANCELLED, CB_ERR_ABORTED, "stopped on request after %.0f s of %s",
                           waited_s, whole);
        } else if (waited_ns >= whole_ns)
            attempt_decide(attempt, OUTCOME_PASS, 0, "%s", "");
        if (attempt->verdict.decided)
            return;
        if (shown_ns == 0 || now_ns - shown_ns >= WAIT_PROGRESS_NS) {
            show_waiting(attempt, whole_ns - waited_ns);
            shown_ns = now_ns;
        }
        clock_sleep_ns(whole_ns - waited_ns < WAIT_LOOK_NS ? whole_ns - waited_ns : WAIT_LOOK_NS);
    }
}

/* A missing fingerprint weakens comparisons but invalidates no result, so it is only logged. */
static void end_probe(struct attempt *self)
{
    struct cb_err err;
    if (probe_finish(self->probe, clock_monotonic_ns() + PROBE_GRACE_NS, &err))
        log_line(self, "no fingerprint: %s", err.message);
    self->probe = NULL;
}

/* workload=watch: the command starts the ranks, and we know of them what its processes report. */
static void watch_command(struct attempt *self)
{
    struct cb_err err;
    counters_start(&self->counters, "", self->started_ns);
    if (probe_start(self->path.data, experiment_text(self->experiment, OPT_STORE), &self->probe, &err))
        log_line(self, "no fingerprint: %s", err.message);
    watch_command_run(self);
    end_probe(self);
    counters_stop(&self->counters);
}

static void run_ranks(struct attempt *self)
{
    struct cb_err err;
    if (!workload_kind_of(self->experiment)->has_ranks) {
        wait_for_end(self);
        return;
    }
    /* Earlier runs of the same job used up its time, or a signal ended them all. */
    if (*self->time_is_up)
        attempt_decide(self, OUTCOME_TIMEOUT, CB_ERR_TIMEOUT, "the job's time limit came near before this run began");
    else if (*self->signals > 0)
        attempt_decide(self, OUTCOME_CANCELLED, CB_ERR_ABORTED, "stopped on request before this run began");
    if (self->verdict.decided)
        return;
    if (workload_kind_of(self->experiment)->watches) {
        watch_command(self);
        return;
    }
    bool started = start_ranks(self, &err) == 0;
    if (!started && err.code != CB_ERR_USAGE)
        slurm_end_explain(self); /* the job may have been cancelled meanwhile */
    if (!started && *self->signals > 0)
        attempt_decide(self, OUTCOME_CANCELLED, CB_ERR_ABORTED, "stopped on request before the ranks were started");
    if (!started)
        attempt_decide(self, err.code == CB_ERR_USAGE ? OUTCOME_BENCHMARK_FAILED : OUTCOME_INFRASTRUCTURE, err.code,
                       "%s", err.message);
    else if (!self->verdict.decided)
        rank_watch_run(self);
    if (!self->launcher.exited)
        launch_end(self, LEAVE_GRACE_NS);
    /* Before the final kill, which would end the probe's tools. */
    end_probe(self);
    launch_end(self, LEAVE_GRACE_NS);
    node_peers_finish(self);
    broadcast_remove(self);
    if (self->pages.count > 0)
        counters_stop(&self->counters);
    slurm_end_judge(self);
    seal_decide(self);
}

/* Ranks, the history and people read experiment.yaml at different times: if it has changed since the start, it is
 * unclear what was measured. */
static void check_experiment(struct attempt *self)
{
    struct experiment *now = NULL;
    struct cb_err err;
    struct buf before, after;
    buf_init(&before, EXPERIMENT_MAX_BYTES);
    buf_init(&after, EXPERIMENT_MAX_BYTES);
    int rc = run_folder_read_experiment(self->run_folder, &now, &err);
    if (!rc)
        rc = experiment_write_yaml(now, &after, &err);
    if (!rc)
        rc = experiment_write_yaml(self->experiment, &before, &err);
    if (rc || strcmp(before.data, after.data) != 0) {
        self->verdict.decided = self->verdict.outcome != OUTCOME_PASS;
        attempt_decide(self, OUTCOME_INFRASTRUCTURE, CB_ERR_CORRUPT,
                       "experiment.yaml was changed while the run lasted: what was measured is not what it says%s%s",
                       rc ? ": " : "", rc ? err.message : "");
    }
    experiment_free(now);
    buf_release(&before);
    buf_release(&after);
}

static int seal(struct attempt *self, struct cb_err *err)
{
    check_experiment(self);
    struct cb_err unused; /* host.json is optional: records hold the figures that count */
    if (self->pages.count > 0 && self->nodes.own >= 0 && counters_write(&self->counters, self->path.data, &unused) != 0)
        attempt_decide(self, OUTCOME_INFRASTRUCTURE, unused.code, "%s", unused.message);
    int rc = seal_write(self, err);
    return rc != CB_ERR_EXISTS ? rc
                               : cb_fail(err, CB_ERR_ABORTED,
                                         "attempt %u of run %s was taken for dead and has been sealed by another: what "
                                         "its ranks measured since does not count",
                                         self->number, self->run);
}

/* *ours: whether this attempt still holds the claim of the folder. If not, the uploads may be a running attempt's. */
static int check_claim(const struct attempt *attempt, const struct store_uri *uri, const struct s3_options *s3,
                       const char *suffix, bool *ours, struct cb_err *err)
{
    struct store_options options = {.depth = 1, .threads = 1, .read_only = true, .s3 = s3};
    struct store *store;
    struct claim claim;
    *ours = false;
    int rc = store_open(uri->inner, &options, &store, err);
    if (rc)
        return rc;
    rc = claim_read(store, suffix, &claim, err);
    *ours = rc == 0 && strcmp(claim.run, attempt->run) == 0 &&
            (!*claim.lease.token || claim.lease.attempt == attempt->number);
    store_free(store);
    return rc == CB_ERR_NOT_FOUND ? 0 : rc;
}

/* Cleans up after killed ranks in an object store: aborts multipart uploads under the run's own prefix, which would
 * never be completed but cost money. Takes a bounded time; `ckptbench s3 clean` finds the rest. */
static void clean_uploads(const struct attempt *attempt)
{
    struct cb_err err = {0};
    uint64_t count = 0;
    if (!attempt->experiment)
        return;
    struct store_uri uri = store_uri_of(experiment_text(attempt->experiment, OPT_STORE));
    if (!uri.kind->abort_leftovers || attempt->verdict.outcome == OUTCOME_PASS ||
        experiment_is(attempt->experiment, OPT_OPS, "load"))
        return;
    const char *suffix = experiment_text(attempt->experiment, OPT_SUFFIX);
    struct s3_options options;
    bool ours = false;
    suffix = *suffix ? suffix : attempt->run;
    int rc = s3_keys_read(attempt->experiment, &options, &err);
    if (!rc) {
        options.attempts = CLEAN_TRIES;
        if (options.deadline_ns > CLEAN_DEADLINE_NS)
            options.deadline_ns = CLEAN_DEADLINE_NS;
        rc = check_claim(attempt, &uri, &options, suffix, &ours, &err);
    }
    if (!rc && ours)
        rc = uri.kind->abort_leftovers(uri.inner, &options, suffix, NULL, &count, &err);
    if (!rc && count == 0)
        return;
    if (rc)
        log_line(attempt, "uploads that the ranks left in %s may still be there: %s", uri.inner, err.message);
    else
        log_line(attempt, "aborted %" PRIu64 " upload%s that the ranks left in %s", count, units_plural(count),
                 uri.inner);
}

static void log_text(void *context, const char *text)
{
    log_line(context, "%s", text);
}

/* Releases the allocation if the salloc above this agent is gone, since it would otherwise last until its time limit. */
static void give_back(struct attempt *attempt)
{
    if (!attempt->experiment || !*attempt->programs || getppid() == attempt->parent)
        return;
    const char *array = getenv("SLURM_ARRAY_JOB_ID"); /* nobody is left who would lead its other tasks */
    uint64_t limit_ns = experiment_u64(attempt->experiment, OPT_SLURM_TIME);
    const struct give_back request = {.job = array ? array : getenv("SLURM_JOB_ID"),
                                      .name = getenv("SLURM_JOB_NAME"),
                                      .until_wall_ns = attempt->started_wall_ns + (limit_ns ? limit_ns : DAY_NS),
                                      .signals = attempt->signals,
                                      .log = log_text,
                                      .context = attempt};
    if (request.job && request.name)
        give_back_nodes(&request);
}

int attempt_run(const char *run_folder, const char *const *command, int *command_status,
                const volatile sig_atomic_t *signals, const volatile sig_atomic_t *time_is_up, enum outcome *outcome,
                int *code, struct cb_err *err)
{
    char absolute[PATH_MAX];
    struct attempt self = {.started_ns = clock_monotonic_ns(),
                           .started_wall_ns = clock_wall_ns(),
                           .signals = signals,
                           .time_is_up = time_is_up,
                           .parent = getppid(),
                           .command = command,
                           .command_status = -1,
                           .pages = {.lock_fd = -1}};
    buf_init(&self.path, PATH_MAX);
    if (!command)
        prctl(PR_SET_CHILD_SUBREAPER, 1); /* orphans become our children, so that none is left behind */
    int rc = open_attempt(&self, run_folder, absolute, err);
    if (!rc) {
        run_ranks(&self);
        rc = seal(&self, err);
        clean_uploads(&self);
        give_back(&self);
        *outcome = self.verdict.outcome;
        *code = self.verdict.code;
        *command_status = self.command_status;
    }
    node_peers_free(self.peers);
    nodes_release(&self.nodes);
    pages_release(&self.pages);
    experiment_free(self.experiment);
    buf_release(&self.path);
    return rc;
}
