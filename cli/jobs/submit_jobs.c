/* Submits runs to Slurm, each exactly once, several sbatch at a time. */
#include "cli/jobs/submit_jobs.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "core/file_batch.h"
#include "core/path.h"
#include "jobs/slurm/job_index.h"
#include "jobs/slurm/run_follow.h"

#define SCRIPT_MAX_BYTES (1u << 16)
#define AT_ONCE 6                   /* concurrent sbatch: more do not make Slurm's controller faster */
#define PARCELS 64                  /* submissions whose result is unknown if this program is killed */
#define LOOK_FOR_NS (10 * NS_PER_S) /* after a lost answer: as long as an RPC of Slurm may take */
#define LOOK_EVERY_NS (500 * NS_PER_MS)

/* The input and the result of one sbatch. */
struct parcel {
    const char *run, *folder; /* for an array, of its first member */
    struct job_record *record;
    struct buf script;
    bool leads_here;           /* the script is run by salloc */
    int lock;                  /* lock of the folder; -1: not held */
    enum submit_answer answer; /* initially REFUSED */
    char id[64], cluster[64];
    int rc;
    struct cb_err err;
};

/* ---- before ---- */

static int write_script(struct file_batch *batch, const struct parcel *parcel, struct cb_err *err)
{
    char path[PATH_MAX];
    const char *name = parcel->leads_here ? JOB_ALLOCATION : JOB_SCRIPT;
    if (path_format(path, sizeof path, err, "%s/%s", parcel->folder, name))
        return CB_ERR_USAGE;
    return file_write(batch, &parcel->script, path, 0644, err);
}

static int intend(struct file_batch *batch, const char *name, const char *folder, struct job_record *record,
                  struct cb_err *err)
{
    uint64_t now_ns = clock_wall_ns();
    snprintf(record->name, sizeof record->name, "%s", name);
    record->intent_wall_ns = now_ns;
    int rc = job_record_enter(record, JOB_PLANNED, now_ns, "", err);
    return rc ? rc : job_record_write_in(batch, folder, record, err);
}

/* Another controller may have held the lock since the record was read; if it has submitted the run, its record is
 * valid. */
static bool was_sent_meanwhile(const char *folder, const struct job_record *record)
{
    struct job_record now;
    if (job_record_read(folder, &now, NULL))
        return false;
    bool sent = *now.job || now.intent_wall_ns != record->intent_wall_ns;
    job_record_release(&now);
    return sent;
}

/* Takes the run's lock; the caller releases it. *lock is -1 on failure. */
static int lock_to_send(const char *run, const char *folder, const struct job_record *record, int *lock,
                        struct cb_err *err)
{
    *lock = -1;
    int rc = job_folder_lock(folder, lock, err);
    if (rc == 0 && (*lock < 0 || was_sent_meanwhile(folder, record)))
        rc = cb_fail(err, CB_ERR_EXISTS, "run %s is being submitted by another ckptbench", run);
    return rc;
}

static int prepare(const struct submission *self, const struct sending *item, struct parcel *parcel,
                   struct file_batch *batch, struct cb_err *err)
{
    *parcel = (struct parcel){.run = item->run,
                              .folder = item->folder,
                              .record = item->record,
                              .leads_here = submission_leads_here(item->experiment),
                              .lock = -1,
                              .answer = SUBMIT_REFUSED};
    buf_init(&parcel->script, SCRIPT_MAX_BYTES);
    int rc = lock_to_send(item->run, item->folder, item->record, &parcel->lock, err);
    if (rc == 0)
        rc = submission_script(self, item->run, item->folder, 0, item->experiment, &parcel->script, err);
    if (rc == 0)
        rc = write_script(batch, parcel, err);
    return rc ? rc : intend(batch, item->run, item->folder, item->record, err);
}

static void release(struct parcel *parcels, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        job_folder_unlock(parcels[i].lock);
        buf_release(&parcels[i].script);
    }
}

/* ---- sbatch ---- */

/* Threads take the next parcel until none is left or one of them does not succeed. Parcels that were not tried are
 * at the end. */
struct crew {
    struct parcel *parcels;
    size_t count;
    atomic_size_t next;
    atomic_bool stop;
};

static int allocate(struct slurm_client *client, struct parcel *parcel)
{
    char script[PATH_MAX], log[PATH_MAX];
    if (path_format(script, sizeof script, &parcel->err, "%s/" JOB_ALLOCATION, parcel->folder) ||
        path_format(log, sizeof log, &parcel->err, "%s/" JOB_LOG, parcel->folder))
        return CB_ERR_USAGE;
    return slurm_allocate(client, script, log, parcel->run, parcel->id, &parcel->answer, &parcel->err);
}

