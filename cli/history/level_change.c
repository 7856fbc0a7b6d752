/* Describes changes of level. */
#include "cli/history/level_change.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/compare/differences.h"
#include "cli/report/history_reading.h"
#include "cli/report/metric_format.h"
#include "cli/report/run_nodes.h"
#include "core/alloc.h"
#include "core/units.h"

#define NODES_SHOWN 8
#define TEXT_MAX_BYTES 4096

/* The runs of one side and the names of their nodes; a run has each name once. */
struct side_runs {
    struct run_info **runs;
    size_t count;
    char **nodes;
    size_t node_count;
};

static void side_release(struct side_runs *self)
{
    for (size_t i = 0; i < self->count; i++)
        run_info_free(self->runs[i]);
    free(self->runs);
    alloc_free_texts(self->nodes, self->node_count);
}

static int add_nodes(struct side_runs *self, const struct run_info *run, struct cb_err *err)
{
    struct run_node *nodes;
    size_t count;
    int rc = run_nodes_load(run, &nodes, &count, err);
    if (rc)
        return rc;
    for (size_t i = 0; i < count && rc == 0; i++)
        if (nodes[i].name)
            rc = alloc_add_text(&self->nodes, &self->node_count, nodes[i].name, strlen(nodes[i].name), err);
    run_nodes_free(nodes, count);
    return rc;
}

static int side_load(struct side_runs *self, struct history *history, const struct metric_line *line, size_t start,
                     size_t end, struct cb_err *err)
{
    int rc = 0;
    *self = (struct side_runs){.runs = calloc(end - start + 1, sizeof *self->runs)};
    if (!self->runs)
        return alloc_fail(err, "to describe a change point");
    for (size_t i = start; i < end && rc == 0; i++) {
        rc = history_load_run(history, line->points[i].run, &self->runs[self->count], err);
        if (rc == 0)
            rc = add_nodes(self, self->runs[self->count++], err);
    }
    return rc;
}

static size_t runs_with(const struct side_runs *self, const char *node)
{
    size_t runs = 0;
    for (size_t i = 0; i < self->node_count; i++)
        runs += strcmp(self->nodes[i], node) == 0;
    return runs;
}

/* Names of nodes that most runs of a side and none of the other had; "-" if there are none. */
static void list_nodes(const struct side_runs *self, const struct side_runs *other, struct buf *out)
{
    size_t shown = 0;
    for (size_t i = 0; i < self->node_count; i++) {
        const char *node = self->nodes[i];
        size_t earlier = 0;
        while (earlier < i && strcmp(self->nodes[earlier], node) != 0)
            earlier++;
        if (earlier < i || 2 * runs_with(self, node) < self->count || runs_with(other, node))
            continue;
        if (shown++ < NODES_SHOWN)
            buf_printf(out, "%s%s", shown > 1 ? ", " : "", node);
    }
    if (shown > NODES_SHOWN)
        buf_printf(out, " and %zu more", shown - NODES_SHOWN);
    if (shown == 0)
        buf_append_char(out, '-');
}

static int add_difference(struct comparison_differences *self, const char *key, const char *base, const char *other,
                          struct cb_err *err)
{
    if (alloc_grow(&self->items, self->count, sizeof *self->items, err))
        return CB_ERR_MEMORY;
    struct comparison_difference *item = &self->items[self->count++];
    *item = (struct comparison_difference){strdup(key), strdup(base), strdup(other)};
    return item->key && item->base && item->other ? 0 : alloc_fail(err, "to describe a change point");
}

static int compare_nodes(struct level_change *self, const struct side_runs *before, const struct side_runs *after,
                         struct cb_err *err)
{
    struct buf base, other;
    buf_init(&base, TEXT_MAX_BYTES);
    buf_init(&other, TEXT_MAX_BYTES);
    list_nodes(before, after, &base);
    list_nodes(after, before, &other);
    int rc = 0;
    if (strcmp(base.data, "-") != 0 || strcmp(other.data, "-") != 0)
        rc = add_difference(&self->differs, "nodes", base.data, other.data, err);
    buf_release(&base);
    buf_release(&other);
    return rc;
}

static int compare_runs(struct level_change *self, const struct side_runs *before, const struct side_runs *after,
                        struct cb_err *err)
{
    struct comparison found = {0};
    struct comparison_side base = {.runs = (const struct run_info *const *)before->runs, .count = before->count};
    struct comparison_side other = {.runs = (const struct run_info *const *)after->runs, .count = after->count};
    const struct comparison_side *sides[] = {&base, &other};
    int rc = differences_find(sides, &found, err);
    const struct comparison_differences *lists[] = {&found.confounded, &found.differs};
    for (size_t k = 0; k < 2; k++)
        for (size_t i = 0; i < lists[k]->count && rc == 0; i++)
            rc = add_difference(&self->differs, lists[k]->items[i].key, lists[k]->items[i].base,
                                lists[k]->items[i].other, err);
    comparison_release(&found);
    return rc ? rc : compare_nodes(self, before, after, err);
}

