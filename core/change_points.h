/* Change points: where the level of a series of runs changed. Pure.
 *
 * Binary segmentation as in E-divisive (Matteson & James 2014, "A Nonparametric Approach for Multiple Change Point
 * Analysis of Multivariate Data"): a segment is split at the tau of the pair (tau, kappa) with the greatest difference
 * between [0, tau) and [tau, kappa). The difference is that of mean ranks, standardized (Pettitt 1979, "A
 * Non-parametric Approach to the Change-point Problem"), so that an outlier counts no more than the next larger value,
 * and its null distribution depends on the length alone: critical values are a table instead of permutations. Windows
 * that overlap keep the cost linear and what was found stable (Fleming et al. 2023, "Hunter"). */
#ifndef CORE_CHANGE_POINTS_H
#define CORE_CHANGE_POINTS_H

#include <stdbool.h>
#include <stddef.h>

#include "core/err.h"
#include "core/stats.h"

/* The fewest values on either side of a change point: the fewest for which stats_shift_ratio has a 95 % interval. */
#define CHANGE_POINT_MIN_SEGMENT 4
/* Smaller changes than this are no change points. */
#define CHANGE_POINT_MIN_SHIFT 0.02

struct change_point {
    size_t at;          /* index of the first value of the new level */
    size_t start, end;  /* the old level is [start, at), the new one [at, end) */
    struct shift shift; /* of the new level against the old one, as a ratio - 1, with its 95 % interval */
};

/* The change points of `n` values in the order of time; `points`, owned by the caller and NULL if there are none, is in that order, too. Values
 * that allow no ratio (any is 0 or less) have none. */
int change_points_find(const double *values, size_t n, struct change_point **points, size_t *count,
                       struct cb_err *err) CB_MUST_CHECK;

#endif
