/* Statistics: pure functions of arrays; core/stats.h lists the sources. */
#include "core/stats.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define TIED_MAX_PRODUCT 400   /* the same if there are equal values, which take longer to count */
#define EXACT_MAX_PRODUCT 2500 /* na x nb up to which the exact null distribution is computed: 50 against 50 */
#define EXACT_MAX_BLOCKS 16    /* blocks up to which all flips are counted: 2^15, half of them by symmetry */
#define RANDOM_FLIPS 9999      /* random flips for more blocks */
#define ROUNDING 1e-9          /* scores that differ by less are equal */
#define SETTLED 0.8            /* probability of a verdict that a proposal of more runs aims at */
#define SMALL_PRODUCT 100      /* na x nb up to which a proposal checks whether a verdict is possible at all */
#define HALF_WIDTH_QUANTILE 1.959963984540054
#define NEWTON_STEPS 60
#define BISECTION_STEPS 60

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void stats_sort(double *values, size_t n)
{
    qsort(values, n, sizeof *values, compare_doubles);
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
    double *sorted = n ? malloc(n * sizeof *sorted) : NULL;
    if (!sorted)
        return;
    memcpy(sorted, values, n * sizeof *sorted);
    stats_sort(sorted, n);
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

/* Both sides in ascending order; NULL if out of memory. */
static double *sort_both(const double *a, size_t na, const double *b, size_t nb)
{
    double *all = malloc((na + nb) * sizeof *all);
    if (!all)
        return NULL;
    memcpy(all, a, na * sizeof *all);
    memcpy(all + na, b, nb * sizeof *all);
    stats_sort(all, na + nb);
    return all;
}

/* The sum of t^3 - t over groups of t equal values. */
static double tie_sum_of(const double *all, size_t n)
{
    double tie_sum = 0;
    for (size_t i = 0, end = 0; i < n; i = end) {
        while (end < n && all[end] == all[i])
            end++;
        double t = (double)(end - i);
        tie_sum += t * t * t - t;
    }
    return tie_sum;
}

/* Each way to choose values so far, without and with one more of this weight. */
static void add_choice(double *ways, size_t few, size_t top, size_t weight)
{
    for (size_t k = few; k > 0; k--)
        for (size_t sum = weight; sum <= top; sum++)
            ways[k * (top + 1) + sum] += ways[(k - 1) * (top + 1) + sum - weight];
}

/* With ties: the share of the ways to divide the values between the sides in which U is at least as far from its mean
 * as `distance` (twice that of U, with ties counted as a half). Counts the ways to choose the values of the smaller side
 * by the sum of twice their mid-ranks. NAN if out of memory. */
static double two_sided_tied(const double *all, size_t na, size_t nb, uint64_t distance)
{
    size_t n = na + nb, few = na < nb ? na : nb, top = 2 * n * few;
    double *ways = calloc((few + 1) * (top + 1), sizeof *ways), whole = 0, far = 0;
    if (!ways)
        return NAN;
    ways[0] = 1;
    for (size_t first = 0, end = 0; first < n; first = end) {
        while (end < n && all[end] == all[first])
            end++;
        for (size_t i = first; i < end; i++)
            add_choice(ways, few, top, first + end + 1);
    }
    for (size_t sum = few * (few + 1); sum <= top; sum++) {
        uint64_t twice = sum - few * (few + 1), mean = na * nb;
        double count = ways[few * (top + 1) + sum];
        whole += count;
        far += (twice > mean ? twice - mean : mean - twice) >= distance ? count : 0;
    }
    free(ways);
    return far / whole;
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
    double *all = sort_both(a, na, b, nb);
    if (!all)
        return NAN;
    uint64_t twice = 0; /* twice U of a against b: pairs with a > b count 2, ties 1. An integer, so exact */
    for (size_t i = 0; i < na; i++)
        for (size_t k = 0; k < nb; k++)
            twice += a[i] > b[k] ? 2 : a[i] == b[k];
    double n = (double)(na + nb), product = (double)na * (double)nb, p, tie_sum = tie_sum_of(all, na + nb);
    if (tie_sum == 0 && na <= EXACT_MAX_PRODUCT / nb)
        p = two_sided_exact(twice / 2, na, nb);
    else if (na <= TIED_MAX_PRODUCT / nb)
        p = two_sided_tied(all, na, nb, twice > na * nb ? twice - na * nb : na * nb - twice);
    else
        p = two_sided_normal((double)twice / 2 - product / 2, product / 12 * (n + 1 - tie_sum / (n * (n - 1))), 0.5);
    free(all);
    return p;
}

/* Flipped blocks */

/* One metric. Its parts are the differences of its blocks divided by the root of their sum of squares, which no flip
 * changes: sums of metrics with little and with much noise are comparable. */
struct flipped {
    size_t metric;
    double *parts; /* with the signs of the current flip; 0 for a block without a difference */
    double sum;
    double matters; /* smallest |sum| whose mean difference is as large as the threshold */
    double observed;
    size_t reached; /* flips whose largest score is at least the observed one */
};

static double flipped_score(const struct flipped *self)
{
    double size = fabs(self->sum);
    return size >= self->matters * (1 - ROUNDING) ? size : 0;
}

static void flipped_init(struct flipped *self, const double *differences, size_t blocks, double threshold)
{
    double squares = 0;
    size_t count = 0;
    for (size_t i = 0; i < blocks; i++) {
        count += isnan(differences[i]) ? 0 : 1;
        self->parts[i] = isnan(differences[i]) ? 0 : differences[i];
        squares += self->parts[i] * self->parts[i];
    }
    double root = squares > 0 ? sqrt(squares) : 1;
    for (size_t i = 0; i < blocks; i++)
        self->sum += self->parts[i] /= root;
    self->matters = log1p(threshold) * (double)count / root;
    self->observed = flipped_score(self);
}

static int compare_observed(const void *a, const void *b)
{
    return compare_doubles(&((const struct flipped *)b)->observed, &((const struct flipped *)a)->observed);
}

static void flip(struct flipped *all, size_t metrics, size_t block)
{
    for (size_t i = 0; i < metrics; i++) {
        all[i].sum -= 2 * all[i].parts[block];
        all[i].parts[block] = -all[i].parts[block];
    }
}

/* A metric competes with itself and with metrics of smaller observed scores. */
static void count_scores(struct flipped *all, size_t metrics)
{
    double largest = 0;
    for (size_t i = metrics; i-- > 0;) {
        largest = fmax(largest, flipped_score(&all[i]));
        all[i].reached += largest >= all[i].observed * (1 - ROUNDING);
    }
}

/* SplitMix64 (Steele, Lea & Flood, 2014). */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* Counts the observed signs and all other flips, or a random sample of these. Returns how many it counted. */
static size_t count_flips(struct flipped *all, size_t metrics, size_t blocks)
{
    bool exact = blocks <= EXACT_MAX_BLOCKS;
    size_t flips = exact ? (size_t)1 << (blocks - 1) : RANDOM_FLIPS + 1;
    uint64_t state = 1; /* a fixed seed: the same runs give the same p */
    count_scores(all, metrics);
    for (size_t i = 1; i < flips; i++) {
        if (exact) /* Gray code; the last block keeps its sign, since flipping all of them changes no score */
            flip(all, metrics, (size_t)__builtin_ctzll(i));
        uint64_t bits = 0;
        for (size_t k = 0; k < blocks && !exact; k++, bits >>= 1) {
            if (k % 64 == 0)
                bits = next_random(&state);
            if (bits & 1)
                flip(all, metrics, k);
        }
        count_scores(all, metrics);
    }
    return flips;
}

void stats_flip_blocks(const double *differences, size_t metrics, size_t blocks, double threshold, double *p)
{
    struct flipped *all = calloc(metrics + 1, sizeof *all);
    double *parts = calloc(metrics * blocks + 1, sizeof *parts);
    for (size_t i = 0; i < metrics; i++)
        p[i] = 1; /* without blocks or memory nothing is significant */
    if (all && parts && blocks) {
        for (size_t i = 0; i < metrics; i++) {
            all[i] = (struct flipped){.metric = i, .parts = parts + i * blocks};
            flipped_init(&all[i], differences + i * blocks, blocks, threshold);
        }
        qsort(all, metrics, sizeof *all, compare_observed);
        size_t flips = count_flips(all, metrics, blocks);
        double least = 0; /* a metric is not more significant than one with a larger score */
        for (size_t i = 0; i < metrics; i++) {
            least = fmax(least, (double)all[i].reached / (double)flips);
            p[all[i].metric] = least;
        }
    }
    free(all);
    free(parts);
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

/* Student */

/* P(|T| <= sqrt(degrees) tan(angle)), a finite series (Abramowitz & Stegun 26.7.3 and 26.7.4). */
static double student_within(double angle, size_t degrees)
{
    bool odd = degrees % 2 == 1;
    double square = cos(angle) * cos(angle), term = odd ? cos(angle) : 1, sum = 0;
    for (size_t k = odd ? 3 : 2; k <= degrees; k += 2) {
        sum += term;
        term *= square * (double)(k - 1) / (double)k;
    }
    return odd ? 2 / acos(-1) * (angle + sin(angle) * sum) : sin(angle) * sum;
}

/* By bisection of its angle. */
double stats_student_quantile(double confidence, size_t degrees)
{
    double low = 0, high = acos(-1) / 2;
    for (int i = 0; i < BISECTION_STEPS; i++) {
        double middle = (low + high) / 2;
        if (student_within(middle, degrees) < confidence)
            low = middle;
        else
            high = middle;
    }
    return sqrt((double)degrees) * tan(low);
}

double stats_predict_ratio(const double *earlier, size_t n, double value, double confidence, struct shift *shift)
{
    double mean = 0;
    for (size_t i = 0; i < n; i++)
        mean += log(earlier[i]) / (double)n;
    double s = fmax(sqrt(stats_log_variance(earlier, n, NULL, 0)), STATS_LEAST_DEVIATION);
    double distance = log(value) - mean, error = s * sqrt(1 + 1 / (double)n);
    double half = stats_student_quantile(confidence, n - 1) * error;
    *shift = (struct shift){expm1(distance), expm1(distance - half), expm1(distance + half)};
    /* 1 - x cannot resolve a smaller p than its rounding. */
    return fmax(1 - student_within(atan(fabs(distance) / error / sqrt((double)(n - 1))), n - 1), DBL_EPSILON);
}

bool stats_median_interval_sorted(const double *sorted, size_t n, double confidence, double interval[2])
{
    double log_p = -(double)n * M_LN2; /* of exactly k values below the median */
    double below = exp(log_p);         /* of at most k */
    size_t k = 0;
    while (2 * k < n && below <= (1 - confidence) / 2) {
        log_p += log((double)(n - k) / (double)(k + 1));
        below += exp(log_p);
        k++;
    }
    if (k == 0)
        return false;
    interval[0] = sorted[k - 1];
    interval[1] = sorted[n - k];
    return true;
}

bool stats_median_interval(const double *values, size_t n, double confidence, double interval[2])
{
    double mean = 0;
    if (n < 3)
        return false;
    for (size_t i = 0; i < n; i++) {
        if (!(values[i] > 0))
            return false;
        mean += log(values[i]) / (double)n;
    }
    double half = stats_student_quantile(confidence, n - 1) * sqrt(stats_log_variance(values, n, NULL, 0) / (double)n);
    interval[0] = exp(mean - half);
    interval[1] = exp(mean + half);
    return true;
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

enum verdict stats_verdict(const struct shift *shift, double p, double level, double threshold, bool lower_is_better)
{
    if (shift->low >= -threshold && shift->high <= threshold)
        return VERDICT_SAME;
    bool lower = shift->high < 0 && shift->estimate <= -threshold;
    bool higher = shift->low > 0 && shift->estimate >= threshold;
    if ((lower || higher) && p < level)
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

double stats_log_variance(const double *a, size_t na, const double *b, size_t nb)
{
    size_t means = (na > 0) + (size_t)(nb > 0);
    return na + nb > means ? (square_sum_of_logs(a, na) + square_sum_of_logs(b, nb)) / (double)(na + nb - means) : NAN;
}

static double normal_below(double z)
{
    return erfc(-z / sqrt(2)) / 2;
}

/* Variance of the estimated shift of na against nb runs. A rank test needs pi/3 times the runs of a normal test on
 * normal data. */
static double shift_variance(double variance, size_t na, size_t nb)
{
    return acos(-1) / 3 * variance * (1 / (double)na + 1 / (double)nb);
}

/* Probability of a verdict. The later estimate is normal about the present one, with the deviation `open`; its interval
 * has the half widths `down` and `up`. For better and worse, a correction for several tests makes both `factor` times
 * as wide. */
static double settled(double estimate, double open, double down, double up, double factor, double threshold)
{
    double most = log1p(threshold), least = threshold < 1 ? log1p(-threshold) : -INFINITY;
    double worse = normal_below((estimate - fmax(most, down * factor)) / open);
    double better = normal_below((fmin(least, -up * factor) - estimate) / open);
    double same = normal_below((most - up - estimate) / open) - normal_below((least + down - estimate) / open);
    return worse + better + fmax(0, same);
}

size_t stats_more_runs(const struct shift *shift, double variance, size_t na, size_t nb, double threshold, size_t tests)
{
    if (na < 1 || nb < 1 || tests < 1 || threshold <= 0 || !(variance > 0) || !isfinite(shift->estimate))
        return 0;
    double tail = STATS_LEVEL / 2 / (double)tests, factor = normal_quantile(1 - tail) / HALF_WIDTH_QUANTILE;
    double now = shift_variance(variance, na, nb);
    double down = HALF_WIDTH_QUANTILE * sqrt(now),
           up = down; /* half widths of a normal test, if there is no interval */
    if (isfinite(shift->high)) {
        down = log1p(shift->estimate) - log1p(shift->low);
        up = log1p(shift->high) - log1p(shift->estimate);
    }
    size_t more = 1;
    for (; more <= STATS_MOST_MORE_RUNS; more++) {
        size_t a = na + more, b = nb + more;
        if (a * b <= SMALL_PRODUCT && outside_exact(a, b, tail) == 0)
            continue; /* too few for any verdict */
        double later = shift_variance(variance, a, b), narrower = sqrt(later / now);
        if (settled(log1p(shift->estimate), sqrt(now - later), down * narrower, up * narrower, factor, threshold) >=
            SETTLED)
            break;
    }
    return more;
}

size_t stats_fewest_a_side(size_t tests)
{
    size_t n = 2;
    while (outside_exact(n, n, STATS_LEVEL / 2 / (double)(tests ? tests : 1)) == 0)
        n++;
    return n;
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
