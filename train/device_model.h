/* A model whose stages run on a device: the same stages, units and order of operations as with threads
 * (train/block.c, train/attention.c, train/gpt2.c, train/linear_stack.c), each operation once for all rows. Attention
 * multiplies with all keys, including masked ones, for as many samples at once as fit DEVICE_SCORES_BYTES. Private to
 * train/. */
#ifndef TRAIN_DEVICE_MODEL_H
#define TRAIN_DEVICE_MODEL_H

#include "engine/device_math.h"
#include "train/train_model_internal.h"

#define DEVICE_SCORES_BYTES                                                                                            \
    (UINT64_C(256) << 20) /* memory for attention weights and their gradients; at least one sample's */

struct device_model {
    struct device_math *math;
    void *memory; /* on the device: activations, and the members below */
    uint64_t bytes;
    uint32_t *words;           /* the inputs of a batch, as in `sent` */
    float *input;              /* input of the linear stack */
    bool has_input;            /* it was sent, and remains valid */
    float *weights, *dweights; /* of attention: [samples_at_once][heads][sequence][scores_stride] */
    uint64_t samples_at_once;
    void *pinned; /* On the host: */
    uint64_t pinned_bytes;
    uint32_t *sent;   /* tokens, targets, order, distinct: N each; begins: N + 1 */
    double *row_loss; /* received from the device */
    uint32_t *counts; /* number of rows of each token, and where they begin */
    struct device_token_rows token_rows;
    bool under_way; /* between the begin and the end of a batch */
};

/* Device memory; host memory (pinned buffers and lists). */
uint64_t device_model_bytes(const struct train_setup *setup);
uint64_t device_model_host_bytes(const struct train_setup *setup);
/* Sets self->on_device. Call device_model_free also after a failure. */
int device_model_new(struct train_model *self, struct cb_err *err) CB_MUST_CHECK;
void device_model_free(struct train_model *self);

/* Sends self->batch and replaces its addresses by the device's. */
int device_model_begin(struct train_model *self, struct cb_err *err) CB_MUST_CHECK;
void device_model_forward(struct train_model *self, size_t stage, const float *flat);
void device_model_backward(struct train_model *self, size_t stage, const float *flat, float *gradients);
/* Waits until everything queued is done; sets self->loss. */
int device_model_finish(struct train_model *self, uint64_t deadline_ns, struct cb_err *err) CB_MUST_CHECK;

/* train/device_gpt2.c */
void device_embed(struct train_model *self, const float *flat);
void device_embed_backward(struct train_model *self, float *gradients);
void device_block_forward(struct train_model *self, uint32_t layer, const float *flat);
void device_block_backward(struct train_model *self, uint32_t layer, const float *flat, float *gradients);
void device_head(struct train_model *self, const float *flat);
void device_head_backward(struct train_model *self, const float *flat, float *gradients);

/* gradient[in_width][out_width] += in' x dout over all rows. */
void device_outer_add(struct train_model *self, const float *in, uint64_t in_width, uint64_t in_stride,
                      const float *dout, uint64_t out_width, float *gradient);

#endif
