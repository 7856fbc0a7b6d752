/* Runs in pools: writes a run's record and its ticket in the safe order, and derives its state. */
#include "cli/jobs/pool_runs.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "jobs/slurm/run_follow.h"
#include "run/workload_kind.h"

#define COMMAND_NS (60 * NS_PER_S)
#define ANSWER_BYTES (4u << 20)
#define MOST_NODES 4096
#define AT_WORK_NS (25 * NS_PER_S) /* age at which the hold job's heartbeat is stale: two intervals and a margin */

/* ---- choosing ---- */

int pool_choose(struct slurm_client *client, const char *name, struct pool_entry *chosen, struct cb_err *err)
{
    struct pool_list list;
    struct pool_entry *entry;
    bool at_work = false;
    int rc = pool_list_glance(&list, NULL);
    if (rc == 0 && pool_list_find(&list, name, &entry, NULL) == 0) {
        /* A hold pool with a recent heartbeat of its job accepts runs, whatever Slurm reports. */
        uint64_t now_ns = clock_wall_ns(), seen_ns = entry->usage.seen_wall_ns;
        at_work = entry->pool.mode == POOL_HOLD && !entry->has_end && !pool_is_stopping(entry->folder) &&
                  seen_ns <= now_ns && now_ns - seen_ns < AT_WORK_NS;
        if (at_work)
            *chosen = *entry;
    }
    pool_list_release(&list);
    if (at_work)
        return 0;
    rc = pool_list_load(&list, client, err);
    if (rc == 0 && *list.trouble)
        rc = cb_fail(err, CB_ERR_SYSTEM, "%s", list.trouble);
    if (rc == 0)
        rc = pool_list_find(&list, name, &entry, err);
    if (rc == 0 && entry->verdict.state >= POOL_ENDING)
        rc = cb_fail(err, CB_ERR_USAGE, "pool %s has ended (%s): `ckptbench warm start` makes another", name,
                     *entry->verdict.note ? entry->verdict.note : pool_state_name(entry->verdict.state));
    if (rc == 0)
        *chosen = *entry;
    pool_list_release(&list);
    return rc;
}

int pool_check_run(const struct pool_entry *pool, const struct experiment *experiment, struct cb_err *err)
{
    uint64_t nodes = experiment_u64(experiment, OPT_NODES);
    if (nodes > pool->pool.nodes)
        return cb_fail(err, CB_ERR_USAGE, "nodes=%" PRIu64 ", and pool %s has %" PRIu64, nodes, pool->pool.name,
                       pool->pool.nodes);
    const char *folder = experiment_text(experiment, OPT_SLURM_SBCAST), *own = pool->pool.sbcast;
    if (pool->pool.mode == POOL_HOLD && strcmp(folder, own) != 0)
        return cb_fail(err, CB_ERR_USAGE,
                       "pool %s was started with slurm.sbcast=%s, and its runs need the same, not slurm.sbcast=%s",
                       pool->pool.name, *own ? own : "\"\"", *folder ? folder : "\"\"");
    if (pool->pool.mode == POOL_HOLD && experiment_u64(experiment, OPT_SLURM_PENDING))
        return cb_fail(err, CB_ERR_USAGE,
                       "slurm.pending: runs of hold pool %s wait in its spool, not in Slurm's queue; `warm start "
                       "slurm.pending=TIME` is for the pool's own job",
                       pool->pool.name);
    if (pool->pool.mode == POOL_HOLD && !workload_kind_of(experiment)->has_ranks)
        return cb_fail(err, CB_ERR_USAGE, "a hold pool waits by itself: workload=wait has nothing to do in it");
    return 0;
}

/* ---- touch: choosing nodes ---- */

/* Appends the pool's nodes in one of `states` to `names` at *count, without duplicates. */
static int list_nodes(struct slurm_client *client, const char *nodes, const char *states, char (*names)[64],
                      size_t *count, struct cb_err *err)
{
    const char *const argv[] = {"sinfo", "-h", "-a", "-N", "-n", nodes, "-t", states, "-o", "%N", NULL};
    const struct transport_command command = {
        .argv = argv, .without_slurm = true, .max_bytes = ANSWER_BYTES, .timeout_ns = COMMAND_NS};
    struct transport_answer answer;
    char line[256];
    transport_answer_init(&answer);
    int rc = client->transport->run(client->transport, &command, &answer, err);
    if (rc == 0 && answer.exit_status != 0)
        rc = cb_fail(err, CB_ERR_SYSTEM, "sinfo: %s", transport_answer_last_line(&answer, line, sizeof line));
    for (const char *at = rc ? "" : answer.out.data; *at; at += strcspn(at, "\n") + (at[strcspn(at, "\n")] == '\n')) {
        size_t len = strcspn(at, " \n"), i = 0;
        if (len == 0 || len >= sizeof *names || *count >= MOST_NODES)
            continue;
        while (i < *count && (strncmp(names[i], at, len) != 0 || names[i][len]))
            i++;
        if (i == *count)
            snprintf(names[(*count)++], sizeof *names, "%.*s", (int)len, at);
    }
    transport_answer_release(&answer);
    return rc;
}

