/* Shared by selection and baselines. Private to db/. */
#ifndef DB_SELECTION_H
#define DB_SELECTION_H

#include "core/err.h"
#include "db/history.h"

/* The newest passed runs that match the filters of a window baseline, except those in `exclude`. */
int selection_of_window(struct history *self, const struct baseline *baseline, const struct run_selection *exclude,
                        struct run_selection *selection, struct cb_err *err) CB_MUST_CHECK;

#endif
