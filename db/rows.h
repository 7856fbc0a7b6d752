/* Rows of a run as written by ingest and planning. Private to db/. */
#ifndef DB_ROWS_H
#define DB_ROWS_H

#include <stdint.h>

#include "core/err.h"
#include "run/experiment.h"

struct file_batch;
struct history;

struct run_row {
    const char *run, *sweep, *folder; /* sweep may be NULL */
    uint64_t block, combination, planned_ns;
    const struct experiment *experiment;
    const char *site; /* NULL: this machine */
};

/* Run, sweep, block, store target and params. An existing run keeps its state and results; its folder, experiment and
 * labels are updated. */
int rows_insert_run(struct history *self, const struct run_row *row, struct cb_err *err) CB_MUST_CHECK;
/* Deletes everything that belongs to a run, including its row. */
int rows_delete_run(struct history *self, const char *run, struct cb_err *err) CB_MUST_CHECK;
int rows_insert_event(struct history *self, const char *run, uint64_t at_ns, const char *state, const char *note,
                      struct cb_err *err) CB_MUST_CHECK;
int rows_need_run(struct history *self, const char *run, struct cb_err *err) CB_MUST_CHECK;
int rows_run_id(struct history *self, const char *run, int64_t *id, struct cb_err *err) CB_MUST_CHECK;

/* Writes planned.json to the run folder: what a rebuild cannot take from the experiment. Joins a batch (NULL: written
 * at once). */
int planned_file_write(struct file_batch *batch, const struct run_row *row, struct cb_err *err) CB_MUST_CHECK;
/* Fills sweep and site (borrowed from `file`, which the caller releases, also after a failure), block, combination
 * and planned_ns. Without the file, the run stands alone: planned on this machine when the folder was created. */
struct planned_file {
    char *sweep, *site; /* owned; NULL if absent */
};
int planned_file_read(const char *folder, struct run_row *row, struct planned_file *file,
                      struct cb_err *err) CB_MUST_CHECK;
void planned_file_release(struct planned_file *file);

#endif
