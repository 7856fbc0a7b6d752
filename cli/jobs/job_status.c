/* Prints the table and JSON of status, and follows jobs until they end. */
#include "cli/jobs/job_status.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/jobs/run_here.h"
#include "cli/listing.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/units.h"

#define FIRST_LOOK_NS (500 * NS_PER_MS)
#define LONGEST_LOOK_NS (5 * NS_PER_S)
#define SQL_MAX_BYTES (4u << 20)

/* Medians of a finished run from the history, NAN if absent. */
struct figures {
    double save_bytes_per_s, load_bytes_per_s, launch_s, run_s;
};

/* ---- metrics of finished runs, in one query ---- */

struct figure_reader {
    const struct job_list *list;
    struct figures *figures;
};

static int compare_run(const void *name, const void *entry)
{
    return strcmp(name, ((const struct job_entry *)entry)->run);
}

static int take_figure(void *context, bool is_header, const struct query_cell *cells, size_t count, struct cb_err *err)
{
    struct figure_reader *reader = context;
    (void)err;
    if (is_header || count != 3 || cells[0].type != CELL_TEXT || cells[1].type != CELL_TEXT ||
        cells[2].type != CELL_REAL)
        return 0;
    const struct job_entry *entry =
        bsearch(cells[0].text, reader->list->items, reader->list->count, sizeof *reader->list->items, compare_run);
    if (!entry)
        return 0;
    struct figures *figures = &reader->figures[entry - reader->list->items];
    const struct {
        enum metric_id metric;
        double *place;
    } rows[] = {{METRIC_SAVE_BYTES_PER_S, &figures->save_bytes_per_s},
                {METRIC_LOAD_BYTES_PER_S, &figures->load_bytes_per_s},
                {METRIC_LAUNCH_S, &figures->launch_s},
                {METRIC_RUN_S, &figures->run_s}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(cells[1].text, metric_row(rows[i].metric)->name) == 0)
            *rows[i].place = cells[2].real;
    return 0;
}

static int read_figures(const struct job_list *list, struct figures *figures, struct cb_err *err)
{
    struct figure_reader reader = {list, figures};
    struct buf sql;
    bool any = false;
    buf_init(&sql, SQL_MAX_BYTES);
    buf_append_text(&sql,
                    "SELECT run, metric, median FROM metric WHERE metric IN ('save_bytes_per_s','load_bytes_per_s',"
                    "'launch_s','run_s') AND run IN (");
    for (size_t i = 0; i < list->count; i++) {
        figures[i] = (struct figures){NAN, NAN, NAN, NAN};
        if (!list->items[i].is_final)
            continue;
        buf_append_text(&sql, any ? ",'" : "'");
        for (const char *c = list->items[i].run; *c; c++)
            buf_append_text(&sql, *c == '\'' ? "''" : (char[]){*c, '\0'});
        buf_append_char(&sql, '\'');
        any = true;
    }
    buf_append_char(&sql, ')');
    int rc = buf_check(&sql, "the names of the runs", err);
    if (rc == 0 && any)
        rc = history_query(list->history, sql.data, take_figure, &reader, err);
    buf_release(&sql);
    return rc;
}

/* ---- the text of a line ---- */

/* "12 s", "1m40", "2h10": readable at a glance. */
static char *short_duration(double seconds, char text[32])
{
    if (isnan(seconds) || seconds < 0)
        return NULL;
    unsigned long long all = (unsigned long long)(seconds + 0.5);
    if (all < 60)
        snprintf(text, 32, "%llu s", all);
    else if (all < 3600)
        snprintf(text, 32, "%llum%02llu", all / 60, all % 60);
    else
        snprintf(text, 32, "%lluh%02llu", all / 3600, all / 60 % 60);
    return text;
}

/* How long it has been waiting, booting or running; NAN in other states. */
static double live_s(const struct job_entry *entry, enum job_state state, uint64_t since_s)
{
    uint64_t now_s = clock_wall_ns() / NS_PER_S;
    return entry->verdict.state == state && since_s && now_s >= since_s ? (double)(now_s - since_s) : NAN;
}

static double queue_s(const struct job_entry *entry)
{
    if (entry->told.is)
        return entry->told.queue_s;
    double waiting = live_s(entry, JOB_PENDING, entry->record.queued_s);
    return isnan(waiting) ? entry->record.queue_s : waiting;
}

static double boot_s(const struct job_entry *entry)
{
    if (entry->told.is)
        return entry->told.boot_s;
    double booting = live_s(entry, JOB_BOOTING, entry->record.allocated_s);
    return isnan(booting) ? entry->record.boot_s : booting;
}

static double run_s(const struct job_entry *entry, const struct figures *figures)
{
    if (entry->told.is)
        return entry->told.run_s;
    double running = live_s(entry, JOB_RUNNING, entry->record.began_s);
    return isnan(running) ? figures->run_s : running;
}

