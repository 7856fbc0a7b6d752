/* The model being trained: stages that run in order forward, and in reverse order backward.
 *
 * Two kinds: GPT-2's transformer (learned positions, layer norm before attention and MLP, GELU in its tanh form, head
 * tied to the token embedding, mean cross entropy over the targets that count) and a stack of linear layers (y = x W' +
 * b; its loss is the mean of its output). Attention is softmax(q k' / sqrt(head size)) v, causal, in matrix products
 * over blocks of queries that skip the masked keys; backward recomputes its weights from one logarithm per row.
 *
 * Parameters are in UNITS: flat fp32 buffers owned by the caller, so that FSDP can gather, shard and free them. GPT-2:
 * unit 0 is the root (token and position embeddings, final norm), unit 1 ... L the blocks; stage 0 embeds (unit 0),
 * stage i is block i (unit i), stage L + 1 is final norm, head and loss (unit 0 again). Linear: unit and stage i are
 * layer i, the last one has the loss. Each stage reads one unit and adds to one unit's gradient; several units may
 * share a buffer. Parameters have the names and shapes of ckpt/model/model.h.
 *
 * Activations and scratch belong to the model, allocated once. All arithmetic is fp32; bf16 training rounds the weights
 * of a unit (kernel_round_bf16) before use, and keeps master weights, activations and gradients in fp32. The same
 * inputs, batch and number of threads give the same bits. Used from one thread.
 *
 * On a device (setup.math) stages are queued: activations, `flat` and `gradients` are in device memory. Results and
 * errors are available after train_model_finish. */
#ifndef TRAIN_TRAIN_MODEL_H
#define TRAIN_TRAIN_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/model/model.h"
#include "core/err.h"
#include "train/thread_pool.h"

#define TRAIN_IGNORE UINT32_MAX /* a target that does not count */

enum train_kind { TRAIN_GPT2, TRAIN_LINEAR };

struct train_shape {
    enum train_kind kind;
    uint32_t layers, width;
    uint32_t heads, positions, vocabulary; /* only for GPT-2; its MLP has 4 x width */
    bool bias;                             /* of the linear stack; GPT-2 always has biases */
};

/* The shape of a checkpoint's model. CB_ERR_UNSUPPORTED names the model if it is of neither kind (Llama, ...) or an
 * untied GPT-2. */
int train_shape_of_model(const struct model *model, struct train_shape *shape, struct cb_err *err) CB_MUST_CHECK;

struct train_parameter {
    char fqn[96]; /* "transformer.h.0.attn.c_attn.weight" */
    uint32_t dims;
    uint64_t shape[2];
    uint64_t offset, count; /* elements of the unit's flat buffer */
    bool decays;            /* has weight decay: matrices and embeddings, not biases and norms */
};

/* Parameters follow each other without gaps; `elements` is not padded. */
struct train_unit {
    struct train_parameter *parameters;
    size_t count;
    uint64_t elements;
};

struct device_math;

struct train_setup {
    struct train_shape shape;
    uint32_t batch;    /* samples per step of this rank */
    uint32_t sequence; /* tokens per sample, at most the shape's positions; 1 for the linear stack */
    float dropout;     /* GPT-2: of embeddings, attention and both residual branches; 0 is none */
    uint64_t seed;     /* seed of dropout */
    uint32_t threads;
    struct device_math *math; /* of the device that computes, borrowed; NULL: threads on the host */
    bool bf16; /* on a device: products with weights, and those of their gradients, round what they multiply to bf16 */
};

/* Host memory that train_model_new allocates: activations, gradients of activations, scratch, and descriptions.
 * Excludes parameters and their gradients, which belong to the caller, and the BLAS library's own buffers. */
uint64_t train_model_bytes(const struct train_setup *setup);
/* The same for device memory, if the setup has a device. */
uint64_t train_model_device_bytes(const struct train_setup *setup);
uint64_t train_shape_parameters(const struct train_shape *shape);
/* Operations of forward and backward per token: 6 N + 12 L C T (N parameters, T tokens per sample); for the linear
 * stack a token is a sample: 6 N. */
double train_flops_per_token(const struct train_shape *shape, uint32_t sequence);

struct train_model;

/* CB_ERR_USAGE for an invalid shape (the width is not a multiple of the heads, a sequence longer than the positions);
 * CB_ERR_MEMORY with the bytes, and the advice to lower batch_size or seq_length; CB_ERR_NOT_FOUND without BLAS. */
int train_model_new(const struct train_setup *setup, struct train_model **model, struct cb_err *err) CB_MUST_CHECK;
void train_model_free(struct train_model *self);

size_t train_model_unit_count(const struct train_model *self);
const struct train_unit *train_model_unit(const struct train_model *self, size_t unit);
size_t train_model_stage_count(const struct train_model *self);
size_t train_model_stage_unit(const struct train_model *self, size_t stage);
struct thread_pool *train_model_team(struct train_model *self); /* the threads, for the optimizer; borrowed */

/* Initial values of elements [first, first + count) of a unit: GPT-2's (normal, 0.02; projections into the residual
 * stream 0.02 / sqrt(2 L); biases 0, norms 1), for a linear layer uniform within 1 / sqrt(width), as in
 * torch.nn.Linear. A function of seed, name and element, independent of the range. */
void train_model_init(struct train_model *self, size_t unit, uint64_t first, uint64_t count, uint64_t seed,
                      float *values);

/* One step's inputs; the pointers are borrowed until its last stage has run. */
struct train_batch {
    uint64_t step;           /* with first_sample: determines the elements dropped */
    uint64_t first_sample;   /* index of this rank's first sample among the step's samples of all ranks */
    bool training;           /* false: no dropout, forward only */
    const uint32_t *tokens;  /* GPT-2: [batch][sequence] */
    const uint32_t *targets; /* [batch][sequence], TRAIN_IGNORE for none */
    const float *input;      /* linear stack: [batch][width] */
    bool input_stays;        /* the same input as in the previous batch: not sent to the device again */
};

/* CB_ERR_FORMAT names the position of a token outside the vocabulary. On a device: call after train_model_finish of
 * the previous batch. */
int train_model_begin(struct train_model *self, const struct train_batch *batch, struct cb_err *err) CB_MUST_CHECK;

/* Runs stages in order; `flat` is the stage's whole unit. */
void train_model_forward(struct train_model *self, size_t stage, const float *flat);
/* Runs stages in reverse order, once after each forward; adds to `gradients`, which has the layout of `flat`. */
void train_model_backward(struct train_model *self, size_t stage, const float *flat, float *gradients);
/* On a device, call once after the stages of a batch: waits until everything queued is done. On the host, does
 * nothing. */
int train_model_finish(struct train_model *self, uint64_t deadline_ns, struct cb_err *err) CB_MUST_CHECK;
/* Valid after the last stage's forward; may be NaN or infinite, which the caller must check. 0 if no target counts. */
double train_model_loss(const struct train_model *self);
/* Number of targets that count in this batch (the linear stack: samples), over which the mean is taken. */
uint64_t train_model_counted(const struct train_model *self);

#endif
