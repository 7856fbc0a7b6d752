/* Statistics: pure functions of arrays; core/stats.h lists the sources. */
#include "core/stats.h"

#include <assert.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EXACT_MAX_PRODUCT 2500 /* na x nb up to which the exact null distribution is computed: 50 against 50 */
#define SIGNIFICANCE 0.05
#define POWER_QUANTILE 0.8416212335729143 /* normal quantile at 0.80: the power that a proposal of more runs aims at */
#define HALF_WIDTH_QUANTILE 1.959963984540054
#define NEWTON_STEPS 60

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void stats_sort(double *values, size_t n)
{
    qsort(values, n, sizeof *values, compare_doubles);
}

static double *sorted_copy(const double *values, size_t n)
{
    double *copy = malloc((n ? n : 1) * sizeof *copy);
    if (copy) {
        if (n)
            memcpy(copy, values, n * sizeof *copy);
        stats_sort(copy, n);
    }
    return copy;
}

double stats_quantile_sorted(const double *sorted, size_t n, double q)
{
    if (n == 0)
        return NAN;
    double place = q * (double)(n - 1);
    size_t low = (size_t)place;
    if (low + 1 >= n)
        return sorted[n - 1];
    return sorted[low] + (place - (double)low) * (sorted[low + 1] - sorted[low]);
}

void stats_summarize(const double *values, size_t n, struct summary *summary)
{
    *summary = (struct summary){n, NAN, NAN, NAN, NAN, NAN, NAN};
    double *sorted = n ? sorted_copy(values, n) : NULL;
    if (!sorted)
        return;
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += sorted[i];
    summary->median = stats_quantile_sorted(sorted, n, 0.5);
    summary->p95 = stats_quantile_sorted(sorted, n, 0.95);
    summary->min = sorted[0];
    summary->max = sorted[n - 1];
    summary->mean = sum / (double)n;
    for (size_t i = 0; i < n; i++)
        sorted[i] = fabs(sorted[i] - summary->median);
    stats_sort(sorted, n);
    summary->mad = stats_quantile_sorted(sorted, n, 0.5);
    free(sorted);
}

double stats_robust_z(const struct summary *summary, double value)
{
    double mad = fmax(summary->mad, 0.01 * fabs(summary->median));
    if (summary->n < STATS_N_FOR_Z || !(mad > 0))
        return NAN;
    return 0.6745 * (value - summary->median) / mad;
}

/* Mann-Whitney */

/* Twice Mann-Whitney's U of a against b: pairs with a > b count 2, ties 1. An integer, so exact. */
static uint64_t twice_u(const double *a, size_t na, const double *b, size_t nb)
{
    uint64_t twice = 0;
    for (size_t i = 0; i < na; i++) {
        for (size_t k = 0; k < nb; k++)
            twice += a[i] > b[k] ? 2 : a[i] == b[k];
    }
    return twice;
}

/* Sorts all values; *tie_sum is the sum of t^3 - t over groups of t equal values. NULL if out of memory. */
static double *pool(const double *a, size_t na, const double *b, size_t nb, double *tie_sum)
{
    double *all = malloc((na + nb) * sizeof *all);
    if (!all)
        return NULL;
    memcpy(all, a, na * sizeof *all);
    memcpy(all + na, b, nb * sizeof *all);
    stats_sort(all, na + nb);
    *tie_sum = 0;
    for (size_t i = 0; i < na + nb;) {
        size_t end = i;
        while (end < na + nb && all[end] == all[i])
            end++;
        double t = (double)(end - i);
        *tie_sum += t * t * t - t;
        i = end;
    }
    return all;
}

/* Probability of each U from 0 to na x nb if all orders are equally likely. The distribution of U is the product over
 * i of (1 - x^(nb+i)) / (1 - x^i), a Gaussian binomial coefficient, divided by the number of orders. Multiplying and
 * dividing one factor at a time keeps whole numbers; scaling by i / (nb + i) each time keeps them probabilities. NULL
 * if out of memory. */
static double *null_distribution(size_t na, size_t nb)
{
    size_t top = na * nb;
    double *p = calloc(top + 1, sizeof *p);
    if (!p)
        return NULL;
    p[0] = 1;
    for (size_t i = 1; i <= na; i++) {
        size_t far = nb + i;
        for (size_t u = top + 1; u-- > far;)
            p[u] -= p[u - far];
        for (size_t u = i; u <= top; u++)
            p[u] += p[u - i];
        for (size_t u = 0; u <= top; u++)
            p[u] *= (double)i / (double)far;
    }
    return p;
}

static double two_sided_exact(uint64_t u, size_t na, size_t nb)
{
    double *p = null_distribution(na, nb);
    if (!p)
        return NAN;
    uint64_t tail = u < na * nb - u ? u : na * nb - u;
    double sum = 0;
    for (uint64_t i = 0; i <= tail; i++)
        sum += p[i];
    free(p);
    return sum * 2 < 1 ? sum * 2 : 1;
}

