/* The waiting attempt: wakes up twice a second to check for signals. */
#include "agent/attempt/wait_workload.h"

#include <stdio.h>
#include <unistd.h>

#include "agent/attempt/slurm_end.h"
#include "core/clock.h"

#define LOOK_NS (500 * NS_PER_MS)
#define PROGRESS_NS (5 * NS_PER_S)

/* Also a heartbeat, for a controller that gets no reply from Slurm. */
static void show_progress(const struct attempt *attempt, uint64_t left_ns)
{
    struct progress progress = {.state = "running", .slowest_rank = -1};
    snprintf(progress.note, sizeof progress.note, "waits for another %.0f s", (double)left_ns / (double)NS_PER_S);
    if (progress_write(attempt->path.data, &progress, NULL) != 0)
        return; /* ignored: progress is only informative */
}

static void decide_early(struct attempt *attempt, uint64_t waited_ns)
{
    double waited_s = (double)waited_ns / (double)NS_PER_S;
    const char *whole = experiment_text(attempt->experiment, OPT_WAIT_FOR);
    slurm_end_explain(attempt);
    if (*attempt->time_is_up)
        attempt_decide(attempt, OUTCOME_TIMEOUT, CB_ERR_TIMEOUT, "the job's time limit came near after %.0f s of %s",
                       waited_s, whole);
    attempt_decide(attempt, OUTCOME_CANCELLED, CB_ERR_ABORTED, "stopped on request after %.0f s of %s", waited_s,
                   whole);
}

void wait_workload_run(struct attempt *attempt)
{
    uint64_t whole_ns = experiment_u64(attempt->experiment, OPT_WAIT_FOR), shown_ns = 0;
    struct cb_err err;
    if (nodes_find(attempt->experiment, attempt->ranks, &attempt->nodes, &err)) {
        attempt_decide(attempt, OUTCOME_INFRASTRUCTURE, err.code, "%s", err.message);
        return;
    }
    for (;;) {
        uint64_t now_ns = clock_monotonic_ns(), waited_ns = now_ns - attempt->started_ns;
        if (getppid() != attempt->parent)
            attempt_decide(attempt, OUTCOME_CANCELLED, CB_ERR_ABORTED, "the controller that started this run died");
        else if (*attempt->signals > 0 || *attempt->time_is_up)
            decide_early(attempt, waited_ns);
        else if (waited_ns >= whole_ns)
            attempt_decide(attempt, OUTCOME_PASS, 0, "%s", "");
        if (attempt->verdict.decided)
            return;
        if (shown_ns == 0 || now_ns - shown_ns >= PROGRESS_NS) {
            show_progress(attempt, whole_ns - waited_ns);
            shown_ns = now_ns;
        }
        clock_sleep_ns(whole_ns - waited_ns < LOOK_NS ? whole_ns - waited_ns : LOOK_NS);
    }
}
