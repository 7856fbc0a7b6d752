/* A change of a line's level, described: its size, the runs on both sides, and what differs between them. */
#ifndef CLI_HISTORY_LEVEL_CHANGE_H
#define CLI_HISTORY_LEVEL_CHANGE_H

#include "cli/compare/comparison.h"
#include "cli/history/metric_lines.h"
#include "core/json.h"

/* Runs on each side, those next to the change point, whose fingerprints, keys and labels are compared. */
#define LEVEL_CHANGE_RUNS 10

/* What differs between the runs next to a change point: keys of the experiment that are not part of its identity,
 * labels, fingerprints, and "nodes": those that most runs of one side and none of the other had. Call
 * level_change_release also after a failure. */
struct level_change {
    const struct metric_line *line; /* borrowed */
    const struct change_point *point;
    bool is_compared; /* by level_change_load: what differs is known */
    struct comparison_differences differs;
};
int level_change_load(struct level_change *self, struct history *history, const struct metric_line *line,
                      const struct change_point *point, struct cb_err *err) CB_MUST_CHECK;
void level_change_release(struct level_change *self);

/* The level that a run belongs to, if it began at a change point. Call run_level_release also after a failure. */
struct run_level {
    struct metric_lines lines;
    bool found;
    struct level_change change; /* the last one up to the run */
};
int run_level_load(struct run_level *self, struct history *history, const struct run_info *run, enum operation op,
                   enum metric_id metric, struct cb_err *err) CB_MUST_CHECK;
void run_level_release(struct run_level *self);

/* "worse", "better", or "changed" for a metric without a direction. */
const char *level_change_word(enum metric_id metric, const struct change_point *point);

/* Two or three lines for people. */
void level_change_write(const struct level_change *self, enum metric_id metric, struct buf *out);
/* Members of an object that the caller has begun; "differs" is null if the runs were not compared. */
void level_change_write_json(const struct level_change *self, enum metric_id metric, struct json_writer *json);

#endif
