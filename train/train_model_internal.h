/* Shared by the parts of the model. Private to train/.
 *
 * The stages are written once, with the operations of engine/device_math.h. On a device they are queued, and addresses of
 * activations, and of the batch once it has begun, are device addresses. On the host a stage runs on every thread of the
 * pool, each with operations of its own (train/host_math.c), which compute this thread's rows; model_meet separates an
 * operation from those that read what other threads wrote. */
#ifndef TRAIN_TRAIN_MODEL_INTERNAL_H
#define TRAIN_TRAIN_MODEL_INTERNAL_H

#include "core/blas.h"
#include "engine/device_math.h"
#include "engine/rng.h"
#include "train/train_model.h"

#define QUERY_BLOCK 64 /* queries per product of attention */
#define LINE_BYTES 64  /* of the cache */
#define LINE_FLOATS 16 /* floats per cache line: rows of scratch begin on one */
#define DEVICE_SCORES_BYTES                                                                                            \
    (UINT64_C(256) << 20) /* on a device, for attention weights and their gradients; at least one sample's */

/* An arena; with base NULL it only counts. */
struct arena {
    char *base;
    uint64_t used_bytes;
};

/* Memory of the transformer. N = batch x sequence rows, C = width. Everything between forward and backward is kept
 * per layer; the rest is shared by all layers. */
struct gpt2_memory {
    float *stream;              /* [L + 1][N][C]: the residual stream before each block, and after the last */
    float *middle;              /* [L][N][C]: the stream between attention and MLP */
    float *qkv;                 /* [L][N][3 C] */
    float *mixed;               /* [L][N][C]: attention's output before its projection */
    float *hidden;              /* [L][N][4 C]: before GELU; backward turns it into GELU's slope, then its gradient */
    float *log_sum;             /* [L][batch][heads][sequence] */
    float *mean, *scale;        /* [2 L + 1][N]: of the layer norms, in order */
    float *gradient;            /* [N][C]: of the stream */
    float *dropped;             /* [N][C]: the gradient after a dropout; NULL without dropout */
    float *normal, *narrow;     /* [N][C]: a norm's output; a gradient */
    float *wide, *hidden_slope; /* [N][4 C]: GELU's output, later the gradient of qkv; the gradient of GELU's output */
    float *logits;              /* [N][logits_stride]: shares memory with `wide` */
    float *partial;             /* on the host, [threads][2 C]: a thread's partial sums for a norm */
    float *scores;              /* on the host, [threads][2][QUERY_BLOCK][sequence] */
    double *row_loss;           /* [N] */
    uint64_t scores_stride, logits_stride, partial_stride;
};

/* Memory of the linear stack: the output of each layer, and one gradient; a layer's gradient reuses the memory of an
 * output that is no longer needed. */
struct linear_memory {
    float *output; /* [L][N][C] */
    float *gradient;
    double *row_loss;
};

/* Additional memory of a model on a device: the inputs of a batch, and attention's weights. */
struct device_model {
    struct device_math *math;
    void *memory; /* on the device: activations, and the members below */
    uint64_t bytes;
    uint32_t *words;           /* the inputs of a batch, as in `sent` */
    float *input;              /* input of the linear stack */
    uint16_t *rounded;         /* operands of a product in bf16; NULL without such products */
    bool has_input;            /* it has been sent, and remains valid */
    float *weights, *dweights; /* of attention: [samples_at_once][heads][sequence][scores_stride] */
    uint64_t samples_at_once;
    void *pinned; /* On the host: */
    uint64_t pinned_bytes;
    uint32_t *sent;   /* tokens, targets, order, distinct: N each; begins: N + 1 */
    double *row_loss; /* received from the device */
    uint32_t *counts; /* number of rows of each token, and where they begin */
    bool batch_open;  /* between the begin and the end of a batch */
};

struct train_model {
    struct train_setup setup;
    uint64_t rows; /* N */
    struct blas blas;
    struct thread_pool *team;
    struct train_unit *units;
    size_t unit_count;
    struct train_parameter *parameters; /* of all units */
    void *memory;
    struct gpt2_memory gpt2;
    struct linear_memory linear;
    struct train_batch batch;
    struct device_token_rows token_rows; /* of the batch; grouped only on a device */
    uint64_t counted;
    double loss;
    struct device_model *on_device; /* NULL: the thread pool computes */
};

/* train/unit_parameters.c */
size_t units_count(const struct train_shape *shape);
size_t units_parameter_count(const struct train_shape *shape);
/* Fills `units` and `parameters`, which have room for the counts of the two calls above. */
void units_describe(const struct train_shape *shape, struct train_unit *units, struct train_parameter *parameters);

/* train/layer_ops.c: `count` items of `bytes` each, each on a cache line of its own. */
void *arena_take(struct arena *self, uint64_t count, uint64_t bytes);
/* The losses of the rows, and the model's loss from them, in host or device memory. */
const double *model_row_loss(const struct train_model *self);
void model_add_up_loss(struct train_model *self, const double *row_loss);
/* Waits until all threads have arrived; on a device, where operations run in order, does nothing. */
void model_meet(const struct train_model *self);

