/* The state machine of a run: what each state of Slurm means for it. */
#include "jobs/slurm/job_state.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/clock.h"

void job_record_observe(struct job_record *record, const struct slurm_job *slurm, uint64_t now_wall_ns)
{
    enum slurm_phase phase = slurm_state_phase(slurm->state);
    if (strcmp(record->slurm_state, slurm->state_name) != 0) {
        snprintf(record->slurm_state, sizeof record->slurm_state, "%s", slurm->state_name);
        record->slurm_state_wall_ns = now_wall_ns;
    }
    if (slurm->state != SLURM_DEADLINE) /* what it waited for says more */
        snprintf(record->reason, sizeof record->reason, "%s", slurm->reason);
    bool shrinks = phase == SLURM_IS_ENDING && record->node_count > 0; /* Slurm lists the nodes that still clean up */
    if (*slurm->nodes && !shrinks)
        snprintf(record->nodes, sizeof record->nodes, "%s", slurm->nodes);
    if (slurm->node_count && !shrinks)
        record->node_count = slurm->node_count;
    if (slurm->has_details && slurm->restarts > record->restarts)
        record->restarts = slurm->restarts;
    if (slurm->submit_s && slurm->submit_s != record->queued_s) { /* a requeue rewrites it */
        record->queued_s = slurm->submit_s;
        record->allocated_s = record->began_s = 0;
        record->queue_s = record->boot_s = NAN;
    }
    if (phase == SLURM_IS_BOOTING && slurm->start_s && record->allocated_s == 0)
        record->allocated_s = slurm->start_s; /* Slurm overwrites it when the nodes are up */
    else if (phase != SLURM_IS_WAITING && phase != SLURM_IS_BOOTING && slurm->start_s &&
             (phase != SLURM_IS_UNSETTLED ||
              !record->allocated_s)) /* nodes that never came up: the job did not start */
        record->began_s = slurm->start_s;
    /* Slurm starts a job on running nodes at once, and its times are whole seconds: a delay below two seconds is not a
     * boot. */
    if (record->began_s && !record->allocated_s && slurm->scheduled_s >= record->queued_s &&
        slurm->scheduled_s + 1 < record->began_s)
        record->allocated_s = slurm->scheduled_s;
    uint64_t given_s = record->allocated_s ? record->allocated_s : record->began_s;
    if (record->queued_s && given_s >= record->queued_s)
        record->queue_s = (double)(given_s - record->queued_s);
    if (record->began_s >= given_s && record->began_s)
        record->boot_s = (double)(record->began_s - given_s);
}

static void say(struct job_verdict *verdict, enum job_state state, const char *note)
{
    verdict->state = state;
    snprintf(verdict->note, sizeof verdict->note, "%s", note);
}

/* " at save 2/5", or "". */
static void place_text(const struct job_folder *folder, char *text, size_t bytes)
{
    const struct progress *progress = &folder->progress;
    text[0] = '\0';
    if (folder->has_progress && progress->op[0])
        snprintf(text, bytes, " at %s %u/%u", progress->op, progress->iteration, progress->iterations);
    else if (folder->has_progress && progress->state[0])
        snprintf(text, bytes, " while %s", progress->state);
}

static bool is_within(uint64_t since_wall_ns, uint64_t now_wall_ns, uint64_t seconds)
{
    return since_wall_ns + seconds * NS_PER_S > now_wall_ns;
}

static enum job_state state_of_outcome(enum outcome outcome)
{
    switch (outcome) {
    case OUTCOME_PASS:
        return JOB_DONE;
    case OUTCOME_CANCELLED:
        return JOB_CANCELLED;
    case OUTCOME_LOST:
        return JOB_LOST;
    default:
        return JOB_FAILED;
    }
}

static void seal_as(struct job_verdict *verdict, enum outcome outcome, const char *format, ...) CB_PRINTF(3, 4);
static void seal_as(struct job_verdict *verdict, enum outcome outcome, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(verdict->note, sizeof verdict->note, format, arguments);
    va_end(arguments);
    verdict->seal = true;
    verdict->outcome = outcome;
    verdict->state = state_of_outcome(outcome);
}

/* slurm.pending has passed: Slurm gave up a job that did not start. */
static void give_up(const struct job_record *record, struct job_verdict *verdict)
{
    const char *reason = *record->reason && strcmp(record->reason, "None") != 0 ? record->reason : "no reason given";
    char fewer[64] = "";
    if (record->node_count > 1)
        snprintf(fewer, sizeof fewer, "; fewer nodes (nodes=%" PRIu64 ") may start sooner", record->node_count / 2);
    seal_as(verdict, OUTCOME_TIMEOUT, "not started in time (slurm.pending), because of %s%s", reason, fewer);
}

