/* Lines of the history: a metric of all runs of the same experiment on the same store and site, over time, and where
 * its level changed. */
#ifndef CLI_HISTORY_METRIC_LINES_H
#define CLI_HISTORY_METRIC_LINES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cli/report/sweep_axes.h"
#include "core/change_points.h"
#include "core/err.h"
#include "core/json.h"
#include "db/history.h"

struct line_point {
    char run[64];
    uint64_t at_ns; /* when the run started */
    double value, min, max;
    size_t n;
};

struct metric_line {
    char hash[32], site[64]; /* of the experiment; "local" for this machine */
    char *store;
    struct experiment *experiment; /* of its first run */
    struct line_point *points;     /* oldest first */
    size_t count;
    struct change_point *changes; /* indices of points */
    size_t change_count;
};

struct metric_lines {
    enum operation op; /* OP_COUNT: the first operation of a run that has the metric */
    enum metric_id metric;
    struct metric_line *items; /* the line that began first comes first */
    size_t count;
    bool on_stores, at_sites; /* there are several of them */
};

/* Loads the lines of the runs that passed, have the metric, and match the words of a selection; without words, of all.
 * Call metric_lines_release also after a failure. */
struct metric_lines_wanted {
    enum operation op;
    enum metric_id metric;
    const char *const *words;
    size_t word_count;
    size_t least_points; /* lines with fewer are left out */
};
int metric_lines_load(struct metric_lines *self, struct history *history, const struct metric_lines_wanted *wanted,
                      struct cb_err *err) CB_MUST_CHECK;
void metric_lines_release(struct metric_lines *self);

/* The keys in which the experiments of the lines differ; they name the lines. Call sweep_axes_release also after a
 * failure. */
int metric_lines_axes(const struct metric_lines *self, struct sweep_axes *axes, struct cb_err *err) CB_MUST_CHECK;
/* "io.depth=4 on /scratch at tor"; with the model if there are no axes. */
void metric_lines_name(const struct metric_lines *self, const struct metric_line *line, const struct sweep_axes *axes,
                       struct buf *out);

/* Members that say which line something belongs to: "experiment_hash", "store", "site". */
void metric_line_write_json(const struct metric_line *line, struct json_writer *json);

/* Points of a line without a change point between them. */
struct line_level {
    size_t start, end;          /* [start, end) */
    double median, interval[2]; /* 95 % interval of the median; NAN for fewer than 6 points */
};
struct line_level metric_line_points(const struct metric_line *line, size_t start, size_t end);

/* A level has at least as many points, and so a line of fewer has none. */
size_t metric_line_level_count(const struct metric_line *line);
/* The oldest first; metric_line_level(line, line->change_count) is the present one, also of a line with fewer points. */
struct line_level metric_line_level(const struct metric_line *line, size_t number);

#endif
