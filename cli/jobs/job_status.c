/* Prints the table and JSON of status, and follows jobs until they end. */
#include "cli/jobs/job_status.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/jobs/run_here.h"
#include "cli/report/table.h"
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

/* ---- figures of finished runs, in one query ---- */

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

static void add_quoted(struct buf *sql, const char *text)
{
    buf_append_char(sql, '\'');
    for (; *text; text++)
        buf_append_text(sql, *text == '\'' ? "''" : (char[]){*text, '\0'});
    buf_append_char(sql, '\'');
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
        if (any)
            buf_append_char(&sql, ',');
        add_quoted(&sql, list->items[i].run);
        any = true;
    }
    buf_append_char(&sql, ')');
    int rc = buf_check(&sql, "the names of the runs", err);
    if (rc == 0 && any)
        rc = history_query(list->history, sql.data, take_figure, &reader, err);
    buf_release(&sql);
    return rc;
}

/* ---- what a line says ---- */

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

/* "4711", in a pool "4711.0"; NULL if there is no job yet. */
static const char *job_text(const struct job_entry *entry, char text[112])
{
    const struct job_record *record = &entry->record;
    snprintf(text, 112, "%s%s%s", record->job, *record->step ? "." : "", record->step);
    return *record->job ? text : NULL;
}

/* Also before the history has it: the holder of the run's lock is about to write it. */
static const char *outcome_of(const struct job_entry *entry)
{
    if (*entry->outcome)
        return entry->outcome;
    if (!job_state_is_final(entry->verdict.state) || !(entry->seen.sealed || entry->verdict.seal))
        return NULL;
    return outcome_name(entry->seen.sealed ? entry->seen.manifest.outcome : entry->verdict.outcome);
}

/* If a job contains several runs, only the nodes that this run uses. */
static uint64_t nodes_of(const struct job_entry *entry)
{
    bool takes_fewer = entry->nodes && entry->nodes < entry->record.node_count;
    return takes_fewer ? entry->nodes : entry->record.node_count;
}

/* ---- JSON ---- */

static void member_text(struct json_writer *json, const char *key, const char *text)
{
    json_member_text(json, key, text && *text ? text : NULL);
}

static void write_json_entry(struct json_writer *json, const struct job_entry *entry, const struct figures *figures)
{
    char progress[160], job[112];
    progress_text(entry, figures, progress, sizeof progress);
    json_write_begin_object(json);
    member_text(json, "run", entry->run);
    if (job_entry_is_of_site(entry))
        member_text(json, "site", entry->site);
    member_text(json, "state", job_state_name(entry->verdict.state));
    member_text(json, "outcome", outcome_of(entry));
    member_text(json, "job", job_text(entry, job));
    json_write_key(json, "nodes");
    if (nodes_of(entry))
        json_write_u64(json, nodes_of(entry));
    else
        json_write_null(json);
    json_member_double(json, "queue_s", queue_s(entry));
    json_member_double(json, "boot_s", boot_s(entry));
    json_member_double(json, "launch_s", entry->told.is ? entry->told.launch_s : figures->launch_s);
    json_member_double(json, "run_s", run_s(entry, figures));
    member_text(json, "progress", progress);
    member_text(json, "note", entry->verdict.note);
    json_write_end_object(json);
}

static int write_json(struct cli *cli, const struct job_list *list, const struct figures *figures, struct cb_err *err)
{
    struct json_writer json;
    json_writer_init(&json, &cli->out, 2);
    json_write_begin_array(&json);
    for (size_t i = 0; i < list->count; i++)
        write_json_entry(&json, &list->items[i], &figures[i]);
    json_write_end_array(&json);
    return cli_end_json(cli, err);
}

/* ---- the table ---- */

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

static void add_note(struct table *table, const struct job_entry *entry)
{
    bool failed = entry->is_final && entry->verdict.state != JOB_DONE && entry->verdict.state != JOB_CANCELLED;
    if (failed)
        table_addf(table, TABLE_PLAIN, "%s%slog: ckptbench logs %s", entry->verdict.note,
                   *entry->verdict.note ? "; " : "", entry->run);
    else
        table_add(table, TABLE_PLAIN, entry->verdict.note);
}