/* out[N][out_width] = in[N][in_width] x weight[in_width][out_width], or x weight' if it is stored transposed. */
struct device_product plain_product(const struct train_model *self, const float *in, uint64_t in_width,
                                    const float *weight, bool transposed, float *out, uint64_t out_width);
/* The same plus base, which has the shape of out, and plus bias in every row (NULL counts as 0). */
void multiply(const struct train_model *self, struct device_math *math, const float *in, uint64_t in_width,
              const float *weight, const float *base, const float *bias, float *out, uint64_t out_width);
/* din[N][din_width] = dout[N][dout_width] x weight' */
void back_through(const struct train_model *self, struct device_math *math, const float *dout, uint64_t dout_width,
                  const float *weight, float *din, uint64_t din_width);
/* gradient[in_width][out_width] += in' x dout over all rows; bias_gradient += the sums of dout's columns (NULL: not
 * computed). */
void add_outer(const struct train_model *self, struct device_math *math, const float *in, uint64_t in_width,
               uint64_t in_stride, const float *dout, uint64_t out_width, float *gradient, float *bias_gradient);

bool dropout_is_on(const struct train_model *self);
/* Dropout at site `place` of a stage, from sample `first` of this rank on. */
struct device_dropout dropout_at(const struct train_model *self, size_t stage, unsigned place, uint64_t first,
                                 uint64_t sample_rows);
/* The same for the elements of one sample, counted from its first one. */
struct dropout dropout_site(const struct device_dropout *self, uint64_t sample);
/* Dropout of an [N][C] matrix. */
void drop_rows(const struct train_model *self, struct device_math *math, size_t stage, unsigned place, const float *in,
               float *out);
enum { PLACE_EMBEDDING, PLACE_ATTENTION, PLACE_PROJECTION, PLACE_MLP, PLACES };

/* train/host_math.c: the operations of one thread. */
struct host_math {
    struct device_math base;
    struct train_model *model;
    uint32_t thread;
    uint64_t first, end; /* this thread's rows */
};
void host_math_init(struct host_math *self, struct train_model *model, uint32_t thread);

/* train/device_model.c. Adds up device memory besides activations, and bytes of host memory (pinned buffers and
 * lists). */
void device_model_take_memory(struct train_model *self, struct arena *arena);
uint64_t device_model_host_bytes(const struct train_setup *setup);
/* Sets self->on_device, with `bytes` of memory. Call device_model_free also after a failure. */
int device_model_new(struct train_model *self, uint64_t bytes, struct cb_err *err) CB_MUST_CHECK;
void device_model_free(struct train_model *self);
/* Sends self->batch and replaces its addresses by the device's. */
int device_model_begin(struct train_model *self, struct cb_err *err) CB_MUST_CHECK;
/* Waits until everything queued is done; sets self->loss. */
int device_model_finish(struct train_model *self, uint64_t deadline_ns, struct cb_err *err) CB_MUST_CHECK;

/* train/gpt2.c: memory, and the first and the last stage, of the root's unit. */
void gpt2_take_memory(struct train_model *self, struct arena *arena);
void gpt2_embed(struct train_model *self, struct device_math *math, const float *flat);
void gpt2_embed_backward(struct train_model *self, struct device_math *math, float *gradients);
void gpt2_head(struct train_model *self, struct device_math *math, const float *flat);
void gpt2_head_backward(struct train_model *self, struct device_math *math, const float *flat, float *gradients);

/* train/block.c, train/attention.c: block `layer` from 0. Offsets of the block's parameters in its unit, in the order
 * of train/unit_parameters.c. */
struct block_places {
    uint64_t norm1_weight, norm1_bias, qkv_weight, qkv_bias, projection_weight, projection_bias;
    uint64_t norm2_weight, norm2_bias, up_weight, up_bias, down_weight, down_bias;
};

struct block {
    uint32_t layer;
    const float *flat;
    float *gradients;
    struct block_places at;
    uint64_t width, rows;
    float *before, *middle, *after; /* the stream */
    float *qkv, *mixed, *hidden;
    float *mean1, *scale1, *mean2, *scale2;
};
void block_forward(struct train_model *self, struct device_math *math, uint32_t layer, const float *flat);
void block_backward(struct train_model *self, struct device_math *math, uint32_t layer, const float *flat,
                    float *gradients);
/* Forward, or backward if `dmixed` is given. */
void attention(const struct train_model *self, struct device_math *math, const struct block *block, const float *dmixed,
               float *dqkv);

/* train/linear_stack.c */
void linear_take_memory(struct train_model *self, struct arena *arena);
void linear_forward(struct train_model *self, struct device_math *math, uint32_t layer, const float *flat);
void linear_backward(struct train_model *self, struct device_math *math, uint32_t layer, const float *flat,
                     float *gradients);

#endif
