/* The loop that watches the ranks: heartbeats, progress, timeouts, signals. */
#include "agent/attempt/rank_watch.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/attempt/launch_ranks.h"
#include "agent/attempt/node_peers.h"
#include "core/clock.h"
#include "core/procfs.h"
#include "core/rank_placement.h"
#include "core/units.h"
#include "run/workload_kind.h"

#define NODES_NAMED 4 /* whose rates a line of progress has */
#define TICK_NS (50 * NS_PER_MS)
#define PROGRESS_NS (500 * NS_PER_MS)
#define TRAINING_WARN_NS (60 * NS_PER_S) /* at most this long before timeout.run a training is asked to end */
#define SLURM_GRACE_NS (2 * NS_PER_S)    /* from a signal in a job until ranks must stop within an iteration */
#define NOTE_AFTER_NS (5 * NS_PER_S) /* after this time without progress the progress file names a rank as stalled */
#define LEAVE_NS (5 * NS_PER_S)      /* from a request to stop at once until the ranks are killed */
#define AFTER_FAILURE_NS (15 * NS_PER_S) /* from the first failed rank until the others must have left */
#define AFTER_DEATH_NS (5 * NS_PER_S)    /* the same for a rank that vanished unnoticed by its launcher */
#define STANDSTILL_NS (10 * NS_PER_S)    /* after this time without our heartbeat, ranks leave by themselves */
#define AFTER_WORK_NS NS_PER_S           /* from the end of the last rank until its leftovers are killed */
#define STARTUP_LOOK_NS (200 * NS_PER_MS)
#define STARTUP_DEATH_NS (3 * NS_PER_S) /* time for a launcher to notice a death by itself */
#define STARTUP_LAST_NS (8 * NS_PER_S)  /* launchers start ranks in quick succession */
#define STARTUP_NONE_NS (15 * NS_PER_S) /* by then a launcher on this machine has started a process */
#define ENVIRONMENT_MAX_BYTES (4 << 20)

/* Ranks that are started, not yet reporting: processes that no status page names yet.
 *
 * A launcher may miss the death of a rank that had not connected to it, and then it waits for ever, as the other
 * ranks do. So we check from outside which ranks have, or had, a process. Ranks that do not descend from our launcher
 * (on another machine) are not watched. */
struct startup_watch {
    pid_t *pid;           /* by rank, 0 before it was seen; owned, NULL before the first scan */
    uint64_t *missing_ns; /* by rank: when its process disappeared, 0 while it has one */
    uint64_t look_ns;     /* time of the last scan */
    uint64_t born_ns;     /* when the last new process was seen; 0 before */
};

struct watch {
    struct attempt *attempt;
    enum stop_request stop;
    uint64_t tick_ns;                 /* last heartbeat; 0 before the first */
    uint64_t end_ns;                  /* when to kill; 0 while nothing must end */
    uint64_t signalled_ns;            /* when the first signal was seen */
    uint64_t failed_ns;               /* when a failed rank was first seen */
    uint64_t ended_ns;                /* when all ranks were first seen done or failed */
    uint64_t vanished_ns;             /* when a rank was first missing */
    uint64_t progress_ns;             /* last progress.json */
    uint32_t seen_op, seen_iteration; /* operation of rank 0, at the last tick */
    uint64_t seen_since_ns;           /* when that operation was first seen */
    double bytes_per_s[OP_COUNT];     /* last rate of all ranks in each operation; 0 if unknown */
    struct startup_watch startup_watch;
};