static void try_parcel(struct slurm_client *client, struct parcel *parcel)
{
    if (parcel->leads_here)
        parcel->rc = allocate(client, parcel);
    else
        parcel->rc = slurm_submit(client, parcel->script.data, false, parcel->id, parcel->cluster, &parcel->answer,
                                  &parcel->err);
}

static void take_parcels(struct crew *self, struct slurm_client *client, bool (*was_stopped)(void))
{
    while (!atomic_load(&self->stop)) {
        if (was_stopped && was_stopped()) {
            atomic_store(&self->stop, true);
            return;
        }
        size_t index = atomic_fetch_add(&self->next, 1);
        if (index >= self->count)
            return;
        try_parcel(client, &self->parcels[index]);
        if (self->parcels[index].rc)
            atomic_store(&self->stop, true);
    }
}

/* Uses a transport of its own; if none can be created, the other threads do the work. */
static void *help(void *context)
{
    struct slurm_client client = {0};
    if (transport_local_open(&client.transport, NULL) == 0)
        take_parcels(context, &client, NULL);
    transport_close(client.transport);
    return NULL;
}

/* Starts at parcel `from`; returns the index of the first parcel that was not tried. */
static size_t try_parcels(const struct submission *self, struct parcel *parcels, size_t count, size_t from,
                          bool (*was_stopped)(void))
{
    struct crew crew = {.parcels = parcels, .count = count};
    pthread_t helpers[AT_ONCE - 1];
    size_t started = 0;
    atomic_init(&crew.next, from);
    while (from + started + 1 < count && started < AT_ONCE - 1 &&
           pthread_create(&helpers[started], NULL, help, &crew) == 0)
        started++;
    take_parcels(&crew, self->client, was_stopped);
    for (size_t i = 0; i < started; i++)
        pthread_join(helpers[i], NULL);
    size_t next = atomic_load(&crew.next);
    return next < count ? next : count;
}

/* ---- lost answers ---- */

static bool is_lost(const struct parcel *parcel)
{
    return parcel->rc && parcel->answer == SUBMIT_UNCERTAIN;
}

static void find_lost(const struct submission *self, struct parcel *parcels, size_t count, size_t *lost)
{
    struct slurm_jobs jobs = {0};
    struct job_index index = {0};
    bool known = slurm_look(self->client, &jobs, NULL) == 0 && job_index_make(&index, &jobs, NULL) == 0;
    for (size_t i = 0; known && i < count; i++) {
        const struct slurm_job *job = is_lost(&parcels[i]) ? job_index_find(&index, parcels[i].record) : NULL;
        if (!job)
            continue;
        snprintf(parcels[i].id, sizeof parcels[i].id, "%.*s", (int)strcspn(job->id, "_"),
                 job->id); /* the whole array */
        parcels[i].cluster[0] = '\0';
        parcels[i].answer = SUBMIT_ACCEPTED;
        parcels[i].rc = 0;
        --*lost;
    }
    job_index_release(&index);
    slurm_jobs_release(&jobs);
}

/* After a lost answer the job may be in the queue, or appear there soon. */
static void look_for_lost(const struct submission *self, struct parcel *parcels, size_t count)
{
    uint64_t deadline_ns = clock_monotonic_ns() + LOOK_FOR_NS;
    size_t lost = 0;
    for (size_t i = 0; i < count; i++)
        lost += is_lost(&parcels[i]);
    while (lost > 0) {
        find_lost(self, parcels, count, &lost);
        if (lost == 0 || clock_monotonic_ns() >= deadline_ns)
            break;
        clock_sleep_ns(LOOK_EVERY_NS);
    }
    for (size_t i = 0; i < count; i++) {
        char said[sizeof parcels[i].err.message];
        if (!is_lost(&parcels[i]))
            continue;
        snprintf(said, sizeof said, "%.*s", (int)sizeof said - 1, parcels[i].err.message);
        parcels[i].rc = cb_fail(&parcels[i].err, CB_ERR_TIMEOUT,
                                "%s; Slurm does not list the job, which may still come: it is not sent again, and "
                                "`ckptbench status` finds it",
                                said);
    }
}

/* ---- after ---- */

static int enter_sent(struct file_batch *batch, const char *folder, struct job_record *record, struct cb_err *err)
{
    record->submitted_wall_ns = clock_wall_ns();
    int rc = job_record_enter(record, JOB_SUBMITTED, record->submitted_wall_ns, "", err);
    return rc ? rc : job_record_write_in(batch, folder, record, err);
}

/* Nothing was accepted, so the run may be submitted again. */
static void take_back(const char *folder, struct job_record *record)
{
    record->intent_wall_ns = 0;
    if (job_record_write(folder, record, NULL))
        return; /* the record claims a submission that never happened; `status` looks for the job and reports that */
}

