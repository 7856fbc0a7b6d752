/* Statistics of samples and of comparisons. Pure functions; NAN among inputs is the caller's bug.
 *
 * Sources: quantiles, Hyndman & Fan (1996) type 7; Mann & Whitney (1947), exact null distribution by
 * the counting recurrence where the product of sizes allows and there are no ties, else the normal
 * approximation with tie correction; Hodges & Lehmann (1963) shift with the interval from the ordered
 * pairwise differences (Bauer 1972); Holm (1979); Young (1974) and Daly (2006) for intervals. */
#ifndef CORE_STATS_H
#define CORE_STATS_H

#include <stdbool.h>
#include <stddef.h>

struct summary {
    size_t n;
    double median, p95, min, max, mean;
    double mad; /* median absolute deviation from the median, unscaled */
};

/* Sorts a copy. All members NAN where n is 0. */
void stats_summarize(const double *values, size_t n, struct summary *summary);

/* 0.6745 (value - median) / MAD (Iglewicz & Hoaglin, 1993), with a MAD of at least 1 % of the median, since machines that
 * agree better than that are the same. NAN where value is, or below STATS_N_FOR_Z values. */
#define STATS_N_FOR_Z 4
#define STATS_Z_OF_OUTLIERS 3.5 /* their bound */
double stats_robust_z(const struct summary *summary, double value);

/* The smallest first. */
void stats_sort(double *values, size_t n);
double stats_quantile_sorted(const double *sorted, size_t n, double q);

/* Two-sided p of Mann-Whitney's U. 1 where either side is empty. */
double stats_mann_whitney(const double *a, size_t na, const double *b, size_t nb);

/* With blocks: van Elteren (1960), the stratified rank-sum test; block_a[i] is the block of a[i].
 * Blocks that hold only one side say nothing. */
double stats_mann_whitney_blocked(const double *a, const size_t *block_a, size_t na, const double *b,
                                  const size_t *block_b, size_t nb);

/* Shift of b against a as a ratio - 1 (Hodges-Lehmann on logarithms; all values > 0), with its
 * interval at `confidence`. low/high are -1 and INFINITY where the sizes cannot give that confidence. */
struct shift {
    double estimate, low, high;
};
void stats_shift_ratio(const double *a, size_t na, const double *b, size_t nb, double confidence, struct shift *shift);

/* Holm's step-down adjusted p-values, in place, in the order given. */
void stats_holm(double *p, size_t n);

enum verdict { VERDICT_BETTER, VERDICT_WORSE, VERDICT_SAME, VERDICT_INCONCLUSIVE };
const char *verdict_name(enum verdict verdict);

/* `threshold` is the practical size (0.03 is 3 %); `lower_is_better` gives the sign. better/worse:
 * the whole interval beyond 0, the estimate beyond the threshold and p < 0.05; same: the whole
 * interval within the threshold; all else inconclusive. */
enum verdict stats_verdict(const struct shift *shift, double p, double threshold, bool lower_is_better);

/* How many more runs a side would be expected to settle an inconclusive comparison, from the spread
 * seen; 0 where it cannot be told. */
size_t stats_more_runs(const double *a, size_t na, const double *b, size_t nb, double threshold);

/* Best checkpoint interval by Daly's higher-order formula, and the goodput it leaves.
 * cost_s: stall of a save; restart_s: time to restore; mtbf_s: mean time between failures. */
double stats_daly_interval(double cost_s, double mtbf_s);
/* The same for saves that go on behind: what is lost grows by the lag until one is durable, and none begins
 * before the one before it has ended. Returns the goodput; *interval_s is the best interval. */
double stats_best_goodput(double stall_s, double persist_s, double restart_s, double mtbf_s, double *interval_s);
double stats_goodput(double interval_s, double cost_s, double restart_s, double mtbf_s);

#endif