/* Variables by which launchers number ranks: Open MPI, PMIx, MPICH, Slurm. */
static const char *const rank_names[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"};

static bool read_rank(pid_t pid, uint32_t count, uint32_t *rank)
{
    struct buf environment;
    bool found = false;
    buf_init(&environment, ENVIRONMENT_MAX_BYTES);
    procfs_read_all(pid, "environ", &environment);
    for (size_t i = 0; i < sizeof rank_names / sizeof *rank_names && !found; i++) {
        const char *text = procfs_find_variable(environment.data, environment.len, rank_names[i]);
        char *end = NULL;
        unsigned long number = text ? strtoul(text, &end, 10) : 0;
        found = text && end != text && *end == '\0' && number < count;
        if (found)
            *rank = (uint32_t)number;
    }
    buf_release(&environment);
    return found;
}

static bool is_known(const struct startup_watch *self, uint32_t count, pid_t pid)
{
    for (uint32_t rank = 0; rank < count; rank++)
        if (self->pid[rank] == pid)
            return true;
    return false;
}

/* A process counts once its environment has a rank number: a copy of the launcher that has not executed the rank's
 * program yet has none. */
static void look_at_starts(struct startup_watch *self, const struct attempt *attempt, uint64_t now_ns)
{
    size_t room = (size_t)attempt->ranks * 2 + 64; /* ranks and the launcher's own processes */
    pid_t *found = calloc(room, sizeof *found);
    size_t count = found ? procfs_descendants(attempt->launcher.pid, found, room) : 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t rank;
        if (is_known(self, attempt->ranks, found[i]) || !launch_is_ours(attempt, found[i]) ||
            !read_rank(found[i], attempt->ranks, &rank))
            continue;
        self->pid[rank] = found[i];
        self->born_ns = now_ns;
    }
    free(found);
}

static bool is_dead(struct startup_watch *self, uint32_t rank, uint64_t now_ns)
{
    char state = self->pid[rank] ? procfs_state(self->pid[rank]) : '\0';
    if (state && state != 'Z' && state != 'X') {
        self->missing_ns[rank] = 0;
        return false;
    }
    if (!self->missing_ns[rank])
        self->missing_ns[rank] = now_ns;
    if (self->pid[rank])
        return now_ns - self->missing_ns[rank] > STARTUP_DEATH_NS;
    return now_ns - self->born_ns > STARTUP_LAST_NS;
}

/* Whether the launcher, which starts its ranks on this machine, has no process long after it was started: all ranks
 * died before a scan could see them. */
static bool has_no_process(const struct attempt *attempt, uint64_t now_ns)
{
    pid_t found[64];
    if (strcmp(attempt->launcher_name, "mpirun") != 0 || now_ns - attempt->rank_start_ns < STARTUP_NONE_NS)
        return false;
    size_t count = procfs_descendants(attempt->launcher.pid, found, sizeof found / sizeof *found);
    for (size_t i = 0; i < count; i++) {
        char state = procfs_state(found[i]);
        if (state && state != 'Z' && state != 'X')
            return false;
    }
    return true;
}

/* Scans a few times a second for ranks that have not reported. True if a rank died, with the lowest: its process has
 * been gone for a while, did not appear long after the last new process, or no rank has a process. */
static bool find_dead_start(struct startup_watch *self, const struct attempt *attempt, uint64_t now_ns, uint32_t *rank)
{
    if (!attempt->has_launcher || attempt->launcher.exited || now_ns - self->look_ns < STARTUP_LOOK_NS)
        return false;
    self->look_ns = now_ns;
    if (!self->pid) {
        self->pid = calloc(attempt->ranks, sizeof *self->pid);
        self->missing_ns = calloc(attempt->ranks, sizeof *self->missing_ns);
    }
    if (!self->pid || !self->missing_ns)
        return false; /* timeout.launch still applies */
    look_at_starts(self, attempt, now_ns);
    bool none = !self->born_ns && has_no_process(attempt, now_ns);
    if (!self->born_ns && !none)
        return false;
    for (uint32_t i = 0; i < attempt->ranks; i++) {
        const struct status_page *page = attempt->pages.page[i];
        if (atomic_load(&page->pid) == 0 && atomic_load(&page->phase) == PHASE_STARTING &&
            (none || is_dead(self, i, now_ns))) {
            *rank = i;
            return true;
        }
    }
    return false;
}

