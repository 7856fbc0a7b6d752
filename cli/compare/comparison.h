/* What differs between two sides of runs, and whether that can be told: pure, nothing is read or printed.
 *
 * The sample is the run: a side's value of a metric is the median of each of its runs. One run against
 * one run has only its iterations to compare, is called so, and never gives a verdict. The primary
 * metrics share Holm's correction and get a verdict; all others are exploratory: interval and p as they
 * are, no verdict. */
#ifndef CLI_COMPARE_COMPARISON_H
#define CLI_COMPARE_COMPARISON_H

#include <stdbool.h>
#include <stddef.h>

#include "core/err.h"
#include "core/stats.h"
#include "db/history.h"
#include "run/metrics.h"

#define COMPARISON_CONFIDENCE 0.95
#define COMPARISON_DEFAULT_THRESHOLD 0.03
/* The fewest blocks that can give a 95 % interval: 2/2^6 < 0.05. */
#define COMPARISON_MIN_BLOCKS 6
/* More runs a side than anybody makes. */
#define COMPARISON_MOST_RUNS 100

struct comparison_side {
    const char *name;
    const struct run_info *const *runs; /* that passed; borrowed */
    size_t count;
    size_t left_out;         /* runs that did not pass */
    size_t running, planned; /* runs that have not ended, or not begun: neither passed nor failed */
};

struct comparison_options {
    double threshold; /* practical size: 0.03 is 3 % */
    bool across;      /* a verdict although fingerprints differ */
};

enum comparison_method {
    COMPARED_RUNS,       /* Mann-Whitney over runs */
    COMPARED_BLOCKS,     /* van Elteren, and the signed-rank interval, over blocks that hold both sides */
    COMPARED_ITERATIONS, /* one run a side */
};

struct comparison_metric {
    enum operation op;
    enum metric_id metric;
    char name[64]; /* "save_s", or "load.io_s" where several operations have it */
    bool primary;
    double base, other; /* medians */
    size_t base_n, other_n;
    struct shift
        shift; /* as ratio - 1; estimate NAN where values allow none, the medians' where no interval is there */
    double p;  /* of primary metrics after Holm */
    enum verdict verdict; /* of primary metrics */
    size_t more_runs;     /* a side, that would tell; 0: cannot be said */
    bool repeats;         /* equal in every run to a primary metric before it: the same thing under another name */
};

/* A key whose values differ between the sides, "a, b" where a side has several. Owned texts. */
struct comparison_difference {
    char *key, *base, *other;
};
struct comparison_differences {
    struct comparison_difference *items;
    size_t count;
};

/* A run whose value lies far from its side's others: named, never dropped. Borrowed names. */
struct comparison_outlier {
    const char *metric, *run;
    bool of_base;
    double value;
};

struct comparison {
    enum comparison_method method;
    size_t blocks;                     /* that hold both sides */
    struct comparison_metric *metrics; /* primary ones first, then the rest by catalogue */
    size_t metric_count;
    struct comparison_differences differs;    /* experiment keys: what is compared */
    struct comparison_differences confounded; /* fingerprint keys, unless explained by a key that differs */
    char **same;                              /* groups of the fingerprint that are the same: "kernel", … */
    size_t same_count;
    struct comparison_outlier *outliers;
    size_t outlier_count;
    size_t suspected_cache_base, suspected_cache_other; /* loads marked so */
    bool refused;                                       /* confounded without `across`: every verdict is inconclusive */
};

/* CB_ERR_USAGE where a side is empty. */
int comparison_compute(const struct comparison_side *base, const struct comparison_side *other,
                       const struct comparison_options *options, struct comparison *out,
                       struct cb_err *err) CB_MUST_CHECK;
void comparison_release(struct comparison *self);

/* 5 where a primary metric is worse, else 6 where one is inconclusive or there is none, else 0. */
int comparison_exit_code(const struct comparison *self);

/* Hodges-Lehmann over blocks: the median of the Walsh averages of `n` differences, and the interval of
 * Wilcoxon's signed ranks; infinite where n cannot give the confidence. Exact up to 60 blocks. */
void signed_rank_shift(const double *differences, size_t n, double confidence, struct shift *shift);

#endif
