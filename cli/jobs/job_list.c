/* Synchronises jobs: queries Slurm, folders and history in this order, and writes the changes. */
#include "cli/jobs/job_list.h"

#include <stdio.h>
#include <string.h>

#include "cli/jobs/agent_program.h"
#include "cli/jobs/pool_runs.h"
#include "cli/jobs/site_runs.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "core/file_batch.h"
#include "core/log.h"
#include "jobs/slurm/job_index.h"
#include "jobs/slurm/run_follow.h"
#include "run/run_folder.h"

#define IDS_MAX_BYTES (1u << 16)
#define WRITES_AT_ONCE 64 /* run folders locked at the same time */

int job_list_init(struct job_list *self, struct history *history, struct cb_err *err)
{
    *self = (struct job_list){.history = history, .owns_history = !history};
    int rc = history ? 0 : history_open(NULL, &self->history, err);
    if (rc == 0)
        rc = transport_local_open(&self->transport, err);
    self->client = (struct slurm_client){.transport = self->transport};
    return rc;
}

void job_list_release(struct job_list *self)
{
    for (size_t i = 0; i < self->count; i++)
        job_entry_release(&self->items[i]);
    free(self->items);
    if (self->sites)
        remote_sites_release(self->sites);
    free(self->sites);
    transport_close(self->transport);
    if (self->owns_history)
        history_close(self->history);
    *self = (struct job_list){0};
}

/* ---- adding runs ---- */

static int take_line(void *context, const struct run_line *line, struct cb_err *err)
{
    struct job_list *self = context;
    if (alloc_grow(&self->items, self->count, sizeof *self->items, err))
        return CB_ERR_MEMORY;
    return job_entry_init(&self->items[self->count++], line, err); /* released also after a failure */
}

static int compare_entries(const void *a, const void *b)
{
    return strcmp(((const struct job_entry *)a)->run, ((const struct job_entry *)b)->run);
}

int job_list_add(struct job_list *self, const char *const *words, size_t count, struct cb_err *err)
{
    struct run_selection selection = {0};
    int rc = history_select(self->history, words, count, &selection, err);
    if (rc == 0)
        rc = history_each_run(self->history, &selection, take_line, self, err);
    if (rc == 0 && self->count)
        qsort(self->items, self->count, sizeof *self->items, compare_entries);
    run_selection_release(&selection);
    return rc;
}

void job_list_narrow(struct job_list *self, const char *site, bool only_jobs)
{
    size_t kept = 0;
    for (size_t i = 0; i < self->count; i++) {
        struct job_entry *entry = &self->items[i];
        if ((!site || strcmp(entry->site, site) == 0) && (!only_jobs || entry->has_record || !entry->is_final))
            self->items[kept++] = *entry;
        else
            job_entry_release(entry);
    }
    self->count = kept;
}

/* ---- querying Slurm ---- */

/* Includes runs that were only planned: the user may have called sbatch with the script. */
static bool needs_slurm(const struct job_entry *entry)
{
    return entry->has_record && !entry->is_final && !job_entry_is_away(entry);
}

/* Queries accounting about ids that squeue no longer lists: "4711,4712". If accounting does not reply, this is logged
 * and the sync continues. */
static void look_back(struct job_list *self, struct slurm_jobs *jobs, const struct job_index *index)
{
    struct buf ids;
    struct cb_err why;
    buf_init(&ids, IDS_MAX_BYTES);
    for (size_t i = 0; i < self->count; i++) {
        const struct job_entry *entry = &self->items[i];
        if (needs_slurm(entry) && *entry->record.job && !job_index_find(index, &entry->record))
            buf_printf(&ids, "%s%s", ids.len ? "," : "", entry->record.job);
    }
    int rc = buf_check(&ids, "the list of jobs", &why);
    if (rc == 0 && ids.len)
        rc = slurm_look_back(&self->client, ids.data, jobs, &why);
    self->accounting_is_silent = rc != 0;
    if (rc)
        snprintf(self->trouble, sizeof self->trouble, "%.500s", why.message);
    buf_release(&ids);
}

/* Whether squeue alone no longer suffices: a job has ended, or an attempt of a running job has, perhaps for the second
 * time. */
static bool wants_details(const struct job_list *self, const struct job_index *index)
{
    for (size_t i = 0; i < self->count; i++) {
        const struct job_entry *entry = &self->items[i];
        const struct slurm_job *job = needs_slurm(entry) ? job_index_find(index, &entry->record) : NULL;
        if (job && (slurm_state_phase(job->state) >= SLURM_IS_ENDING || (entry->may_requeue && entry->seen.sealed)))
            return true;
    }
    return false;
}

