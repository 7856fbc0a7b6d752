/* A worker that behaves badly on request, for tests of the agent. Takes the place of ckptbench-worker.
 *
 * CKPTBENCH_FAKE holds words RANK:POINT:ACT. Points, in order: birth (its page has no pid yet), start, ready,
 * then in every iteration plan, write, fsync, commit, wait, read, verify, and done. Acts: kill (SIGKILL), exit (status 7 without
 * a word), hang (until told to stop), stubborn (ignores SIGTERM and stop requests), fail-CODE (a failure
 * of that code), orphan (leaves a process behind in a session of its own), spoil (overwrites its page), until-FILE (waits
 * for a file, whose path has no space). */
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/rank_placement.h"
#include "run/experiment.h"
#include "run/run_folder.h"
#include "run/status_page.h"

#define STEP_NS (15 * NS_PER_MS)
#define AGENT_SILENCE_NS (6 * NS_PER_S)

struct fake {
    struct status_page *page;
    uint64_t warmup, iterations;
};

static void fail(struct fake *self, int code, const char *text)
{
    status_page_add_failure(self->page, code, text);
    atomic_store(&self->page->phase, PHASE_FAILED);
    exit(3);
}

static void obey(struct fake *self)
{
    if (clock_monotonic_ns() - atomic_load(&self->page->agent_heartbeat_ns) > AGENT_SILENCE_NS)
        exit(4);
    if (atomic_load(&self->page->stop) == STOP_NOW)
        fail(self, CB_ERR_ABORTED, "stopped at once");
}

static void leave_orphan(void)
{
    if (fork() == 0) {
        setsid();
        for (;;)
            pause();
    }
}

static void act(struct fake *self, const char *what)
{
    if (strcmp(what, "kill") == 0)
        raise(SIGKILL);
    if (strcmp(what, "exit") == 0)
        _exit(7);
    if (strncmp(what, "fail-", 5) == 0)
        for (int code = CB_ERR_USAGE; code >= CB_ERR_LIMIT; code--)
            if (strcmp(what + 5, cb_code_name(code)) == 0)
                fail(self, code, "fake trouble\nsecond line");
    if (strcmp(what, "spoil") == 0)
        memset(self->page->samples, 0xff, sizeof *self->page->samples);
    if (strcmp(what, "orphan") == 0)
        leave_orphan();
    while (strncmp(what, "until-", 6) == 0 && access(what + 6, F_OK)) {
        obey(self);
        clock_sleep_ns(STEP_NS);
    }
    bool stubborn = strcmp(what, "stubborn") == 0;
    if (stubborn)
        signal(SIGTERM, SIG_IGN);
    while (stubborn || strcmp(what, "hang") == 0) {
        if (!stubborn)
            obey(self);
        clock_sleep_ns(STEP_NS);
    }
}

