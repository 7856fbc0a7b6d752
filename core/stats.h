/* Statistics of samples and of comparisons. Pure functions; NAN among the inputs is a caller's bug.
 *
 * Sources: quantiles, Hyndman & Fan (1996) type 7; Mann & Whitney (1947), exact null distribution by the counting
 * recurrence, with ties by counting all divisions of the values, if the product of sizes allows, else the normal
 * approximation with tie correction;
 * Hodges & Lehmann (1963) shift with the interval from the ordered pairwise differences (Bauer 1972); Holm (1979);
 * flipped blocks: see stats_flip_blocks; Student's distribution, Abramowitz & Stegun (1964) 26.7.3 and 26.7.4; Young
 * (1974) and Daly (2006) for intervals. */
#ifndef CORE_STATS_H
#define CORE_STATS_H

#include <stdbool.h>
#include <stddef.h>

struct summary {
    size_t n;
    double median, p95, min, max, mean;
    double mad; /* median absolute deviation from the median, unscaled */
};

/* Sorts a copy. All members are NAN if n is 0. */
void stats_summarize(const double *values, size_t n, struct summary *summary);

/* 0.6745 (value - median) / MAD (Iglewicz & Hoaglin, 1993), with a MAD of at least 1 % of the median, since machines
 * that agree more closely than that are equal. NAN if `value` is NAN or there are fewer than STATS_N_FOR_Z values. */
#define STATS_N_FOR_Z 4
#define STATS_Z_OF_OUTLIERS 3.5 /* |z| above this is an outlier */
double stats_robust_z(const struct summary *summary, double value);

/* In ascending order. */
void stats_sort(double *values, size_t n);
double stats_quantile_sorted(const double *sorted, size_t n, double q);

/* Two-sided p of Mann-Whitney's U. 1 if either side is empty. */
double stats_mann_whitney(const double *a, size_t na, const double *b, size_t nb);

/* Two-sided p of each metric over blocks that contain both sides, corrected for the number of metrics.
 * differences[m * blocks + i] is the difference of the logarithms of metric m in block i, NAN if the block has none.
 *
 * If the sides do not differ, their names could be exchanged in any block, for all metrics at once; that flips the
 * signs of its differences (Fisher 1935, Pitman 1937). A metric's score is |mean| / root mean square of its
 * differences, or 0 if |mean| < log(1 + threshold): a change that does not matter has p = 1. p is the share of flips in
 * which this metric, or a metric of a smaller observed score, reaches this metric's observed score; but at least the p
 * of every metric of a larger observed score (Westfall & Young 1993, step-down). With one metric and a threshold of 0
 * this is the Fisher-Pitman test. Exact up to 16 blocks; above that p is that of 9,999 random flips and the observed
 * signs (Dwass 1957; the seed is fixed), which also keeps the level. */
void stats_flip_blocks(const double *differences, size_t metrics, size_t blocks, double threshold, double *p);

/* Shift of b against a as a ratio - 1 (Hodges-Lehmann on logarithms; all values > 0), with its interval at
 * `confidence`. low/high are -1 and INFINITY if the samples are too small for that confidence. */
struct shift {
    double estimate, low, high;
};
void stats_shift_ratio(const double *a, size_t na, const double *b, size_t nb, double confidence, struct shift *shift);

/* One further value against n earlier ones as a ratio - 1, with its interval at `confidence`: the distance of its
 * logarithm from their mean, plus and minus t(n-1) s sqrt(1 + 1/n), as of Student's prediction interval. Returns the
 * two-sided p. s is at least STATS_LEAST_DEVIATION, so that values that happen to agree do not make every other value
 * significant. All values > 0, n >= 2. */
#define STATS_LEAST_DEVIATION 0.01
double stats_predict_ratio(const double *earlier, size_t n, double value, double confidence, struct shift *shift);

/* The interval of the median of a quantity whose logarithm is normally distributed, from Student's t on the logarithms:
 * exp(mean +- t(n-1) s / sqrt(n)). False, and nothing written, if n < 3 or a value is not positive. */
bool stats_median_interval(const double *values, size_t n, double confidence, double interval[2]);

/* The interval of the median whatever the distribution, so that outliers hardly move it: the k-th smallest and the k-th
 * largest of the values, with the largest k for which fewer than k of n values lie on one side of the median in at most
 * (1 - confidence) / 2 of samples (Thompson 1936). It contains their median. False, and nothing written, if there are
 * too few values: fewer than 6 at 0.95. */
bool stats_median_interval_sorted(const double *sorted, size_t n, double confidence, double interval[2]);

/* t with P(|T| <= t) = confidence, of Student's distribution with so many degrees of freedom (>= 1). */
double stats_student_quantile(double confidence, size_t degrees);

/* Holm's step-down adjusted p-values, in place, in the order given. */
void stats_holm(double *p, size_t n);

enum verdict { VERDICT_BETTER, VERDICT_WORSE, VERDICT_SAME, VERDICT_INCONCLUSIVE };
const char *verdict_name(enum verdict verdict);

/* `level` is what p must stay below, usually STATS_LEVEL; `threshold` is the smallest difference that matters (0.03 is
 * 3 %); `lower_is_better` gives the direction. better/worse: the whole interval is beyond 0, the estimate beyond the
 * threshold and p < level. same: the whole interval is within the threshold. Everything else is inconclusive. */
#define STATS_LEVEL 0.05
enum verdict stats_verdict(const struct shift *shift, double p, double level, double threshold, bool lower_is_better);

/* Pooled variance of the logarithms of two samples, either of which may be empty; NAN if neither has two values. */
double stats_log_variance(const double *a, size_t na, const double *b, size_t nb);

/* The fewest further runs per side that settle an inconclusive comparison (better, worse or same) with a probability of
 * at least 0.8, from the runs so far: their shift, and the `variance` of the logarithm of one run of a side; for n
 * blocks, na = nb = n and `variance` is half of that of the differences. The true shift is normal about the estimate
 * (predictive power with a flat prior: Spiegelhalter, Freedman & Blackburn 1986). `tests` is the number of metrics
 * tested together. 0 if it cannot be estimated; STATS_MOST_MORE_RUNS + 1 if more than that would be needed. */
#define STATS_MOST_MORE_RUNS 100
size_t stats_more_runs(const struct shift *shift, double variance, size_t na, size_t nb, double threshold,
                       size_t tests);

/* The fewest values a side, as many on each, with which a rank test of two sides can give a verdict at all when `tests`
 * metrics are tested together; for one test also the fewest for an interval. */
size_t stats_fewest_a_side(size_t tests);

/* Best checkpoint interval by Daly's higher-order formula, and the goodput it leaves.
 * cost_s: stall of a save; restart_s: time to restore; mtbf_s: mean time between failures. */
double stats_daly_interval(double cost_s, double mtbf_s);
/* The same for asynchronous saves: the work lost grows by the time until a save is durable, and a save never starts
 * before the previous one has ended. Returns the goodput; *interval_s is the best interval. */
double stats_best_goodput(double stall_s, double persist_s, double restart_s, double mtbf_s, double *interval_s);
double stats_goodput(double interval_s, double cost_s, double restart_s, double mtbf_s);

#endif
