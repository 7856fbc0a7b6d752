/* How much of one activity is hidden behind another. */
#ifndef SUITE_OVERLAP_H
#define SUITE_OVERLAP_H

/* The share of the shorter of two activities that was hidden behind the other one when both ran at once: 0 if they took as
 * long as one after the other, 1 if they took no longer than the longer one. Formula: Intel MPI Benchmarks, "Measuring
 * Communication and Computation Overlap" (IMB-NBC): (t_pure + t_CPU - t_ovrl) / min(t_pure, t_CPU), cut to 0 … 1. */
static inline double suite_overlap(double one_s, double other_s, double both_s)
{
    double hidden = (one_s + other_s - both_s) / (one_s < other_s ? one_s : other_s);
    return hidden < 0 ? 0 : hidden > 1 ? 1 : hidden;
}

#endif
