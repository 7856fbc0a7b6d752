/* Reads pools from their folders and from Slurm, and prints their table. */
#include "cli/jobs/pool_list.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/listing.h"
#include "cli/report/history_reading.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/units.h"
#include "run/job_record.h"
#include "run/spool.h"

#define RUNS "runs"
#define SHOWN_NS (24 * 3600 * NS_PER_S) /* how long ended pools are still listed */
#define LEAVE_NS (20 * NS_PER_S)        /* how long to wait for the jobs of a stopped pool */
#define LOOK_NS (200 * NS_PER_MS)
#define OUTLIVED_NS (60 * NS_PER_S) /* a pool's job ends itself within this time after the pool */
#define HOUR_NS (3600.0 * (double)NS_PER_S)
#define MOST_JOBS 4096 /* jobs of a pool that are cancelled in one call */

/* ---- savings ---- */

int pool_note_run(const char *folder, const char *run, struct cb_err *err)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%.*s/" RUNS, PATH_MAX - 80, folder);
    if (mkdir(path, 0777) < 0 && errno != EEXIST)
        return cb_fail_errno(err, errno, "creating the folder %s", path);
    snprintf(path, sizeof path, "%.*s/" RUNS "/%.60s", PATH_MAX - 80, folder, run);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0)
        return cb_fail_errno(err, errno, "creating %s", path);
    close(fd);
    return 0;
}

int pool_runs(const struct pool_entry *entry, char ***runs, size_t *count, struct cb_err *err)
{
    char path[PATH_MAX];
    int rc = 0;
    *runs = NULL;
    *count = 0;
    snprintf(path, sizeof path, "%.*s/" RUNS, PATH_MAX - 80, entry->folder);
    DIR *folder = opendir(path);
    for (struct dirent *run; folder && rc == 0 && (run = readdir(folder));)
        if (run->d_name[0] != '.')
            rc = alloc_add_text(runs, count, run->d_name, strlen(run->d_name), err);
    if (folder)
        closedir(folder);
    return rc;
}

/* A run saves the pool's boot time minus its own boot_s: without the pool its nodes would have booted as long as the
 * pool's. */
static int sum_saved(struct pool_entry *entry, struct cb_err *err)
{
    char path[PATH_MAX], **runs = NULL;
    struct buf home;
    double boot_s = (double)entry->usage.boot_ns / (double)NS_PER_S;
    buf_init(&home, PATH_MAX);
    int rc = home_folder(&home, err);
    if (rc == 0)
        rc = pool_runs(entry, &runs, &entry->runs, err);
    for (size_t i = 0; rc == 0 && runs && i < entry->runs; i++) {
        struct job_record record;
        if (snprintf(path, sizeof path, "%s/runs/%s", home.data, runs[i]) >= (int)sizeof path ||
            job_record_read(path, &record, NULL) != 0)
            continue;
        if (!isnan(record.boot_s) && record.boot_s < boot_s)
            entry->saved_s += boot_s - record.boot_s;
        job_record_release(&record);
    }
    alloc_free_texts(runs, entry->runs);
    buf_release(&home);
    return rc;
}

/* ---- reading ---- */

static int take_pool(void *context, const char *folder, const struct pool *pool, struct cb_err *err)
{
    struct pool_list *self = context;
    if (alloc_grow(&self->items, self->count, sizeof *self->items, err))
        return CB_ERR_MEMORY;
    struct pool_entry *entry = &self->items[self->count];
    *entry = (struct pool_entry){.pool = *pool};
    if (strlen(folder) >= sizeof entry->folder)
        return cb_fail(err, CB_ERR_USAGE, "the path %s is too long", folder);
    snprintf(entry->folder, sizeof entry->folder, "%s", folder);
    self->count++;
    return 0;
}

static int read_signs(struct pool_entry *entry, struct cb_err *err)
{
    entry->has_end = pool_read_end(entry->folder, &entry->end, NULL) == 0;
    return pool_sum(&entry->pool, entry->folder, &entry->usage, err);
}

static int read_entry(struct pool_entry *entry, struct cb_err *err)
{
    spool_count(entry->folder, &entry->waiting, &entry->started);
    entry->runs = 0;
    entry->saved_s = 0;
    int rc = read_signs(entry, err);
    return rc ? rc : sum_saved(entry, err);
}

