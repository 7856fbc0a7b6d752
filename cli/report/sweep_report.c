/* Prints a sweep as a table: chooses the metrics and orders the rows. Significance of differences is computed by
 * cli/compare/comparison.c. */
#include "cli/report/sweep_report.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/report/metric_format.h"
#include "cli/report/table.h"
#include "core/alloc.h"
#include "core/units.h"
#include "run/workload_kind.h"

#define COLUMNS_SHOWN 6
#define CONFIDENCE 0.95
#define NAMES_SHOWN 12

static int no_memory(struct cb_err *err)
{
    return alloc_fail(err, "to show a sweep");
}

static bool has_passed(const struct run_info *run)
{
    return strcmp(run->outcome, "pass") == 0;
}

/* ---- loading ---- */

static int select_members(struct history *history, const char *sweep, struct run_selection *selection,
                          struct cb_err *err)
{
    char filter[80];
    const char *words[] = {filter};
    snprintf(filter, sizeof filter, "sweep=%s", sweep);
    return history_select(history, words, 1, selection, err);
}

int sweep_report_is_sweep(struct history *history, const char *word, bool *is, struct cb_err *err)
{
    struct run_selection selection = {0};
    *is = false;
    if (strlen(word) >= 64 || strpbrk(word, "=,*"))
        return 0;
    int rc = select_members(history, word, &selection, err);
    *is = rc == 0 && selection.count > 0;
    run_selection_release(&selection);
    return rc;
}

static int compare_members(const void *a, const void *b)
{
    const struct run_info *x = *(struct run_info *const *)a, *y = *(struct run_info *const *)b;
    if (x->combination != y->combination)
        return x->combination < y->combination ? -1 : 1;
    if (x->block != y->block)
        return x->block < y->block ? -1 : 1;
    return strcmp(x->run, y->run);
}

static int load_runs(struct sweep_report *self, struct history *history, struct cb_err *err)
{
    struct run_selection selection = {0};
    int rc = select_members(history, self->sweep, &selection, err);
    if (rc)
        return rc;
    self->runs = calloc(selection.count + 1, sizeof *self->runs);
    if (!self->runs)
        rc = no_memory(err);
    for (size_t i = 0; i < selection.count && rc == 0; i++) {
        rc = history_load_run(history, selection.runs[i], &self->runs[i], err);
        self->count += rc == 0;
    }
    run_selection_release(&selection);
    if (rc)
        return rc;
    qsort(self->runs, self->count, sizeof *self->runs, compare_members);
    for (size_t i = 0; i < self->count; i++)
        self->passed += has_passed(self->runs[i]);
    return 0;
}

static int find_axes(struct sweep_report *self, struct cb_err *err)
{
    self->experiments = calloc(self->count + 1, sizeof *self->experiments);
    if (!self->experiments)
        return no_memory(err);
    for (size_t i = 0; i < self->count; i++)
        self->experiments[i] = self->runs[i]->experiment;
    return sweep_axes_find(&self->axes, self->experiments, self->count, false, err);
}

/* ---- columns ---- */

static double value_of(const struct run_info *run, const struct sweep_column *column)
{
    const struct run_metric *found = has_passed(run) ? run_info_metric(run, column->op, column->metric) : NULL;
    return found ? found->summary.median : NAN;
}

static bool any_has(const struct sweep_report *self, const struct sweep_column *column)
{
    for (size_t i = 0; i < self->count; i++)
        if (isfinite(value_of(self->runs[i], column)))
            return true;
    return false;
}

/* stall_s equals save_s if training waits for the save. */
static bool repeats(const struct sweep_report *self, const struct sweep_column *column)
{
    for (size_t k = 0; k < self->column_count; k++) {
        bool same = self->columns[k].op == column->op;
        for (size_t i = 0; i < self->count && same; i++) {
            double a = value_of(self->runs[i], &self->columns[k]), b = value_of(self->runs[i], column);
            same = a == b || (isnan(a) && isnan(b));
        }
        if (same)
            return true;
    }
    return false;
}

