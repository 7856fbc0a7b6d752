/* Sums up repeated requests, and describes them in a line. */
#include "cli/report/request_repeats.h"

#include <math.h>

#include "cli/report/metric_format.h"
#include "core/units.h"

static double sum_of(const struct run_info *info, enum operation op, enum metric_id metric)
{
    const struct run_metric *found = run_info_metric(info, op, metric);
    return found && found->summary.n > 0 ? found->summary.mean * (double)found->summary.n : 0;
}

void request_repeats_add(struct request_repeats *self, const struct run_info *info)
{
    const struct run_metric *times = run_info_metric(info, self->op, METRIC_OP_S);
    self->iterations += times ? (double)times->summary.n : 0;
    self->requests += sum_of(info, self->op, METRIC_REQUESTS);
    self->repeated += sum_of(info, self->op, METRIC_RETRIES);
    self->throttled += sum_of(info, self->op, METRIC_RETRIES_THROTTLED);
    self->server += sum_of(info, self->op, METRIC_RETRIES_SERVER);
    self->connection += sum_of(info, self->op, METRIC_RETRIES_CONNECTION);
    self->stalled += sum_of(info, self->op, METRIC_RETRIES_STALLED);
    self->op_s += sum_of(info, self->op, METRIC_OP_S);
    self->in_backoff_s += sum_of(info, self->op, METRIC_IN_BACKOFF_S);
    self->throttled_s += sum_of(info, self->op, METRIC_THROTTLED_S);
}

double request_repeats_share(const struct request_repeats *self)
{
    return self->requests > 0 ? self->repeated / self->requests : 0;
}

void request_repeats_describe(const struct request_repeats *self, struct buf *out)
{
    const struct {
        double count;
        const char *name;
    } causes[] = {{self->throttled, "throttled"},
                  {self->server, "server"},
                  {self->connection, "connection"},
                  {self->stalled, "stalled"}};
    double percent = 100 * request_repeats_share(self);
    const char *before = ": ";
    char a[32], b[32];
    buf_printf(out, "%s of %s requests", metric_format(METRIC_RETRIES, self->repeated, a),
               metric_format(METRIC_REQUESTS, self->requests, b));
    buf_printf(out, " in %.0f %s%s (%.*f %%)", self->iterations, operation_name(self->op),
               units_plural((uint64_t)self->iterations), percent > 0 && percent < 1 ? 2 : 0, percent);
    for (size_t i = 0; i < sizeof causes / sizeof *causes; i++) {
        if (causes[i].count < 1)
            continue;
        buf_printf(out, "%s%s %s", before, metric_format(METRIC_RETRIES, causes[i].count, a), causes[i].name);
        before = ", ";
    }
    before = "; ";
    if (self->in_backoff_s > 0) {
        buf_printf(out, "%s%s of %s waiting to try again", before, units_format_duration(self->in_backoff_s * 1e9, a),
                   units_format_duration(self->op_s * 1e9, b));
        before = ", ";
    }
    if (self->throttled_s > 0)
        buf_printf(out, "%sthrottled for %s", before, units_format_duration(self->throttled_s * 1e9, a));
}

void request_repeats_write(const struct run_info *info, enum operation op, struct buf *out)
{
    struct request_repeats repeats = {.op = op};
    const struct run_metric *p50 = run_info_metric(info, op, METRIC_TTFB_P50_S);
    const struct run_metric *p99 = run_info_metric(info, op, METRIC_TTFB_P99_S);
    char a[32], b[32];
    request_repeats_add(&repeats, info);
    if (!(repeats.repeated > 0))
        return;
    buf_append_text(out, "repeated      ");
    request_repeats_describe(&repeats, out);
    if (p50 && p99)
        buf_printf(out, "; first byte p50 %s, p99 %s", units_format_duration(p50->summary.median * 1e9, a),
                   units_format_duration(p99->summary.median * 1e9, b));
    buf_append_char(out, '\n');
}
