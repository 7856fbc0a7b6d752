/* Shared by the parts of the model. Private to train/. For a model on a device, addresses of activations, and of the
 * batch once it has begun, are device addresses. */
#ifndef TRAIN_TRAIN_MODEL_INTERNAL_H
#define TRAIN_TRAIN_MODEL_INTERNAL_H

#include "core/blas.h"
#include "engine/kernels.h"
#include "engine/rng.h"
#include "train/train_model.h"

#define QUERY_BLOCK 64 /* queries per product of attention */
#define LINE_BYTES 64  /* of the cache */
#define LINE_FLOATS 16 /* floats per cache line: rows of scratch begin on one */

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
    float *dropped;             /* [N][C]: the gradient behind a dropout; NULL without */
    float *normal, *narrow;     /* [N][C]: a norm's output; a gradient */
    float *wide, *hidden_slope; /* [N][4 C]: GELU's output, later the gradient of qkv; the gradient of GELU's output */
    float *logits;              /* [N][logits_stride]: shares memory with `wide` */
    float *partial;             /* [threads][2 C]: a thread's partial sums for a norm */
    float *scores;              /* [threads][2][QUERY_BLOCK][sequence] */
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
/* out[rows of this thread] += in x weight, where weight is [in_width][out_width], or its transpose. */
struct product {
    const float *in, *weight;
    float *out;
    uint64_t in_width, out_width, in_stride, out_stride;
    bool transposed; /* weight is [out_width][in_width] */
    bool add;        /* adds to `out` */
};
void product_rows(const struct train_model *self, const struct product *product, uint64_t first, uint64_t end);
/* This thread's share of gradient[in_width][out_width] += in' x dout, and of bias_gradient += the sums of dout's
 * columns (NULL: none). */
struct outer {
    const float *in, *dout;
    float *gradient, *bias_gradient;
    uint64_t in_width, out_width, in_stride, dout_stride;
};
void outer_add(const struct train_model *self, const struct outer *outer, uint32_t thread);

/* Identifies the dropped elements: site `place` of a stage, in sample `sample` of this rank. */
struct dropout dropout_site(const struct train_model *self, size_t stage, unsigned place, uint64_t sample);
bool dropout_is_on(const struct train_model *self);
/* Dropout of rows [first, end) of an [N][C] matrix. */
void dropout_rows(const struct train_model *self, size_t stage, unsigned place, const float *in, float *out,
                  uint64_t first, uint64_t end);
enum { PLACE_EMBEDDING, PLACE_ATTENTION, PLACE_PROJECTION, PLACE_MLP, PLACES };

/* train/gpt2.c: embedding, head, loss, and memory. */
struct output { /* the head, for all rows */
    struct train_model *model;
    const float *flat;
    float *gradients;
    uint64_t norm_weight, norm_bias;
    float *last, *mean, *scale; /* the stream after the last block, and after its norm */
};
struct output output_at(struct train_model *self, const float *flat, float *gradients);
uint64_t gpt2_positions_at(const struct train_model *self); /* of the root's unit */
void gpt2_take_memory(const struct train_setup *setup, struct gpt2_memory *memory, struct arena *arena);
void gpt2_embed(struct train_model *self, const float *flat);
void gpt2_embed_backward(struct train_model *self, float *gradients);
void gpt2_head(struct train_model *self, const float *flat);
void gpt2_head_backward(struct train_model *self, const float *flat, float *gradients);
/* Adds the sums of all threads for one norm to its gradients: this thread's columns. */
void gpt2_add_partial(struct train_model *self, uint32_t thread, float *dweight, float *dbias);
float *gpt2_clear_partial(struct train_model *self, uint32_t thread);

/* train/block.c, train/attention.c: block `layer` from 0. Offsets of the block's parameters in its unit, in the order
 * of train/unit_parameters.c. */
struct block_places {
    uint64_t norm1_weight, norm1_bias, qkv_weight, qkv_bias, projection_weight, projection_bias;
    uint64_t norm2_weight, norm2_bias, up_weight, up_bias, down_weight, down_bias;
};

struct block {
    struct train_model *model;
    uint32_t layer;
    const float *flat;
    float *gradients;
    struct block_places at;
    uint64_t width, rows;
    float *before, *middle, *after; /* the stream */
    float *qkv, *mixed, *hidden;
    float *mean1, *scale1, *mean2, *scale2;
};
struct block block_at(struct train_model *self, uint32_t layer, const float *flat, float *gradients);
void block_forward(struct train_model *self, uint32_t layer, const float *flat);
void block_backward(struct train_model *self, uint32_t layer, const float *flat, float *gradients);
void attention_forward(struct train_model *self, uint32_t layer, uint32_t thread);
void attention_backward(struct train_model *self, uint32_t layer, uint32_t thread, const float *dmixed, float *dqkv);

/* train/linear_stack.c */
struct layer {
    struct train_model *model;
    uint64_t width;
    uint32_t index;
    bool last;
    const float *flat, *in;
    float *gradients, *out;
    float *dout, *din; /* din NULL: the first layer's input has no gradient */
};
struct layer layer_at(struct train_model *self, uint32_t index, const float *flat, float *gradients);
void linear_take_memory(const struct train_setup *setup, struct linear_memory *memory, struct arena *arena);
void linear_forward(struct train_model *self, uint32_t layer, const float *flat);
void linear_backward(struct train_model *self, uint32_t layer, const float *flat, float *gradients);

#endif