/* "save 2/5, 3.7 GiB/s, slowest rank 3", or the medians of a finished run. */
static void progress_text(const struct job_entry *entry, const struct figures *figures, char *text, size_t bytes)
{
    const struct progress *progress = &entry->seen.progress;
    char rate[32], rank[32] = "", load[32];
    text[0] = '\0';
    if (entry->told.is) {
        snprintf(text, bytes, "%s", entry->told.progress);
        return;
    }
    if (entry->is_final) {
        if (!isnan(figures->save_bytes_per_s))
            snprintf(text, bytes, "save %s", units_format_rate(figures->save_bytes_per_s, rate));
        if (!isnan(figures->load_bytes_per_s))
            snprintf(text + strlen(text), bytes - strlen(text), "%sload %s", *text ? "  " : "",
                     units_format_rate(figures->load_bytes_per_s, load));
        return;
    }
    if (entry->verdict.state != JOB_RUNNING || !entry->seen.has_progress || entry->seen.sealed)
        return;
    if (!progress->op[0]) {
        snprintf(text, bytes, "%s", progress->state);
        return;
    }
    if (progress->slowest_rank >= 0)
        snprintf(rank, sizeof rank, ", slowest rank %d", progress->slowest_rank);
    snprintf(text, bytes, "%s %u/%u%s%s%s", progress->op, progress->iteration, progress->iterations,
             progress->bytes_per_s > 0 ? ", " : "",
             progress->bytes_per_s > 0 ? units_format_rate(progress->bytes_per_s, rate) : "", rank);
}

/* The outcome, also if the history lacks it because another controller is about to write it. */
static const char *outcome_of(const struct job_entry *entry)
{
    if (*entry->outcome)
        return entry->outcome;
    if (!job_state_is_final(entry->verdict.state) || !(entry->seen.sealed || entry->verdict.seal))
        return NULL;
    return outcome_name(entry->seen.sealed ? entry->seen.manifest.outcome : entry->verdict.outcome);
}

/* ---- the list ---- */

static enum table_style style_of(const struct job_entry *entry)
{
    switch (entry->verdict.state) {
    case JOB_DONE:
        return TABLE_GOOD;
    case JOB_FAILED:
    case JOB_LOST:
        return TABLE_BAD;
    case JOB_CANCELLED:
        return TABLE_WARN;
    default:
        return TABLE_PLAIN;
    }
}

/* If any run is of a site, the table has a column for it. */
static void add_line(struct listing *list, const struct job_entry *entry, const struct figures *figures, bool sites)
{
    char text[32], progress[160], job[112];
    bool json = list->cli->json, is_of_site = job_entry_is_of_site(entry);
    bool failed = entry->is_final && entry->verdict.state != JOB_DONE && entry->verdict.state != JOB_CANCELLED;
    const struct job_record *record = &entry->record;
    bool takes_fewer = entry->nodes && entry->nodes < record->node_count; /* in a job with several runs */
    progress_text(entry, figures, progress, sizeof progress);
    snprintf(job, sizeof job, "%s%s%s", record->job, *record->step ? "." : "", record->step); /* "4711", "4711.0" */
    listing_begin_row(list);
    listing_text(list, "run", TABLE_BOLD, entry->run);
    if (json ? is_of_site : sites)
        listing_text(list, "site", TABLE_PLAIN, is_of_site ? entry->site : NULL);
    listing_text(list, "state", style_of(entry), job_state_name(entry->verdict.state));
    if (json)
        json_member_text(&list->json, "outcome", outcome_of(entry));
    listing_text(list, "job", TABLE_PLAIN, *record->job ? job : NULL);
    listing_u64_or_none(list, "nodes", takes_fewer ? entry->nodes : record->node_count);
    listing_double(list, "queue_s", queue_s(entry), short_duration(queue_s(entry), text));
    listing_double(list, "boot_s", boot_s(entry), short_duration(boot_s(entry), text));
    if (json)
        json_member_double(&list->json, "launch_s", entry->told.is ? entry->told.launch_s : figures->launch_s);
    listing_double(list, "run_s", run_s(entry, figures), short_duration(run_s(entry, figures), text));
    listing_text(list, "progress", TABLE_PLAIN, progress);
    if (failed && !json)
        table_addf(&list->table, TABLE_PLAIN, "%s%slog: ckptbench logs %s", entry->verdict.note,
                   *entry->verdict.note ? "; " : "", entry->run);
    else
        listing_text(list, "note", TABLE_PLAIN, entry->verdict.note);
    listing_end_row(list);
}

