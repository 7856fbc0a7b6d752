/* Finds change points by a scan over ranks; core/change_points.h names the sources. */
#include "core/change_points.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"

#define MIN_SEGMENT ((size_t)CHANGE_POINT_MIN_SEGMENT)
#define WINDOW 200      /* values that are judged together */
#define SIDE_MOST 100   /* values of a level, those next to the change point, that its shift is computed from */
#define CONFIDENCE 0.95 /* of the shift's interval */
#define ROUNDING 1e-9   /* scores that differ by less are equal */
#define MOST_LOGIT 2.7  /* of a rank: an outlier counts no more than the largest 6 % of values */

/* Scores that a segment without a change exceeds, by its length; between two lengths by interpolation in the logarithm
 * of the length. `newest` is for changes that last to the end of the segment and is exceeded with a probability of 0.03
 * (8 and 9 values), 0.01 (to 15), 0.045 (to 30) or 0.06; `any` is for the others: 0.005 (to 15) or 0.01. So 100 nights of
 * noise, each judged with all before it, have at most one false alarm. Simulated: 200,000 segments of each length up to
 * 50, 50,000 of each above, 20,000 of 200. */
static const struct critical {
    double length, newest, any;
} critical[] = {
    {8, 2.7179, 3.5708},  {9, 3.0201, 3.7491},   {10, 3.8715, 4.0030},  {12, 4.1145, 4.5446},
    {15, 3.9838, 4.8289}, {20, 3.1202, 4.4946},  {30, 3.0878, 4.3575},  {50, 2.9678, 4.2812},
    {70, 2.9953, 4.2945}, {100, 3.0152, 4.3102}, {150, 3.0280, 4.3249}, {200, 3.0598, 4.4006},
};

struct scan {
    const double *values;
    double *sorted;              /* WINDOW of them */
    double *score_sum;           /* of the first i values of the segment; WINDOW + 1 */
    struct change_point *points; /* in the order of time; only `at` is set */
    size_t count;
};

static struct critical critical_scores(size_t length)
{
    size_t last = sizeof critical / sizeof *critical - 1, i = 1;
    while (i < last && critical[i].length < (double)length)
        i++;
    const struct critical *low = &critical[i - 1], *high = &critical[i];
    double share = log((double)length / low->length) / log(high->length / low->length);
    return (struct critical){.newest = low->newest + share * (high->newest - low->newest),
                             .any = low->any + share * (high->any - low->any)};
}