/* Times of whole operations first. A training is represented by its steps, even if it also saves. */
static int find_columns(struct sweep_report *self, struct cb_err *err)
{
    self->columns = calloc((size_t)METRIC_COUNT * OP_COUNT, sizeof *self->columns);
    if (!self->columns)
        return no_memory(err);
    for (int of_sample = 0; of_sample <= 1; of_sample++) {
        for (int id = 0; id < METRIC_COUNT * OP_COUNT; id++) {
            struct sweep_column column = {(enum operation)(id % OP_COUNT), (enum metric_id)(id / OP_COUNT)};
            const struct metric *row = metric_row(column.metric);
            if (!row->primary || (row->scope == METRIC_OF_SAMPLE) != (of_sample == 1) || !any_has(self, &column) ||
                repeats(self, &column))
                continue;
            if (column.metric == METRIC_STEP_S)
                self->leading = self->column_count;
            self->columns[self->column_count++] = column;
        }
    }
    return 0;
}

/* ---- rows ---- */

static int fill_row(const struct sweep_report *self, struct sweep_row *row, double *values, struct cb_err *err)
{
    row->values = calloc(self->column_count + 1, sizeof *row->values);
    row->ci = calloc(self->column_count + 1, sizeof *row->ci);
    if (!row->values || !row->ci)
        return no_memory(err);
    for (size_t i = row->first; i < row->first + row->count; i++)
        row->passed += has_passed(self->runs[i]);
    for (size_t column = 0; column < self->column_count; column++) {
        size_t n = 0;
        for (size_t i = row->first; i < row->first + row->count; i++) {
            double value = value_of(self->runs[i], &self->columns[column]);
            if (isfinite(value))
                values[n++] = value;
        }
        if (n)
            stats_summarize(values, n, &row->values[column]);
        if (!stats_median_interval(values, n, CONFIDENCE, row->ci[column]))
            row->ci[column][0] = row->ci[column][1] = NAN;
    }
    row->rank = NAN;
    if (self->column_count && row->values[self->leading].n) {
        bool higher = metric_row(self->columns[self->leading].metric)->direction == METRIC_HIGHER_IS_BETTER;
        row->rank = (higher ? -1 : 1) * row->values[self->leading].median;
    }
    return 0;
}

