/* One attempt from start to seal: the order of the steps, which are in files of their own. */
#include "agent/attempt/attempt_run.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "agent/attempt/broadcast.h"
#include "agent/attempt/launch_ranks.h"
#include "agent/attempt/multipart_cleanup.h"
#include "agent/attempt/node_peers.h"
#include "agent/attempt/rank_watch.h"
#include "agent/attempt/seal.h"
#include "agent/attempt/slurm_end.h"
#include "agent/attempt/wait_workload.h"
#include "core/clock.h"
#include "core/memory.h"
#include "run/workload_kind.h"

#define LEAVE_GRACE_NS (2 * NS_PER_S) /* from SIGTERM to SIGKILL for the launcher */
#define EXPERIMENT_MAX_BYTES (1 << 20)
#define PROBE_GRACE_NS (3 * NS_PER_S) /* for a probe that is still running when the ranks are done */

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
    launch_ask_ahead(self);
    node_peers_await(self);
    if (self->verdict.decided)
        return 0;
    rc = launch_start(self, err);
    if (!rc)
        rc = node_peers_write_report(self, err); /* once the ranks are starting */
    if (probe_store_path(store, path))
        probe_disk(path, disk, sizeof disk);
    counters_start(&self->counters, disk);
    if (!rc && self->nodes.own >= 0)
        rc = probe_start(self->path.data, store, &self->probe, err);
    return rc;
}

/* A missing fingerprint weakens comparisons but invalidates no result, so it is only logged. */
static void finish_probe(struct attempt *self)
{
    struct cb_err err;
    char path[PATH_MAX];
    int rc = probe_finish(self->probe, clock_monotonic_ns() + PROBE_GRACE_NS, &err);
    self->probe = NULL;
    if (rc == 0)
        return;
    snprintf(path, sizeof path, "%.4000s/logs/agent.log", self->path.data);
    FILE *log = fopen(path, "ae");
    if (log) {
        fprintf(log, "no fingerprint: %s\n", err.message);
        fclose(log);
    }
}

/* Earlier runs of the same job have used up its time, or a signal ended them all. */
static void end_before_start(struct attempt *self)
{
    if (*self->time_is_up)
        attempt_decide(self, OUTCOME_TIMEOUT, CB_ERR_TIMEOUT, "the job's time limit came near before this run began");
    else if (*self->signals > 0)
        attempt_decide(self, OUTCOME_CANCELLED, CB_ERR_ABORTED, "stopped on request before this run began");
}

static void run_ranks(struct attempt *self)
{
    struct cb_err err;
    if (!workload_kind_of(self->experiment)->has_ranks) {
        wait_workload_run(self);
        return;
    }
    end_before_start(self);
    if (self->verdict.decided)
        return;
    if (start_ranks(self, &err) != 0)
        attempt_decide(self, err.code == CB_ERR_USAGE ? OUTCOME_BENCHMARK_FAILED : OUTCOME_INFRASTRUCTURE, err.code,
                       "%s", err.message);
    else if (!self->verdict.decided)
        rank_watch_run(self);
    if (!self->launcher.exited)
        launch_end(self, LEAVE_GRACE_NS);
    finish_probe(self); /* before the final kill, which also removes its children */
    launch_end(self, LEAVE_GRACE_NS);
    node_peers_finish(self);
    if (self->pages.count > 0)
        counters_stop(&self->counters);
    slurm_end_judge(self);
    seal_decide(self);
}

/* Ranks, the history and people read experiment.yaml at different times: if it differs from the one we started with,
 * it is unclear what was measured. */
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

int attempt_run(const char *run_folder, const volatile sig_atomic_t *signals, const volatile sig_atomic_t *time_is_up,
                enum outcome *outcome, int *code, struct cb_err *err)
{
    char absolute[PATH_MAX];
    struct attempt self = {.started_ns = clock_monotonic_ns(),
                           .started_wall_ns = clock_wall_ns(),
                           .signals = signals,
                           .time_is_up = time_is_up,
                           .parent = getppid(),
                           .pages = {.lock_fd = -1}};
    buf_init(&self.path, PATH_MAX);
    prctl(PR_SET_CHILD_SUBREAPER, 1); /* orphans are reparented to us, so that nothing is left behind */
    int rc = open_attempt(&self, run_folder, absolute, err);
    if (!rc) {
        run_ranks(&self);
        rc = seal(&self, err);
        multipart_cleanup(&self);
        slurm_end_give_back(&self);
        *outcome = self.verdict.outcome;
        *code = self.verdict.code;
    }
    node_peers_free(self.peers);
    nodes_release(&self.nodes);
    pages_release(&self.pages);
    experiment_free(self.experiment);
    buf_release(&self.path);
    return rc;
}