int job_status_write(struct cli *cli, const struct job_list *list, struct cb_err *err)
{
    static const char *const headings[] = {"RUN", "STATE", "JOB", "NODES", "QUEUE", "BOOT", "RUN", "PROGRESS", "NOTE"};
    static const char *const with_site[] = {"RUN",   "SITE", "STATE", "JOB",      "NODES",
                                            "QUEUE", "BOOT", "RUN",   "PROGRESS", "NOTE"};
    struct listing listing;
    struct figures *figures = calloc(list->count + 1, sizeof *figures);
    bool sites = false;
    if (!figures)
        return alloc_fail(err, "for %zu runs", list->count);
    int rc = read_figures(list, figures, err);
    for (size_t i = 0; i < list->count; i++)
        sites = sites || job_entry_is_of_site(&list->items[i]);
    listing_init(&listing, cli, 2, sites ? "llllrrrrll" : "lllrrrrll", sites ? with_site : headings);
    for (size_t i = 0; rc == 0 && i < list->count; i++)
        add_line(&listing, &list->items[i], &figures[i], sites);
    free(figures);
    return listing_end(&listing, rc, err);
}

int job_status_write_submitted(struct cli *cli, const struct job_list *list, const char *sweep, const char *site,
                               struct cb_err *err)
{
    struct json_writer json;
    json_writer_init(&json, &cli->out, 2);
    json_write_begin_object(&json);
    json_member_text(&json, "sweep", sweep);
    if (site)
        json_member_text(&json, "site", site);
    json_member_array(&json, "runs");
    for (size_t i = 0; i < list->count; i++) {
        json_write_begin_object(&json);
        json_member_text(&json, "run", list->items[i].run);
        json_member_text(&json, "job", *list->items[i].record.job ? list->items[i].record.job : NULL);
        json_write_end_object(&json);
    }
    return cli_end_json(cli, &json, err);
}

/* ---- following ---- */

/* Prints changes since the last sync: "run X: running on n[1-2]". */
static void tell_changes(const struct job_list *list, enum job_state *told)
{
    for (size_t i = 0; i < list->count; i++) {
        const struct job_entry *entry = &list->items[i];
        if (told[i] == entry->verdict.state)
            continue;
        told[i] = entry->verdict.state;
        log_info("%s  %s%s%s%s%s", entry->run, job_state_name(entry->verdict.state),
                 *entry->record.nodes && told[i] == JOB_RUNNING ? " on " : "",
                 told[i] == JOB_RUNNING ? entry->record.nodes : "", *entry->verdict.note ? ": " : "",
                 entry->verdict.note);
    }
}

int job_status_wait(struct cli *cli, struct job_list *list, struct cb_err *err)
{
    uint64_t pause_ns = FIRST_LOOK_NS;
    enum job_state *told = calloc(list->count + 1, sizeof *told);
    char trouble[sizeof list->trouble] = "";
    int rc = told ? 0 : alloc_fail(err, "for %zu runs", list->count);
    while (rc == 0) {
        rc = job_list_sync(list, err);
        if (rc == 0 && list->broken)
            rc = cb_fail(err, CB_ERR_SYSTEM, "%s", list->trouble);
        if (rc)
            break;
        bool ends = job_list_is_final(list) || launch_was_stopped();
        if (!ends && strcmp(trouble, list->trouble) != 0 && *list->trouble)
            log_info("%s: still trying", list->trouble);
        snprintf(trouble, sizeof trouble, "%s", list->trouble);
        tell_changes(list, told);
        if (ends)
            break;
        clock_sleep_ns(pause_ns);
        pause_ns = pause_ns * 3 / 2 < LONGEST_LOOK_NS ? pause_ns * 3 / 2 : LONGEST_LOOK_NS;
    }
    free(told);
    if (rc)
        return rc;
    if (launch_was_stopped())
        log_info("not waiting any longer; the jobs go on: `ckptbench status`, `ckptbench cancel`");
    for (size_t i = 0; i < list->count; i++) {
        const struct job_entry *entry = &list->items[i];
        if (entry->is_final && strcmp(entry->outcome, "pass") != 0)
            log_error("run %s: %s: %s", entry->run, entry->outcome, entry->verdict.note);
    }
    cli->exit_code = job_list_exit_code(list);
    return 0;
}

/* ---- numbers of jobs ---- */

/* Orders "4711", "4711_7" by job, then by task. */
static int compare_jobs(const char *a, const char *b)
{
    char *a_end, *b_end;
    unsigned long long a_job = strtoull(a, &a_end, 10), b_job = strtoull(b, &b_end, 10);
    if (a_job != b_job)
        return a_job < b_job ? -1 : 1;
    unsigned long long a_task = *a_end ? strtoull(a_end + 1, NULL, 10) : 0;
    unsigned long long b_task = *b_end ? strtoull(b_end + 1, NULL, 10) : 0;
    return a_task < b_task ? -1 : a_task > b_task;
}

void job_range_add(struct job_range *self, const char *job)
{
    if (!self->first || compare_jobs(job, self->first) < 0)
        self->first = job;
    if (!self->last || compare_jobs(job, self->last) > 0)
        self->last = job;
}
