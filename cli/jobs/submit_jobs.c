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
#define AT_ONCE 6                   /* limit of concurrent sbatch: more do not make Slurm's controller faster */
#define PARCELS 64                  /* limit of submissions with an unknown result if this program is killed */
#define LOOK_FOR_NS (10 * NS_PER_S) /* after a lost reply: as long as an RPC of Slurm may take */
#define LOOK_EVERY_NS (500 * NS_PER_MS)

/* The input and the result of one sbatch. */
struct parcel {
    const struct sending *items; /* one run, or the members of an array or of one job */
    size_t count;
    struct buf script;
    bool leads_here;           /* salloc runs the script */
    int lock;                  /* lock of the folder of a single run; -1: not held */
    enum submit_answer answer; /* initially REFUSED */
    char id[64], cluster[64];
    int rc;
    struct cb_err err;
};

/* ---- before submitting ---- */

static int write_script(struct file_batch *batch, const struct parcel *parcel, struct cb_err *err)
{
    char path[PATH_MAX];
    const char *name = parcel->leads_here ? JOB_ALLOCATION : JOB_SCRIPT;
    if (path_format(path, sizeof path, err, "%s/%s", parcel->items[0].folder, name))
        return CB_ERR_USAGE;
    return file_write(batch, &parcel->script, path, 0666, err);
}

/* Another controller may have held the lock since the record was read; if it has submitted the run, its record is the
 * valid one. */
static bool was_sent_meanwhile(const struct sending *item)
{
    struct job_record now;
    if (job_record_read(item->folder, &now, NULL))
        return false;
    bool sent = *now.job || now.intent_wall_ns != item->record->intent_wall_ns;
    job_record_release(&now);
    return sent;
}

/* Locks the run (the caller unlocks; -1 on failure), and records the intent to submit a job of that name. */
static int intend(struct file_batch *batch, const char *name, const struct sending *item, int *lock, struct cb_err *err)
{
    struct job_record *record = item->record;
    *lock = -1;
    int rc = job_folder_lock(item->folder, lock, err);
    if (rc == 0 && (*lock < 0 || was_sent_meanwhile(item)))
        rc = cb_fail(err, CB_ERR_EXISTS, "run %s is being submitted by another ckptbench", item->run);
    if (rc)
        return rc;
    snprintf(record->name, sizeof record->name, "%s", name);
    record->intent_wall_ns = clock_wall_ns();
    rc = job_record_enter(record, JOB_PLANNED, record->intent_wall_ns, "", err);
    return rc ? rc : job_record_write_in(batch, item->folder, record, err);
}

static void parcel_init(struct parcel *self, const struct sending *items, size_t count)
{
    *self = (struct parcel){.items = items,
                            .count = count,
                            .leads_here = submission_leads_here(items[0].experiment),
                            .lock = -1,
                            .answer = SUBMIT_REFUSED};
    buf_init(&self->script, SCRIPT_MAX_BYTES);
}

/* ---- sbatch ---- */

/* Threads take the next parcel until all are taken or one fails. Parcels that were not tried are at the end. */
struct crew {
    struct parcel *parcels;
    size_t count;
    atomic_size_t next;
    atomic_bool stop;
};

static int allocate(struct slurm_client *client, struct parcel *parcel)
{
    char script[PATH_MAX], log[PATH_MAX];
    if (path_format(script, sizeof script, &parcel->err, "%s/" JOB_ALLOCATION, parcel->items[0].folder) ||
        path_format(log, sizeof log, &parcel->err, "%s/" JOB_LOG, parcel->items[0].folder))
        return CB_ERR_USAGE;
    return slurm_allocate(client, script, log, parcel->items[0].run, parcel->id, &parcel->answer, &parcel->err);
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
        struct parcel *parcel = &self->parcels[index];
        parcel->rc = parcel->leads_here ? allocate(client, parcel)
                                        : slurm_submit(client, parcel->script.data, false, parcel->id, parcel->cluster,
                                                       &parcel->answer, &parcel->err);
        if (parcel->rc)
            atomic_store(&self->stop, true);
    }
}

/* Uses its own transport; if none can be created, the other threads do the work. */
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