/* Writes the numbers of accepted jobs to the records, their files and the history. */
static int note_sent(const struct submission *self, struct parcel *parcels, size_t count, size_t *sent,
                     struct cb_err *err)
{
    struct file_batch batch = {0};
    int rc = history_begin(self->history, err);
    if (rc)
        return rc;
    for (size_t i = 0; rc == 0 && i < count; i++) {
        struct parcel *parcel = &parcels[i];
        if (parcel->answer != SUBMIT_ACCEPTED)
            continue;
        snprintf(parcel->record->job, sizeof parcel->record->job, "%s", parcel->id);
        snprintf(parcel->record->cluster, sizeof parcel->record->cluster, "%s", parcel->cluster);
        rc = enter_sent(&batch, parcel->folder, parcel->record, err);
        if (rc == 0)
            rc = history_set_state(self->history, parcel->run, job_state_name(JOB_SUBMITTED), err);
        *sent += rc == 0;
    }
    rc = history_end(self->history, rc, err);
    if (rc == 0)
        rc = file_batch_commit(&batch, err);
    file_batch_release(&batch);
    return rc;
}

/* Runs that were refused or not tried may be submitted again. Returns the first failure. */
static int sum_up(struct parcel *parcels, size_t count, struct cb_err *err)
{
    int rc = 0;
    for (size_t i = 0; i < count; i++) {
        if (parcels[i].answer == SUBMIT_REFUSED)
            take_back(parcels[i].folder, parcels[i].record);
        if (rc == 0 && parcels[i].rc) {
            rc = parcels[i].rc;
            if (err)
                *err = parcels[i].err;
        }
    }
    return rc;
}

/* With `first_alone`, the first parcel is tried alone, so that a request that Slurm refuses fails only once.
 * Continues after answers that were lost and found again. */
static int send_parcels(const struct submission *self, struct parcel *parcels, size_t count, bool first_alone,
                        bool (*was_stopped)(void), struct cb_err *err)
{
    size_t tried = 0;
    bool failed = false;
    while (tried < count && !failed && !(was_stopped && was_stopped())) {
        size_t before = tried;
        tried = try_parcels(self, parcels, first_alone && tried == 0 ? 1 : count, tried, was_stopped);
        look_for_lost(self, parcels + before, tried - before);
        for (size_t i = before; i < tried; i++)
            failed = failed || parcels[i].rc;
    }
    return sum_up(parcels, count, err);
}

/* Submits a chunk of runs while holding all their locks. */
static int send_chunk(const struct submission *self, const struct sending *items, size_t count, bool first_alone,
                      bool (*was_stopped)(void), size_t *sent, struct cb_err *err)
{
    struct parcel parcels[PARCELS];
    struct file_batch batch = {0};
    struct cb_err own = {0};
    size_t prepared = 0;
    int rc = 0;
    while (rc == 0 && prepared < count) {
        rc = prepare(self, &items[prepared], &parcels[prepared], &batch, err);
        prepared++;
    }
    if (rc == 0)
        rc = file_batch_commit(&batch, err);
    file_batch_release(&batch);
    if (rc == 0) {
        rc = send_parcels(self, parcels, count, first_alone, was_stopped, err);
        int noted = note_sent(self, parcels, count, sent, &own);
        if (rc == 0 && noted)
            rc = cb_fail(err, noted, "%s", own.message);
    }
    release(parcels, prepared);
    return rc;
}

int submission_send(const struct submission *self, const struct sending *items, size_t count, bool (*was_stopped)(void),
                    size_t *sent, struct cb_err *err)
{
    int rc = 0;
    *sent = 0;
    for (size_t done = 0; rc == 0 && done < count && *sent == done; done += PARCELS) {
        size_t next = count - done < PARCELS ? count - done : PARCELS;
        rc = send_chunk(self, items + done, next, done == 0, was_stopped, sent, err);
    }
    return rc;
}

/* ---- several runs in one request: arrays, and runs of one job ---- */

static bool is_one_job(const struct planned *members)
{
    return experiment_bool(members[0].experiment, OPT_SLURM_ONE_JOB);
}

/* FIRST/array/K links to member K, so that the script finds its run without any logic. */
static int link_members(const struct run_plan *run_plan, size_t first, size_t count, struct cb_err *err)
{
    char folder[PATH_MAX], path[PATH_MAX], target[PATH_MAX];
    if (path_format(folder, sizeof folder, err, "%s/" JOB_ARRAY, run_plan->members[first].folder))
        return CB_ERR_USAGE;
    if (mkdir(folder, 0755) < 0)
        return cb_fail_errno(err, errno, "creating the folder %s", folder);
    for (size_t i = 0; i < count; i++) {
        snprintf(target, sizeof target, "../../%s", run_plan->members[first + i].id);
        if (path_format(path, sizeof path, err, "%s/%zu", folder, i))
            return CB_ERR_USAGE;
        if (symlink(target, path) < 0)
            return cb_fail_errno(err, errno, "linking %s", path);
    }
    return 0;
}

