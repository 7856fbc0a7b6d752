/* Causal attention of one block: for each sample and head, blocks of queries against the keys that the last query of
 * the block sees. */
#include <math.h>

#include "train/train_model_internal.h"

/* One head of one sample: matrices [sequence][size] embedded in wider rows. */
struct head {
    const float *q, *k, *v;
    float *dq, *dk, *dv;
    float *out; /* attention weights */
    const float *dout;
    float *log_sum;
    struct dropout dropout;
    uint64_t head_elements; /* number of dropout elements before this head's */
    int size, sequence, qkv_stride, out_stride;
    float scale;
};

/* Head `index` of all samples. */
static struct head head_at(const struct train_model *self, uint32_t layer, uint64_t index, const float *dmixed,
                           float *dqkv)
{
    const struct train_setup *setup = &self->setup;
    uint64_t width = setup->shape.width, heads = setup->shape.heads, size = width / heads, sequence = setup->sequence;
    uint64_t sample = index / heads, head = index % heads;
    uint64_t wide = sample * sequence * 3 * width + head * size, narrow = sample * sequence * width + head * size;
    const float *qkv = self->gpt2.qkv + layer * self->rows * 3 * width + wide;
    return (struct head){.q = qkv,
                         .k = qkv + width,
                         .v = qkv + 2 * width,
                         .dq = dqkv ? dqkv + wide : NULL,
                         .dk = dqkv ? dqkv + wide + width : NULL,
                         .dv = dqkv ? dqkv + wide + 2 * width : NULL,
                         .out = self->gpt2.mixed + layer * self->rows * width + narrow,
                         .dout = dmixed ? dmixed + narrow : NULL,
                         .log_sum = self->gpt2.log_sum + (layer * setup->batch * heads + index) * sequence,
                         .dropout = dropout_site(self, layer + 1, PLACE_ATTENTION, sample),
                         .head_elements = head * sequence * sequence,
                         .size = (int)size,
                         .sequence = (int)sequence,
                         .qkv_stride = (int)(3 * width),
                         .out_stride = (int)width,
                         .scale = 1.0f / sqrtf((float)size)};
}

static void drop_weights(const struct head *head, float *weights, uint64_t stride, int first, int count, int keys)
{
    for (int r = 0; r < count; r++) {
        uint64_t element = head->head_elements + (uint64_t)(first + r) * (uint64_t)head->sequence;
        float *row = weights + (uint64_t)r * stride;
        kernel_dropout(&head->dropout, element, row, row, (uint64_t)keys);
    }
}

/* scores[count][keys] = q k' / sqrt(size) */
static void score(const struct blas *blas, const struct head *head, int first, int count, int keys, float *scores,
                  int stride)
{
    blas_sgemm(blas, false, true, count, keys, head->size, head->scale, head->q + (int64_t)first * head->qkv_stride,
               head->qkv_stride, head->k, head->qkv_stride, 0, scores, stride);
}

static void forward_head(const struct train_model *self, const struct head *head, float *scores)
{
    int stride = (int)self->gpt2.scores_stride;
    for (int first = 0; first < head->sequence; first += QUERY_BLOCK) {
        int count = head->sequence - first < QUERY_BLOCK ? head->sequence - first : QUERY_BLOCK, keys = first + count;
        score(&self->blas, head, first, count, keys, scores, stride);
        kernel_causal_softmax(scores, (uint64_t)stride, (uint64_t)count, (uint64_t)first, (uint64_t)keys,
                              head->log_sum + first);
        if (head->dropout.threshold)
            drop_weights(head, scores, (uint64_t)stride, first, count, keys);
        blas_sgemm(&self->blas, false, false, count, head->size, keys, 1, scores, stride, head->v, head->qkv_stride, 0,
                   head->out + (int64_t)first * head->out_stride, head->out_stride);
    }
}

/* From the last block of queries, which sees all keys, to the first: so the first product sets the gradients of keys
 * and values, and they need not be cleared. */
static void backward_head(const struct train_model *self, const struct head *head, float *weights, float *dweights)
{
    const struct blas *blas = &self->blas;
    int stride = (int)self->gpt2.scores_stride, ld = head->qkv_stride;
    for (int first = (head->sequence - 1) / QUERY_BLOCK * QUERY_BLOCK; first >= 0; first -= QUERY_BLOCK) {
        int count = head->sequence - first < QUERY_BLOCK ? head->sequence - first : QUERY_BLOCK, keys = first + count;
        float beta = keys == head->sequence ? 0.0f : 1.0f;
        const float *q = head->q + (int64_t)first * ld, *dout = head->dout + (int64_t)first * head->out_stride;
        const float *out = head->out + (int64_t)first * head->out_stride;
        score(blas, head, first, count, keys, weights, stride);
        kernel_causal_weights(weights, (uint64_t)stride, (uint64_t)count, (uint64_t)first, (uint64_t)keys,
                              head->log_sum + first);
        blas_sgemm(blas, false, true, count, keys, head->size, 1, dout, head->out_stride, head->v, ld, 0, dweights,
                   stride);
        if (head->dropout.threshold)
            drop_weights(head, dweights, (uint64_t)stride, first, count, keys);
        kernel_causal_backward(weights, dweights, (uint64_t)stride, (uint64_t)count, (uint64_t)keys, dout, out,
                               (uint64_t)head->out_stride, (uint64_t)head->size, head->scale);
        if (head->dropout.threshold)
            drop_weights(head, weights, (uint64_t)stride, first, count, keys);
        blas_sgemm(blas, true, false, keys, head->size, count, 1, weights, stride, dout, head->out_stride, beta,
                   head->dv, ld);
        blas_sgemm(blas, true, false, keys, head->size, count, 1, dweights, stride, q, ld, beta, head->dk, ld);
        blas_sgemm(blas, false, false, count, head->size, keys, 1, dweights, stride, head->k, ld, 0,
                   head->dq + (int64_t)first * ld, ld);
    }
}

static float *scores_of(const struct train_model *self, uint32_t thread)
{
    return self->gpt2.scores + thread * 2 * QUERY_BLOCK * self->gpt2.scores_stride;
}

void attention_forward(struct train_model *self, uint32_t layer, uint32_t thread)
{
    uint64_t first, end;
    thread_pool_share(self->team, thread, (uint64_t)self->setup.batch * self->setup.shape.heads, 1, &first, &end);
    for (uint64_t i = first; i < end; i++) {
        struct head head = head_at(self, layer, i, NULL, NULL);
        forward_head(self, &head, scores_of(self, thread));
    }
}

void attention_backward(struct train_model *self, uint32_t layer, uint32_t thread, const float *dmixed, float *dqkv)
{
    uint64_t first, end;
    float *weights = scores_of(self, thread), *dweights = weights + QUERY_BLOCK * self->gpt2.scores_stride;
    thread_pool_share(self->team, thread, (uint64_t)self->setup.batch * self->setup.shape.heads, 1, &first, &end);
    for (uint64_t i = first; i < end; i++) {
        struct head head = head_at(self, layer, i, dmixed, dqkv);
        backward_head(self, &head, weights, dweights);
    }
}