static int ask_slurm(const struct pool_list *self, struct slurm_client *client, struct slurm_jobs *jobs,
                     struct cb_err *err)
{
    struct slurm_jobs details = {0};
    bool is_waiting = false;
    int rc = slurm_ping(client, err);
    if (rc == 0)
        rc = slurm_look(client, jobs, err);
    for (size_t i = 0; rc == 0 && i < jobs->count; i++)
        for (size_t k = 0; k < self->count; k++)
            if (strcmp(jobs->items[i].name, self->items[k].pool.id) == 0 && self->items[k].usage.jobs == 0)
                is_waiting = true;
    if (rc == 0 && is_waiting)
        rc = slurm_look_closely(client, &details, err);
    /* squeue does not report restarts, which distinguish a failed boot from a slow one. */
    for (size_t i = 0; rc == 0 && i < jobs->count; i++)
        for (size_t k = 0; k < details.count; k++)
            if (strcmp(jobs->items[i].id, details.items[k].id) == 0)
                jobs->items[i].restarts = details.items[k].restarts;
    slurm_jobs_release(&details);
    return rc;
}

static void judge(struct pool_entry *entry, const struct slurm_jobs *jobs, bool asked)
{
    const struct pool_observation observation = {.jobs = jobs,
                                                 .asked = asked,
                                                 .stopping = pool_is_stopping(entry->folder),
                                                 .end = entry->has_end ? &entry->end : NULL,
                                                 .usage = entry->usage,
                                                 .now_wall_ns = clock_wall_ns()};
    pool_state_judge(&entry->pool, &observation, &entry->verdict);
}

/* Cancels every job of the pool that Slurm lists. */
static int call_off(struct slurm_client *client, const struct pool *pool, const struct slurm_jobs *jobs,
                    struct cb_err *err)
{
    const char *ids[MOST_JOBS];
    size_t count = 0;
    for (size_t i = 0; i < jobs->count && count < MOST_JOBS; i++)
        if (strcmp(jobs->items[i].name, pool->id) == 0 && slurm_state_phase(jobs->items[i].state) < SLURM_IS_ENDING)
            ids[count++] = jobs->items[i].id;
    return count ? slurm_cancel(client, ids, count, err) : 0;
}

/* Runs that still wait in an ended pool are returned. */
static int settle(struct pool_entry *entry, struct slurm_client *client, const struct slurm_jobs *jobs,
                  struct cb_err *err)
{
    char note[256];
    int rc = 0;
    if (entry->verdict.give_up) {
        rc = pool_ask_stop(entry->folder, err);
        if (rc == 0)
            rc = pool_write_end(entry->folder, entry->verdict.note, err);
        if (rc == 0)
            rc = call_off(client, &entry->pool, jobs, err);
    } else if (entry->verdict.state == POOL_ENDED && !entry->has_end) {
        rc = pool_write_end(entry->folder, entry->verdict.note, err);
    }
    if (rc == 0 && entry->verdict.state == POOL_ENDED && entry->waiting) {
        snprintf(note, sizeof note, "pool %s ended before this run was started: %.150s", entry->pool.name,
                 entry->verdict.note);
        rc = spool_return_all(entry->folder, note, err);
    }
    return rc;
}

/* Whether jobs of an ended pool are left: who was to release their nodes has died. */
static bool has_outlived(const struct pool_entry *entry)
{
    return entry->verdict.listed && entry->has_end && entry->end.at_wall_ns + OUTLIVED_NS <= clock_wall_ns();
}

int pool_list_load(struct pool_list *self, struct slurm_client *client, struct cb_err *err)
{
    struct slurm_jobs jobs = {0};
    struct cb_err why = {0};
    bool needed = false;
    *self = (struct pool_list){0};
    int rc = pool_each(take_pool, self, err);
    for (size_t i = 0; rc == 0 && i < self->count; i++) {
        rc = read_entry(&self->items[i], err);
        uint64_t since_ns = self->items[i].has_end ? clock_wall_ns() - self->items[i].end.at_wall_ns : 0;
        needed = needed || since_ns < SHOWN_NS;
    }
    if (rc == 0 && needed && ask_slurm(self, client, &jobs, &why) != 0)
        snprintf(self->trouble, sizeof self->trouble, "%.500s", why.message);
    self->asked = needed && !*self->trouble;
    for (size_t i = 0; rc == 0 && i < self->count; i++) {
        judge(&self->items[i], &jobs, self->asked);
        rc = settle(&self->items[i], client, &jobs, err);
        if (rc == 0 && has_outlived(&self->items[i]) && call_off(client, &self->items[i].pool, &jobs, &why) != 0)
            log_error("pool %s has ended, and its jobs cannot be cancelled: %s", self->items[i].pool.name, why.message);
    }
    slurm_jobs_release(&jobs);
    return rc;
}

int pool_list_glance(struct pool_list *self, struct cb_err *err)
{
    *self = (struct pool_list){0};
    int rc = pool_each(take_pool, self, err);
    for (size_t i = 0; rc == 0 && i < self->count; i++)
        rc = read_signs(&self->items[i], err);
    return rc;
}