static void add_line(struct table *table, const struct job_entry *entry, const struct figures *figures, bool sites)
{
    char text[32], progress[160], job[112];
    progress_text(entry, figures, progress, sizeof progress);
    table_add(table, TABLE_BOLD, entry->run);
    if (sites)
        table_add(table, TABLE_PLAIN, job_entry_is_of_site(entry) ? entry->site : NULL);
    table_add(table, style_of(entry), job_state_name(entry->verdict.state));
    table_add(table, TABLE_PLAIN, job_text(entry, job));
    if (nodes_of(entry))
        table_addf(table, TABLE_PLAIN, "%llu", (unsigned long long)nodes_of(entry));
    else
        table_add(table, TABLE_PLAIN, NULL);
    table_add(table, TABLE_PLAIN, short_duration(queue_s(entry), text));
    table_add(table, TABLE_PLAIN, short_duration(boot_s(entry), text));
    table_add(table, TABLE_PLAIN, short_duration(run_s(entry, figures), text));
    table_add(table, TABLE_PLAIN, progress);
    add_note(table, entry);
}

static int write_table(struct cli *cli, const struct job_list *list, const struct figures *figures, struct cb_err *err)
{
    static const char *const headings[] = {"RUN", "STATE", "JOB", "NODES", "QUEUE", "BOOT", "RUN", "PROGRESS", "NOTE"};
    static const char *const with_sites[] = {"RUN",   "SITE", "STATE", "JOB",      "NODES",
                                             "QUEUE", "BOOT", "RUN",   "PROGRESS", "NOTE"};
    struct table table;
    bool sites = false;
    for (size_t i = 0; i < list->count; i++)
        sites = sites || job_entry_is_of_site(&list->items[i]);
    table_init(&table, sites ? "llllrrrrll" : "lllrrrrll");
    table_add_headings(&table, sites ? with_sites : headings);
    for (size_t i = 0; i < list->count; i++)
        add_line(&table, &list->items[i], &figures[i], sites);
    int rc = table_write(&table, 0, cli->colour, &cli->out, err);
    table_release(&table);
    return rc;
}

int job_status_write(struct cli *cli, const struct job_list *list, struct cb_err *err)
{
    struct figures *figures = calloc(list->count + 1, sizeof *figures);
    if (!figures)
        return alloc_fail(err, "for %zu runs", list->count);
    int rc = read_figures(list, figures, err);
    if (rc == 0)
        rc = cli->json ? write_json(cli, list, figures, err) : write_table(cli, list, figures, err);
    free(figures);
    return rc;
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

static int follow(struct job_list *list, struct cb_err *err)
{
    uint64_t pause_ns = FIRST_LOOK_NS;
    enum job_state *told = calloc(list->count + 1, sizeof *told);
    char trouble[sizeof list->trouble] = "";
    int rc = told ? 0 : alloc_fail(err, "for %zu runs", list->count);
    while (rc == 0) {
        rc = job_list_sync(list, err);
        if (rc == 0 && list->broken)
            rc = cb_fail(err, CB_ERR_SYSTEM, "%s", list->trouble);
        if (rc || job_list_is_final(list) || launch_was_stopped())
            break;
        if (strcmp(trouble, list->trouble) != 0 && *list->trouble)
            log_info("%s: still trying", list->trouble);
        snprintf(trouble, sizeof trouble, "%s", list->trouble);
        tell_changes(list, told);
        clock_sleep_ns(pause_ns);
        pause_ns = pause_ns * 3 / 2 < LONGEST_LOOK_NS ? pause_ns * 3 / 2 : LONGEST_LOOK_NS;
    }
    if (rc == 0)
        tell_changes(list, told);
    free(told);
    return rc;
}

int job_status_wait(struct cli *cli, struct job_list *list, struct cb_err *err)
{
    int rc = follow(list, err);
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
