/* The training options of an experiment, for the checks before a run and for the run itself: which ranks share state,
 * samples per step, when to save, and the memory at each stage of a training, calculated without allocating it. Pure
 * functions. */
#ifndef SETUP_TRAINING_H
#define SETUP_TRAINING_H

#include <stdbool.h>
#include <stdint.h>

#include "ckpt/model/model.h"
#include "core/err.h"
#include "core/json.h"
#include "run/experiment.h"

enum wrap_policy { WRAP_MODULE, WRAP_SIZE, WRAP_NONE };
enum backward_prefetch { BACKWARD_PRE, BACKWARD_POST, BACKWARD_NONE };

struct training {
    bool ddp; /* else FSDP */
    bool linear;
    uint32_t ranks, shard_ranks; /* number of ranks that share the state; 1 with DDP */
    enum wrap_policy wrap;
    uint64_t min_num_params;
    enum backward_prefetch backward_prefetch;
    bool forward_prefetch, cpu_offload, bf16;
    uint32_t batch, sequence; /* samples per rank and step, tokens per sample */
    uint64_t steps, warmup;
    uint64_t checkpoint_steps, checkpoint_ns; /* at most one is not 0: save after so many steps, or so much time */
    char name[128];                           /* name of the configuration: "fsdp-module_wrap-BACKWARD_PRE" */
};

/* CB_ERR_USAGE for keys that exclude each other, or do not fit the model. `ranks` 0 means 1. */
int training_read(const struct experiment *experiment, const struct model *model, uint32_t ranks,
                  struct training *training, struct cb_err *err) CB_MUST_CHECK;

enum memory_stage { MEMORY_AFTER_DATA_CREATION, MEMORY_AFTER_MODEL_CREATION, MEMORY_AFTER_WARMUP, MEMORY_STAGES };
const char *memory_stage_name(enum memory_stage stage); /* "after data creation", … */

/* Allocated memory on a rank's device at a stage: the data; the data and the complete model, before it is wrapped; and,
 * after the first steps, the data and everything that lasts between steps (parameters, gradients, moments; DDP: its
 * buckets). */
uint64_t memory_stage_bytes(const struct training *training, const struct model *model, unsigned moments,
                            enum memory_stage stage);

/* Least memory of this machine that a rank takes: what lasts between steps, without activations. 0 if that is on a device. */
uint64_t training_least_bytes(const struct experiment *experiment, const struct training *training,
                              const struct model *model);

/* Moments that the optimizer keeps of each parameter. */
unsigned training_moments(const struct experiment *experiment);

/* Memory of a rank at a stage; NAN (null in JSON) if unknown. */
struct memory_record {
    enum memory_stage stage;
    uint32_t rank;
    double allocated_bytes, most_allocated_bytes, reserved_bytes, most_reserved_bytes, resident_bytes;
};
/* An object with the keys of the data-parallel tutorial; its GB are 2^30 bytes. */
void memory_record_write(const struct memory_record *record, struct json_writer *json);

#endif