/* Slurm says the job is over, and no agent has sealed. */
static void judge_end(const struct job_record *record, const struct job_observation *observation,
                      struct job_verdict *verdict)
{
    const struct slurm_job *slurm = observation->slurm;
    const char *nodes = *slurm->nodes ? slurm->nodes : *record->nodes ? record->nodes : "unknown";
    char place[96];
    place_text(observation->folder, place, sizeof place);
    switch (slurm->state) {
    case SLURM_CANCELLED:
    case SLURM_REVOKED:
        if (observation->why)
            seal_as(verdict, OUTCOME_CANCELLED, "%s", observation->why);
        else if (strstr(slurm->reason, "Dependency"))
            seal_as(verdict, OUTCOME_CANCELLED, "not started: the run that it waits for has not passed");
        else
            seal_as(verdict, OUTCOME_CANCELLED, "cancelled %s%s%s",
                    record->cancel_asked ? "on request" : "in Slurm (scancel, or an administrator)",
                    observation->folder->attempts ? "" : " before it started", place);
        return;
    case SLURM_DEADLINE:
        if (observation->folder->attempts == 0) { /* Slurm gives it a start time all the same */
            give_up(record, verdict);
            return;
        }
        /* fall through */
    case SLURM_TIMEOUT:
        seal_as(verdict, OUTCOME_TIMEOUT, "the job's time limit passed%s (%s)", place, slurm->state_name);
        return;
    case SLURM_PREEMPTED:
        seal_as(verdict, OUTCOME_PREEMPTED, "preempted%s", place);
        return;
    case SLURM_NODE_FAIL:
        if (observation->down_nodes && *observation->down_nodes)
            seal_as(verdict, OUTCOME_INFRASTRUCTURE, "node %s lost%s (NODE_FAIL)", observation->down_nodes, place);
        else
            seal_as(verdict, OUTCOME_INFRASTRUCTURE, "a node of %s was lost%s (NODE_FAIL)", nodes, place);
        return;
    case SLURM_COMPLETED:
        seal_as(verdict, OUTCOME_LOST, "Slurm says COMPLETED, but the agent left no result: the run counts as lost%s",
                place);
        return;
    case SLURM_FAILED:
        seal_as(verdict, OUTCOME_INFRASTRUCTURE, "the job ended with %s %d on %s%s and no result (%s)",
                slurm->exit_signal ? "signal" : "exit status",
                slurm->exit_signal ? slurm->exit_signal : slurm->exit_status, *slurm->head ? slurm->head : nodes, place,
                *slurm->reason ? slurm->reason : "FAILED");
        return;
    default:
        seal_as(verdict, OUTCOME_INFRASTRUCTURE, "the job ended as %s on %s%s", slurm->state_name, nodes, place);
    }
}

/* "Resources: starts about 10:40": Slurm's reason, and its estimate of the time. */
static void judge_waiting(const struct job_observation *observation, struct job_verdict *verdict)
{
    const struct slurm_job *slurm = observation->slurm;
    char start[21] = "";
    bool plain = slurm->state == SLURM_PENDING;
    if (slurm->start_s && slurm->start_s * NS_PER_S > observation->now_wall_ns)
        clock_format_utc(slurm->start_s * NS_PER_S, start);
    say(verdict, JOB_PENDING, "");
    snprintf(verdict->note, sizeof verdict->note, "%s%s%s%s%s%s", plain ? "" : slurm->state_name, plain ? "" : ": ",
             strcmp(slurm->reason, "None") == 0 ? "" : slurm->reason, *start ? ": starts about " : "", start,
             observation->folder->attempts ? " (again, after an earlier attempt)" : "");
}

static void judge_running(const struct job_record *record, const struct job_observation *observation,
                          struct job_verdict *verdict)
{
    const struct job_folder *folder = observation->folder;
    bool working = folder->attempts > 0 && !folder->sealed;
    if (*record->before && folder->attempts == 0) {
        say(verdict, JOB_PENDING, "");
        snprintf(verdict->note, sizeof verdict->note, "comes after %s in the same job", record->before);
        return;
    }
    if (working && folder->has_progress && strcmp(folder->progress.state, "sealing") == 0) {
        say(verdict, JOB_SEALING, "");
        return;
    }
    say(verdict, JOB_RUNNING, working && folder->has_progress ? folder->progress.note : "the agent starts");
    if (observation->slurm->state != SLURM_RUNNING)
        snprintf(verdict->note, sizeof verdict->note, "%s", observation->slurm->state_name);
}

static void judge_live(const struct job_record *record, const struct job_observation *observation,
                       struct job_verdict *verdict)
{
    switch (slurm_state_phase(observation->slurm->state)) {
    case SLURM_IS_WAITING:
        judge_waiting(observation, verdict);
        return;
    case SLURM_IS_BOOTING:
        say(verdict, JOB_BOOTING, "");
        snprintf(verdict->note, sizeof verdict->note, "%s powering up", observation->slurm->nodes);
        return;
    case SLURM_IS_RUNNING:
        judge_running(record, observation, verdict);
        return;
    case SLURM_IS_ENDING:
        say(verdict, JOB_SEALING, observation->slurm->state_name);
        return;
    default:
        say(verdict, record->state, observation->slurm->state_name);
    }
}

