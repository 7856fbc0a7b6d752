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

/* Scores that a segment without a change exceeds with a probability of 0.03, by its length; between two lengths by
 * interpolation in the logarithm of the length. Simulated: 400,000 segments of each length up to 50, 100,000 of each above. */
static const struct {
    double length, score;
} critical[] = {
    {8, 2.1603},  {9, 2.5981},  {10, 2.5950}, {12, 2.7566},  {15, 2.8825},  {20, 3.0474},
    {30, 3.2367}, {50, 3.4417}, {70, 3.5676}, {100, 3.6826}, {150, 3.8078}, {200, 3.8848},
};

struct scan {
    const double *values;
    double *sorted;              /* WINDOW of them */
    double *rank_sum;            /* of the first i values of the segment, standardized; WINDOW + 1 */
    struct change_point *points; /* in the order of time; only `at` is set */
    size_t count;
};

static double critical_score(size_t length)
{
    size_t last = sizeof critical / sizeof *critical - 1, i = 1;
    while (i < last && critical[i].length < (double)length)
        i++;
    double share = log((double)length / critical[i - 1].length) / log(critical[i].length / critical[i - 1].length);
    return critical[i - 1].score + share * (critical[i].score - critical[i - 1].score);
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

/* Sums of ranks with mean 0 and variance 1; equal values share their mean rank. False if all are equal. */
static bool sum_ranks(struct scan *self, const double *values, size_t n)
{
    double squares = 0;
    memcpy(self->sorted, values, n * sizeof *values);
    stats_sort(self->sorted, n);
    self->rank_sum[0] = 0;
    for (size_t i = 0; i < n; i++) {
        double rank = (double)count_below(self->sorted, n, values[i], false) +
                      (double)count_below(self->sorted, n, values[i], true) - (double)n;
        squares += rank * rank;
        self->rank_sum[i + 1] = self->rank_sum[i] + rank;
    }
    for (size_t i = 1; i <= n; i++)
        self->rank_sum[i] /= squares > 0 ? sqrt(squares / (double)n) : 1;
    return squares > 0;
}

/* The place with the greatest score of a segment. */
static double best_split(const double *rank_sum, size_t n, size_t *at)
{
    double best = 0;
    for (size_t tau = MIN_SEGMENT; tau + MIN_SEGMENT <= n; tau++) {
        for (size_t kappa = tau + MIN_SEGMENT; kappa <= n; kappa++) {
            double before = (double)tau, after = (double)(kappa - tau);
            double difference = rank_sum[tau] / before - (rank_sum[kappa] - rank_sum[tau]) / after;
            double score = difference * difference * before * after / (before + after);
            if (score > best) {
                best = score;
                *at = tau;
            }
        }
    }
    return sqrt(best);
}

/* Appends the change points of [start, end). */
static int split(struct scan *self, size_t start, size_t end, struct cb_err *err)
{
    size_t n = end - start, at = 0;
    if (n < 2 * MIN_SEGMENT || !sum_ranks(self, self->values + start, n) ||
        best_split(self->rank_sum, n, &at) <= critical_score(n) + ROUNDING)
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
    self.rank_sum = calloc(WINDOW + 1, sizeof *self.rank_sum);
    if (!self.sorted || !self.rank_sum)
        rc = alloc_fail(err, "to find change points");
    if (rc == 0)
        rc = scan_windows(&self, n, err);
    free(self.sorted);
    free(self.rank_sum);
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
