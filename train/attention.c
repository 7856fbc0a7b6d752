/* Causal attention of one block.
 *
 * On the host, one head at a time: blocks of queries against the keys that the last query of the block sees. On a
 * device, all heads of as many samples as its memory for weights can hold, with all keys, including masked ones. */
#include <math.h>

#include "train/train_model_internal.h"

/* Matrices [sequence][size] of one head of one sample, embedded in wider rows. */
struct heads {
    const float *q, *k, *v, *dout;
    float *dq, *dk, *dv; /* these and dout: NULL in forward */
    float *out, *log_sum;
    uint64_t sample, head;
    uint64_t heads, size, sequence, width, wide; /* rows of q, k and v have `wide` elements, those of out `width` */
    uint64_t stride;                             /* of scores */
    float scale;
};

static struct heads heads_at(const struct train_model *model, const struct block *block, uint64_t sample, uint64_t head,
                             const float *dmixed, float *dqkv)
{
    uint64_t width = block->width, heads = model->setup.shape.heads, size = width / heads;
    uint64_t sequence = model->setup.sequence;
    uint64_t wide = sample * sequence * 3 * width + head * size, narrow = sample * sequence * width + head * size;
    const float *qkv = block->qkv + wide;
    float *log_sum = model->gpt2.log_sum + (uint64_t)block->layer * model->setup.batch * heads * sequence;
    return (struct heads){.q = qkv,
                          .k = qkv + width,
                          .v = qkv + 2 * width,
                          .dout = dmixed ? dmixed + narrow : NULL,
                          .dq = dqkv ? dqkv + wide : NULL,
                          .dk = dqkv ? dqkv + wide + width : NULL,
                          .dv = dqkv ? dqkv + wide + 2 * width : NULL,
                          .out = block->mixed + narrow,
                          .log_sum = log_sum + (sample * heads + head) * sequence,
                          .sample = sample,
                          .head = head,
                          .heads = heads,
                          .size = size,
                          .sequence = sequence,
                          .width = width,
                          .wide = 3 * width,
                          .stride = model->gpt2.scores_stride,
                          .scale = 1.0f / sqrtf((float)size)};
}

/* --- on the host --- */

static void drop_weights(const struct train_model *model, const struct block *block, const struct heads *self,
                         float *weights, uint64_t first, uint64_t count, uint64_t keys)
{
    if (!dropout_is_on(model))
        return;
    struct device_dropout dropout = dropout_at(model, block->layer + 1, PLACE_ATTENTION, self->sample, 0);
    struct dropout site = dropout_site(&dropout, 0);
    for (uint64_t r = 0; r < count; r++, weights += self->stride)
        kernel_dropout(&site, (self->head * self->sequence + first + r) * self->sequence, weights, weights, keys);
}

/* scores[count][keys] = q k' / sqrt(size) */
static void score(const struct blas *blas, const struct heads *self, uint64_t first, uint64_t count, uint64_t keys,
                  float *scores)
{
    blas_sgemm(blas, false, true, (int)count, (int)keys, (int)self->size, self->scale, self->q + first * self->wide,
               (int)self->wide, self->k, (int)self->wide, 0, scores, (int)self->stride);
}

static void forward_head(const struct train_model *model, const struct block *block, const struct heads *self,
                         float *scores)
{
    for (uint64_t first = 0; first < self->sequence; first += QUERY_BLOCK) {
        uint64_t left = self->sequence - first, count = left < QUERY_BLOCK ? left : QUERY_BLOCK, keys = first + count;
        score(&model->blas, self, first, count, keys, scores);
        kernel_causal_softmax(scores, self->stride, count, first, keys, self->log_sum + first);
        drop_weights(model, block, self, scores, first, count, keys);
        blas_sgemm(&model->blas, false, false, (int)count, (int)self->size, (int)keys, 1, scores, (int)self->stride,
                   self->v, (int)self->wide, 0, self->out + first * self->width, (int)self->width);
    }
}

/* From the last block of queries, which sees all keys, to the first: so the first product sets the gradients of keys
 * and values, and they need not be cleared. */
static void backward_head(const struct train_model *model, const struct block *block, const struct heads *self,
                          float *weights, float *dweights)
{
    const struct blas *blas = &model->blas;
    int size = (int)self->size, stride = (int)self->stride, ld = (int)self->wide, width = (int)self->width;
    for (uint64_t end = self->sequence, first; end > 0; end = first) {
        first = (end - 1) / QUERY_BLOCK * QUERY_BLOCK;
        uint64_t queries = end - first;
        int count = (int)queries, keys = (int)end;
        float beta = end == self->sequence ? 0.0f : 1.0f;
        const float *q = self->q + first * self->wide, *dout = self->dout + first * self->width;
        score(blas, self, first, queries, end, weights);
        kernel_causal_weights(weights, self->stride, queries, first, end, self->log_sum + first);
        blas_sgemm(blas, false, true, count, keys, size, 1, dout, width, self->v, ld, 0, dweights, stride);
        drop_weights(model, block, self, dweights, first, queries, end);
        kernel_causal_backward(weights, dweights, self->stride, queries, end, dout, self->out + first * self->width,
                               self->width, self->size, self->scale);
        drop_weights(model, block, self, weights, first, queries, end);
        blas_sgemm(blas, true, false, keys, size, count, 1, weights, stride, dout, width, beta, self->dv, ld);
        blas_sgemm(blas, true, false, keys, size, count, 1, dweights, stride, q, ld, beta, self->dk, ld);
        blas_sgemm(blas, false, false, count, size, keys, 1, dweights, stride, self->k, ld, 0,
                   self->dq + first * self->wide, ld);
    }
}

