/* Compares two sides of runs: which metrics differ, and whether the difference is significant. Does no I/O.
 *
 * A sample is a run: its value of a metric is the median of its iterations. One run against one run can only compare
 * iterations; the result says so and never gives a verdict. The primary metrics are corrected for their number, each
 * quantity once, and get a verdict; all others are exploratory: interval and uncorrected p, no verdict. */
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
/* The fewest earlier runs to judge one run against, and the level of that test: a nightly job compares every night, and
 * a false alarm in one night of 20 would be too many. */
#define COMPARISON_MIN_EARLIER 5
#define COMPARISON_ONE_RUN_LEVEL 0.01
/* The fewest blocks that can give a 95 % interval: 2/2^6 < 0.05. */
#define COMPARISON_MIN_BLOCKS 6

struct comparison_side {
    const char *name;
    const struct run_info *const *runs; /* runs that passed; borrowed */
    size_t count;
    size_t left_out;         /* runs that did not pass */
    size_t running, planned; /* runs that have not ended, or not started: neither passed nor failed */
};

struct comparison_options {
    double threshold; /* smallest difference that matters: 0.03 is 3 % */
    bool across;      /* give a verdict although fingerprints differ */
};

enum comparison_method {
    COMPARED_RUNS,       /* Mann-Whitney over runs, Holm's correction */
    COMPARED_BLOCKS,     /* flipped blocks, and the signed-rank interval, over blocks that contain both sides */
    COMPARED_ITERATIONS, /* one run on each side */
    COMPARED_PREDICTION, /* one run against the prediction interval of several, Holm's correction */
};

struct comparison_metric {
    enum operation op;
    enum metric_id metric;
    char name[64]; /* "save_s", or "load.io_s" if several operations have the metric */
    bool primary;
    double base, other;     /* medians */
    size_t base_n, other_n; /* values compared: runs or iterations, or blocks that have both sides */
    /* Ratio - 1. The estimate is NAN if the values allow no ratio, and the ratio of the medians if there is no
     * interval. */
    struct shift shift;
    double p;             /* corrected for the number of primary metrics if this is one */
    enum verdict verdict; /* of primary metrics only */
    /* For an inconclusive primary metric, if verdicts are given: runs needed for a verdict, see stats_more_runs. For
     * one run against fewer than COMPARISON_MIN_EARLIER: the number of runs that the base lacks. */
    size_t more_runs;
    double run_variance; /* of the logarithm of one run of a side, in its block if there are blocks; NAN if unknown */
    /* The earlier primary metric that this one equals in every run: the same quantity under another name, so it has the
     * same p and verdict and counts as one test with it. NULL if there is none. */
    const struct comparison_metric *repeats;
};

/* A key whose values differ between the sides; "a, b" if a side has several values. Owned strings. */
struct comparison_difference {
    char *key, *base, *other;
};
struct comparison_differences {
    struct comparison_difference *items;
    size_t count;
};

/* A run whose value lies far from the others of its side: reported, never dropped. Borrowed names. */
struct comparison_outlier {
    const char *metric, *run;
    bool of_base;
    double value;
};

struct comparison {
    enum comparison_method method;
    size_t blocks;                     /* blocks that contain both sides */
    struct comparison_metric *metrics; /* primary metrics first, then the others in the order of the catalogue */
    size_t metric_count;
    struct comparison_differences differs;    /* experiment keys: what is being compared */
    struct comparison_differences confounded; /* fingerprint keys, unless explained by an experiment key that differs */
    char **same;                              /* groups of the fingerprint that are equal: "kernel", … */
    size_t same_count;
    struct comparison_outlier *outliers;
    size_t outlier_count;
    size_t suspected_cache_base, suspected_cache_other; /* loads probably served from a cache */
    bool refused;                                       /* confounded without `across`: every verdict is inconclusive */
};

/* CB_ERR_USAGE if a side is empty. */
int comparison_compute(const struct comparison_side *base, const struct comparison_side *other,
                       const struct comparison_options *options, struct comparison *out,
                       struct cb_err *err) CB_MUST_CHECK;
void comparison_release(struct comparison *self);

/* 5 if a primary metric is worse; else 6 if one is inconclusive or there is no primary metric; else 0. */
int comparison_exit_code(const struct comparison *self);

/* Hodges-Lehmann over blocks: the median of the Walsh averages of `n` differences, and the interval of Wilcoxon's
 * signed ranks; infinite if n is too small for the confidence. Exact up to 60 blocks. */
void signed_rank_shift(const double *differences, size_t n, double confidence, struct shift *shift);

#endif
