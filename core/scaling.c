#include "core/scaling.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/stats.h"

#define LEAST_DEVIATION 0.001 /* points that agree exactly have an interval, too */
#define LEAST_SPREAD 0.01     /* a misfit below this does not matter */
#define MISFIT_LEVEL 0.01
#define STEPS 40
#define FREE (-1.0)

/* One linear problem: the columns of all terms, divided by the times, as normal equations. In a problem on the border
 * (`tie` > 0) the unit's coefficient is `tie` times the shared one, so it has no column of its own. */
struct problem {
    double products[SCALING_TERMS][SCALING_TERMS], targets[SCALING_TERMS];
    double tie;
};

struct fitter {
    const struct scaling_point *points;
    size_t count;
    struct problem *problems;
    size_t problem_count;
    double scale[SCALING_TERMS]; /* of a column, so that coefficients are of one size */
};

static double column(const struct scaling_point *point, int term)
{
    switch (term) {
    case SCALING_FIXED:
        return 1;
    case SCALING_UNIT:
        return point->bytes / point->n;
    case SCALING_SHARED:
        return point->bytes;
    default:
        return log(point->n);
    }
}

/* Coefficients: seconds, seconds per byte of a unit, seconds per byte of all, seconds per ln n. */
static double model(const double *coefficients, const struct scaling_point *point)
{
    return coefficients[SCALING_FIXED] +
           fmax(coefficients[SCALING_UNIT] * column(point, SCALING_UNIT),
                coefficients[SCALING_SHARED] * column(point, SCALING_SHARED)) +
           coefficients[SCALING_LOG] * column(point, SCALING_LOG);
}

static double square_sum(const struct fitter *self, const double *coefficients)
{
    double sum = 0;
    for (size_t i = 0; i < self->count; i++) {
        double error = model(coefficients, &self->points[i]) / self->points[i].seconds - 1;
        sum += error * error;
    }
    return sum;
}

/* The problem in which the shared limit holds above `last` units; with a tie it begins exactly there. */
static void make_problem(const struct fitter *self, double last, bool on_border, struct problem *out)
{
    *out = (struct problem){.tie = on_border ? last * self->scale[SCALING_UNIT] / self->scale[SCALING_SHARED] : 0};
    for (size_t i = 0; i < self->count; i++) {
        const struct scaling_point *point = &self->points[i];
        double row[SCALING_TERMS];
        for (int term = 0; term < SCALING_TERMS; term++)
            row[term] = column(point, term) / self->scale[term] / point->seconds;
        bool is_shared = point->n > last;
        if (on_border && !is_shared)
            row[SCALING_SHARED] = out->tie * row[SCALING_UNIT];
        else if (!is_shared)
            row[SCALING_SHARED] = 0;
        if (on_border || is_shared)
            row[SCALING_UNIT] = 0;
        for (int a = 0; a < SCALING_TERMS; a++) {
            out->targets[a] += row[a];
            for (int b = 0; b < SCALING_TERMS; b++)
                out->products[a][b] += row[a] * row[b];
        }
    }
}

/* Solves for the terms in `mask`, by elimination; false if they cannot be told apart. The others have their values in
 * x. */
static bool solve(const struct problem *problem, unsigned mask, double *x)
{
    double rows[SCALING_TERMS][SCALING_TERMS + 1];
    int terms[SCALING_TERMS], count = 0;
    for (int term = 0; term < SCALING_TERMS; term++)
        if (mask & 1u << term)
            terms[count++] = term;
    for (int i = 0; i < count; i++) {
        rows[i][count] = problem->targets[terms[i]];
        for (int k = 0; k < SCALING_TERMS; k++)
            if (!(mask & 1u << k))
                rows[i][count] -= problem->products[terms[i]][k] * x[k];
        for (int k = 0; k < count; k++)
            rows[i][k] = problem->products[terms[i]][terms[k]];
    }
    for (int i = 0; i < count; i++) {
        if (rows[i][i] < 1e-10 * problem->products[terms[i]][terms[i]] || rows[i][i] <= 0)
            return false;
        for (int k = i + 1; k < count; k++) {
            double factor = rows[k][i] / rows[i][i];
            for (int m = i; m <= count; m++)
                rows[k][m] -= factor * rows[i][m];
        }
    }
    for (int i = count - 1; i >= 0; i--) {
        double rest = rows[i][count];
        for (int k = i + 1; k < count; k++)
            rest -= rows[i][k] * x[terms[k]];
        x[terms[i]] = rest / rows[i][i];
        if (x[terms[i]] < 0)
            return false;
    }
    return true;
}

