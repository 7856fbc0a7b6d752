/* Thresholds that a run must meet: "storage_write_bytes_per_s:2GiB/s+net_latency_s:5us". Pure functions. */
#ifndef RUN_THRESHOLDS_H
#define RUN_THRESHOLDS_H

#include <stdbool.h>
#include <stddef.h>

#include "core/err.h"
#include "run/metrics.h"

#define RULES_MOST 32

struct threshold {
    enum metric_id metric;
    double bound; /* in the metric's unit: a minimum if higher is better, else a maximum */
};

struct thresholds {
    struct threshold items[RULES_MOST];
    size_t count;
};

/* Parses METRIC:VALUE joined by '+', "" for no rules; values use the metric's units. CB_ERR_USAGE suggests the
 * nearest metric name. */
int thresholds_parse(const char *text, struct thresholds *rules, struct cb_err *err) CB_MUST_CHECK;

/* Whether `value` meets the rule; NAN (not measured) meets no rule. */
bool threshold_is_met(const struct threshold *rule, double value);

#endif