/* Rows without a value come last, in the order of the sweep. */
static int compare_rows(const void *a, const void *b)
{
    const struct sweep_row *x = a, *y = b;
    if (isnan(x->rank) != isnan(y->rank))
        return isnan(x->rank) ? 1 : -1;
    if (!isnan(x->rank) && x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    return x->first < y->first ? -1 : x->first > y->first;
}

static int find_rows(struct sweep_report *self, struct cb_err *err)
{
    double *values = calloc(self->count + 1, sizeof *values);
    self->rows = calloc(self->count + 1, sizeof *self->rows);
    int rc = values && self->rows ? 0 : no_memory(err);
    for (size_t i = 0; i < self->count && rc == 0; i++) {
        if (i == 0 || self->runs[i]->combination != self->runs[i - 1]->combination)
            self->rows[self->row_count++].first = i;
        self->rows[self->row_count - 1].count++;
    }
    for (size_t i = 0; i < self->row_count && rc == 0; i++)
        rc = fill_row(self, &self->rows[i], values, err);
    if (rc == 0)
        qsort(self->rows, self->row_count, sizeof *self->rows, compare_rows);
    free(values);
    return rc;
}

int sweep_report_load(struct sweep_report *self, struct history *history, const char *sweep, struct cb_err *err)
{
    *self = (struct sweep_report){0};
    snprintf(self->sweep, sizeof self->sweep, "%s", sweep);
    int rc = load_runs(self, history, err);
    if (rc == 0)
        rc = find_axes(self, err);
    if (rc == 0)
        rc = find_columns(self, err);
    return rc ? rc : find_rows(self, err);
}

static void free_row(struct sweep_row *row)
{
    free(row->values);
    free(row->ci);
}

void sweep_report_release(struct sweep_report *self)
{
    for (size_t i = 0; i < self->count; i++)
        run_info_free(self->runs[i]);
    for (size_t i = 0; self->rows && i < self->row_count; i++)
        free_row(&self->rows[i]);
    free(self->runs);
    free(self->experiments);
    free(self->columns);
    free(self->rows);
    sweep_axes_release(&self->axes);
    *self = (struct sweep_report){0};
}

/* ---- text for people ---- */

/* Combinations with one run each are named by the run. */
static bool are_single(const struct sweep_report *self)
{
    return self->row_count == self->count;
}

static size_t shown_columns(const struct sweep_report *self)
{
    return self->column_count < COLUMNS_SHOWN ? self->column_count : COLUMNS_SHOWN;
}

static void add_cells(struct table *table, const struct sweep_report *self, const struct sweep_row *row)
{
    const struct run_info *first = self->runs[row->first];
    char text[32];
    for (size_t i = 0; i < self->axes.count; i++)
        table_add(table, TABLE_BOLD, sweep_axes_value(first->experiment, self->axes.keys[i]));
    if (are_single(self))
        table_add(table, TABLE_PLAIN, first->run);
    else if (row->passed == row->count)
        table_addf(table, TABLE_PLAIN, "%zu", row->count);
    else
        table_addf(table, TABLE_WARN, "%zu of %zu", row->passed, row->count);
    for (size_t i = 0; i < shown_columns(self); i++)
        table_add(table, TABLE_PLAIN,
                  metric_format(self->columns[i].metric, row->values[i].n ? row->values[i].median : NAN, text));
}

static int write_rows(const struct sweep_report *self, bool colour, struct buf *out, struct cb_err *err)
{
    struct table table;
    char alignment[TABLE_MAX_COLUMNS + 1] = "", name[64];
    if (self->axes.count + 1 + shown_columns(self) > TABLE_MAX_COLUMNS)
        return cb_fail(err, CB_ERR_USAGE, "%zu keys vary, which no table holds: --json has them", self->axes.count);
    memset(alignment, 'l', self->axes.count + 1);
    memset(alignment + self->axes.count + 1, 'r', shown_columns(self));
    table_init(&table, alignment);
    for (size_t i = 0; i < self->axes.count; i++)
        table_add(&table, TABLE_BOLD, self->axes.keys[i]);
    table_add(&table, TABLE_BOLD, are_single(self) ? "run" : "runs");
    for (size_t i = 0; i < shown_columns(self); i++)
        table_add(&table, TABLE_BOLD, metric_full_name(self->columns[i].op, self->columns[i].metric, name));
    for (size_t i = 0; i < self->row_count; i++)
        add_cells(&table, self, &self->rows[i]);
    return table_finish(&table, colour, out, err);
}

/* "did not pass: s.03 (timeout), s.07 (lost)" */
static void write_others(const struct sweep_report *self, bool ended, struct buf *out)
{
    size_t found = 0;
    for (size_t i = 0; i < self->count; i++) {
        const struct run_info *run = self->runs[i];
        if (has_passed(run) || (*run->outcome != '\0') != ended)
            continue;
        if (found == 0)
            buf_append_text(out, ended ? "did not pass:" : "not in yet:");
        if (found < NAMES_SHOWN)
            buf_printf(out, "%s %s (%s)", found ? "," : "", run->run, ended ? run->outcome : run->state);
        found++;
    }
    if (found > NAMES_SHOWN)
        buf_printf(out, " and %zu more", found - NAMES_SHOWN);
    if (found)
        buf_append_char(out, '\n');
}

/* Suggests a comparison; it needs passed runs on each side. */
static void write_next(const struct sweep_report *self, struct buf *out)
{
    for (size_t i = 0; i < self->count; i++) {
        if (!*self->runs[i]->outcome || has_passed(self->runs[i]))
            continue;
        buf_printf(out, "next: ckptbench show %s%s\n", self->runs[i]->run,
                   workload_kind_of(self->runs[i]->experiment)->watches ? "" : " --failures");
        return;
    }
    for (size_t i = 0; i < self->axes.count && self->passed == self->count; i++)
        buf_printf(out, "%s ckptbench compare %s --by %s\n", i ? "     " : "next:", self->sweep, self->axes.keys[i]);
}

/* The most important keys with the same value in all runs. */
static void write_same(const struct sweep_report *self, struct buf *out)
{
    static const char *const keys[] = {"model", "ranks", "store"};
    bool any = false;
    for (size_t i = 0; i < sizeof keys / sizeof *keys && self->count; i++) {
        if (sweep_axes_differ(self->experiments, self->count, keys[i])) /* also one that follows from a varied key */
            continue;
        buf_printf(out, "%s%s=%s", any ? " " : "all with ", keys[i],
                   sweep_axes_value(self->runs[0]->experiment, keys[i]));
        any = true;
    }
    buf_append_text(out, any ? "\n\n" : "\n");
}

int sweep_report_write(const struct sweep_report *self, bool colour, struct buf *out, struct cb_err *err)
{
    char name[64];
    buf_printf(out, "sweep %s: %zu run%s", self->sweep, self->count, units_plural(self->count));
    for (size_t i = 0; i < self->axes.count; i++)
        buf_printf(out, "%s%s", i ? ", " : " over ", self->axes.keys[i]);
    buf_printf(out, ", %zu passed\n", self->passed);
    write_same(self, out);
    int rc = write_rows(self, colour, out, err);
    if (rc)
        return rc;
    buf_append_char(out, '\n');
    if (self->column_count)
        buf_printf(out, "best first by %s%s\n",
                   metric_full_name(self->columns[self->leading].op, self->columns[self->leading].metric, name),
                   are_single(self) ? "" : "; medians of the runs that passed");
    if (self->column_count > shown_columns(self))
        buf_printf(out, "and %zu more metric%s: --json has all\n", self->column_count - shown_columns(self),
                   units_plural(self->column_count - shown_columns(self)));
    write_others(self, true, out);
    write_others(self, false, out);
    write_next(self, out);
    return buf_check(out, "the report", err);
}

/* ---- JSON ---- */

static void write_run_json(const struct run_info *run, struct json_writer *json)
{
    json_write_begin_object(json);
    json_member_text(json, "run", run->run);
    json_member_u64(json, "block", run->block);
    json_member_text(json, "state", run->state);
    json_member_text(json, "outcome", *run->outcome ? run->outcome : NULL);
    json_member_text(json, "message", run->message && *run->message ? run->message : NULL);
    json_write_end_object(json);
}

static void write_metrics_json(const struct sweep_report *self, const struct sweep_row *row, struct json_writer *json)
{
    char name[64];
    json_write_begin_object(json);
    for (size_t i = 0; i < self->column_count; i++) {
        const struct summary *summary = &row->values[i];
        if (summary->n == 0)
            continue;
        json_member_object(json, metric_full_name(self->columns[i].op, self->columns[i].metric, name));
        json_member_text(json, "unit", metric_row(self->columns[i].metric)->unit);
        json_member_u64(json, "n", summary->n);
        json_member_double(json, "median", summary->median);
        json_member_doubles(json, "ci", row->ci[i], 2);
        json_member_double(json, "min", summary->min);
        json_member_double(json, "max", summary->max);
        json_write_end_object(json);
    }
    json_write_end_object(json);
}

static void write_row_json(const struct sweep_report *self, const struct sweep_row *row, struct json_writer *json)
{
    const struct run_info *first = self->runs[row->first];
    json_write_begin_object(json);
    json_member_u64(json, "combination", first->combination);
    json_member_object(json, "values");
    for (size_t i = 0; i < self->axes.count; i++)
        json_member_text(json, self->axes.keys[i], sweep_axes_value(first->experiment, self->axes.keys[i]));
    json_write_end_object(json);
    json_member_u64(json, "n", row->passed);
    json_write_key(json, "metrics");
    write_metrics_json(self, row, json);
    json_member_array(json, "runs");
    for (size_t i = row->first; i < row->first + row->count; i++)
        write_run_json(self->runs[i], json);
    json_write_end_array(json);
    json_write_end_object(json);
}

void sweep_report_write_members(const struct sweep_report *self, struct json_writer *json)
{
    char name[64];
    json_member_text(json, "sweep", self->sweep);
    json_member_array(json, "varied");
    for (size_t i = 0; i < self->axes.count; i++)
        json_write_text(json, self->axes.keys[i]);
    json_write_end_array(json);
    json_member_text(json, "best_first_by",
                     self->column_count
                         ? metric_full_name(self->columns[self->leading].op, self->columns[self->leading].metric, name)
                         : NULL);
    json_member_array(json, "combinations");
    for (size_t i = 0; i < self->row_count; i++)
        write_row_json(self, &self->rows[i], json);
    json_write_end_array(json);
}