/* The best coefficients, with that of `fixed` (SCALING_TERMS: none) held at `value`; returns the sum of squares. */
static double fit_terms(const struct fitter *self, int fixed, double value, double *best)
{
    double least = INFINITY;
    for (size_t i = 0; i < self->problem_count; i++) {
        const struct problem *problem = &self->problems[i];
        for (unsigned mask = 0; mask < 1u << SCALING_TERMS; mask++) {
            double x[SCALING_TERMS] = {0}, found[SCALING_TERMS];
            int held = fixed;
            bool has_unit = (mask & 1u << SCALING_UNIT) != 0;
            if ((fixed < SCALING_TERMS && mask & 1u << fixed) || (problem->tie > 0 && has_unit))
                continue;
            if (fixed < SCALING_TERMS)
                x[fixed] = value * self->scale[fixed];
            if (problem->tie > 0 && fixed == SCALING_UNIT) { /* it determines the shared one */
                held = SCALING_SHARED;
                x[SCALING_SHARED] = x[SCALING_UNIT] / problem->tie;
                if (mask & 1u << held)
                    continue;
            }
            if (!solve(problem, mask, x))
                continue;
            if (problem->tie > 0)
                x[SCALING_UNIT] = problem->tie * x[SCALING_SHARED];
            for (int term = 0; term < SCALING_TERMS; term++)
                found[term] = x[term] / self->scale[term];
            double sum = square_sum(self, found);
            if (sum < least) {
                least = sum;
                if (best)
                    memcpy(best, found, sizeof found);
            }
        }
    }
    return least;
}

/* The largest or smallest value of a coefficient with which the sum of squares is at most `most`; 0 if that is one. */
static double find_limit(const struct fitter *self, int term, double inside, bool upwards, double most)
{
    double outside = 0;
    if (!upwards && fit_terms(self, term, 0, NULL) <= most)
        return 0;
    if (upwards) /* no term exceeds the longest time */
        for (outside = inside > 0 ? 2 * inside : 1e-6 / self->scale[term];
             fit_terms(self, term, outside, NULL) <= most;)
            outside *= 2;
    for (int step = 0; step < STEPS; step++) {
        double middle = (inside + outside) / 2;
        if (fit_terms(self, term, middle, NULL) <= most)
            inside = middle;
        else
            outside = middle;
    }
    return inside;
}

static int compare_points(const void *a, const void *b)
{
    const struct scaling_point *x = a, *y = b;
    return (x->n > y->n) - (x->n < y->n);
}

/* For points in ascending order of n. */
static size_t count_sizes(const struct scaling_point *points, size_t count)
{
    size_t sizes = count > 0;
    for (size_t i = 1; i < count; i++)
        sizes += points[i].n != points[i - 1].n;
    return sizes;
}

static int make_problems(struct fitter *self, size_t sizes, struct cb_err *err)
{
    self->problems = calloc(2 * sizes + 1, sizeof *self->problems);
    if (!self->problems)
        return alloc_fail(err, "for a scaling model");
    for (int term = 0; term < SCALING_TERMS; term++)
        for (size_t i = 0; i < self->count; i++)
            self->scale[term] = fmax(self->scale[term], fabs(column(&self->points[i], term)) / self->points[i].seconds);
    make_problem(self, 0, false, &self->problems[self->problem_count++]);
    for (size_t i = 0; i < self->count; i++) {
        if (i + 1 < self->count && self->points[i].n == self->points[i + 1].n)
            continue;
        make_problem(self, self->points[i].n, false, &self->problems[self->problem_count++]);
        make_problem(self, self->points[i].n, true, &self->problems[self->problem_count++]);
    }
    return 0;
}