/* Two-sided p of a difference with this variance; `continuity` is subtracted from the difference first. */
static double two_sided_normal(double difference, double variance, double continuity)
{
    if (variance <= 0)
        return 1;
    double distance = fabs(difference) - continuity;
    return distance <= 0 ? 1 : erfc(distance / sqrt(2 * variance));
}

double stats_mann_whitney(const double *a, size_t na, const double *b, size_t nb)
{
    if (na == 0 || nb == 0)
        return 1;
    double tie_sum;
    double *all = pool(a, na, b, nb, &tie_sum);
    if (!all)
        return NAN;
    free(all);
    uint64_t twice = twice_u(a, na, b, nb);
    if (tie_sum == 0 && na <= EXACT_MAX_PRODUCT / nb)
        return two_sided_exact(twice / 2, na, nb);
    double n = (double)(na + nb), product = (double)na * (double)nb;
    double variance = product / 12 * (n + 1 - tie_sum / (n * (n - 1)));
    return two_sided_normal((double)twice / 2 - product / 2, variance, 0.5);
}

/* Van Elteren */

/* One block's contribution: the rank sum of a less its mean, both divided by the block's size plus 1. */
static void add_block(const double *a, size_t na, const double *b, size_t nb, double *difference, double *variance)
{
    double tie_sum;
    double *all = na && nb ? pool(a, na, b, nb, &tie_sum) : NULL;
    if (!all)
        return;
    free(all);
    double n = (double)(na + nb), product = (double)na * (double)nb;
    double weight = 1 / (n + 1);
    *difference += weight * ((double)twice_u(a, na, b, nb) / 2 - product / 2);
    *variance += weight * weight * product / 12 * (n + 1 - tie_sum / (n * (n - 1)));
}

static size_t pick_block(const double *values, const size_t *blocks, size_t n, size_t block, double *out)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++) {
        if (blocks[i] == block)
            out[count++] = values[i];
    }
    return count;
}

static bool is_first_of_block(const size_t *blocks, size_t index)
{
    for (size_t i = 0; i < index; i++) {
        if (blocks[i] == blocks[index])
            return false;
    }
    return true;
}

double stats_mann_whitney_blocked(const double *a, const size_t *block_a, size_t na, const double *b,
                                  const size_t *block_b, size_t nb)
{
    double *picked = malloc((na + nb + 1) * sizeof *picked);
    if (!picked)
        return NAN;
    double difference = 0, variance = 0;
    for (size_t i = 0; i < na; i++) {
        if (!is_first_of_block(block_a, i))
            continue;
        size_t in_a = pick_block(a, block_a, na, block_a[i], picked);
        size_t in_b = pick_block(b, block_b, nb, block_a[i], picked + in_a);
        add_block(picked, in_a, picked + in_a, in_b, &difference, &variance);
    }
    free(picked);
    return two_sided_normal(difference, variance, 0);
}

/* Hodges-Lehmann */

/* How many of the smallest (and of the largest) pairwise differences lie outside the interval: the largest k with P(U
 * < k) <= tail; 0 if even k = 1 has a larger probability. */
static size_t outside_exact(size_t na, size_t nb, double tail)
{
    double *p = null_distribution(na, nb);
    if (!p)
        return 0;
    double sum = 0;
    size_t k = 0;
    while (k < na * nb && (sum += p[k]) <= tail)
        k++;
    free(p);
    return k;
}

/* Inverse of the normal distribution by Newton's method on erfc, for 0.5 < q < 1. */
static double normal_quantile(double q)
{
    double z = 0;
    for (int i = 0; i < NEWTON_STEPS; i++) {
        double density = exp(-z * z / 2) / sqrt(2 * acos(-1));
        z += (q - (1 - erfc(z / sqrt(2)) / 2)) / density;
    }
    return z;
}

static size_t outside_normal(size_t na, size_t nb, double tail)
{
    double product = (double)na * (double)nb;
    double k = floor(product / 2 - normal_quantile(1 - tail) * sqrt(product * (double)(na + nb + 1) / 12));
    return k < 1 ? 0 : (size_t)k;
}

void stats_shift_ratio(const double *a, size_t na, const double *b, size_t nb, double confidence, struct shift *shift)
{
    *shift = (struct shift){NAN, -1, INFINITY};
    size_t pairs = na * nb;
    double *differences = pairs ? malloc(pairs * sizeof *differences) : NULL;
    if (!differences)
        return;
    for (size_t i = 0; i < na; i++) {
        for (size_t k = 0; k < nb; k++)
            differences[i * nb + k] = log(b[k]) - log(a[i]);
    }
    stats_sort(differences, pairs);
    shift->estimate = expm1(stats_quantile_sorted(differences, pairs, 0.5));
    double tail = (1 - confidence) / 2;
    size_t outside = pairs <= EXACT_MAX_PRODUCT ? outside_exact(na, nb, tail) : outside_normal(na, nb, tail);
    if (outside > 0) {
        shift->low = expm1(differences[outside - 1]);
        shift->high = expm1(differences[pairs - outside]);
    }
    free(differences);
}