static void reach(struct fake *self, const char *point)
{
    char words[512], wanted[64];
    snprintf(words, sizeof words, "%s", getenv("CKPTBENCH_FAKE") ? getenv("CKPTBENCH_FAKE") : "");
    snprintf(wanted, sizeof wanted, "%u:%s:", self->page->rank, point);
    char *rest = NULL;
    for (char *word = strtok_r(words, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        if (strncmp(word, wanted, strlen(wanted)) == 0)
            act(self, word + strlen(wanted));
    }
    obey(self);
    clock_sleep_ns(STEP_NS);
}

static void step(struct fake *self, enum operation op, enum rank_state state, const char *point)
{
    status_page_enter(self->page, op, state, clock_monotonic_ns());
    atomic_store(&self->page->bytes_total, 1000);
    atomic_fetch_add(&self->page->bytes_done, 100);
    reach(self, point);
}

static void publish(struct fake *self, enum operation op, uint64_t iteration)
{
    struct sample *sample = status_page_begin_sample(self->page);
    if (!sample)
        fail(self, CB_ERR_INTERNAL, "the page is full");
    sample->op = op;
    sample->iteration = (uint32_t)iteration;
    sample->flags = iteration < self->warmup ? SAMPLE_WARMUP : 0;
    sample->values[METRIC_OP_S] = 0.5;
    sample->values[METRIC_OWN_S] = 0.25;
    sample->values[METRIC_BYTES_MOVED] = sample->values[METRIC_BYTES_NEEDED] = 1000;
    status_page_publish_sample(self->page);
}

static void iterate(struct fake *self, uint64_t iteration)
{
    atomic_store(&self->page->iteration, (uint32_t)iteration);
    atomic_store(&self->page->bytes_done, 0);
    step(self, OP_SAVE, STATE_PLAN, "plan");
    step(self, OP_SAVE, STATE_IO, "write");
    step(self, OP_SAVE, STATE_FSYNC, "fsync");
    step(self, OP_SAVE, STATE_COMMIT, "commit");
    step(self, OP_SAVE, STATE_WAIT, "wait");
    publish(self, OP_SAVE, iteration);
    step(self, OP_LOAD, STATE_IO, "read");
    publish(self, OP_LOAD, iteration);
    step(self, OP_VERIFY, STATE_OTHER, "verify");
    publish(self, OP_VERIFY, iteration);
    status_page_enter(self->page, OP_NONE, STATE_OTHER, clock_monotonic_ns());
}

static void work(struct fake *self)
{
    reach(self, "start");
    atomic_store(&self->page->ready_ns, clock_monotonic_ns());
    atomic_store(&self->page->phase, PHASE_READY);
    reach(self, "ready");
    atomic_store(&self->page->phase, PHASE_RUNNING);
    atomic_store(&self->page->first_operation_ns, clock_monotonic_ns());
    for (uint64_t i = 0; i < self->warmup + self->iterations; i++) {
        iterate(self, i);
        if (atomic_load(&self->page->stop) == STOP_AFTER_ITERATION)
            break;
    }
    atomic_store(&self->page->phase, PHASE_DONE);
    reach(self, "done");
}

static void find_rank(uint32_t *rank)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *number = getenv(names[i]);
        if (number) {
            *rank = (uint32_t)strtoul(number, NULL, 10);
            return;
        }
    }
}

/* That of the rank's node, where there are several. The fake has no MPI to ask for the size of the world. */
static int find_folder(char **argv, const char *nodes, const char *run_folder, uint32_t rank, char folder[256])
{
    struct experiment *experiment;
    if (!nodes)
        return snprintf(folder, 256, "%s", argv[6]) < 256 ? 0 : -1;
    if (run_folder_read_experiment(run_folder, &experiment, NULL))
        return -1;
    uint32_t ranks = (uint32_t)experiment_u64(experiment, OPT_RANKS), count = (uint32_t)strtoul(nodes, NULL, 10);
    experiment_free(experiment);
    return rank_placement_node_folder(argv[6], rank_placement_node_of(ranks, count, rank), folder, 256);
}

int main(int argc, char **argv)
{
    uint32_t rank = 0;
    struct fake fake = {0};
    struct experiment *experiment;
    char path[512], folder[256];
    if (argc != 9 && argc != 11)
        return 9;
    find_rank(&rank);
    if (find_folder(argv, argc > 8 && strcmp(argv[7], "--nodes") == 0 ? argv[8] : NULL, argv[2], rank, folder) ||
        status_page_path(folder, rank, path, sizeof path, NULL) || status_page_open(path, &fake.page, NULL) ||
        run_folder_read_experiment(argv[2], &experiment, NULL))
        return 9;
    fake.warmup = experiment_u64(experiment, OPT_WARMUP);
    fake.iterations = experiment_u64(experiment, OPT_ITERATIONS);
    reach(&fake, "birth");
    atomic_store(&fake.page->pid, (uint32_t)getpid());
    work(&fake);
    status_page_close(fake.page);
    experiment_free(experiment);
    return 0;
}