/* squeue decides the state; scontrol adds the fields that squeue does not report. */
static int ask_closely(struct job_list *self, struct slurm_jobs *jobs, struct cb_err *err)
{
    struct slurm_jobs details = {0};
    struct job_index index = {0};
    int rc = slurm_look_closely(&self->client, &details, err);
    if (rc == 0)
        rc = job_index_make(&index, &details, err);
    for (size_t i = 0; rc == 0 && i < jobs->count; i++) {
        struct slurm_job *job = &jobs->items[i];
        const struct slurm_job *more = job_index_find_id(&index, job->id);
        if (!more)
            continue;
        job->restarts = more->restarts;
        job->end_s = more->end_s;
        job->scheduled_s = more->scheduled_s;
        job->exit_status = more->exit_status;
        job->exit_signal = more->exit_signal;
        snprintf(job->head, sizeof job->head, "%s", more->head);
        job->has_details = true;
    }
    job_index_release(&index);
    slurm_jobs_release(&details);
    return rc;
}

/* Cancels jobs that depend on a run that has not passed: they would wait for ever unless Slurm was told to end them,
 * which salloc cannot do. */
static void call_off_hopeless(struct job_list *self, const struct job_index *index)
{
    for (size_t i = 0; i < self->count; i++) {
        const struct job_entry *entry = &self->items[i];
        const struct slurm_job *job = needs_slurm(entry) ? job_index_find(index, &entry->record) : NULL;
        if (job && job->state == SLURM_PENDING && strcmp(job->reason, "DependencyNeverSatisfied") == 0)
            (void)!slurm_cancel(&self->client, (const char *const[]){job->id}, 1, NULL); /* or by the next sync */
    }
}

static int ask(struct job_list *self, struct slurm_jobs *jobs, struct job_index *index, struct cb_err *err)
{
    int rc = slurm_ping(&self->client, err);
    if (rc == 0)
        rc = slurm_look(&self->client, jobs, err);
    if (rc == 0)
        rc = job_index_make(index, jobs, err);
    if (rc == 0)
        call_off_hopeless(self, index);
    size_t listed = jobs->count;
    if (rc == 0)
        look_back(self, jobs, index);
    if (rc == 0 && jobs->count > listed) { /* the array has moved */
        job_index_release(index);
        rc = job_index_make(index, jobs, err);
    }
    return rc == 0 && wants_details(self, index) ? ask_closely(self, jobs, err) : rc;
}

/* ---- deciding and writing ---- */

static int write_history(struct job_list *self, struct job_entry *entry, struct cb_err *err)
{
    bool ingested;
    const char *state = job_state_name(entry->verdict.state);
    int rc = 0;
    if (!job_state_is_final(entry->verdict.state)) {
        if (strcmp(entry->known_state, state) != 0)
            rc = history_set_state(self->history, entry->run, state, err);
        snprintf(entry->known_state, sizeof entry->known_state, "%s", state);
        return rc;
    }
    rc = history_ingest(self->history, entry->folder, &ingested, err);
    if (rc == 0) {
        entry->is_final = true;
        snprintf(entry->outcome, sizeof entry->outcome, "%s", outcome_name(entry->seen.manifest.outcome));
    }
    return rc;
}

/* Slurm's view of a run; for a run in a pool, the view that it would have of a job. The spool is readable even if Slurm
 * does not reply. */
static struct job_observation observe(const struct job_list *self, const struct job_entry *entry,
                                      const struct job_index *index, struct pool_run *in_pool)
{
    bool is_in_pool = *entry->record.pool;
    *in_pool = (struct pool_run){0};
    if (is_in_pool)
        pool_look_at_run(&entry->record, entry->run, self->asked ? index->jobs : NULL, in_pool);
    return (struct job_observation){.slurm = in_pool->known               ? &in_pool->job
                                             : self->asked && !is_in_pool ? job_index_find(index, &entry->record)
                                                                          : NULL,
                                    .asked = self->asked || in_pool->known,
                                    .accounting_is_silent = self->accounting_is_silent,
                                    .may_requeue = entry->may_requeue && !is_in_pool,
                                    .now_wall_ns = clock_wall_ns(),
                                    .folder = &entry->seen};
}

static void judge(struct job_entry *entry, const struct job_observation *observation, const struct pool_run *in_pool)
{
    job_state_judge(&entry->record, observation, &entry->verdict);
    if (in_pool->nowhere && entry->verdict.state == JOB_SUBMITTED)
        snprintf(entry->verdict.note, sizeof entry->verdict.note,
                 "never came into the spool of its pool: `ckptbench submit --resume %s` sends it", entry->run);
}

static bool has_changed(const struct job_record *before, const struct job_record *now)
{
    return before->transition_count != now->transition_count || strcmp(before->slurm_state, now->slurm_state) != 0 ||
           strcmp(before->job, now->job) != 0 || strcmp(before->step, now->step) != 0 ||
           before->began_s != now->began_s || before->allocated_s != now->allocated_s ||
           before->restarts != now->restarts;
}