static const struct status_page *page_of(const struct attempt *attempt, uint32_t rank)
{
    return attempt->pages.page[rank];
}

static enum rank_phase phase_of(const struct attempt *attempt, uint32_t rank)
{
    return (enum rank_phase)atomic_load(&page_of(attempt, rank)->phase);
}

static bool has_ended(const struct attempt *attempt, uint32_t rank)
{
    enum rank_phase phase = phase_of(attempt, rank);
    return phase == PHASE_DONE || phase == PHASE_FAILED;
}

static void request_stop(struct watch *self, enum stop_request stop, uint64_t now_ns)
{
    if (stop > self->stop) {
        self->stop = stop;
        pages_request_stop(&self->attempt->pages, stop);
    }
    /* Until all ranks have reported they wait for each other inside MPI, and do not read their pages. */
    if (stop == STOP_NOW && !self->end_ns)
        self->end_ns = now_ns + (self->attempt->launched_ns ? LEAVE_NS : 0);
}

static void check_signals(struct watch *self, uint64_t now_ns)
{
    struct attempt *attempt = self->attempt;
    sig_atomic_t received = *attempt->signals;
    if (received > 0 || *attempt->time_is_up)
        request_stop(self, STOP_AFTER_ITERATION, now_ns);
    if (received > 0 && attempt->nodes.slurm) { /* Slurm kills soon after: KillWait */
        self->signalled_ns = self->signalled_ns ? self->signalled_ns : now_ns;
        if (now_ns - self->signalled_ns > SLURM_GRACE_NS)
            request_stop(self, STOP_NOW, now_ns);
    }
    if (getppid() != attempt->parent) {
        attempt_decide(attempt, OUTCOME_CANCELLED, CB_ERR_ABORTED, "the controller that started this run died");
        request_stop(self, STOP_NOW, now_ns);
    } else if (received > 0 && *attempt->time_is_up) {
        char place[96];
        attempt_decide(attempt, OUTCOME_TIMEOUT, CB_ERR_TIMEOUT, "the job's time limit came; rank 0 in %s",
                       attempt_describe_place(attempt, 0, place));
        request_stop(self, STOP_NOW, now_ns);
    } else if (received > 1) {
        if (!attempt->nodes.slurm) /* Slurm sends several signals; the reason comes from Slurm */
            attempt_decide(attempt, OUTCOME_CANCELLED, CB_ERR_ABORTED, "stopped at once, on a second signal");
        request_stop(self, STOP_NOW, now_ns);
    }
}

static void check_launch(struct watch *self, uint64_t now_ns)
{
    struct attempt *attempt = self->attempt;
    if (attempt->launched_ns)
        return;
    uint32_t missing = 0, first = 0;
    for (uint32_t rank = attempt->ranks; rank-- > 0;) {
        if (phase_of(attempt, rank) == PHASE_STARTING) {
            missing++;
            first = rank;
        }
    }
    uint64_t timeout_ns = experiment_u64(attempt->experiment, OPT_TIMEOUT_LAUNCH);
    uint32_t dead;
    if (missing == 0) {
        attempt->launched_ns = now_ns;
    } else if (!attempt->peers && find_dead_start(&self->startup_watch, attempt, now_ns, &dead)) {
        attempt_decide(attempt, OUTCOME_INFRASTRUCTURE, CB_ERR_SYSTEM,
                       "rank %u died while it started, before it had reported, and its launcher did not notice: "
                       "see logs/ranks.log",
                       dead);
        request_stop(self, STOP_NOW, now_ns);
    } else if (now_ns - attempt->rank_start_ns > timeout_ns) {
        attempt_decide(attempt, OUTCOME_TIMEOUT, CB_ERR_TIMEOUT,
                       "rank %u (of %u missing) has not reported within timeout.launch=%s: see logs/ranks.log", first,
                       missing, experiment_text(attempt->experiment, OPT_TIMEOUT_LAUNCH));
        request_stop(self, STOP_NOW, now_ns);
    }
}