int pool_pick_nodes(struct slurm_client *client, const struct pool_entry *pool, size_t index, uint64_t wanted,
                    char *list, size_t bytes, struct cb_err *err)
{
    size_t count = 0, used = 0;
    list[0] = '\0';
    if (!*pool->usage.nodes)
        return 0;
    char(*names)[64] = calloc(MOST_NODES, sizeof *names);
    if (!names)
        return alloc_fail(err, "for the names of nodes");
    int rc = list_nodes(client, pool->usage.nodes, "idle", names, &count, err);
    if (rc == 0)
        rc = list_nodes(client, pool->usage.nodes, "alloc,mix,comp", names, &count, err);
    for (uint64_t i = 0; rc == 0 && wanted <= count && i < wanted; i++) {
        const char *name = names[(index * wanted + i) % count];
        int len = snprintf(list + used, bytes - used, "%s%s", i ? "," : "", name);
        if (len < 0 || used + (size_t)len >= bytes)
            rc = cb_fail(err, CB_ERR_USAGE, "the names of %" PRIu64 " nodes are too long", wanted);
        else
            used += (size_t)len;
    }
    free(names);
    return rc;
}

/* ---- hold: writing to the spool ---- */

static int put_locked(const struct pool_entry *pool, const char *run, const char *run_folder, uint64_t nodes,
                      struct job_record *record, struct history *history, struct cb_err *err)
{
    char note[128];
    uint64_t now_ns = clock_wall_ns();
    snprintf(record->name, sizeof record->name, "%s", run);
    snprintf(record->pool, sizeof record->pool, "%s", pool->pool.id);
    record->node_count = nodes;
    record->intent_wall_ns = now_ns;
    int rc = job_record_enter(record, JOB_PLANNED, now_ns, "", err);
    if (rc == 0)
        rc = job_record_write(run_folder, record, err);
    if (rc == 0)
        rc = pool_note_run(pool->folder, run, err);
    if (rc == 0)
        rc = spool_put(pool->folder, run, run_folder, err);
    if (rc)
        return rc;
    /* A pool marks its end before it empties its spool: either we see the mark here, or the pool returns the run. */
    if (pool_has_ended(pool->folder) && spool_return(pool->folder, run, "the pool had just ended", NULL) == 0)
        return cb_fail(err, CB_ERR_ABORTED, "pool %s has just ended: run %s was not started", pool->pool.name, run);
    snprintf(note, sizeof note, "in the spool of pool %s", pool->pool.name);
    record->submitted_wall_ns = clock_wall_ns();
    rc = job_record_enter(record, JOB_SUBMITTED, record->submitted_wall_ns, note, err);
    if (rc == 0)
        rc = job_record_write(run_folder, record, err);
    return rc ? rc : history_set_state(history, run, job_state_name(JOB_SUBMITTED), err);
}

int pool_put_run(const struct pool_entry *pool, const char *run, const char *run_folder, uint64_t nodes,
                 struct job_record *record, struct history *history, struct cb_err *err)
{
    int fd;
    int rc = job_folder_lock(run_folder, &fd, err);
    if (rc)
        return rc;
    if (fd < 0)
        return cb_fail(err, CB_ERR_EXISTS, "run %s is being submitted by another ckptbench", run);
    rc = put_locked(pool, run, run_folder, nodes, record, history, err);
    run_folder_unlock(fd);
    return rc;
}

/* ---- state ---- */

static const struct slurm_job *find_job(const struct slurm_jobs *jobs, const char *id)
{
    for (size_t i = jobs ? jobs->count : 0; i-- > 0;)
        if (strcmp(jobs->items[i].id, id) == 0)
            return &jobs->items[i];
    return NULL;
}

