/* ckptbench history: prints one metric over time, a line for each experiment, and where its level changed. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/history/level_change.h"
#include "cli/history/metric_lines.h"
#include "cli/report/blocks.h"
#include "cli/report/history_reading.h"
#include "cli/report/table.h"
#include "core/alloc.h"
#include "core/log.h"
#include "core/nearest_word.h"
#include "core/units.h"

/* Number of newest values in a row of bars. */
#define BARS_WIDTH 60 /* at most */

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

/* The newest values as bars, and a mark below the first one of each new level. */
static int write_bars(struct cli *cli, const struct metric_line *line, struct cb_err *err)
{
    struct blocks blocks = blocks_of(STDOUT_FILENO);
    size_t width = blocks.columns < BARS_WIDTH ? blocks.columns : BARS_WIDTH;
    size_t start = line->count > width ? line->count - width : 0, column = 0;
    double *values = calloc(line->count, sizeof *values);
    if (!values)
        return alloc_fail(err, "for a history");
    for (size_t i = start; i < line->count; i++)
        values[i - start] = line->points[i].value;
    blocks.unicode = blocks.unicode || !isatty(STDOUT_FILENO); /* files and pipes are UTF-8 */
    blocks_add_bars(&blocks, values, line->count - start, &cli->out);
    buf_append_char(&cli->out, '\n');
    for (size_t i = 0; i < line->change_count; i++) {
        if (line->changes[i].at < start)
            continue;
        buf_printf(&cli->out, "%*s^", (int)(line->changes[i].at - start - column), "");
        column = line->changes[i].at - start + 1;
    }
    if (column)
        buf_append_char(&cli->out, '\n');
    free(values);
    return 0;
}

static int write_values(struct cli *cli, enum metric_id metric, const struct metric_line *line, struct cb_err *err)
{
    struct table table;
    char text[32], date[21];
    const struct change_point *change = line->changes, *end = line->changes + line->change_count;
    table_init(&table, "llrrrrl");
    table_add_headings(
        &table, (const char *const[]){"STARTED", "RUN", "MEDIAN", "MIN", "MAX", "CHANGE", end > change ? "LEVEL" : ""});
    for (size_t i = 0; i < line->count; i++) {
        const struct line_point *point = &line->points[i];
        table_add(&table, TABLE_PLAIN, date_text(point->at_ns, date));
        table_add(&table, TABLE_BOLD, point->run);
        table_add(&table, TABLE_PLAIN, figure_text(metric, point->value, text));
        table_add(&table, TABLE_DIM, figure_text(metric, point->min, text));
        table_add(&table, TABLE_DIM, figure_text(metric, point->max, text));
        if (i > 0 && line->points[i - 1].value != 0)
            table_addf(&table, TABLE_PLAIN, "%+.1f %%", (point->value / line->points[i - 1].value - 1) * 100);
        else
            table_add(&table, TABLE_PLAIN, "");
        if (change < end && change->at == i) {
            table_addf(&table, TABLE_WARN, "%+.1f %% from here", change->shift.estimate * 100);
            change++;
        } else {
            table_add(&table, TABLE_PLAIN, "");
        }
    }
    return cli_end_table(cli, &table, err);
}

static int write_changes(struct cli *cli, struct history *history, enum metric_id metric,
                         const struct metric_line *line, struct cb_err *err)
{
    int rc = 0;
    for (size_t i = 0; i < line->change_count && rc == 0; i++) {
        struct level_change change;
        rc = level_change_load(&change, history, line, &line->changes[i], err);
        if (rc == 0)
            level_change_write(&change, metric, &cli->out);
        level_change_release(&change);
    }
    return rc;
}

static int write_line(struct cli *cli, struct history *history, const struct metric_lines *lines,
                      const struct metric_line *line, const struct sweep_axes *axes, struct cb_err *err)
{
    char low[32], high[32];
    double least = line->points[0].value, most = least;
    for (size_t i = 1; i < line->count; i++) {
        least = line->points[i].value < least ? line->points[i].value : least;
        most = line->points[i].value > most ? line->points[i].value : most;
    }
    buf_printf(&cli->out, "%s of ", metric_row(lines->metric)->name);
    metric_lines_name(lines, line, axes, &cli->out);
    buf_printf(&cli->out, ", %zu run%s, %s to %s\n", line->count, units_plural(line->count),
               figure_text(lines->metric, least, low), figure_text(lines->metric, most, high));
    int rc = write_bars(cli, line, err);
    if (rc == 0)
        rc = write_values(cli, lines->metric, line, err);
    return rc ? rc : write_changes(cli, history, lines->metric, line, err);
}

