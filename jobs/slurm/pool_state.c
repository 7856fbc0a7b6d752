/* Power saving settings of Slurm, and the state of a pool from its jobs. */
#include "jobs/slurm/pool_state.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/clock.h"
#include "core/units.h"

#define COMMAND_NS (60 * NS_PER_S)
#define ANSWER_BYTES (8u << 20)
#define JUST_SENT_NS (15 * NS_PER_S) /* for a job that Slurm may not list yet, or between two touches */

/* The line of a partition: by its name, or the default one. */
static const char *find_partition(const char *partitions, const char *name, size_t *len)
{
    char wanted[128];
    snprintf(wanted, sizeof wanted, "PartitionName=%.100s ", name);
    for (const char *line = partitions; *line; line += *len + (line[*len] == '\n')) {
        *len = strcspn(line, "\n");
        bool found =
            *name ? strncmp(line, wanted, strlen(wanted)) == 0 : memmem(line, *len, " Default=YES", 12) != NULL;
        if (found)
            return line;
    }
    return NULL;
}

void slurm_parse_power(const char *config, const char *partitions, const char *partition, struct slurm_power *power)
{
    uint64_t suspend_s = 0, resume_s = 0, own_s;
    size_t len;
    bool saves = slurm_parse_setting(config, strlen(config), "SuspendTime", &suspend_s);
    if (!slurm_parse_setting(config, strlen(config), "ResumeTimeout", &resume_s))
        resume_s = 0;
    const char *line = find_partition(partitions, partition, &len);
    if (line && slurm_parse_setting(line, len, "SuspendTime", &own_s)) {
        saves = true;
        suspend_s = own_s;
    } else if (line && memmem(line, len, " SuspendTime=INFINITE", 21)) {
        saves = false;
    }
    if (line && slurm_parse_setting(line, len, "ResumeTimeout", &own_s))
        resume_s = own_s;
    *power = (struct slurm_power){
        .saves = saves && suspend_s > 0, .suspend_ns = suspend_s * NS_PER_S, .resume_most_ns = resume_s * NS_PER_S};
}

static int ask(struct slurm_client *client, const char *const *argv, struct transport_answer *answer,
               struct cb_err *err)
{
    const struct transport_command command = {
        .argv = argv, .without_slurm = true, .max_bytes = ANSWER_BYTES, .timeout_ns = COMMAND_NS};
    char line[512];
    int rc = client->transport->run(client->transport, &command, answer, err);
    if (rc == 0 && answer->exit_status != 0)
        rc = cb_fail(err, CB_ERR_SYSTEM, "scontrol: %s", transport_answer_last_line(answer, line, sizeof line));
    return rc;
}

int slurm_ask_power(struct slurm_client *client, const char *partition, struct slurm_power *power, struct cb_err *err)
{
    struct transport_answer config, partitions;
    transport_answer_init(&config);
    transport_answer_init(&partitions);
    int rc = ask(client, (const char *const[]){"scontrol", "show", "config", NULL}, &config, err);
    if (rc == 0)
        rc = ask(client, (const char *const[]){"scontrol", "show", "partition", "-a", "-o", NULL}, &partitions, err);
    if (rc == 0)
        slurm_parse_power(config.out.data, partitions.out.data, partition, power);
    transport_answer_release(&config);
    transport_answer_release(&partitions);
    return rc;
}

uint64_t pool_touch_period_ns(const struct slurm_power *power)
{
    uint64_t half_s = power->suspend_ns / 2 / NS_PER_S;
    return (half_s ? half_s : 1) * NS_PER_S;
}

static const char *const state_names[] = {"submitted", "pending", "booting", "up", "ending", "ended"};

const char *pool_state_name(enum pool_state state)
{
    return state_names[state];
}

struct jobs_of_pool {
    size_t waiting, booting, running, ending;
    const struct slurm_job *first; /* the job with the most informative state */
    uint64_t restarts;             /* the largest number of restarts of any job */
    bool given_up;                 /* Slurm removed a job that could not start before its deadline */
    bool lost_nodes;               /* a job ended because its nodes did not come up, or are down */
};