/* This thread's heads of all samples. */
static void attend_here(const struct train_model *model, const struct host_math *math, const struct block *block,
                        const float *dmixed, float *dqkv)
{
    uint64_t heads = model->setup.shape.heads, first, end;
    float *weights = model->gpt2.scores + (uint64_t)math->thread * 2 * QUERY_BLOCK * model->gpt2.scores_stride;
    thread_pool_share(model->team, math->thread, model->setup.batch * heads, 1, &first, &end);
    for (uint64_t i = first; i < end; i++) {
        struct heads head = heads_at(model, block, i / heads, i % heads, dmixed, dqkv);
        if (dmixed)
            backward_head(model, block, &head, weights, weights + QUERY_BLOCK * head.stride);
        else
            forward_head(model, block, &head, weights);
    }
}

/* --- on a device: all heads of `samples` samples --- */

static void drop_all(const struct train_model *model, struct device_math *math, const struct block *block,
                     const struct heads *self, uint64_t samples, float *weights)
{
    uint64_t rows = self->heads * self->sequence;
    struct device_dropout dropout = dropout_at(model, block->layer + 1, PLACE_ATTENTION, self->sample, rows);
    if (dropout_is_on(model))
        math->ops->dropout(math, &dropout, weights, weights, self->stride, samples * rows, self->sequence);
}

/* scores[sequence][sequence] = scale x in x other', from rows of q, k and v, or of attention's output. */
static void score_all(struct device_math *math, const struct heads *self, uint64_t samples, const float *in,
                      uint64_t in_stride, const float *other, float scale, float *scores)
{
    struct device_product product = {.in = in,
                                     .weight = other,
                                     .out = scores,
                                     .rows = self->sequence,
                                     .inner = self->size,
                                     .columns = self->sequence,
                                     .in_stride = in_stride,
                                     .weight_stride = self->wide,
                                     .out_stride = self->stride,
                                     .weight_transposed = true,
                                     .scale = scale,
                                     .samples = samples,
                                     .heads = self->heads,
                                     .in_sample = self->sequence * in_stride,
                                     .in_head = self->size,
                                     .weight_sample = self->sequence * self->wide,
                                     .weight_head = self->size,
                                     .out_sample = self->heads * self->sequence * self->stride,
                                     .out_head = self->sequence * self->stride};
    math->ops->product(math, &product);
}

/* out[sequence][size] = weights (or their transpose) x values, with the given strides between rows of values and of
 * out. */
static void mix_all(struct device_math *math, const struct heads *self, uint64_t samples, const float *weights,
                    bool transposed, const float *values, uint64_t values_stride, float *out, uint64_t out_stride)
{
    struct device_product product = {.in = weights,
                                     .weight = values,
                                     .out = out,
                                     .rows = self->sequence,
                                     .inner = self->sequence,
                                     .columns = self->size,
                                     .in_stride = self->stride,
                                     .weight_stride = values_stride,
                                     .out_stride = out_stride,
                                     .in_transposed = transposed,
                                     .scale = 1,
                                     .samples = samples,
                                     .heads = self->heads,
                                     .in_sample = self->heads * self->sequence * self->stride,
                                     .in_head = self->sequence * self->stride,
                                     .weight_sample = self->sequence * values_stride,
                                     .weight_head = self->size,
                                     .out_sample = self->sequence * out_stride,
                                     .out_head = self->size};
    math->ops->product(math, &product);
}

static void attend_there(const struct train_model *model, struct device_math *math, const struct block *block,
                         const float *dmixed, float *dqkv)
{
    uint64_t batch = model->setup.batch, at_once = model->on_device->samples_at_once;
    float *weights = model->on_device->weights, *dweights = model->on_device->dweights;
    for (uint64_t first = 0; first < batch; first += at_once) {
        uint64_t n = batch - first < at_once ? batch - first : at_once;
        struct heads h = heads_at(model, block, first, 0, dmixed, dqkv);
        score_all(math, &h, n, h.q, h.wide, h.k, h.scale, weights);
        if (!dmixed) {
            math->ops->causal_softmax(math, weights, h.stride, n * h.heads, h.sequence, h.log_sum);
            drop_all(model, math, block, &h, n, weights);
            mix_all(math, &h, n, weights, false, h.v, h.wide, h.out, h.width);
            continue;
        }
        math->ops->causal_weights(math, weights, h.stride, n * h.heads, h.sequence, h.log_sum);
        score_all(math, &h, n, h.dout, h.width, h.v, 1, dweights);
        drop_all(model, math, block, &h, n, dweights);
        math->ops->causal_backward(math, weights, dweights, h.stride, n, h.heads, h.sequence, h.dout, h.out, h.width,
                                   h.size, h.scale);
        drop_all(model, math, block, &h, n, weights);
        mix_all(math, &h, n, weights, true, h.dout, h.width, h.dv, h.wide);
        mix_all(math, &h, n, dweights, true, h.q, h.wide, h.dk, h.wide);
        mix_all(math, &h, n, dweights, false, h.k, h.wide, h.dq, h.wide);
    }
}

void attention(const struct train_model *model, struct device_math *math, const struct block *block,
               const float *dmixed, float *dqkv)
{
    if (model->on_device)
        attend_there(model, math, block, dmixed, dqkv);
    else
        attend_here(model, (struct host_math *)math, block, dmixed, dqkv);
}