/* At most PARCELS members; holds their locks until the intent is on disk. */
static int intend_some(const struct planned *members, size_t first, size_t end, struct job_record *records,
                       const struct parcel *parcel, struct cb_err *err)
{
    struct file_batch batch = {0};
    int locks[PARCELS], rc = first == 0 ? write_script(&batch, parcel, err) : 0;
    size_t locked = first;
    for (; rc == 0 && locked < end; locked++) {
        size_t i = locked;
        rc = lock_to_send(members[i].id, members[i].folder, &records[i], &locks[i - first], err);
        records[i].in_array = !is_one_job(members);
        records[i].array_task = i;
        if (i > 0 && is_one_job(members))
            snprintf(records[i].before, sizeof records[i].before, "%s", members[i - 1].id);
        if (rc == 0)
            rc = intend(&batch, parcel->run, members[i].folder, &records[i], err);
    }
    if (rc == 0)
        rc = file_batch_commit(&batch, err);
    file_batch_release(&batch);
    for (size_t i = first; i < locked; i++)
        job_folder_unlock(locks[i - first]);
    return rc;
}

/* Writes the script, and the intent into the folder of every member or of none. */
static int prepare_array(const struct submission *self, const struct planned *members, size_t count,
                         struct job_record *records, struct parcel *parcel, struct cb_err *err)
{
    size_t done = 0;
    int rc = submission_script_of(self, members, count, &parcel->script, err);
    while (rc == 0 && done < count) {
        size_t end = count - done < PARCELS ? count : done + PARCELS;
        rc = intend_some(members, done, end, records, parcel, err);
        done = rc == 0 ? end : done;
    }
    for (size_t i = 0; rc && i < done; i++)
        take_back(members[i].folder, &records[i]);
    return rc;
}

static int note_array_sent(const struct submission *self, const struct planned *members, size_t count,
                           struct job_record *records, const struct parcel *parcel, struct cb_err *err)
{
    struct file_batch batch = {0};
    int rc = history_begin(self->history, err);
    if (rc)
        return rc;
    for (size_t i = 0; rc == 0 && i < count; i++) {
        if (is_one_job(members))
            snprintf(records[i].job, sizeof records[i].job, "%s", parcel->id);
        else
            snprintf(records[i].job, sizeof records[i].job, "%.40s_%zu", parcel->id, i);
        snprintf(records[i].cluster, sizeof records[i].cluster, "%s", parcel->cluster);
        rc = enter_sent(&batch, members[i].folder, &records[i], err);
        if (rc == 0)
            rc = history_set_state(self->history, members[i].id, job_state_name(JOB_SUBMITTED), err);
    }
    rc = history_end(self->history, rc, err);
    if (rc == 0)
        rc = file_batch_commit(&batch, err);
    file_batch_release(&batch);
    return rc;
}

static int send_array(const struct submission *self, const struct planned *members, size_t count,
                      struct job_record *records, struct parcel *parcel, struct cb_err *err)
{
    int rc = prepare_array(self, members, count, records, parcel, err);
    if (rc)
        return rc;
    try_parcel(self->client, parcel);
    look_for_lost(self, parcel, 1);
    if (parcel->rc == 0)
        return note_array_sent(self, members, count, records, parcel, err);
    for (size_t i = 0; i < count && parcel->answer == SUBMIT_REFUSED; i++)
        take_back(members[i].folder, &records[i]);
    return cb_fail(err, parcel->rc, "%s", parcel->err.message);
}

int submission_send_array(const struct submission *self, const struct run_plan *run_plan, size_t first, size_t count,
                          struct cb_err *err)
{
    const struct planned *members = &run_plan->members[first];
    struct job_record *records = calloc(count, sizeof *records);
    if (!records)
        return alloc_fail(err, "for %zu jobs", count);
    for (size_t i = 0; i < count; i++)
        job_record_init(&records[i]);
    struct parcel parcel = {.run = members[0].id,
                            .folder = members[0].folder,
                            .record = &records[0],
                            .leads_here = submission_leads_here(members[0].experiment),
                            .answer = SUBMIT_REFUSED};
    buf_init(&parcel.script, SCRIPT_MAX_BYTES);
    int rc = is_one_job(members) ? 0 : link_members(run_plan, first, count, err);
    if (rc == 0)
        rc = send_array(self, members, count, records, &parcel, err);
    buf_release(&parcel.script);
    for (size_t i = 0; i < count; i++)
        job_record_release(&records[i]);
    free(records);
    return rc;
}
