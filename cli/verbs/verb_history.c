/* ckptbench history: prints one metric over time, a line for each experiment. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/report/history_reading.h"
#include "cli/report/sweep_axes.h"
#include "cli/report/table.h"
#include "core/alloc.h"
#include "core/log.h"
#include "core/nearest_word.h"
#include "core/units.h"
#include "run/workload_kind.h"

/* Number of newest values in a line. */
#define SPARKLINE_WIDTH 60

struct point {
    char run[64], hash[32], site[64];
    struct experiment *experiment; /* owned */
    uint64_t at_ns, line_began_ns; /* line: all runs of the same experiment on the same store and site */
    double value, min, max;
    size_t n;
};

struct series {
    enum operation op; /* OP_COUNT: any */
    enum metric_id metric;
    struct point *points; /* ordered by line, then oldest first */
    size_t count;
    bool on_stores, at_sites; /* there are several of them */
};

static const char *store_of(const struct point *point)
{
    return experiment_text(point->experiment, OPT_STORE);
}

/* 0 if both are of one line. */
static int compare_lines(const struct point *x, const struct point *y)
{
    int order = strcmp(x->hash, y->hash);
    if (order == 0)
        order = strcmp(store_of(x), store_of(y));
    return order ? order : strcmp(x->site, y->site);
}

/* Appends the run if it passed and has the metric. */
static int take_run(void *context, struct run_info *run, struct cb_err *err)
{
    struct series *self = context;
    const struct run_metric *found = NULL;
    for (size_t k = 0; k < run->metric_count && !found; k++)
        if (run->metrics[k].metric == self->metric && (self->op == OP_COUNT || run->metrics[k].op == self->op) &&
            isfinite(run->metrics[k].summary.median))
            found = &run->metrics[k];
    if (!found || strcmp(run->outcome, "pass") != 0)
        return 0;
    if (alloc_grow(&self->points, self->count, sizeof *self->points, err))
        return CB_ERR_MEMORY;
    struct point *point = &self->points[self->count++];
    *point = (struct point){.at_ns = run->started_wall_ns,
                            .value = found->summary.median,
                            .min = found->summary.min,
                            .max = found->summary.max,
                            .n = found->summary.n,
                            .experiment = run->experiment};
    memcpy(point->run, run->run, sizeof point->run);
    memcpy(point->hash, run->hash, sizeof point->hash);
    memcpy(point->site, run->site, sizeof point->site);
    run->experiment = NULL; /* ownership has moved */
    return 0;
}

static int compare_points(const void *a, const void *b)
{
    const struct point *x = a, *y = b;
    int order = compare_lines(x, y);
    if (x->line_began_ns != y->line_began_ns)
        return x->line_began_ns < y->line_began_ns ? -1 : 1;
    if (order == 0 && x->at_ns != y->at_ns)
        return x->at_ns < y->at_ns ? -1 : 1;
    return order ? order : strcmp(x->run, y->run);
}

/* Orders lines by their first run. */
static void sort_points(struct series *self)
{
    if (self->count == 0)
        return;
    qsort(self->points, self->count, sizeof *self->points, compare_points);
    uint64_t began_ns = 0;
    for (size_t i = 0; i < self->count; i++) {
        if (i == 0 || compare_lines(&self->points[i - 1], &self->points[i]) != 0)
            began_ns = self->points[i].at_ns;
        self->on_stores = self->on_stores || strcmp(store_of(&self->points[0]), store_of(&self->points[i])) != 0;
        self->at_sites = self->at_sites || strcmp(self->points[0].site, self->points[i].site) != 0;
        self->points[i].line_began_ns = began_ns;
    }
    qsort(self->points, self->count, sizeof *self->points, compare_points);
}

/* "save_s", or "load.io_s" if several operations have the metric. */
static int parse_metric(const char *word, enum operation *op, enum metric_id *metric, struct cb_err *err)
{
    const char *names[METRIC_COUNT];
    char operation[32];
    const char *dot = strchr(word, '.'), *name = dot ? dot + 1 : word;
    *op = OP_COUNT; /* any operation */
    snprintf(operation, sizeof operation, "%.*s", dot ? (int)(dot - word) : 0, word);
    for (int i = 0; i < METRIC_COUNT; i++)
        names[i] = metric_row((enum metric_id)i)->name;
    if ((!dot || operation_find(operation, op)) && metric_find(name, metric))
        return 0;
    const char *nearest = nearest_word(name, names, METRIC_COUNT);
    return cb_fail(err, CB_ERR_USAGE, "no metric %s%s%s%s", word, nearest ? ": did you mean " : "",
                   nearest ? nearest : ", as save_s or load.io_s", nearest ? "?" : "");
}

static void value_range(const struct point *points, size_t count, double *least, double *most)
{
    *least = INFINITY;
    *most = -INFINITY;
    for (size_t i = 0; i < count; i++) {
        *least = fmin(*least, points[i].value);
        *most = fmax(*most, points[i].value);
    }
}

/* "save_s of io.depth=4", or the model if there is only one line. An experiment of another release may have another
 * hash although all keys are equal. */
static void write_name(struct buf *out, const struct series *self, const struct point *point,
                       const struct sweep_axes *axes)
{
    enum metric_id metric = self->metric;
    bool is_of_suite = metric_is_of_suite(metric); /* a workload without a model */
    buf_printf(out, "%s of ", metric_row(metric)->name);
    if (axes->count)
        sweep_axes_describe(axes, point->experiment, out);
    else
        buf_printf(out, "%s=%s ranks=%s (%s)", is_of_suite ? "workload" : "model",
                   is_of_suite ? workload_kind_of(point->experiment)->name
                               : experiment_text(point->experiment, OPT_MODEL),
                   experiment_text(point->experiment, OPT_RANKS), point->hash);
    if (self->on_stores)
        buf_printf(out, " on %s", store_of(point));
    if (self->at_sites)
        buf_printf(out, " at %s", point->site);
}