/* Losing a node means losing its ranks, unless the run is being ended anyway. */
static void check_nodes(struct watch *self, uint64_t now_ns)
{
    struct attempt *attempt = self->attempt;
    char text[1024];
    node_peers_work(attempt, now_ns, self->stop);
    if (*attempt->signals > 0 || self->stop != STOP_NONE || !node_peers_find_lost(attempt, text, sizeof text))
        return;
    attempt_decide(attempt, OUTCOME_INFRASTRUCTURE, CB_ERR_SYSTEM, "%s", text);
    request_stop(self, STOP_NOW, now_ns);
}

/* Whether every failed rank stopped only because of another rank. */
static bool only_abandoned(const struct attempt *attempt)
{
    bool any = false;
    for (uint32_t rank = 0; rank < attempt->ranks; rank++) {
        int code = -(int)atomic_load(&page_of(attempt, rank)->failure_code);
        if (code != 0 && code != CB_ERR_ABORTED)
            return false;
        any = any || code != 0;
    }
    return any;
}

/* Ranks whose agent is suspended leave before their node counts as lost, and end the other ranks. */
static void check_silent(struct watch *self, uint64_t now_ns)
{
    struct attempt *attempt = self->attempt;
    char text[1024];
    if (*attempt->signals > 0 || self->stop != STOP_NONE || !only_abandoned(attempt) ||
        !node_peers_find_silent(attempt, now_ns, text, sizeof text))
        return;
    attempt_decide(attempt, OUTCOME_INFRASTRUCTURE, CB_ERR_SYSTEM, "%s", text);
    request_stop(self, STOP_NOW, now_ns);
}

/* After we were suspended ourselves, nodes and ranks seem silent without being so. */
static void check_standstill(struct watch *self, uint64_t now_ns)
{
    struct attempt *attempt = self->attempt;
    uint64_t still_ns = self->tick_ns ? now_ns - self->tick_ns : 0;
    bool all_ended = true;
    self->tick_ns = now_ns;
    for (uint32_t rank = 0; rank < attempt->ranks; rank++)
        all_ended = all_ended && has_ended(attempt, rank);
    if (still_ns < STANDSTILL_NS || all_ended)
        return;
    attempt_decide(
        attempt, OUTCOME_INFRASTRUCTURE, CB_ERR_SYSTEM,
        "the agent stood still for %.0f s: its job was suspended, a signal had stopped it, or its run folder "
        "did not answer",
        (double)still_ns / (double)NS_PER_S);
    request_stop(self, STOP_NOW, now_ns);
}

static bool is_in_fsync(const struct status_page *page)
{
    return (atomic_load(&page->op) != OP_NONE && atomic_load(&page->state) == STATE_FSYNC) ||
           (atomic_load(&page->behind_op) != OP_NONE && atomic_load(&page->behind_state) == STATE_FSYNC);
}

/* How long a rank has made no progress. During an fsync no progress is visible: only timeout.op ends it. */
static uint64_t idle_ns(const struct attempt *attempt, uint32_t rank, uint64_t now_ns)
{
    const struct status_page *page = page_of(attempt, rank);
    uint64_t moved_ns = atomic_load(&page->progress_ns);
    if (is_in_fsync(page))
        return 0;
    if (moved_ns < attempt->launched_ns)
        moved_ns = attempt->launched_ns;
    return now_ns > moved_ns ? now_ns - moved_ns : 0;
}

/* The rank that has made no progress for longest. Ranks that wait for others are blamed only if all ranks wait. False
 * if all have ended. */