static int cancel_outlived(struct cb_err *err)
{
    struct pool_list list;
    struct transport *transport = NULL;
    uint64_t now_ns = clock_wall_ns();
    bool outlived = false;
    int rc = pool_list_glance(&list, err);
    for (size_t i = 0; rc == 0 && i < list.count; i++)
        outlived = outlived || (list.items[i].has_end && list.items[i].usage.open_jobs &&
                                now_ns < list.items[i].end.at_wall_ns + SHOWN_NS);
    pool_list_release(&list);
    if (rc || !outlived)
        return rc;
    rc = transport_local_open(&transport, err);
    if (rc)
        return rc;
    struct slurm_client client = {.transport = transport};
    rc = pool_list_load(&list, &client, err);
    if (rc == 0 && *list.trouble)
        rc = cb_fail(err, CB_ERR_SYSTEM, "%s", list.trouble);
    pool_list_release(&list);
    transport_close(transport);
    return rc;
}

void pool_list_cancel_outlived(void)
{
    struct cb_err err;
    if (cancel_outlived(&err))
        log_error("a job may have outlived its pool, and still hold nodes: %s", err.message);
}

void pool_list_release(struct pool_list *self)
{
    free(self->items);
    *self = (struct pool_list){0};
}

int pool_list_find(const struct pool_list *self, const char *name, struct pool_entry **entry, struct cb_err *err)
{
    char known[256] = "";
    for (size_t i = self->count; i-- > 0;) {
        const struct pool *pool = &self->items[i].pool;
        if (strcmp(pool->name, name) == 0 || strcmp(pool->id, name) == 0) {
            *entry = &self->items[i];
            return 0;
        }
        if (strlen(known) + strlen(pool->name) + 3 < sizeof known && self->items[i].verdict.state != POOL_ENDED)
            snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", *known ? ", " : "", pool->name);
    }
    return cb_fail(err, CB_ERR_NOT_FOUND, "there is no pool %.60s%s%s; `ckptbench warm start` makes one", name,
                   *known ? ": there is " : "", known);
}

/* ---- storing ---- */

static double node_hours(uint64_t node_ns)
{
    return (double)node_ns / HOUR_NS;
}

int pool_list_keep(struct history *history, struct cb_err *err)
{
    struct pool_list list = {0};
    int rc = pool_each(take_pool, &list, err);
    if (rc == 0 && list.count)
        rc = history_begin(history, err);
    if (rc || list.count == 0) {
        pool_list_release(&list);
        return rc;
    }
    for (size_t i = 0; rc == 0 && i < list.count; i++) {
        const struct pool_entry *entry = &list.items[i];
        const struct pool *pool = &entry->pool;
        rc = read_entry(&list.items[i], err);
        if (rc)
            break;
        const struct pool_cost cost = {.id = pool->id,
                                       .pool = pool->name,
                                       .mode = pool_mode_name(pool->mode),
                                       .note = entry->has_end ? entry->end.reason : NULL,
                                       .nodes = pool->nodes,
                                       .created_wall_ns = pool->created_wall_ns,
                                       .expires_wall_ns = pool->expires_wall_ns,
                                       .ended_wall_ns = entry->has_end ? entry->end.at_wall_ns : 0,
                                       .budget_node_hours = node_hours(pool->budget_node_ns),
                                       .node_hours = node_hours(entry->usage.node_ns),
                                       .job_node_hours = node_hours(entry->usage.job_node_ns),
                                       .jobs = entry->usage.jobs,
                                       .failed_boots = entry->usage.failures,
                                       .boot_s = (double)entry->usage.boot_ns / (double)NS_PER_S,
                                       .runs = entry->runs,
                                       .saved_s = entry->saved_s};
        rc = history_keep_pool(history, &cost, err);
    }
    pool_list_release(&list);
    return history_end(history, rc, err);
}

/* ---- ending ---- */

int pool_stop(struct slurm_client *client, struct pool_entry *entry, struct cb_err *err)
{
    uint64_t deadline_ns = clock_monotonic_ns() + LEAVE_NS, kill_ns = deadline_ns - LEAVE_NS / 4;
    struct slurm_jobs jobs = {0};
    int rc = pool_ask_stop(entry->folder, err);
    if (rc == 0)
        rc = slurm_ping(client, err);
    while (rc == 0) {
        slurm_jobs_release(&jobs);
        rc = slurm_look(client, &jobs, err);
        if (rc == 0)
            rc = read_entry(entry, err);
        if (rc)
            break;
        judge(entry, &jobs, true);
        if (entry->verdict.listed == 0 || clock_monotonic_ns() >= deadline_ns)
            break;
        /* A running hold job ends its run in order and then itself; a job that has not started can be cancelled
         * immediately. */
        bool leaves = entry->pool.mode == POOL_HOLD && entry->usage.jobs > 0 && clock_monotonic_ns() < kill_ns;
        if (!leaves)
            rc = call_off(client, &entry->pool, &jobs, err);
        clock_sleep_ns(LOOK_NS);
    }
    if (rc == 0 && !entry->has_end)
        rc = pool_write_end(entry->folder, "stopped on request", err);
    if (rc == 0)
        rc = read_entry(entry, err);
    judge(entry, &jobs, true);
    if (rc == 0)
        rc = settle(entry, client, &jobs, err);
    slurm_jobs_release(&jobs);
    return rc;
}