/* ---- lost replies ---- */

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
        const struct job_record *record = parcels[i].items[0].record;
        const struct slurm_job *job = is_lost(&parcels[i]) ? job_index_find(&index, record) : NULL;
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

/* After a lost reply the job may be in the queue, or appear there soon. */
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

/* ---- after submitting ---- */

/* Slurm has accepted nothing, so the runs may be submitted again. */
static void take_back(const struct sending *items, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        items[i].record->intent_wall_ns = 0;
        if (job_record_write(items[i].folder, items[i].record, NULL))
            continue; /* `status` will search for the job and report that it is missing */
    }
}

/* Writes the numbers of accepted jobs to the records, their files and the history. */
static int note_sent(const struct submission *self, const struct parcel *parcels, size_t count, size_t *sent,
                     struct cb_err *err)
{
    struct file_batch batch = {0};
    int rc = history_begin(self->history, err);
    if (rc)
        return rc;
    for (const struct parcel *parcel = parcels; parcel < parcels + count; parcel++) {
        for (size_t i = 0; rc == 0 && parcel->answer == SUBMIT_ACCEPTED && i < parcel->count; i++) {
            struct job_record *record = parcel->items[i].record;
            if (record->in_array)
                snprintf(record->job, sizeof record->job, "%.40s_%zu", parcel->id, i);
            else
                snprintf(record->job, sizeof record->job, "%s", parcel->id);
            snprintf(record->cluster, sizeof record->cluster, "%s", parcel->cluster);
            record->submitted_wall_ns = clock_wall_ns();
            rc = job_record_enter(record, JOB_SUBMITTED, record->submitted_wall_ns, "", err);
            if (rc == 0)
                rc = job_record_write_in(&batch, parcel->items[i].folder, record, err);
            if (rc == 0)
                rc = history_set_state(self->history, parcel->items[i].run, job_state_name(JOB_SUBMITTED), err);
            *sent += rc == 0;
        }
    }
    rc = history_end(self->history, rc, err);
    if (rc == 0)
        rc = file_batch_commit(&batch, err);
    file_batch_release(&batch);
    return rc;
}

/* With `first_alone`, tries the first parcel alone, so that a request that Slurm refuses fails only once. Continues
 * after replies that were lost but whose job was found. Runs that were refused or not tried may be submitted again.
 * Returns the first failure. */
static int send_parcels(const struct submission *self, struct parcel *parcels, size_t count, bool first_alone,
                        bool (*was_stopped)(void), size_t *sent, struct cb_err *err)
{
    struct cb_err own = {0};
    size_t tried = 0;
    int rc = 0;
    while (tried < count && rc == 0 && !(was_stopped && was_stopped())) {
        size_t before = tried;
        tried = try_parcels(self, parcels, first_alone && tried == 0 ? 1 : count, tried, was_stopped);
        look_for_lost(self, parcels + before, tried - before);
        for (size_t i = before; rc == 0 && i < tried; i++)
            if (parcels[i].rc)
                rc = cb_fail(err, parcels[i].rc, "%s", parcels[i].err.message);
    }
    for (size_t i = 0; i < count; i++)
        if (parcels[i].answer == SUBMIT_REFUSED)
            take_back(parcels[i].items, parcels[i].count);
    int noted = note_sent(self, parcels, count, sent, &own);
    return rc == 0 && noted ? cb_fail(err, noted, "%s", own.message) : rc;
}

