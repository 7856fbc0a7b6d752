/* Describes a training before it runs. */
#include "cli/report/training_report.h"

#include <inttypes.h>
#include <math.h>

#include "core/units.h"

#define GB 1073741824.0

void training_describe(const struct training *training, struct buf *out)
{
    buf_printf(out, "%s, %u %s", training->name, training->batch, training->linear ? "rows" : "samples");
    if (!training->linear)
        buf_printf(out, " of %u tokens", training->sequence);
    buf_append_text(out, " a rank and step");
}

void training_report_write(const struct experiment *experiment, const struct workload *workload, struct buf *out)
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
        uint64_t bytes = memory_stage_bytes(training, workload->model, training_moments(experiment), stage);
        buf_printf(out, "%s %-20s  %.3f GB\n", i ? "          " : "memory    ", memory_stage_name(stage),
                   (double)bytes / GB);
    }
    buf_append_text(out, "           on the device of a rank, in GB of 2^30 bytes; without the peak inside a step\n");
}

void training_report_write_json(const struct experiment *experiment, const struct workload *workload,
                                struct json_writer *json)
{
    const struct training *training = &workload->training;
    json_write_begin_object(json);
    json_member_u64(json, "params", model_parameters(workload->model));
    json_member_text(json, "configuration", training->name);
    json_member_u64(json, "ranks", training->ranks);
    json_member_u64(json, "batch_size", training->batch);
    json_member_u64(json, "seq_length", training->sequence);
    json_member_array(json, "memory");
    for (int i = 0; i < MEMORY_STAGES; i++) {
        enum memory_stage stage = (enum memory_stage)i;
        struct memory_record record = {.stage = stage};
        record.allocated_bytes =
            (double)memory_stage_bytes(training, workload->model, training_moments(experiment), stage);
        record.most_allocated_bytes = record.reserved_bytes = record.most_reserved_bytes = record.resident_bytes = NAN;
        memory_record_write(&record, json);
    }
    json_write_end_array(json);
    json_write_end_object(json);
}