static void take_observation(struct job_record *record, const struct slurm_job *job, uint64_t now_ns)
{
    job_record_observe(record, job, now_ns);
    if (*record->job || !*job->id)
        return;
    snprintf(record->job, sizeof record->job, "%s", job->id); /* the reply of sbatch was lost, or its pool started it */
    record->submitted_wall_ns = now_ns;
}

/* Records of unfinished runs, made durable in batches; their folders stay locked until then. */
struct writes {
    struct file_batch batch;
    int locks[WRITES_AT_ONCE];
    size_t count;
};

static int finish_writes(struct writes *self, struct cb_err *err)
{
    int rc = file_batch_commit(&self->batch, err);
    for (size_t i = 0; i < self->count; i++)
        run_folder_unlock(self->locks[i]);
    self->count = 0;
    return rc;
}

/* Writes the decision to the run's folder, while holding its lock. The manifest must not be older than the state that
 * was inspected. */
static int settle(struct job_list *self, struct job_entry *entry, const struct job_index *index, struct writes *writes,
                  struct cb_err *err)
{
    char down[256] = "";
    struct pool_run in_pool;
    struct job_observation observation = observe(self, entry, index, &in_pool);
    struct job_record before = entry->record;
    const char *nodes = observation.slurm && *observation.slurm->nodes ? observation.slurm->nodes : entry->record.nodes;
    if (observation.slurm && observation.slurm->state == SLURM_NODE_FAIL && *nodes &&
        slurm_down_nodes(&self->client, nodes, down, sizeof down, NULL))
        down[0] = '\0'; /* the name is optional: the nodes of the job are known */
    if (observation.slurm)
        take_observation(&entry->record, observation.slurm, observation.now_wall_ns);
    if (*entry->record.pool)
        snprintf(entry->record.step, sizeof entry->record.step, "%s", in_pool.ticket.step);
    observation.why = in_pool.why[0] ? in_pool.why : NULL;
    observation.down_nodes = down;
    judge(entry, &observation, &in_pool);
    int rc = job_folder_seal_earlier(entry->folder, entry->run, &entry->seen, err);
    if (rc == 0 && entry->verdict.seal) {
        if (agent_program_seal(entry->folder, entry->verdict.outcome, entry->verdict.note, err))
            log_error("%s", err->message); /* then it is sealed without what its processes left */
        rc = job_folder_seal(entry->folder, entry->run, &entry->seen, entry->verdict.outcome, entry->verdict.note, err);
        if (rc == 0)
            rc = job_folder_look(entry->folder, &entry->seen, err);
        if (rc == 0) /* the sealed attempt decides the state, even if another process has sealed it */
            job_state_judge(&entry->record, &observation, &entry->verdict);
    }
    if (rc == 0)
        rc = job_record_enter(&entry->record, entry->verdict.state, observation.now_wall_ns, entry->verdict.note, err);
    if (rc || !has_changed(&before, &entry->record))
        return rc;
    /* The record of a run that has ended is written at once, because ingesting reads it. */
    bool ends = job_state_is_final(entry->verdict.state);
    return job_record_write_in(ends ? NULL : &writes->batch, entry->folder, &entry->record, err);
}

/* Whether the state equals the last written one, so that nothing needs to be done. This is true of most of a thousand
 * waiting or running runs. */
static bool stands(const struct job_list *self, struct job_entry *entry, const struct job_index *index)
{
    struct job_record now = entry->record; /* a copy, so that transitions stay */
    struct job_verdict verdict;
    struct pool_run in_pool;
    if (*entry->record.pool || entry->seen.attempts > 1)
        return false;
    const struct job_observation observation = observe(self, entry, index, &in_pool);
    if (observation.slurm && slurm_state_phase(observation.slurm->state) >= SLURM_IS_ENDING)
        return false;
    if (observation.slurm)
        take_observation(&now, observation.slurm, observation.now_wall_ns);
    job_state_judge(&now, &observation, &verdict);
    if (verdict.seal || verdict.state != entry->record.state || job_state_is_final(verdict.state) ||
        has_changed(&entry->record, &now) || strcmp(entry->known_state, job_state_name(verdict.state)) != 0)
        return false;
    entry->record = now;
    entry->verdict = verdict;
    return true;
}