static bool find_idle(const struct attempt *attempt, uint64_t now_ns, uint32_t *rank, uint64_t *longest_ns)
{
    bool found = false, found_busy = false;
    for (uint32_t i = 0; i < attempt->ranks; i++) {
        if (has_ended(attempt, i))
            continue;
        bool busy = atomic_load(&page_of(attempt, i)->state) != STATE_WAIT || is_in_fsync(page_of(attempt, i));
        uint64_t idle = idle_ns(attempt, i, now_ns);
        if (!found || (busy && !found_busy) || (busy == found_busy && idle > *longest_ns)) {
            *rank = i;
            *longest_ns = idle;
            found_busy = found_busy || busy;
            found = true;
        }
    }
    return found;
}

static void describe_idle(const struct attempt *attempt, uint32_t rank, uint64_t longest_ns, char *text, size_t bytes)
{
    char place[96], process[64];
    pid_t pid = (pid_t)atomic_load(&page_of(attempt, rank)->pid);
    snprintf(text, bytes, "rank %u moves nothing since %.1f s in %s; process %d in %s", rank,
             (double)longest_ns / (double)NS_PER_S, attempt_describe_place(attempt, rank, place), (int)pid,
             launch_describe_process(attempt, rank, process));
}

/* A training is asked to end some time before timeout.run, as before a job's time limit, so that it can save. */
static void warn_training(struct watch *self, uint64_t run_ns, uint64_t now_ns)
{
    struct attempt *attempt = self->attempt;
    uint64_t ahead_ns = run_ns / 4 < TRAINING_WARN_NS ? run_ns / 4 : TRAINING_WARN_NS;
    if (self->stop != STOP_NONE || !workload_kind_of(attempt->experiment)->trains ||
        now_ns - attempt->started_ns <= run_ns - ahead_ns)
        return;
    attempt->limit_is_near = true;
    request_stop(self, STOP_AFTER_ITERATION, now_ns);
}

static void check_timeouts(struct watch *self, uint64_t now_ns)
{
    struct attempt *attempt = self->attempt;
    uint64_t run_ns = experiment_u64(attempt->experiment, OPT_TIMEOUT_RUN);
    uint64_t stall_ns = experiment_u64(attempt->experiment, OPT_TIMEOUT_STALL), idle;
    uint32_t rank;
    char text[256];
    if (attempt->launched_ns && find_idle(attempt, now_ns, &rank, &idle) && idle > stall_ns) {
        describe_idle(attempt, rank, idle, text, sizeof text);
        attempt_decide(attempt, OUTCOME_TIMEOUT, CB_ERR_TIMEOUT, "%s (timeout.stall=%s)", text,
                       experiment_text(attempt->experiment, OPT_TIMEOUT_STALL));
        request_stop(self, STOP_NOW, now_ns);
    }
    if (run_ns)
        warn_training(self, run_ns, now_ns);
    if (run_ns && now_ns - attempt->started_ns > run_ns) {
        attempt_decide(attempt, OUTCOME_TIMEOUT, CB_ERR_TIMEOUT,
                       "the run took longer than timeout.run=%s; rank 0 in %s",
                       experiment_text(attempt->experiment, OPT_TIMEOUT_RUN), attempt_describe_place(attempt, 0, text));
        request_stop(self, STOP_NOW, now_ns);
    }
}

/* When all ranks are done, their launcher must end soon. It does not while a leftover process of a rank holds its
 * output open. */
static void check_lingering(struct watch *self, bool all_ended, bool any_alive, uint64_t now_ns)
{
    if (!all_ended)
        return;
    if (!self->ended_ns)
        self->ended_ns = now_ns;
    if (!any_alive && now_ns - self->ended_ns > AFTER_WORK_NS && probe_is_done(self->attempt->probe))
        launch_end_adopted(self->attempt);
    if (now_ns - self->ended_ns > AFTER_FAILURE_NS)
        request_stop(self, STOP_NOW, now_ns);
}