static void count_jobs(const struct pool *pool, const struct slurm_jobs *jobs, struct jobs_of_pool *found)
{
    enum slurm_phase told = SLURM_IS_UNKNOWN;
    *found = (struct jobs_of_pool){0};
    for (size_t i = 0; i < jobs->count; i++) {
        const struct slurm_job *job = &jobs->items[i];
        enum slurm_phase phase = slurm_state_phase(job->state);
        if (strcmp(job->name, pool->id) != 0)
            continue;
        found->given_up = found->given_up || job->state == SLURM_DEADLINE;
        found->lost_nodes = found->lost_nodes || job->state == SLURM_NODE_FAIL || job->state == SLURM_BOOT_FAIL;
        if (phase >= SLURM_IS_UNSETTLED)
            continue;
        found->waiting += phase == SLURM_IS_WAITING || phase == SLURM_IS_UNKNOWN;
        found->booting += phase == SLURM_IS_BOOTING;
        found->running += phase == SLURM_IS_RUNNING;
        found->ending += phase == SLURM_IS_ENDING;
        found->restarts = job->restarts > found->restarts ? job->restarts : found->restarts;
        if (!found->first || (phase > told && phase < SLURM_IS_ENDING)) {
            found->first = job;
            told = phase;
        }
    }
}

/* Fewer nodes are available sooner: try half of them. */
static void advise(const struct pool *pool, char advice[128])
{
    char fewer[64] = "";
    if (pool->nodes > 1)
        snprintf(fewer, sizeof fewer, "fewer nodes (nodes=%" PRIu64 "), ", pool->nodes / 2);
    snprintf(advice, 128, "try %sanother slurm.constraint or slurm.partition", fewer);
}

static void judge_listed(const struct pool *pool, const struct pool_observation *observation,
                         const struct jobs_of_pool *found, struct pool_verdict *verdict)
{
    bool touched = pool->mode == POOL_TOUCH && observation->usage.jobs > 0;
    bool failing = found->restarts > observation->usage.jobs && !found->running;
    if (found->running || (touched && !found->booting))
        verdict->state = POOL_UP;
    else
        verdict->state = found->booting ? POOL_BOOTING : found->waiting ? POOL_PENDING : POOL_ENDING;
    if (failing) {
        char advice[128];
        advise(pool, advice);
        snprintf(verdict->note, sizeof verdict->note,
                 "its nodes have failed to come up %" PRIu64 " time%s of at most %d: %s", found->restarts,
                 units_plural(found->restarts), POOL_MOST_FAILURES, advice);
        verdict->give_up = found->restarts >= POOL_MOST_FAILURES && observation->usage.jobs == 0;
    } else if (verdict->state == POOL_PENDING && strcmp(found->first->reason, "None") != 0) {
        snprintf(verdict->note, sizeof verdict->note, "%s", found->first->reason);
    } else if (verdict->state == POOL_BOOTING) {
        snprintf(verdict->note, sizeof verdict->note, "%s powering up", found->first->nodes);
    }
    if (observation->stopping || observation->end)
        verdict->state = POOL_ENDING;
}

void pool_state_judge(const struct pool *pool, const struct pool_observation *observation, struct pool_verdict *verdict)
{
    struct jobs_of_pool found;
    count_jobs(pool, observation->jobs, &found);
    *verdict = (struct pool_verdict){.listed = found.waiting + found.booting + found.running + found.ending};
    uint64_t sign_ns =
        observation->usage.seen_wall_ns > pool->intent_wall_ns ? observation->usage.seen_wall_ns : pool->intent_wall_ns;
    bool never_began = found.given_up && observation->usage.jobs == 0;
    bool never_came = found.lost_nodes && observation->usage.jobs == 0 && *pool->sbcast;
    bool recent = sign_ns + JUST_SENT_NS > observation->now_wall_ns && !never_began && !never_came;
    if (verdict->listed) {
        snprintf(verdict->job, sizeof verdict->job, "%s", found.first->id);
        judge_listed(pool, observation, &found, verdict);
    } else if (observation->end) {
        verdict->state = POOL_ENDED;
    } else if (!observation->asked) {
        verdict->state = observation->usage.jobs ? POOL_UP : POOL_SUBMITTED;
        snprintf(verdict->note, sizeof verdict->note, "Slurm does not answer: as last seen");
    } else if (recent && !observation->stopping) {
        verdict->state = observation->usage.jobs ? POOL_UP : POOL_SUBMITTED;
    } else {
        char advice[128], failed[200];
        advise(pool, advice);
        snprintf(failed, sizeof failed, "its nodes did not come up: %s", advice);
        verdict->state = POOL_ENDED;
        snprintf(verdict->note, sizeof verdict->note, "%s",
                 observation->stopping ? "stopped on request"
                 : never_came          ? failed
                 : never_began         ? "its nodes were not allocated in time; fewer nodes may start sooner"
                                       : "Slurm has no job of it any more");
    }
    if (observation->end && !*verdict->note)
        snprintf(verdict->note, sizeof verdict->note, "%s", observation->end->reason);
}
