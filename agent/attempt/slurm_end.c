/* Finds out why Slurm ended a job, from scontrol and sinfo. */
#include "agent/attempt/slurm_end.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/child.h"
#include "core/clock.h"

#define ANSWER_NS (3 * NS_PER_S) /* Slurm kills the rest of a job shortly after its signal */
#define TEXT_MAX_BYTES (4 << 20)

/* While Slurm cleans up a job, its state is COMPLETING; other fields show the cause. */
bool slurm_end_read_state(const char *job, unsigned long own_restarts, char state[32])
{
    const char *word = strstr(job, " JobState="), *preempted = strstr(job, " PreemptTime=");
    const char *restarts = strstr(job, " Restarts=");
    if (!word || sscanf(word, " JobState=%31[A-Z_]", state) != 1)
        return false;
    if (strcmp(state, "COMPLETING") != 0)
        return true;
    if (strstr(job, " Reason=TimeLimit"))
        snprintf(state, 32, "TIMEOUT");
    else if (strstr(job, " Reason=NodeDown") || strstr(job, " Reason=NodeFail"))
        snprintf(state, 32, "NODE_FAIL");
    else if (preempted && strncmp(preempted, " PreemptTime=None", strlen(" PreemptTime=None")) != 0)
        snprintf(state, 32, "PREEMPTED");
    else if (restarts && strtoul(restarts + strlen(" Restarts="), NULL, 10) > own_restarts)
        snprintf(state, 32, "REQUEUED");
    else
        snprintf(state, 32, "CANCELLED");
    return true;
}

bool slurm_end_find_down(const char *nodes, char name[NODE_NAME_BYTES], char state[32])
{
    for (const char *line = nodes; *line;) {
        size_t len = strcspn(line, "\n");
        char copy[NODE_NAME_BYTES + 64];
        snprintf(copy, sizeof copy, "%.*s", (int)(len < sizeof copy ? len : sizeof copy - 1), line);
        if (sscanf(copy, "%255s %31s", name, state) == 2 &&
            (strncmp(state, "down", 4) == 0 || strncmp(state, "fail", 4) == 0 || strchr(state, '*')))
            return true;
        line += len + (line[len] == '\n');
    }
    return false;
}

static bool ask(const char *const *argv, struct buf *answer)
{
    const struct child_options options = {.argv = argv, .stdin_fd = -1};
    buf_clear(answer);
    return child_capture(&options, ANSWER_NS, answer, NULL) == 0;
}

/* A node of this job that is down, or does not respond to Slurm. */
static bool find_down(struct buf *answer, char name[NODE_NAME_BYTES], char state[32])
{
    const char *list = getenv("SLURM_JOB_NODELIST");
    return list && ask((const char *const[]){"sinfo", "-h", "-N", "-n", list, "-o", "%N %T", NULL}, answer) &&
           slurm_end_find_down(answer->data, name, state);
}

static void judge(struct attempt *attempt, struct buf *answer)
{
    const char *job = getenv("SLURM_JOB_ID");
    const char *restarts = getenv("SLURM_RESTART_COUNT");
    char state[32] = "", name[NODE_NAME_BYTES], node_state[32];
    if (job && ask((const char *const[]){"scontrol", "show", "job", "-o", job, NULL}, answer) &&
        !slurm_end_read_state(answer->data, restarts ? strtoul(restarts, NULL, 10) : 0, state))
        state[0] = '\0';
    if (strcmp(state, "TIMEOUT") == 0 || strcmp(state, "DEADLINE") == 0 || *attempt->time_is_up)
        attempt_decide(attempt, OUTCOME_TIMEOUT, CB_ERR_TIMEOUT, "the job's time limit ended the run");
    else if (*attempt->signals > 0 && find_down(answer, name, node_state))
        attempt_decide(attempt, OUTCOME_INFRASTRUCTURE, CB_ERR_SYSTEM, "Slurm ended the job: its node %s is %s", name,
                       node_state);
    else if (strcmp(state, "PREEMPTED") == 0)
        attempt_decide(attempt, OUTCOME_PREEMPTED, CB_ERR_ABORTED, "Slurm took the nodes for another job (preempted)");
    else if (strcmp(state, "PENDING") == 0 || strcmp(state, "REQUEUED") == 0)
        attempt_decide(attempt, OUTCOME_PREEMPTED, CB_ERR_ABORTED,
                       "Slurm put the job back into its queue: preempted by another job, or requeued by hand");
    else if (strcmp(state, "CANCELLED") == 0)
        attempt_decide(attempt, OUTCOME_CANCELLED, CB_ERR_ABORTED, "the job was cancelled");
    else if (strcmp(state, "NODE_FAIL") == 0 || strcmp(state, "BOOT_FAIL") == 0)
        attempt_decide(attempt, OUTCOME_INFRASTRUCTURE, CB_ERR_SYSTEM, "Slurm ended the job: %s", state);
}

void slurm_end_explain(struct attempt *attempt)
{
    struct buf answer;
    if (attempt->verdict.decided || !attempt->nodes.slurm)
        return;
    buf_init(&answer, TEXT_MAX_BYTES);
    judge(attempt, &answer);
    buf_release(&answer);
}

void slurm_end_judge(struct attempt *attempt)
{
    bool ranks_left_in_order = attempt->launcher.exited && attempt->launcher.status == 0;
    if (attempt->pages.count > 0 && !ranks_left_in_order)
        slurm_end_explain(attempt);
}
