/* A model whose stages run on a device: the same stages, units and order of operations as with threads (block.c,
 * attention.c, gpt2.c, linear_stack.c), each operation once for all rows. Attention is products over all keys, masked
 * ones too, of as many samples at once as DEVICE_SCORES_BYTES lets. Private to train/. */
#ifndef TRAIN_DEVICE_MODEL_H
#define TRAIN_DEVICE_MODEL_H

#include "engine/device_math.h"
#include "train/train_model_internal.h"

#define DEVICE_SCORES_BYTES                                                                                            \
    (UINT64_C(256) << 20) /* of attention's weights and their gradients; of one sample at least */

struct device_model {
    struct device_math *math;
    void *memory; /* of the device: activations, and what follows */
    uint64_t bytes;
    uint32_t *words;           /* what a batch sends, as in `sent` */
    float *input;              /* of the linear stack */
    bool has_input;            /* it was sent, and stays */
    float *weights, *dweights; /* of attention: [samples_at_once][heads][sequence][scores_stride] */
    uint64_t samples_at_once;
    void *pinned; /* of this machine: */
    uint64_t pinned_bytes;
    uint32_t *sent;   /* tokens, targets, order, distinct: N each; begins: N + 1 */
    double *row_loss; /* that came back */
    uint32_t *counts; /* of each token, and where its rows begin */
    struct device_token_rows token_rows;
    bool under_way; /* since begin */
};

/* Of the device; this machine's, of pinned memory and lists. */
uint64_t device_model_bytes(const struct train_setup *setup);
uint64_t device_model_host_bytes(const struct train_setup *setup);
/* Sets self->on_device; device_model_free also after a failure. */
int device_model_new(struct train_model *self, struct cb_err *err) CB_MUST_CHECK;
void device_model_free(struct train_model *self);

/* Sends self->batch, whose addresses become the device's. */
int device_model_begin(struct train_model *self, struct cb_err *err) CB_MUST_CHECK;
void device_model_forward(struct train_model *self, size_t stage, const float *flat);
void device_model_backward(struct train_model *self, size_t stage, const float *flat, float *gradients);
/* Until all that was queued is done; sets self->loss. */
int device_model_finish(struct train_model *self, uint64_t deadline_ns, struct cb_err *err) CB_MUST_CHECK;

/* device_gpt2.c */
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