int level_change_load(struct level_change *self, struct history *history, const struct metric_line *line,
                      const struct change_point *point, struct cb_err *err)
{
    struct side_runs before, after = {0};
    *self = (struct level_change){.line = line, .point = point, .is_compared = true};
    size_t start = point->at - point->start > LEVEL_CHANGE_RUNS ? point->at - LEVEL_CHANGE_RUNS : point->start;
    size_t end = point->end - point->at > LEVEL_CHANGE_RUNS ? point->at + LEVEL_CHANGE_RUNS : point->end;
    int rc = side_load(&before, history, line, start, point->at, err);
    if (rc == 0)
        rc = side_load(&after, history, line, point->at, end, err);
    if (rc == 0)
        rc = compare_runs(self, &before, &after, err);
    side_release(&before);
    side_release(&after);
    return rc;
}

void level_change_release(struct level_change *self)
{
    differences_release(&self->differs);
}

/* The index of a run in a line; the number of points if it has none there. */
static size_t find_run(const struct metric_line *line, const char *run)
{
    size_t i = 0;
    while (i < line->count && strcmp(line->points[i].run, run) != 0)
        i++;
    return i;
}

int run_level_load(struct run_level *self, struct history *history, const struct run_info *run, enum operation op,
                   enum metric_id metric, struct cb_err *err)
{
    *self = (struct run_level){0};
    char hash[48];
    const char *words[] = {hash};
    struct metric_lines_wanted wanted = {.op = op, .metric = metric, .words = words, .word_count = 1};
    snprintf(hash, sizeof hash, "hash=%s", run->hash);
    int rc = metric_lines_load(&self->lines, history, &wanted, err);
    for (size_t i = 0; i < self->lines.count && rc == 0 && !self->found; i++) {
        const struct metric_line *line = &self->lines.items[i];
        size_t at = find_run(line, run->run);
        for (size_t k = 0; k < line->change_count && at < line->count && !self->found; k++) {
            if (at < line->changes[k].at || at >= line->changes[k].end)
                continue;
            self->found = true;
            rc = level_change_load(&self->change, history, line, &line->changes[k], err);
        }
    }
    return rc;
}

void run_level_release(struct run_level *self)
{
    level_change_release(&self->change);
    metric_lines_release(&self->lines);
}

const char *level_change_word(enum metric_id metric, const struct change_point *point)
{
    enum metric_direction direction = metric_row(metric)->direction;
    if (direction == METRIC_NEUTRAL)
        return "changed";
    return (point->shift.estimate < 0) == (direction == METRIC_LOWER_IS_BETTER) ? "better" : "worse";
}

static void write_side(const struct metric_line *line, size_t start, size_t end, struct buf *out)
{
    buf_printf(out, "%s", line->points[start].run);
    if (end - start > 1)
        buf_printf(out, " … %s (%zu runs)", line->points[end - 1].run, end - start);
}

void level_change_write(const struct level_change *self, enum metric_id metric, struct buf *out)
{
    const struct change_point *point = self->point;
    char date[21], before[32], after[32];
    buf_printf(out, "%s at %s, %s: %+.1f %%", level_change_word(metric, point), self->line->points[point->at].run,
               date_text(self->line->points[point->at].at_ns, date), point->shift.estimate * 100);
    if (isfinite(point->shift.high))
        buf_printf(out, " [%+.1f, %+.1f]", point->shift.low * 100, point->shift.high * 100);
    buf_printf(out, ", %s -> %s\n   runs: ",
               figure_text(metric, metric_line_points(self->line, point->start, point->at).median, before),
               figure_text(metric, metric_line_points(self->line, point->at, point->end).median, after));
    write_side(self->line, point->start, point->at, out);
    buf_append_text(out, " -> ");
    write_side(self->line, point->at, point->end, out);
    buf_append_text(out, self->differs.count ? "\n   differs:" : "\n   nothing that was recorded differs");
    for (size_t i = 0; i < self->differs.count; i++)
        buf_printf(out, "%s %s %s -> %s", i ? "," : "", self->differs.items[i].key, self->differs.items[i].base,
                   self->differs.items[i].other);
    buf_append_char(out, '\n');
}

static void json_side(const struct metric_line *line, const char *key, size_t start, size_t end,
                      struct json_writer *json)
{
    json_member_object(json, key);
    json_member_u64(json, "n", end - start);
    json_member_text(json, "first", line->points[start].run);
    json_member_text(json, "last", line->points[end - 1].run);
    json_member_double(json, "median", metric_line_points(line, start, end).median);
    json_write_end_object(json);
}

void level_change_write_json(const struct level_change *self, enum metric_id metric, struct json_writer *json)
{
    const struct change_point *point = self->point;
    bool interval = isfinite(point->shift.high);
    json_member_text(json, "run", self->line->points[point->at].run);
    json_member_date(json, "started", self->line->points[point->at].at_ns);
    metric_line_write_json(self->line, json);
    json_member_text(json, "direction", level_change_word(metric, point));
    json_member_double(json, "change", point->shift.estimate);
    const double ci[] = {interval ? point->shift.low : NAN, interval ? point->shift.high : NAN};
    json_member_doubles(json, "ci", ci, 2);
    json_side(self->line, "before", point->start, point->at, json);
    json_side(self->line, "after", point->at, point->end, json);
    if (!self->is_compared) {
        json_write_key(json, "differs");
        json_write_null(json);
        return;
    }
    json_member_object(json, "differs");
    for (size_t i = 0; i < self->differs.count; i++) {
        json_member_object(json, self->differs.items[i].key);
        json_member_text(json, "before", self->differs.items[i].base);
        json_member_text(json, "after", self->differs.items[i].other);
        json_write_end_object(json);
    }
    json_write_end_object(json);
}