/* After ranks failed or vanished, gives the others time to exit with their own reasons. */
static void check_ranks(struct watch *self, uint64_t now_ns)
{
    struct attempt *attempt = self->attempt;
    bool all_ended = true, any_alive = false;
    for (uint32_t rank = 0; rank < attempt->ranks; rank++) {
        char place[96];
        if (phase_of(attempt, rank) == PHASE_FAILED && !self->failed_ns)
            self->failed_ns = now_ns;
        bool ended = has_ended(attempt, rank), alive = launch_is_alive(attempt, rank);
        all_ended = all_ended && ended;
        any_alive = any_alive || alive;
        if (ended || alive || atomic_load(&page_of(attempt, rank)->pid) == 0)
            continue;
        if (!self->vanished_ns)
            self->vanished_ns = now_ns;
        if (now_ns - self->vanished_ns > AFTER_DEATH_NS) {
            attempt_decide(attempt, OUTCOME_INFRASTRUCTURE, CB_ERR_SYSTEM,
                           "rank %u vanished in %s, and its launcher did not notice", rank,
                           attempt_describe_place(attempt, rank, place));
            request_stop(self, STOP_NOW, now_ns);
        }
    }
    check_lingering(self, all_ended, any_alive, now_ns);
    if (self->failed_ns && now_ns - self->failed_ns > AFTER_FAILURE_NS)
        request_stop(self, STOP_NOW, now_ns);
}

static void add_bytes(const struct attempt *attempt, struct progress *progress)
{
    double least = 2;
    for (uint32_t rank = 0; rank < attempt->ranks; rank++) {
        const struct status_page *page = page_of(attempt, rank);
        uint64_t done = atomic_load(&page->bytes_done), total = atomic_load(&page->bytes_total);
        progress->bytes_done += done;
        progress->bytes_total += total;
        if (total > 0 && attempt->ranks > 1 && (double)done / (double)total < least) {
            least = (double)done / (double)total;
            progress->slowest_rank = (int)rank;
        }
    }
}

/* Runs in every tick, since many operations are shorter than the time between two progress files. A rate over less
 * than half a tick means nothing: until then, the rate of the previous such operation stands. */
static void measure_rate(struct watch *self, uint64_t now_ns)
{
    const struct status_page *page = page_of(self->attempt, 0);
    uint32_t op = atomic_load(&page->op), iteration = atomic_load(&page->iteration);
    if (op != self->seen_op || iteration != self->seen_iteration) {
        self->seen_op = op;
        self->seen_iteration = iteration;
        self->seen_since_ns = now_ns;
    }
    uint64_t seen_ns = now_ns - self->seen_since_ns, bytes = 0;
    if (op == OP_NONE || op == OP_DELETE || op >= OP_COUNT || seen_ns < TICK_NS / 2)
        return;
    for (uint32_t rank = 0; rank < self->attempt->ranks; rank++)
        bytes += atomic_load(&page_of(self->attempt, rank)->bytes_done);
    if (bytes > 0)
        self->bytes_per_s[op] = (double)bytes * (double)NS_PER_S / (double)seen_ns;
}

/* Rates of the nodes in the current operation, as bytes_per_s is that of all ranks. */
static void add_nodes(const struct watch *self, uint64_t now_ns, struct progress *progress)
{
    const struct attempt *attempt = self->attempt;
    uint32_t nodes = attempt->nodes.count, slowest = 0;
    uint64_t seen_ns = now_ns - self->seen_since_ns, least = UINT64_MAX;
    char rate[32];
    size_t used = 0;
    if (nodes < 2 || seen_ns < TICK_NS / 2 || progress->bytes_done == 0)
        return;
    for (uint32_t node = 0; node < nodes; node++) {
        uint64_t bytes = 0;
        for (uint32_t rank = rank_placement_first_rank(attempt->ranks, nodes, node);
             rank < rank_placement_first_rank(attempt->ranks, nodes, node + 1); rank++)
            bytes += atomic_load(&page_of(attempt, rank)->bytes_done);
        slowest = bytes < least ? node : slowest;
        least = bytes < least ? bytes : least;
        if (nodes <= NODES_NAMED)
            used += (size_t)snprintf(progress->nodes + used, sizeof progress->nodes - used, "%s%.24s %s",
                                     node ? ", " : "", attempt->nodes.name[node],
                                     units_format_rate((double)bytes * (double)NS_PER_S / (double)seen_ns, rate));
    }
    if (nodes > NODES_NAMED)
        snprintf(progress->nodes, sizeof progress->nodes, "slowest node %.24s %s", attempt->nodes.name[slowest],
                 units_format_rate((double)least * (double)NS_PER_S / (double)seen_ns, rate));
}

