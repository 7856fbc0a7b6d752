/* The sides of a comparison: loads the runs of each word, or of each value of a key. */
#ifndef CLI_COMPARE_COMPARE_SIDES_H
#define CLI_COMPARE_COMPARE_SIDES_H

#include "cli/compare/comparison.h"
#include "db/history.h"

struct side {
    char *name;                      /* owned */
    struct run_info **runs;          /* runs that passed; owned */
    struct comparison_side compared; /* the same runs and the number that did not pass; borrows name and runs */
};

struct sides {
    struct side *items; /* the first is the base */
    size_t count;
};

/* One side for each word, the base first. If the base is a window or filters, it excludes runs of the other sides. All
 * unknown names are reported: the last one in the error, the others in the log. */
int sides_find(struct sides *self, struct history *history, const char *const *words, size_t count,
               struct cb_err *err) CB_MUST_CHECK;

/* One side for each value of a key among the runs of `word`, in the order in which the sweep lists the values. A run
 * that belongs to a sweep stands for its whole sweep. */
int sides_split(struct sides *self, struct history *history, const char *word, const char *key,
                struct cb_err *err) CB_MUST_CHECK;

/* Call also after a failure. */
void sides_release(struct sides *self);

#endif