/* Compares the mean error of each n with the spread of its points; needs repeated points. */
static int check_misfit(const struct fitter *self, const double *coefficients, size_t sizes, struct cb_err *err)
{
    double spread = 0, worst = 0, worst_n = 0;
    size_t degrees = self->count - sizes, end;
    for (int pass = 0; pass < 2 && degrees > 0; pass++) {
        double deviation = fmax(sqrt(spread / (double)degrees), LEAST_SPREAD);
        double limit = pass ? stats_student_quantile(1 - MISFIT_LEVEL / (double)sizes, degrees) : 0;
        for (size_t begin = 0; begin < self->count; begin = end) {
            double sum = 0, squares = 0;
            for (end = begin; end < self->count && self->points[end].n == self->points[begin].n; end++) {
                double error = self->points[end].seconds / model(coefficients, &self->points[end]) - 1;
                sum += error;
                squares += error * error;
            }
            double members = (double)(end - begin), mean = sum / members;
            if (pass == 0)
                spread += squares - sum * mean;
            else if (fabs(mean) > limit * deviation / sqrt(members) && fabs(mean) > fabs(worst)) {
                worst = mean;
                worst_n = self->points[begin].n;
            }
        }
    }
    return worst == 0 ? 0
                      : cb_fail(err, CB_ERR_UNSUPPORTED,
                                "the points do not follow the model: at n = %g the time is %+.0f %% off", worst_n,
                                100 * worst);
}

static void describe_term(const struct fitter *self, int term, double estimate, double most, struct scaling_figure *out)
{
    double low = find_limit(self, term, estimate, false, most), high = find_limit(self, term, estimate, true, most);
    bool is_rate = term == SCALING_UNIT || term == SCALING_SHARED;
    *out = is_rate ? (struct scaling_figure){1 / estimate, 1 / high, 1 / low}
                   : (struct scaling_figure){estimate, low, high};
}

static int fit_sorted(struct fitter *self, struct scaling_fit *fit, struct cb_err *err)
{
    double best[SCALING_TERMS] = {0};
    size_t sizes = count_sizes(self->points, self->count);
    if (sizes < SCALING_LEAST_SIZES || self->count < SCALING_LEAST_POINTS)
        return cb_fail(err, CB_ERR_UNSUPPORTED, "it needs %d sizes and %d runs, and there are %zu and %zu",
                       SCALING_LEAST_SIZES, SCALING_LEAST_POINTS, sizes, self->count);
    int rc = make_problems(self, sizes, err);
    if (rc)
        return rc;
    double least = fit_terms(self, SCALING_TERMS, FREE, best);
    size_t degrees = self->count - SCALING_TERMS;
    rc = check_misfit(self, best, sizes, err);
    if (rc)
        return rc;
    least = fmax(least, (double)self->count * LEAST_DEVIATION * LEAST_DEVIATION);
    double t = stats_student_quantile(SCALING_CONFIDENCE, degrees);
    for (int term = 0; term < SCALING_TERMS; term++)
        describe_term(self, term, best[term], least * (1 + t * t / (double)degrees), &fit->terms[term]);
    fit->deviation = sqrt(least / (double)degrees);
    return 0;
}

int scaling_fit(const struct scaling_point *points, size_t count, struct scaling_fit *fit, struct cb_err *err)
{
    struct scaling_point *sorted = malloc((count + 1) * sizeof *sorted);
    if (!sorted)
        return alloc_fail(err, "for a scaling model");
    if (count > 0)
        memcpy(sorted, points, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, compare_points);
    struct fitter self = {.points = sorted, .count = count};
    int rc = fit_sorted(&self, fit, err);
    free(self.problems);
    free(sorted);
    return rc;
}