/* ---- the table ---- */

static void member_text(struct json_writer *json, const char *key, const char *text)
{
    json_member_text(json, key, *text ? text : NULL);
}

static void write_json_members(struct json_writer *json, const struct pool_entry *entry)
{
    const struct pool *pool = &entry->pool;
    member_text(json, "pool", pool->name);
    member_text(json, "id", pool->id);
    member_text(json, "mode", pool_mode_name(pool->mode));
    member_text(json, "state", pool_state_name(entry->verdict.state));
    member_text(json, "job", *entry->verdict.job ? entry->verdict.job : pool->job);
    json_member_u64(json, "node_count", pool->nodes);
    member_text(json, "nodes", entry->usage.nodes);
    json_member_date(json, "created", pool->created_wall_ns);
    json_member_date(json, "expires", pool->expires_wall_ns);
    json_member_date(json, "ended", entry->has_end ? entry->end.at_wall_ns : 0);
    json_member_double(json, "period_s", (double)pool->period_ns / (double)NS_PER_S);
    json_member_double(json, "budget_node_hours", node_hours(pool->budget_node_ns));
    json_member_double(json, "node_hours", node_hours(entry->usage.node_ns));
    json_member_double(json, "job_node_hours", node_hours(entry->usage.job_node_ns));
    json_member_u64(json, "jobs", entry->usage.jobs);
    json_member_u64(json, "failed_boots", entry->usage.failures);
    json_member_double(json, "boot_s", (double)entry->usage.boot_ns / (double)NS_PER_S);
    json_member_u64(json, "runs", entry->runs);
    json_member_u64(json, "waiting", entry->waiting);
    json_member_double(json, "saved_s", entry->saved_s);
    member_text(json, "note", entry->verdict.note);
}

static void add_cells(struct table *table, const struct pool_entry *entry)
{
    char date[21], saved[32], waiting[40] = "";
    const struct pool *pool = &entry->pool;
    bool bad = entry->verdict.give_up || entry->usage.failures;
    table_add(table, TABLE_BOLD, pool->name);
    table_add(table, TABLE_PLAIN, pool_mode_name(pool->mode));
    table_add(table, bad ? TABLE_BAD : TABLE_PLAIN, pool_state_name(entry->verdict.state));
    table_add(table, TABLE_PLAIN, *entry->verdict.job ? entry->verdict.job : NULL);
    table_addf(table, TABLE_PLAIN, "%" PRIu64, pool->nodes);
    table_add(table, TABLE_PLAIN, date_text(pool->expires_wall_ns, date));
    table_addf(table, TABLE_PLAIN, "%.2f of %.2f", node_hours(entry->usage.node_ns), node_hours(pool->budget_node_ns));
    table_addf(table, TABLE_PLAIN, "%zu", entry->runs);
    table_add(table, TABLE_PLAIN,
              entry->saved_s > 0 ? units_format_duration(entry->saved_s * (double)NS_PER_S, saved) : NULL);
    if (entry->waiting)
        snprintf(waiting, sizeof waiting, "%zu in the spool%s", entry->waiting, *entry->verdict.note ? "; " : "");
    table_addf(table, TABLE_PLAIN, "%s%s", waiting, entry->verdict.note);
}

int pool_list_write(struct cli *cli, const struct pool_list *self, struct cb_err *err)
{
    static const char *const headings[] = {"POOL",  "MODE",       "STATE", "JOB",   "NODES",
                                           "UNTIL", "NODE-HOURS", "RUNS",  "SAVED", "NOTE"};
    struct listing list;
    listing_init(&list, cli, 2, "llllrlrrrl", headings);
    if (self->count == 0)
        list.if_empty = "no pools; `ckptbench warm start POOL nodes=2 for=2h` makes one";
    for (size_t i = 0; i < self->count; i++) {
        const struct pool_entry *entry = &self->items[i];
        if (entry->verdict.state == POOL_ENDED && entry->has_end && entry->end.at_wall_ns + SHOWN_NS <= clock_wall_ns())
            continue;
        listing_begin_row(&list);
        if (cli->json)
            write_json_members(&list.json, entry);
        else
            add_cells(&list.table, entry);
        listing_end_row(&list);
    }
    return listing_end(&list, 0, err);
}
