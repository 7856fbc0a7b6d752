/* Describes a training before it runs, for people and as JSON. */
#ifndef CLI_REPORT_TRAINING_REPORT_H
#define CLI_REPORT_TRAINING_REPORT_H

#include "cli/plan/workload.h"
#include "core/buf.h"
#include "core/json.h"
#include "run/experiment.h"

/* Model, ranks, batch, and the device memory of a rank at each stage of training, computed without allocating it. */
void training_report_write(const struct experiment *experiment, const struct workload *workload, struct buf *out);
void training_report_write_json(const struct experiment *experiment, const struct workload *workload,
                                struct json_writer *json);

/* "fsdp-module_wrap-BACKWARD_PRE, 16 samples of 128 tokens a rank" */
void training_describe(const struct training *training, struct buf *out);

#endif