static int write_lines(struct cli *cli, struct history *history, const struct metric_lines *lines, struct cb_err *err)
{
    struct sweep_axes axes;
    int rc = metric_lines_axes(lines, &axes, err);
    if (lines->count == 0)
        log_info("no run that passed and matches has %s", metric_row(lines->metric)->name);
    for (size_t i = 0; i < lines->count && rc == 0; i++) {
        if (i)
            buf_append_char(&cli->out, '\n');
        rc = write_line(cli, history, lines, &lines->items[i], &axes, err);
    }
    sweep_axes_release(&axes);
    return rc;
}

static void json_points(struct json_writer *json, const struct metric_line *line)
{
    for (size_t i = 0; i < line->count; i++) {
        const struct line_point *point = &line->points[i];
        json_write_begin_object(json);
        json_member_text(json, "run", point->run);
        json_member_date(json, "started", point->at_ns);
        metric_line_write_json(line, json);
        json_member_u64(json, "n", point->n);
        json_member_double(json, "median", point->value);
        json_member_double(json, "min", point->min);
        json_member_double(json, "max", point->max);
        json_write_end_object(json);
    }
}

static void json_levels(struct json_writer *json, const struct metric_line *line)
{
    for (size_t i = 0; i < metric_line_level_count(line); i++) {
        const struct line_level level = metric_line_level(line, i);
        json_write_begin_object(json);
        metric_line_write_json(line, json);
        json_member_text(json, "first", line->points[level.start].run);
        json_member_text(json, "last", line->points[level.end - 1].run);
        json_member_u64(json, "n", level.end - level.start);
        json_member_double(json, "median", level.median);
        json_member_doubles(json, "ci", level.interval, 2);
        json_write_end_object(json);
    }
}

static int json_changes(struct json_writer *json, struct history *history, enum metric_id metric,
                        const struct metric_line *line, struct cb_err *err)
{
    int rc = 0;
    for (size_t i = 0; i < line->change_count && rc == 0; i++) {
        struct level_change change;
        rc = level_change_load(&change, history, line, &line->changes[i], err);
        if (rc == 0) {
            json_write_begin_object(json);
            level_change_write_json(&change, metric, json);
            json_write_end_object(json);
        }
        level_change_release(&change);
    }
    return rc;
}

static int write_json(struct cli *cli, struct history *history, const struct metric_lines *lines, struct cb_err *err)
{
    struct json_writer json;
    int rc = 0;
    json_writer_init(&json, &cli->out, 0);
    json_write_begin_object(&json);
    json_member_text(&json, "metric", metric_row(lines->metric)->name);
    json_member_text(&json, "unit", metric_row(lines->metric)->unit);
    json_member_array(&json, "points");
    for (size_t i = 0; i < lines->count; i++)
        json_points(&json, &lines->items[i]);
    json_write_end_array(&json);
    json_member_array(&json, "levels");
    for (size_t i = 0; i < lines->count; i++)
        json_levels(&json, &lines->items[i]);
    json_write_end_array(&json);
    json_member_array(&json, "change_points");
    for (size_t i = 0; i < lines->count && rc == 0; i++)
        rc = json_changes(&json, history, lines->metric, &lines->items[i], err);
    return rc ? rc : cli_end_json(cli, &json, err);
}

static int run_history(struct cli *cli, struct cb_err *err)
{
    struct history *history;
    struct metric_lines lines = {0};
    if (cli->word_count == 0)
        return cb_fail(err, CB_ERR_USAGE,
                       "history takes a metric and filters, as `ckptbench history save_s since=30d`");
    struct metric_lines_wanted wanted = {.words = cli->words + 1, .word_count = cli->word_count - 1};
    int rc = parse_metric(cli->words[0], &wanted.op, &wanted.metric, err);
    if (rc == 0)
        rc = open_history(cli, &history, err);
    if (rc)
        return rc;
    rc = metric_lines_load(&lines, history, &wanted, err);
    if (rc == 0)
        rc = cli->json ? write_json(cli, history, &lines, err) : write_lines(cli, history, &lines, err);
    metric_lines_release(&lines);
    close_history(cli, history);
    return rc;
}

const struct verb verb_history = {
    .name = "history",
    .arguments = "METRIC [key=value…]",
    .summary = "one metric over time",
    .about =
        "A line for each experiment among the runs that match, named by the keys in which they differ: medians of "
        "the runs that passed, oldest first, and where their level changed: by how much, between which runs, and what "
        "else differs between these. "
        "docs/metrics.md has the names; load.io_s means the loads where saves have the metric, too.",
    .example = "ckptbench history save_s label.kind=nightly since=30d",
    .run = run_history,
};