/* Holm */

void stats_holm(double *p, size_t n)
{
    double *adjusted = malloc((n ? n : 1) * sizeof *adjusted);
    if (!adjusted) {
        for (size_t i = 0; i < n; i++)
            p[i] = 1; /* no memory: nothing is significant */
        return;
    }
    for (size_t i = 0; i < n; i++) { /* the largest of (n - rank) x p over all p up to this one */
        adjusted[i] = 0;
        for (size_t k = 0; k < n; k++) {
            if (p[k] > p[i])
                continue;
            size_t before = 0;
            for (size_t m = 0; m < n; m++)
                before += p[m] < p[k] || (p[m] == p[k] && m < k) ? 1 : 0;
            double candidate = (double)(n - before) * p[k];
            if (candidate > adjusted[i])
                adjusted[i] = candidate;
        }
        if (adjusted[i] > 1)
            adjusted[i] = 1;
    }
    if (n)
        memcpy(p, adjusted, n * sizeof *p);
    free(adjusted);
}

const char *verdict_name(enum verdict verdict)
{
    static const char *const names[] = {"better", "worse", "same", "inconclusive"};
    assert(verdict <= VERDICT_INCONCLUSIVE);
    return names[verdict];
}

enum verdict stats_verdict(const struct shift *shift, double p, double threshold, bool lower_is_better)
{
    if (shift->low >= -threshold && shift->high <= threshold)
        return VERDICT_SAME;
    bool lower = shift->high < 0 && shift->estimate <= -threshold;
    bool higher = shift->low > 0 && shift->estimate >= threshold;
    if ((lower || higher) && p < SIGNIFICANCE)
        return lower == lower_is_better ? VERDICT_BETTER : VERDICT_WORSE;
    return VERDICT_INCONCLUSIVE;
}

/* Sum of squared deviations of the logarithms from their mean. */
static double square_sum_of_logs(const double *values, size_t n)
{
    double mean = 0, sum = 0;
    for (size_t i = 0; i < n; i++)
        mean += log(values[i]) / (double)n;
    for (size_t i = 0; i < n; i++)
        sum += (log(values[i]) - mean) * (log(values[i]) - mean);
    return sum;
}

size_t stats_more_runs(const double *a, size_t na, const double *b, size_t nb, double threshold)
{
    if (na < 2 || nb < 2 || threshold <= 0)
        return 0;
    double variance = (square_sum_of_logs(a, na) + square_sum_of_logs(b, nb)) / (double)(na + nb - 2);
    struct shift shift;
    stats_shift_ratio(a, na, b, nb, 0.95, &shift);
    if (!(variance > 0) || !isfinite(shift.estimate))
        return 0;
    /* The border that the interval must not cross: 0 if the shift is beyond the threshold, else the nearer border of
     * "same". A rank test needs pi/3 times the runs of a normal test on normal data. */
    double size = fabs(log1p(shift.estimate)), border = log1p(threshold);
    double clear = size > border ? size : border - size;
    if (clear < border / 10)
        return 0; /* the shift lies on the border: no number of runs would settle it */
    double z = HALF_WIDTH_QUANTILE + POWER_QUANTILE;
    double needed = ceil(acos(-1) / 3 * 2 * variance * z * z / (clear * clear));
    size_t have = na < nb ? na : nb;
    if (needed < 4)
        needed = 4; /* fewer cannot reach p < 0.05 */
    return needed > (double)have ? (size_t)needed - have : 1;
}

double stats_daly_interval(double cost_s, double mtbf_s)
{
    if (cost_s >= 2 * mtbf_s)
        return mtbf_s;
    double ratio = cost_s / (2 * mtbf_s);
    return sqrt(2 * cost_s * mtbf_s) * (1 + sqrt(ratio) / 3 + ratio / 9) - cost_s;
}

double stats_goodput(double interval_s, double cost_s, double restart_s, double mtbf_s)
{
    /* Daly (2006): wall time = M e^(R/M) (e^((t+C)/M) - 1) Ts / t. */
    return interval_s / (mtbf_s * exp(restart_s / mtbf_s) * expm1((interval_s + cost_s) / mtbf_s));
}

double stats_best_goodput(double stall_s, double persist_s, double restart_s, double mtbf_s, double *interval_s)
{
    double interval = stats_daly_interval(stall_s, mtbf_s);
    *interval_s = interval > persist_s ? interval : persist_s;
    return stats_goodput(*interval_s, stall_s, restart_s + persist_s, mtbf_s);
}