/* Submits some runs at a time while holding all their locks. */
static int send_chunk(const struct submission *self, const struct sending *items, size_t count, bool first_alone,
                      bool (*was_stopped)(void), size_t *sent, struct cb_err *err)
{
    struct parcel parcels[PARCELS];
    struct file_batch batch = {0};
    size_t prepared = 0;
    int rc = 0;
    while (rc == 0 && prepared < count) {
        const struct sending *item = &items[prepared];
        struct parcel *parcel = &parcels[prepared++];
        parcel_init(parcel, item, 1);
        rc = intend(&batch, item->run, item, &parcel->lock, err);
        if (rc == 0)
            rc = submission_script(self, item->run, item->folder, 0, item->experiment, &parcel->script, err);
        if (rc == 0)
            rc = write_script(&batch, parcel, err);
    }
    if (rc == 0)
        rc = file_batch_commit(&batch, err);
    file_batch_release(&batch);
    if (rc == 0)
        rc = send_parcels(self, parcels, count, first_alone, was_stopped, sent, err);
    for (size_t i = 0; i < prepared; i++) {
        run_folder_unlock(parcels[i].lock);
        buf_release(&parcels[i].script);
    }
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

/* FIRST/array/K links to member K, so that the script finds its run without any logic. */
static int link_members(const struct sending *items, size_t count, struct cb_err *err)
{
    char folder[PATH_MAX], path[PATH_MAX], target[PATH_MAX];
    if (path_format(folder, sizeof folder, err, "%s/" JOB_ARRAY, items[0].folder))
        return CB_ERR_USAGE;
    if (mkdir(folder, 0777) < 0)
        return cb_fail_errno(err, errno, "creating the folder %s", folder);
    for (size_t i = 0; i < count; i++) {
        snprintf(target, sizeof target, "../../%s", items[i].run);
        if (path_format(path, sizeof path, err, "%s/%zu", folder, i))
            return CB_ERR_USAGE;
        if (symlink(target, path) < 0)
            return cb_fail_errno(err, errno, "linking %s", path);
    }
    return 0;
}

/* At most PARCELS members; holds their locks until the intent is on disk. */
static int intend_some(const struct parcel *parcel, size_t first, size_t end, struct cb_err *err)
{
    struct file_batch batch = {0};
    int locks[PARCELS], rc = first == 0 ? write_script(&batch, parcel, err) : 0;
    size_t locked = first;
    for (; rc == 0 && locked < end; locked++)
        rc = intend(&batch, parcel->items[0].run, &parcel->items[locked], &locks[locked - first], err);
    if (rc == 0)
        rc = file_batch_commit(&batch, err);
    file_batch_release(&batch);
    for (size_t i = first; i < locked; i++)
        run_folder_unlock(locks[i - first]);
    return rc;
}

/* Writes the script, and the intent into the folder of every member or of none. */
static int send_as_one(const struct submission *self, const struct planned *members, const struct sending *items,
                       size_t count, size_t *sent, struct cb_err *err)
{
    struct parcel parcel;
    size_t done = 0;
    bool is_one_job = experiment_bool(items[0].experiment, OPT_SLURM_ONE_JOB);
    parcel_init(&parcel, items, count);
    for (size_t i = 0; i < count; i++) {
        items[i].record->in_array = !is_one_job;
        items[i].record->array_task = i;
        if (i > 0 && is_one_job)
            snprintf(items[i].record->before, sizeof items[i].record->before, "%s", items[i - 1].run);
    }
    int rc = is_one_job ? 0 : link_members(items, count, err);
    if (rc == 0)
        rc = submission_script_of(self, members, count, &parcel.script, err);
    while (rc == 0 && done < count) {
        size_t end = count - done < PARCELS ? count : done + PARCELS;
        rc = intend_some(&parcel, done, end, err);
        done = rc == 0 ? end : done;
    }
    if (rc)
        take_back(items, done);
    else
        rc = send_parcels(self, &parcel, 1, false, NULL, sent, err);
    buf_release(&parcel.script);
    return rc;
}

int submission_send_planned(const struct submission *self, const struct planned *members, size_t count, bool as_one,
                            bool (*was_stopped)(void), size_t *sent, struct cb_err *err)
{
    struct sending *items = calloc(count, sizeof *items);
    struct job_record *records = calloc(count, sizeof *records);
    int rc = items && records ? 0 : alloc_fail(err, "for %zu jobs", count);
    *sent = 0;
    for (size_t i = 0; rc == 0 && i < count; i++) {
        job_record_init(&records[i]);
        items[i] = (struct sending){members[i].id, members[i].folder, members[i].experiment, &records[i]};
    }
    if (rc == 0)
        rc = as_one ? send_as_one(self, members, items, count, sent, err)
                    : submission_send(self, items, count, was_stopped, sent, err);
    for (size_t i = 0; records && i < count; i++)
        job_record_release(&records[i]);
    free(records);
    free(items);
    return rc;
}
