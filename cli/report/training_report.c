/* Prints the outlook and the results of a training. */
#include "cli/report/training_report.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/report/metric_format.h"
#include "cli/report/table.h"
#include "core/units.h"

#define GB 1073741824.0

static unsigned moments_of(const struct experiment *experiment)
{
    return experiment_is(experiment, OPT_TRAIN_OPTIMIZER, "adamw") ? 2 : 0;
}

void training_describe(const struct training *training, struct buf *out)
{
    buf_printf(out, "%s, %u %s", training->name, training->batch, training->linear ? "rows" : "samples");
    if (!training->linear)
        buf_printf(out, " of %u tokens", training->sequence);
    buf_append_text(out, " a rank and step");
}

void training_outlook_write(const struct experiment *experiment, const struct workload *workload, struct buf *out)
{
    const struct training *training = &workload->training;
    char text[32];
    buf_printf(out, "model      %s, %s parameters, %s\n", experiment_text(experiment, OPT_MODEL),
               units_format_count(model_parameters(workload->model), text),
               training->bf16 ? "bf16 with fp32 master weights" : "fp32");
    buf_printf(out, "training   %s rank%s, ", units_format_count(training->ranks, text), units_plural(training->ranks));
    training_describe(training, out);
    buf_printf(out, ", %" PRIu64 " step%s, optimizer %s\n", training->steps, units_plural(training->steps),
               experiment_text(experiment, OPT_TRAIN_OPTIMIZER));
    for (int i = 0; i < MEMORY_STAGES; i++) {
        enum memory_stage stage = (enum memory_stage)i;
        uint64_t bytes = memory_stage_bytes(training, workload->model, moments_of(experiment), stage);
        buf_printf(out, "%s %-20s  %.3f GB\n", i ? "          " : "memory    ", memory_stage_name(stage),
                   (double)bytes / GB);
    }
    buf_append_text(out, "           on the device of a rank, in GB of 2^30 bytes; without the peak inside a step\n");
}

void training_outlook_write_json(const struct experiment *experiment, const struct workload *workload,
                                 struct json_writer *json)
{
    const struct training *training = &workload->training;
    json_write_begin_object(json);
    json_member_u64(json, "params", model_parameters(workload->model));
    json_member_text(json, "configuration", training->name);
    json_member_u64(json, "ranks", training->ranks);
    json_member_u64(json, "batch_size", training->batch);
    json_member_u64(json, "seq_length", training->sequence);
    json_write_key(json, "memory");
    json_write_begin_array(json);
    for (int i = 0; i < MEMORY_STAGES; i++) {
        enum memory_stage stage = (enum memory_stage)i;
        struct memory_record record = {.stage = stage, .log_key = training->name};
        record.allocated_bytes = (double)memory_stage_bytes(training, workload->model, moments_of(experiment), stage);
        record.most_allocated_bytes = record.reserved_bytes = record.most_reserved_bytes = record.resident_bytes = NAN;
        memory_record_write(&record, json);
    }
    json_write_end_array(json);
    json_write_end_object(json);
}

static const struct run_metric *find(const struct run_info *info, enum metric_id metric)
{
    for (size_t i = 0; i < info->metric_count; i++)
        if (info->metrics[i].metric == metric && (info->metrics[i].op == OP_STEP || info->metrics[i].op == OP_NONE))
            return &info->metrics[i];
    return NULL;
}

static void add_row(struct table *table, const struct run_info *info, enum metric_id metric)
{
    const struct run_metric *found = find(info, metric);
    char text[32], low[32], high[32];
    if (!found || found->summary.n == 0)
        return;
    const struct summary *summary = &found->summary;
    bool of_all = metric == METRIC_COMM_BYTES || metric == METRIC_OFFLOAD_BYTES;
    table_addf(table, TABLE_BOLD, "%s%s", metric_row(metric)->name, of_all ? ", all ranks" : "");
    table_add(table, TABLE_BOLD, metric_format(metric, summary->median, text));
    table_addf(table, TABLE_PLAIN, "%s … %s", metric_format(metric, summary->min, low),
               metric_format(metric, summary->max, high));
}

/* "loss 5.55 → 3.21 nats": first and last value say more than the median. */
static void write_course(const struct run_info *info, enum metric_id metric, const char *name, struct buf *out)
{
    const struct run_metric *found = find(info, metric);
    if (!found || found->summary.n == 0 || !found->iterations)
        return;
    buf_printf(out, "%-13s %.4g … %.4g, from the first step measured to the last\n", name, found->iterations[0],
               found->iterations[found->summary.n - 1]);
}

static void write_fact(const struct run_info *info, const char *key, const char *name, struct buf *out)
{
    size_t len = strlen(key);
    for (size_t i = 0; i < info->fact_count; i++)
        if (strncmp(info->facts[i], key, len) == 0 && info->facts[i][len] == '=')
            buf_printf(out, "%-13s %s\n", name, info->facts[i] + len + 1);
}

static void write_value(const struct run_info *info, enum metric_id metric, const char *name, const char *after,
                        struct buf *out)
{
    const struct run_metric *found = find(info, metric);
    char text[32];
    if (found && found->summary.n > 0)
        buf_printf(out, "%-13s %s %s\n", name, metric_format(metric, found->summary.median, text), after);
}

int training_report_write(const struct run_info *info, bool colour, struct buf *out, struct cb_err *err)
{
    static const enum metric_id rows[] = {METRIC_STEP_S,         METRIC_TOKENS_PER_S,  METRIC_MFU,
                                          METRIC_COMM_S,         METRIC_EXCHANGE_S,    METRIC_COMM_BYTES,
                                          METRIC_GATHERED_BYTES, METRIC_OFFLOAD_BYTES, METRIC_GRADIENT_NORM};
    static const char *const headings[] = {"", "median", "min … max"};
    struct table table;
    table_init(&table, "lrr");
    table_add_headings(&table, headings);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        add_row(&table, info, rows[i]);
    bool has_rows = table.count > sizeof headings / sizeof *headings;
    int rc = has_rows ? table_write(&table, 0, colour, out, err) : 0;
    table_release(&table);
    write_course(info, METRIC_LOSS, "loss", out);
    write_course(info, METRIC_VALIDATION_LOSS, "validation", out);
    write_fact(info, "train.configuration", "training", out);
    write_fact(info, "train.share", "share", out);
    write_fact(info, "train.exchange", "exchange", out);
    write_fact(info, "train.data", "data", out);
    write_fact(info, "mfu.peak", "peak", out);
    write_fact(info, "train.resumed", "resumed", out);
    write_fact(info, "train.passed_over", "passed over", out);
    write_value(info, METRIC_RECOVERY_S, "recovery", "from the end of the attempt before to the first step", out);
    write_value(info, METRIC_LOST_STEPS, "lost", "steps had to be done again", out);
    write_value(info, METRIC_TRAIN_GOODPUT, "goodput", "of the time went into steps at their own pace", out);
    write_fact(info, "train.memory", "memory", out);
    write_fact(info, "train.trace", "trace", out);
    return rc;
}