static void show_progress(struct watch *self, uint64_t now_ns)
{
    struct attempt *attempt = self->attempt;
    struct progress progress = {.iterations = (uint32_t)attempt->iterations, .slowest_rank = -1};
    const struct status_page *page = page_of(attempt, 0);
    uint32_t op = atomic_load(&page->op), iteration = atomic_load(&page->iteration), rank;
    uint64_t idle;
    snprintf(progress.state, sizeof progress.state, attempt->launched_ns ? "running" : "launching");
    if (op != OP_NONE && op < OP_COUNT)
        snprintf(progress.op, sizeof progress.op, "%s", operation_name((enum operation)op));
    if (iteration >= attempt->warmup && op != OP_NONE)
        progress.iteration = iteration - (uint32_t)attempt->warmup + 1;
    if (op != OP_NONE && op < OP_COUNT &&
        op != OP_DELETE) { /* these move no bytes: the page still shows the previous bytes */
        add_bytes(attempt, &progress);
        progress.bytes_per_s = self->bytes_per_s[op];
        add_nodes(self, now_ns, &progress);
    }
    if (attempt->launched_ns && find_idle(attempt, now_ns, &rank, &idle) && idle > NOTE_AFTER_NS)
        describe_idle(attempt, rank, idle, progress.note, sizeof progress.note);
    else
        node_peers_note(attempt, now_ns, progress.note, sizeof progress.note);
    if (progress_write(attempt->path.data, &progress, NULL) == 0 || access(attempt->path.data, F_OK) == 0 ||
        errno != ENOENT)
        return; /* ignored: progress is only informative, and the next one is half a second away */
    attempt_decide(attempt, OUTCOME_INFRASTRUCTURE, CB_ERR_NOT_FOUND,
                   "the run folder was removed while the run lasted: nothing of it can be kept");
    request_stop(self, STOP_NOW, now_ns);
}

static void tick(struct watch *self, uint64_t now_ns)
{
    pages_beat(&self->attempt->pages, now_ns);
    check_standstill(self, now_ns);
    check_nodes(self, now_ns);
    check_silent(self, now_ns);
    check_signals(self, now_ns);
    check_launch(self, now_ns);
    check_timeouts(self, now_ns);
    check_ranks(self, now_ns);
    measure_rate(self, now_ns);
    if (now_ns - self->progress_ns >= PROGRESS_NS) {
        self->progress_ns = now_ns;
        show_progress(self, now_ns);
    }
    counters_watch(&self->attempt->counters, now_ns);
}

void rank_watch_run(struct attempt *attempt)
{
    struct watch self = {.attempt = attempt, .seen_since_ns = attempt->started_ns};
    for (;;) {
        uint64_t now_ns = clock_monotonic_ns();
        tick(&self, now_ns);
        if (child_wait(&attempt->launcher, now_ns + TICK_NS, NULL) == 0)
            break;
        if (self.end_ns && now_ns >= self.end_ns)
            break;
    }
    check_silent(&self, clock_monotonic_ns());
    check_launch(&self, clock_monotonic_ns()); /* a very short run may end between two ticks */
    check_signals(&self, clock_monotonic_ns());
    free(self.startup_watch.pid);
    free(self.startup_watch.missing_ns);
}
