/* Writes the document of a site's start page. */
#include "cli/history/overview.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/history/level_change.h"
#include "cli/history/metric_lines.h"
#include "cli/history/site_pages.h"
#include "cli/report/history_reading.h"
#include "cli/report/metric_format.h"
#include "core/alloc.h"
#include "core/clock.h"

#define WEEK_NS (7 * 24 * 3600 * NS_PER_S)
#define MAX_NAME_BYTES 4096

/* A run, as the lists of the page have it. */
struct listed {
    char run[64], sweep[64], state[16], outcome[24];
    uint64_t at_ns;
};

struct overview {
    struct history *history;
    struct metric_lines *metrics; /* one for each primary metric */
    size_t metric_count;
    struct listed *runs; /* oldest first */
    size_t run_count;
    uint64_t since_ns, until_ns; /* the week before the newest run that has ended */
};

static int take_run(void *context, const struct run_version *run, struct cb_err *err)
{
    struct overview *self = context;
    if (alloc_grow(&self->runs, self->run_count, sizeof *self->runs, err))
        return CB_ERR_MEMORY;
    struct listed *listed = &self->runs[self->run_count++];
    if (*run->outcome && run->started_wall_ns > self->until_ns)
        self->until_ns = run->started_wall_ns;
    *listed = (struct listed){.at_ns = run->started_wall_ns};
    snprintf(listed->run, sizeof listed->run, "%s", run->run);
    snprintf(listed->sweep, sizeof listed->sweep, "%s", run->sweep);
    snprintf(listed->state, sizeof listed->state, "%s", run->state);
    snprintf(listed->outcome, sizeof listed->outcome, "%s", run->outcome);
    return 0;
}

static int load(struct overview *self, struct history *history, struct cb_err *err)
{
    int rc = history_each_version(history, take_run, self, err);
    self->since_ns = self->until_ns > WEEK_NS ? self->until_ns - WEEK_NS : 0;
    self->metrics = calloc(METRIC_COUNT, sizeof *self->metrics);
    if (rc == 0 && !self->metrics)
        rc = alloc_fail(err, "for an overview");
    for (int i = 0; i < METRIC_COUNT && rc == 0; i++) {
        struct metric_lines_wanted wanted = {
            .op = OP_COUNT, .metric = (enum metric_id)i, .least_points = OVERVIEW_LEAST_RUNS};
        if (metric_row(wanted.metric)->primary)
            rc = metric_lines_load(&self->metrics[self->metric_count++], history, &wanted, err);
    }
    return rc;
}

static void release(struct overview *self)
{
    for (size_t i = 0; i < self->metric_count; i++)
        metric_lines_release(&self->metrics[i]);
    free(self->metrics);
    free(self->runs);
}

/* The change point at which the present level began. What differs is compared for those of this week alone. */
static int json_change(struct json_writer *json, const struct overview *self, enum metric_id metric,
                       const struct metric_line *line, const struct change_point *point, struct cb_err *err)
{
    struct level_change change = {.line = line, .point = point};
    bool this_week = line->points[point->at].at_ns >= self->since_ns;
    int rc = this_week ? level_change_load(&change, self->history, line, point, err) : 0;
    json_write_begin_object(json);
    json_member_bool(json, "this_week", this_week);
    level_change_write_json(&change, metric, json);
    json_write_end_object(json);
    level_change_release(&change);
    return rc;
}

static int json_line(struct json_writer *json, const struct overview *self, const struct metric_lines *lines,
                     const struct metric_line *line, const struct sweep_axes *axes, struct cb_err *err)
{
    const struct change_point *change = line->change_count ? &line->changes[line->change_count - 1] : NULL;
    int rc = 0;
    const struct line_point *last = &line->points[line->count - 1];
    struct buf name;
    char path[SITE_PATH_BYTES];
    buf_init(&name, MAX_NAME_BYTES);
    metric_lines_name(lines, line, axes, &name);
    site_line_path(line->hash, line->store, line->site, path);
    json_write_begin_object(json);
    json_member_text(json, "metric", metric_row(lines->metric)->name);
    json_member_text(json, "unit", metric_row(lines->metric)->unit);
    json_member_text(json, "line", name.data);
    json_member_text(json, "page", path);
    json_member_text(json, "store", line->store);
    json_member_text(json, "site", line->site);
    json_member_u64(json, "runs", line->count);
    json_member_text(json, "last_run", last->run);
    json_member_date(json, "last_started", last->at_ns);
    json_member_double(json, "last", last->value);
    json_member_double(json, "level", metric_line_level(line, line->change_count).median);
    json_write_key(json, "change");
    if (change)
        rc = json_change(json, self, lines->metric, line, change, err);
    else
        json_write_null(json);
    json_write_end_object(json);
    if (rc == 0)
        rc = buf_check(&name, "the name of a line", err);
    buf_release(&name);
    return rc;
}

