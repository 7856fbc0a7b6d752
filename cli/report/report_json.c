/* A run as JSON; the header lists the members. */
#include "cli/report/report_json.h"

#include "cli/report/metric_format.h"
#include "run/experiment_json.h"

static void write_metrics_json(const struct run_info *info, struct json_writer *writer)
{
    json_write_begin_object(writer);
    for (size_t i = 0; i < info->metric_count; i++) {
        const struct run_metric *metric = &info->metrics[i];
        char name[64];
        json_write_key(writer, metric_full_name(metric->op, metric->metric, name));
        json_write_begin_object(writer);
        json_member_text(writer, "unit", metric_row(metric->metric)->unit);
        json_member_u64(writer, "n", metric->summary.n);
        json_member_double(writer, "median", metric->summary.median);
        json_member_double(writer, "p95", metric->summary.p95);
        json_member_double(writer, "min", metric->summary.min);
        json_member_double(writer, "max", metric->summary.max);
        json_member_double(writer, "mean", metric->summary.mean);
        json_write_end_object(writer);
    }
    json_write_end_object(writer);
}

static void write_limits_json(const struct run_info *info, struct json_writer *writer)
{
    static const enum metric_id limits[] = {METRIC_BASELINE_WRITE_BYTES_PER_S, METRIC_BASELINE_READ_BYTES_PER_S,
                                            METRIC_SAVE_LIMIT_FRACTION, METRIC_LOAD_LIMIT_FRACTION};
    json_write_begin_object(writer);
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        json_member_double(writer, metric_row(limits[i])->name, metric_median(info, limits[i]));
    json_write_end_object(writer);
}

static bool operation_ran(const struct run_info *info, enum operation op)
{
    double sum = 0;
    for (int state = 0; state < STATE_COUNT; state++)
        sum += info->state_share[op][state];
    return sum > 0;
}

static void write_states_json(const struct run_info *info, struct json_writer *writer)
{
    json_write_begin_object(writer);
    for (int op = OP_NONE + 1; op < OP_COUNT; op++) {
        if (!operation_ran(info, (enum operation)op))
            continue;
        json_write_key(writer, operation_name((enum operation)op));
        json_write_begin_object(writer);
        for (int state = 0; state < STATE_COUNT; state++)
            json_member_double(writer, metric_state_name((enum rank_state)state, (enum operation)op),
                               info->state_share[op][state]);
        json_write_end_object(writer);
    }
    json_write_end_object(writer);
}

static void write_slowest_json(const struct run_info *info, struct json_writer *writer)
{
    json_write_begin_object(writer);
    for (int op = OP_NONE + 1; op < OP_COUNT; op++) {
        if (info->slowest_rank[op] < 0 || !operation_ran(info, (enum operation)op))
            continue;
        json_write_key(writer, operation_name((enum operation)op));
        json_write_begin_object(writer);
        enum rank_state state = info->slowest_rank_state[op];
        json_member_i64(writer, "rank", info->slowest_rank[op]);
        json_member_text(writer, "state", state == STATE_COUNT ? NULL : rank_state_name(state));
        json_member_double(writer, "share", info->slowest_rank_share[op]);
        json_member_double(writer, "excess", info->slowest_rank_excess[op]);
        json_write_end_object(writer);
    }
    json_write_end_object(writer);
}

static void write_text_member(struct json_writer *writer, const char *key, const char *value)
{
    json_member_text(writer, key, value && *value ? value : NULL);
}

void report_write_members(const struct run_info *info, struct json_writer *writer)
{
    write_text_member(writer, "run", info->run);
    write_text_member(writer, "sweep", info->sweep);
    write_text_member(writer, "state", info->state);
    write_text_member(writer, "outcome", info->outcome);
    write_text_member(writer, "message", info->message);
    write_text_member(writer, "folder", info->folder);
    json_write_key(writer, "experiment");
    experiment_write_json(info->experiment, writer);
    json_write_key(writer, "labels");
    experiment_write_labels_json(info->experiment, writer);
    json_write_key(writer, "metrics");
    write_metrics_json(info, writer);
    json_write_key(writer, "limits");
    write_limits_json(info, writer);
    json_write_key(writer, "states");
    write_states_json(info, writer);
    json_write_key(writer, "slowest_rank");
    write_slowest_json(info, writer);
    json_write_key(writer, "verified");
    json_write_begin_object(writer);
    json_member_u64(writer, "iterations", info->iterations_verified);
    json_member_u64(writer, "of", info->iterations_to_verify);
    json_write_end_object(writer);
}

void report_write_json(const struct run_info *info, struct json_writer *writer)
{
    json_write_begin_object(writer);
    report_write_members(info, writer);
    json_write_end_object(writer);
}