static int sync_entry(struct job_list *self, struct job_entry *entry, const struct job_index *index,
                      struct writes *writes, struct cb_err *err)
{
    int fd = -1;
    struct cb_err why;
    if (entry->is_gone) { /* cannot be sealed: the history gets the state of lost runs */
        if (strcmp(entry->known_state, "failed") == 0)
            return 0;
        snprintf(entry->known_state, sizeof entry->known_state, "failed");
        return history_set_state(self->history, entry->run, "failed", err);
    }
    if (!entry->has_record || entry->is_final || job_entry_is_away(entry) || stands(self, entry, index))
        return 0;
    int rc = job_folder_lock(entry->folder, &fd, &why);
    if (rc == 0 && fd < 0) { /* without the lock: decides the state, writes nothing */
        struct pool_run in_pool;
        const struct job_observation observation = observe(self, entry, index, &in_pool);
        judge(entry, &observation, &in_pool);
        return 0;
    }
    size_t written = writes->batch.count;
    if (rc == 0)
        job_entry_look_at(entry); /* another controller may have written since */
    bool settled = rc == 0 && entry->has_record;
    if (settled)
        rc = settle(self, entry, index, writes, &why);
    if (rc) { /* an unusable folder; the other runs are still processed */
        self->broken = true;
        if (!*self->trouble)
            snprintf(self->trouble, sizeof self->trouble, "run %s: %.400s", entry->run, why.message);
        snprintf(entry->verdict.note, sizeof entry->verdict.note, "%s", why.message);
        entry->verdict.state = entry->record.state;
    }
    rc = rc == 0 && settled ? write_history(self, entry, err) : 0;
    if (writes->batch.count > written)
        writes->locks[writes->count++] = fd;
    else
        run_folder_unlock(fd);
    if (rc)
        return cb_context(err, "run %s", entry->run);
    return writes->count == WRITES_AT_ONCE ? finish_writes(writes, err) : 0;
}

/* ---- sites ---- */

int job_list_site(struct job_list *self, const char *name, struct remote **remote, struct cb_err *err)
{
    if (!self->sites && !(self->sites = calloc(1, sizeof *self->sites)))
        return alloc_fail(err, "for a site");
    return remote_sites_get(self->sites, name, remote, err);
}

int job_list_take(struct job_list *self, const char *site, const char *const *words, size_t count, struct cb_err *err)
{
    struct remote *remote;
    int rc = job_list_site(self, site, &remote, err);
    return rc ? rc : remote_runs_take(remote, self->history, words, count, err);
}

bool job_list_next_site(struct job_list *self, char name[64])
{
    size_t i = 0;
    while (i < self->count && (!job_entry_is_away(&self->items[i]) || self->items[i].was_asked_for))
        i++;
    if (i == self->count)
        return false;
    snprintf(name, 64, "%s", self->items[i].site);
    for (; i < self->count; i++)
        self->items[i].was_asked_for |= strcmp(self->items[i].site, name) == 0;
    return true;
}

/* Queries each site once. A site that does not reply does not stop the others. */
static void sync_sites(struct job_list *self)
{
    char name[64];
    while (job_list_next_site(self, name)) {
        struct remote *remote;
        struct cb_err why;
        int rc = job_list_site(self, name, &remote, &why);
        if (rc == 0 && (rc = remote_runs_sync(remote, self, &why)) != 0 && remote->lost)
            remote_sites_drop(self->sites, name);
        if (rc)
            snprintf(self->trouble, sizeof self->trouble, "%.500s", why.message);
    }
}

int job_list_sync(struct job_list *self, struct cb_err *err)
{
    struct slurm_jobs jobs = {0};
    struct job_index index = {0};
    struct writes writes = {0};
    struct cb_err why = {0};
    bool needed = false;
    for (size_t i = 0; i < self->count; i++) {
        job_entry_look_once(&self->items[i]);
        needed = needed || needs_slurm(&self->items[i]);
    }
    self->accounting_is_silent = false;
    self->broken = false;
    self->trouble[0] = '\0';
    int rc = needed ? ask(self, &jobs, &index, &why) : 0;
    self->asked = needed && rc == 0;
    if (rc)
        snprintf(self->trouble, sizeof self->trouble, "%.500s", why.message);
    rc = 0;
    for (size_t i = 0; rc == 0 && i < self->count; i++)
        rc = sync_entry(self, &self->items[i], &index, &writes, err);
    int finished = finish_writes(&writes, &why); /* if one entry fails, decisions about others are still written */
    if (rc == 0 && finished)
        rc = cb_fail(err, finished, "%s", why.message);
    job_index_release(&index);
    slurm_jobs_release(&jobs);
    if (rc == 0)
        sync_sites(self);
    return rc;
}

bool job_list_is_final(const struct job_list *self)
{
    for (size_t i = 0; i < self->count; i++)
        if (!self->items[i].is_final)
            return false;
    return true;
}

int job_list_exit_code(const struct job_list *self)
{
    int code = CB_EXIT_PASS;
    for (size_t i = 0; i < self->count; i++) {
        enum outcome outcome;
        const struct job_entry *entry = &self->items[i];
        int own = entry->is_final && outcome_find(entry->outcome, &outcome) ? outcome_exit_code(outcome)
                                                                            : CB_EXIT_INFRASTRUCTURE;
        code = own > code ? own : code;
    }
    return code;
}