static int json_lines(struct json_writer *json, const struct overview *self, struct cb_err *err)
{
    int rc = 0;
    json_member_array(json, "lines");
    for (size_t i = 0; i < self->metric_count && rc == 0; i++) {
        struct sweep_axes axes;
        rc = metric_lines_axes(&self->metrics[i], &axes, err);
        for (size_t k = 0; k < self->metrics[i].count && rc == 0; k++)
            rc = json_line(json, self, &self->metrics[i], &self->metrics[i].items[k], &axes, err);
        sweep_axes_release(&axes);
    }
    json_write_end_array(json);
    return rc;
}

static void json_run(struct json_writer *json, const struct listed *run)
{
    char path[SITE_PATH_BYTES];
    site_run_path(run->run, path);
    json_write_begin_object(json);
    json_member_text(json, "run", run->run);
    json_member_text(json, "page", path);
    json_member_date(json, "started", run->at_ns);
    json_member_text(json, "state", run->state);
    json_member_text(json, "outcome", *run->outcome ? run->outcome : NULL);
    json_write_end_object(json);
}

/* The newest runs, and the newest of those that ended without passing. */
static void json_runs(struct json_writer *json, const struct overview *self, const char *key, bool failed)
{
    size_t listed = 0;
    json_member_array(json, key);
    for (size_t i = self->run_count; i-- > 0 && listed < OVERVIEW_LISTED;) {
        const struct listed *run = &self->runs[i];
        if (failed && (!*run->outcome || strcmp(run->outcome, "pass") == 0))
            continue;
        json_run(json, run);
        listed++;
    }
    json_write_end_array(json);
}

/* Whether a later run is of the same sweep: the sweep is listed once, with that one. */
static bool has_later(const struct overview *self, size_t index)
{
    for (size_t i = index + 1; i < self->run_count; i++)
        if (strcmp(self->runs[i].sweep, self->runs[index].sweep) == 0)
            return true;
    return false;
}

static void json_sweeps(struct json_writer *json, const struct overview *self)
{
    char path[SITE_PATH_BYTES];
    size_t listed = 0;
    json_member_array(json, "sweeps");
    for (size_t i = self->run_count; i-- > 0 && listed < OVERVIEW_LISTED;) {
        const struct listed *run = &self->runs[i];
        if (!*run->sweep || has_later(self, i))
            continue;
        site_sweep_path(run->sweep, path);
        json_write_begin_object(json);
        json_member_text(json, "sweep", run->sweep);
        json_member_text(json, "page", path);
        json_member_date(json, "last_started", run->at_ns);
        json_write_end_object(json);
        listed++;
    }
    json_write_end_array(json);
}

int overview_write(struct history *history, struct buf *out, struct cb_err *err)
{
    struct overview self = {.history = history};
    struct json_writer json;
    int rc = load(&self, history, err);
    json_writer_init(&json, out, 0);
    if (rc == 0) {
        json_write_begin_object(&json);
        json_member_u64(&json, "runs", self.run_count);
        json_member_date(&json, "since", self.since_ns);
        json_member_date(&json, "until", self.until_ns);
        rc = json_lines(&json, &self, err);
        json_sweeps(&json, &self);
        json_runs(&json, &self, "failed", true);
        json_runs(&json, &self, "newest", false);
        json_write_end_all(&json);
    }
    release(&self);
    return rc ? rc : buf_check(out, "an overview", err);
}