static int write_line(struct cli *cli, const struct series *self, const struct point *points, size_t count,
                      const struct sweep_axes *axes, struct cb_err *err)
{
    enum metric_id metric = self->metric;
    static const char *const bars[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    size_t start = count > SPARKLINE_WIDTH ? count - SPARKLINE_WIDTH : 0;
    struct table table;
    char text[32], date[21], low[32], high[32];
    double least, most;
    value_range(points, count, &least, &most);
    write_name(&cli->out, self, &points[0], axes);
    buf_printf(&cli->out, ", %zu run%s, %s to %s\n", count, units_plural(count), figure_text(metric, least, low),
               figure_text(metric, most, high));
    value_range(points + start, count - start, &least, &most);
    for (size_t i = start; i < count; i++) {
        double height = most > least ? (points[i].value - least) / (most - least) * 7 : 3;
        buf_append_text(&cli->out, bars[(size_t)(height + 0.5)]);
    }
    buf_append_char(&cli->out, '\n');
    table_init(&table, "llrrrr");
    table_add_headings(&table, (const char *const[]){"STARTED", "RUN", "MEDIAN", "MIN", "MAX", "CHANGE"});
    for (size_t i = 0; i < count; i++) {
        table_add(&table, TABLE_PLAIN, date_text(points[i].at_ns, date));
        table_add(&table, TABLE_BOLD, points[i].run);
        table_add(&table, TABLE_PLAIN, figure_text(metric, points[i].value, text));
        table_add(&table, TABLE_DIM, figure_text(metric, points[i].min, text));
        table_add(&table, TABLE_DIM, figure_text(metric, points[i].max, text));
        if (i > 0 && points[i - 1].value != 0)
            table_addf(&table, TABLE_PLAIN, "%+.1f %%", (points[i].value / points[i - 1].value - 1) * 100);
        else
            table_add(&table, TABLE_PLAIN, "");
    }
    return cli_end_table(cli, &table, err);
}

static int write_json(struct cli *cli, const struct series *series, struct cb_err *err)
{
    struct json_writer json;
    json_writer_init(&json, &cli->out, 0);
    json_write_begin_object(&json);
    json_member_text(&json, "metric", metric_row(series->metric)->name);
    json_member_text(&json, "unit", metric_row(series->metric)->unit);
    json_member_array(&json, "points");
    for (size_t i = 0; i < series->count; i++) {
        const struct point *point = &series->points[i];
        json_write_begin_object(&json);
        json_member_text(&json, "run", point->run);
        json_member_date(&json, "started", point->at_ns);
        json_member_text(&json, "experiment_hash", point->hash);
        json_member_text(&json, "store", store_of(point));
        json_member_text(&json, "site", point->site);
        json_member_u64(&json, "n", point->n);
        json_member_double(&json, "median", point->value);
        json_member_double(&json, "min", point->min);
        json_member_double(&json, "max", point->max);
        json_write_end_object(&json);
    }
    return cli_end_json(cli, &json, err);
}

static int write_lines(struct cli *cli, const struct series *series, struct cb_err *err)
{
    struct sweep_axes axes = {0}; /* the keys in which the lines' experiments differ; they name the lines */
    const struct experiment **experiments = calloc(series->count + 1, sizeof *experiments);
    int rc = experiments ? 0 : alloc_fail(err, "for a history");
    for (size_t i = 0; rc == 0 && i < series->count; i++)
        experiments[i] = series->points[i].experiment;
    if (rc == 0)
        rc = sweep_axes_find(&axes, experiments, series->count, true, err);
    free(experiments);
    if (series->count == 0)
        log_info("no run that passed and matches has %s", metric_row(series->metric)->name);
    for (size_t start = 0, end; start < series->count && rc == 0; start = end) {
        for (end = start + 1; end < series->count; end++)
            if (compare_lines(&series->points[end], &series->points[start]) != 0)
                break;
        if (start)
            buf_append_char(&cli->out, '\n');
        rc = write_line(cli, series, series->points + start, end - start, &axes, err);
    }
    sweep_axes_release(&axes);
    return rc;
}

static int run_history(struct cli *cli, struct cb_err *err)
{
    struct history *history;
    struct series series = {0};
    if (cli->word_count == 0)
        return cb_fail(err, CB_ERR_USAGE,
                       "history takes a metric and filters, as `ckptbench history save_s since=30d`");
    int rc = parse_metric(cli->words[0], &series.op, &series.metric, err);
    if (rc == 0)
        rc = history_open_read_only(NULL, &history, err);
    if (rc)
        return rc;
    rc = for_each_run(history, cli->words + 1, cli->word_count - 1, take_run, &series, err);
    sort_points(&series);
    if (rc == 0)
        rc = cli->json ? write_json(cli, &series, err) : write_lines(cli, &series, err);
    for (size_t i = 0; i < series.count; i++)
        experiment_free(series.points[i].experiment);
    free(series.points);
    history_close(history);
    return rc;
}

const struct verb verb_history = {
    .name = "history",
    .arguments = "METRIC [key=value…]",
    .summary = "one metric over time",
    .about = "A line for each experiment among the runs that match, named by the keys in which they differ: medians of "
             "the runs that passed, oldest first. "
             "docs/metrics.md has the names; load.io_s means the loads where saves have the metric, too.",
    .example = "ckptbench history save_s label.kind=nightly since=30d",
    .run = run_history,
};