/* A job that Slurm no longer lists is lost, unless its agent still makes progress. */
static void judge_gone(const struct job_record *record, const struct job_observation *observation,
                       struct job_verdict *verdict)
{
    const struct job_folder *folder = observation->folder;
    uint64_t seen_ns = record->slurm_state_wall_ns > record->submitted_wall_ns ? record->slurm_state_wall_ns
                                                                               : record->submitted_wall_ns;
    char place[96];
    say(verdict, record->state, "");
    /* A task of an array that is cancelled before it began leaves no trace in Slurm. */
    if (record->cancel_asked && record->in_array && !record->began_s && !folder->attempts) {
        seal_as(verdict, OUTCOME_CANCELLED, "cancelled on request before it started");
        return;
    }
    if (observation->accounting_is_silent)
        snprintf(verdict->note, sizeof verdict->note, "Slurm's accounting does not answer: as last seen");
    if (is_within(seen_ns, observation->now_wall_ns,
                  observation->accounting_is_silent ? JUDGE_PATIENCE_S : JUDGE_GRACE_S) ||
        (folder->attempts && is_within(folder->sign_wall_ns, observation->now_wall_ns,
                                       observation->accounting_is_silent ? JUDGE_PATIENCE_S : JUDGE_SILENCE_S)))
        return;
    place_text(folder, place, sizeof place);
    seal_as(verdict, record->cancel_asked ? OUTCOME_CANCELLED : OUTCOME_LOST,
            "Slurm does not know the job any more, and its agent left no result%s%s%s%s", place,
            *record->slurm_state ? " (last seen as " : "", record->slurm_state, *record->slurm_state ? ")" : "");
}

/* Whether the job of an attempt that was sealed without passing will be requeued. */
static bool comes_back(const struct job_record *record, const struct job_observation *observation)
{
    const struct manifest *manifest = &observation->folder->manifest;
    if (!observation->may_requeue || !observation->slurm || manifest->outcome == OUTCOME_PASS)
        return false;
    switch (slurm_state_phase(observation->slurm->state)) {
    case SLURM_IS_WAITING:
    case SLURM_IS_BOOTING:
        return true;
    case SLURM_IS_RUNNING: /* restarted: by its restarts if known, else by a start after the seal */
        return observation->slurm->has_details ? observation->slurm->restarts >= observation->folder->attempts
                                               : observation->slurm->start_s * NS_PER_S > manifest->ended_wall_ns;
    case SLURM_IS_ENDING:
        return is_within(record->slurm_state_wall_ns, observation->now_wall_ns, JUDGE_GRACE_S);
    case SLURM_IS_UNSETTLED:
        return observation->slurm->state == SLURM_REQUEUED ||
               is_within(record->slurm_state_wall_ns, observation->now_wall_ns, JUDGE_GRACE_S);
    default:
        return false;
    }
}

static void judge_sealed(const struct job_record *record, const struct job_observation *observation,
                         struct job_verdict *verdict)
{
    const struct manifest *manifest = &observation->folder->manifest;
    if (!comes_back(record, observation)) {
        say(verdict, state_of_outcome(manifest->outcome), manifest->message);
        return;
    }
    enum slurm_phase phase = slurm_state_phase(observation->slurm->state);
    if (phase == SLURM_IS_UNSETTLED || phase == SLURM_IS_ENDING)
        say(verdict, JOB_PENDING, "waits for Slurm to run it again");
    else
        judge_live(record, observation, verdict);
}

void job_state_judge(const struct job_record *record, const struct job_observation *observation,
                     struct job_verdict *verdict)
{
    const struct slurm_job *slurm = observation->slurm;
    bool unsettled = slurm && slurm_state_phase(slurm->state) == SLURM_IS_UNSETTLED &&
                     (observation->may_requeue || slurm->state == SLURM_REQUEUED);
    *verdict = (struct job_verdict){.state = record->state};
    if (observation->folder->sealed) {
        judge_sealed(record, observation, verdict);
    } else if (!*record->job && !slurm) {
        bool sent = record->intent_wall_ns > 0;
        say(verdict, sent ? JOB_SUBMITTED : JOB_PLANNED,
            sent ? "sbatch has not answered, and Slurm does not list the job" : "not submitted");
    } else if (!observation->asked) {
        say(verdict, record->state, "Slurm does not answer: as last seen");
    } else if (!slurm) {
        judge_gone(record, observation, verdict);
    } else if (unsettled && (slurm->state == SLURM_REQUEUED ||
                             is_within(record->slurm_state_wall_ns, observation->now_wall_ns, JUDGE_GRACE_S))) {
        say(verdict, JOB_PENDING, slurm->state_name);
    } else if (slurm_state_phase(slurm->state) >= SLURM_IS_UNSETTLED) {
        if (observation->folder->attempts > 0 &&
            is_within(record->slurm_state_wall_ns, observation->now_wall_ns, JUDGE_SEAL_S))
            say(verdict, JOB_SEALING, slurm->state_name);
        else
            judge_end(record, observation, verdict);
    } else {
        judge_live(record, observation, verdict);
    }
}