/* How many sorted values are less than `value`, or not more than it. */
static size_t count_below(const double *sorted, size_t n, double value, bool or_equal)
{
    size_t low = 0, high = n;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (sorted[middle] < value || (or_equal && sorted[middle] == value))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Sums of the scores of values, which are the logits of their ranks up to MOST_LOGIT; equal values share their mean
 * rank. Returns the sum of squares; 0 if all are equal. */
static double sum_scores(struct scan *self, const double *values, size_t n)
{
    double squares = 0;
    memcpy(self->sorted, values, n * sizeof *values);
    stats_sort(self->sorted, n);
    self->score_sum[0] = 0;
    for (size_t i = 0; i < n; i++) {
        double rank = ((double)count_below(self->sorted, n, values[i], false) +
                       (double)count_below(self->sorted, n, values[i], true) + 1) /
                      2;
        double share = (rank - 0.375) / ((double)n + 0.25); /* Blom (1958) */
        double score = fmax(-MOST_LOGIT, fmin(log(share / (1 - share)), MOST_LOGIT));
        squares += score * score;
        self->score_sum[i + 1] = self->score_sum[i] + score;
    }
    return self->sorted[0] < self->sorted[n - 1] ? squares : 0;
}

/* The square of Student's t of [0, tau) against [tau, kappa), with the variance within these and the rest. */
static double score_of(const double *sum, double squares, size_t n, size_t tau, size_t kappa)
{
    double before = (double)tau, after = (double)(kappa - tau), rest = (double)(n - kappa);
    double sum_after = sum[kappa] - sum[tau], sum_rest = sum[n] - sum[kappa];
    double difference = sum[tau] / before - sum_after / after;
    double within = squares - sum[tau] * sum[tau] / before - sum_after * sum_after / after;
    if (rest > 0)
        within -= sum_rest * sum_rest / rest;
    within = fmax(within, ROUNDING * squares) / ((double)n - (rest > 0 ? 3 : 2));
    return difference * difference * before * after / (before + after) / within;
}

/* The place at which a segment is to be split: that of the greatest score. False if none is critical. */
static bool find_split(const double *sum, double squares, size_t n, size_t *at)
{
    double newest = 0, any = 0;
    size_t newest_at = 0, any_at = 0;
    const struct critical scores = critical_scores(n);
    for (size_t tau = MIN_SEGMENT; tau + MIN_SEGMENT <= n; tau++) {
        for (size_t kappa = tau + MIN_SEGMENT; kappa <= n; kappa++) {
            double score = score_of(sum, squares, n, tau, kappa);
            if (score > any) {
                any = score;
                any_at = tau;
            }
            if (kappa == n && score > newest) {
                newest = score;
                newest_at = tau;
            }
        }
    }
    bool is_newest = sqrt(newest) > scores.newest + ROUNDING;
    *at = is_newest ? newest_at : any_at;
    return is_newest || sqrt(any) > scores.any + ROUNDING;
}

/* Appends the change points of [start, end). */
static int split(struct scan *self, size_t start, size_t end, struct cb_err *err)
{
    size_t n = end - start, at = 0;
    if (n < 2 * MIN_SEGMENT)
        return 0;
    double squares = sum_scores(self, self->values + start, n);
    if (squares == 0 || !find_split(self->score_sum, squares, n, &at))
        return 0;
    int rc = split(self, start, start + at, err);
    if (rc == 0)
        rc = alloc_grow(&self->points, self->count, sizeof *self->points, err);
    if (rc)
        return rc;
    self->points[self->count++] = (struct change_point){.at = start + at};
    return split(self, start + at, end, err);
}

/* A window begins at the last change point of the one before, or in its middle: what a full window has found is not
 * affected by later values. */
static int scan_windows(struct scan *self, size_t n, struct cb_err *err)
{
    int rc = 0;
    for (size_t start = 0; rc == 0;) {
        size_t end = n - start > WINDOW ? start + WINDOW : n;
        rc = split(self, start, end, err);
        if (end == n)
            break;
        start += WINDOW / 2;
        if (self->count && self->points[self->count - 1].at > start)
            start = self->points[self->count - 1].at;
    }
    return rc;
}

static void measure(struct scan *self, size_t i, size_t n)
{
    struct change_point *point = &self->points[i];
    point->start = i ? self->points[i - 1].at : 0;
    point->end = i + 1 < self->count ? self->points[i + 1].at : n;
    size_t before = point->at - point->start, after = point->end - point->at;
    before = before < SIDE_MOST ? before : SIDE_MOST;
    after = after < SIDE_MOST ? after : SIDE_MOST;
    stats_shift_ratio(self->values + point->at - before, before, self->values + point->at, after, CONFIDENCE,
                      &point->shift);
}

/* Joins the levels whose shift is too small to matter, the smallest first. */
static void join_levels(struct scan *self, size_t n)
{
    for (size_t i = 0; i < self->count; i++)
        measure(self, i, n);
    while (self->count) {
        size_t least = 0;
        for (size_t i = 1; i < self->count; i++)
            if (fabs(log1p(self->points[i].shift.estimate)) < fabs(log1p(self->points[least].shift.estimate)))
                least = i;
        if (fabs(log1p(self->points[least].shift.estimate)) >= CHANGE_POINT_MIN_SHIFT)
            break;
        self->count--;
        memmove(self->points + least, self->points + least + 1, (self->count - least) * sizeof *self->points);
        if (least)
            measure(self, least - 1, n);
        if (least < self->count)
            measure(self, least, n);
    }
}

int change_points_find(const double *values, size_t n, struct change_point **points, size_t *count, struct cb_err *err)
{
    struct scan self = {.values = values};
    int rc = 0;
    *points = NULL;
    *count = 0;
    for (size_t i = 0; i < n; i++)
        if (!(values[i] > 0))
            return 0;
    self.sorted = calloc(WINDOW, sizeof *self.sorted);
    self.score_sum = calloc(WINDOW + 1, sizeof *self.score_sum);
    if (!self.sorted || !self.score_sum)
        rc = alloc_fail(err, "to find change points");
    if (rc == 0)
        rc = scan_windows(&self, n, err);
    free(self.sorted);
    free(self.score_sum);
    if (rc) {
        free(self.points);
        return rc;
    }
    join_levels(&self, n);
    if (self.count)
        *points = self.points;
    else
        free(self.points);
    *count = self.count;
    return 0;
}
