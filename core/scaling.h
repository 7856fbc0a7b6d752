/* How the time of an operation depends on the number of ranks or nodes n: fits
 *
 *   time(n) = fixed + max(bytes / n / unit rate, bytes / shared rate) + log term x ln n
 *
 * with all terms >= 0 by least squares of relative errors. A unit is a rank or a node; the shared rate is what all of
 * them reach together. For each order of points along n in which the shared limit begins, the model is linear; each such
 * problem is solved for every set of terms, and the best solution counts. The interval of a term contains the values
 * with which the others still fit: those whose sum of squares is at most (1 + t^2 / degrees of freedom) times the least
 * one (profile likelihood: Bates & Watts 1988, 6.1.2). Pure; no I/O. */
#ifndef CORE_SCALING_H
#define CORE_SCALING_H

#include <stddef.h>

#include "core/err.h"

#define SCALING_CONFIDENCE 0.95
#define SCALING_LEAST_SIZES 4  /* different n */
#define SCALING_LEAST_POINTS 7 /* in all: three more than terms */

enum scaling_term { SCALING_FIXED, SCALING_UNIT, SCALING_SHARED, SCALING_LOG, SCALING_TERMS };

struct scaling_point {
    double n, bytes, seconds; /* all > 0; bytes moved by all units together */
};

/* Seconds, and for SCALING_LOG seconds per ln n; for the rates bytes/s. A limit that the points do not show is open:
 * `low` of a time is 0 ("at most high"), `high` of a rate INFINITY ("at least low"). */
struct scaling_figure {
    double value, low, high;
};

struct scaling_fit {
    struct scaling_figure terms[SCALING_TERMS];
    double deviation; /* of a point from the model, relative */
};

/* CB_ERR_UNSUPPORTED with the reason if there are too few points, or if they contradict the model: the mean of the
 * points of one n is further from it than their spread explains. */
int scaling_fit(const struct scaling_point *points, size_t count, struct scaling_fit *fit,
                struct cb_err *err) CB_MUST_CHECK;

#endif