static void set_state(struct slurm_job *job, enum slurm_state state)
{
    job->state = state;
    snprintf(job->state_name, sizeof job->state_name, "%s", slurm_state_name(state));
}

/* The run waits, unless no hold job is left that could start it. */
static void look_at_waiting(const char *folder, const struct slurm_jobs *jobs, struct pool_run *found)
{
    struct slurm_job *job = &found->job;
    struct pool pool;
    struct pool_end end;
    struct pool_verdict verdict = {.state = POOL_UP};
    struct pool_observation observation = {.jobs = jobs, .asked = true, .now_wall_ns = clock_wall_ns()};
    int rc = pool_read(folder, &pool, NULL);
    if (rc == 0 && jobs) {
        observation.stopping = pool_is_stopping(folder);
        observation.end = pool_read_end(folder, &end, NULL) == 0 ? &end : NULL;
        if (pool_sum(&pool, folder, &observation.usage, NULL) == 0)
            pool_state_judge(&pool, &observation, &verdict);
    }
    set_state(job, SLURM_PENDING);
    if (verdict.state == POOL_ENDED) {
        snprintf(found->why, sizeof found->why, "pool %s ended before this run was started: %.200s", pool.name,
                 verdict.note);
        if (spool_return(folder, found->ticket.run, found->why, NULL) == 0)
            set_state(job, SLURM_CANCELLED);
        return;
    }
    snprintf(job->reason, sizeof job->reason, "in the spool of pool %s (%s), %zu before it", rc ? "?" : pool.name,
             pool_state_name(verdict.state), found->ticket.before);
}

void pool_look_at_run(const struct job_record *record, const char *run, const struct slurm_jobs *jobs,
                      struct pool_run *found)
{
    struct buf folder;
    struct slurm_job *job = &found->job;
    *found = (struct pool_run){0};
    buf_init(&folder, PATH_MAX);
    int rc = pool_folder(record->pool, &folder, NULL);
    if (rc == 0)
        rc = spool_find(folder.data, run, &found->ticket, NULL);
    found->nowhere = rc == CB_ERR_NOT_FOUND;
    found->known = rc == 0;
    if (rc == 0 && found->ticket.state == TICKET_WAITS) {
        look_at_waiting(folder.data, jobs, found);
    } else if (rc == 0 && found->ticket.state == TICKET_CLAIMED) {
        const struct slurm_job *own = find_job(jobs, found->ticket.job);
        found->known = own != NULL;
        if (own) {
            *job = *own;
            job->node_count = 0; /* the pool's nodes, not the run's */
        }
    } else if (rc == 0 && found->ticket.state == TICKET_DONE) {
        set_state(job, found->ticket.exit_status ? SLURM_FAILED : SLURM_COMPLETED);
        job->exit_status = (int)found->ticket.exit_status;
        job->end_s = found->ticket.ended_wall_ns / NS_PER_S;
        job->has_details = true;
        snprintf(job->reason, sizeof job->reason, "%.255s", found->ticket.note);
    } else if (rc == 0) {
        set_state(job, SLURM_CANCELLED);
        if (found->ticket.state == TICKET_RETURNED)
            snprintf(found->why, sizeof found->why, "%s", found->ticket.note);
    }
    buf_release(&folder);
    snprintf(job->id, sizeof job->id, "%s", found->ticket.job);
    job->submit_s = found->ticket.put_wall_ns / NS_PER_S;
    job->start_s = found->ticket.started_wall_ns / NS_PER_S;
    if (job->start_s < job->submit_s)
        job->start_s = found->ticket.started_wall_ns ? job->submit_s : 0;
}

int pool_cancel_run(const struct job_record *record, const char *run, bool *nowhere, struct cb_err *err)
{
    struct buf folder;
    struct ticket ticket;
    buf_init(&folder, PATH_MAX);
    int rc = pool_folder(record->pool, &folder, err);
    *nowhere = false;
    if (rc == 0) {
        rc = spool_return(folder.data, run, "cancelled on request before it was started", err);
        if (rc == CB_ERR_NOT_FOUND) {
            rc = spool_find(folder.data, run, &ticket, err);
            *nowhere = rc == CB_ERR_NOT_FOUND;
            if (rc == 0 && ticket.state == TICKET_CLAIMED)
                rc = spool_ask_cancel(folder.data, run, err);
        }
    }
    buf_release(&folder);
    return *nowhere ? 0 : rc;
}
