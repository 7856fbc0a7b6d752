/* Formats the metrics of a run for people. */
#include "cli/report/metric_format.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/units.h"

char *metric_full_name(enum operation op, enum metric_id metric, char name[64])
{
    const struct metric *row = metric_row(metric);
    bool of_several = row->operations & (row->operations - 1);
    bool plain = row->scope != METRIC_OF_SAMPLE ? !of_several : metric == METRIC_STALL_S || metric == METRIC_DURABLE_S;
    snprintf(name, 64, "%s%s%s", plain ? "" : operation_name(op), plain ? "" : ".", row->name);
    return name;
}

double metric_median(const struct run_info *info, enum metric_id metric)
{
    for (size_t i = 0; i < info->metric_count; i++)
        if (info->metrics[i].metric == metric)
            return info->metrics[i].summary.median;
    return NAN;
}

/* Rates of the suite that use decimal prefixes: of networks and GPUs, as is usual in that field, and rates that do not
 * count bytes. Returns false and leaves `text` unchanged for other metrics. */
static bool format_decimal(enum metric_id metric, double value, char text[32])
{
    const struct metric *row = metric_row(metric);
    const char *unit = row->unit;
    size_t chars = strlen(unit);
    bool is_bytes = strcmp(unit, "bytes/s") == 0;
    if (!metric_is_of_suite(metric) || chars < 2 || strcmp(unit + chars - 2, "/s") != 0 ||
        (is_bytes && row->group == METRIC_GROUP_SUITE_NODE))
        return false;
    units_format_decimal(value, is_bytes ? "B/s" : unit, text);
    return true;
}

char *metric_format(enum metric_id metric, double value, char text[32])
{
    char count[32];
    const char *unit = metric_row(metric)->unit;
    if (!isfinite(value))
        snprintf(text, 32, "-");
    else if (format_decimal(metric, value, text))
        return text;
    else if (strcmp(unit, "s") == 0)
        units_format_duration(value * 1e9, text);
    else if (strcmp(unit, "bytes") == 0)
        units_format_bytes(value, text);
    else if (strcmp(unit, "bytes/s") == 0)
        units_format_rate(value, text);
    else if (strcmp(unit, "count") == 0 && value >= 0 && value < 1e18)
        units_format_count((uint64_t)llround(value), text);
    else if (strcmp(unit, "ratio") == 0)
        snprintf(text, 32, "%.3f", value);
    else if (strcmp(unit, "tokens/s") == 0 && value >= 1000 && value < 1e15)
        snprintf(text, 32, "%.20s tokens/s", units_format_count((uint64_t)llround(value), count));
    else
        snprintf(text, 32, "%.4g %s", value, unit);
    return text;
}

const char *metric_state_name(enum rank_state state, enum operation op)
{
    bool reads = op == OP_LOAD || op == OP_VERIFY || op == OP_BASELINE_READ;
    if (op == OP_VERIFY && state == STATE_SERIALIZE)
        return "compare";
    return state != STATE_IO ? rank_state_name(state) : reads ? "read" : "write";
}

char *metric_slowest(const struct run_info *info, enum operation op, char text[64])
{
    enum rank_state state = info->slowest_rank_state[op];
    if (info->slowest_rank[op] < 0)
        snprintf(text, 64, "-");
    else
        snprintf(text, 64, "rank %d, %+.1f %%%s%s", info->slowest_rank[op], 100 * info->slowest_rank_excess[op],
                 state == STATE_COUNT ? "" : ": ", state == STATE_COUNT ? "" : metric_state_name(state, op));
    return text;
}

/* Three significant digits, without an exponent in the usual range. */
static char *number_text(double value, char text[32])
{
    static const double from[] = {100, 10, 1, 0.1, 0.01};
    double size = fabs(value);
    int decimals = 0;
    while (size != 0 && decimals < 5 && size < from[decimals])
        decimals++;
    if (size != 0 && (size < 1e-5 || size >= 1e12))
        snprintf(text, 32, "%.3g", value);
    else
        snprintf(text, 32, "%.*f", decimals, value);
    return text;
}

char *figure_short_text(enum metric_id metric, double value, char text[32])
{
    const char *unit = metric_row(metric)->unit;
    if (isnan(value))
        return memcpy(text, "-", 2);
    if (format_decimal(metric, value, text))
        return text;
    if (strcmp(unit, "bytes") == 0)
        return units_format_bytes(value, text);
    if (strcmp(unit, "bytes/s") == 0)
        return units_format_rate(value, text);
    return number_text(value, text);
}

char *figure_text(enum metric_id metric, double value, char text[32])
{
    figure_short_text(metric, value, text);
    if (strcmp(metric_row(metric)->unit, "s") == 0 && !isnan(value))
        strncat(text, " s", 31 - strlen(text));
    return text;
}
