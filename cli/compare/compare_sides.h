/* The sides of a comparison: the runs that each word, or each value of a key, stands for, loaded. */
#ifndef CLI_COMPARE_COMPARE_SIDES_H
#define CLI_COMPARE_COMPARE_SIDES_H

#include "cli/compare/comparison.h"
#include "db/history.h"

struct side {
    char *name;                      /* owned */
    struct run_info **runs;          /* that passed; owned */
    struct comparison_side compared; /* the same, and how many did not pass; borrows name and runs */
};

struct sides {
    struct side *items; /* the first is the base */
    size_t count;
};

/* One side for each word, the base first. What the others hold is left out of a base that is a window or filters. Names
 * that are none are all named, all but the last through the log. */
int sides_find(struct sides *self, struct history *history, const char *const *words, size_t count,
               struct cb_err *err) CB_MUST_CHECK;

/* One side for each value of a key among the runs that a word stands for, in the order in which a sweep was given them; of
 * a run that belongs to a sweep, the sweep is meant. */
int sides_split(struct sides *self, struct history *history, const char *word, const char *key,
                struct cb_err *err) CB_MUST_CHECK;

/* Also after a failure. */
void sides_release(struct sides *self);

#endif
