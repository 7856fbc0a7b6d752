/* Operations shared by all kinds of model: a memory arena, products split over threads, dropout. */
#include "train/train_model_internal.h"

void *arena_take(struct arena *self, uint64_t count, uint64_t bytes)
{
    void *memory = self->base ? self->base + self->used_bytes : NULL;
    self->used_bytes += (count * bytes + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
    return memory;
}

/* Products: the library computes in the calling thread, so the threads of the pool split the rows. */

void product_rows(const struct train_model *self, const struct product *product, uint64_t first, uint64_t end)
{
    if (first == end)
        return;
    uint64_t weight_stride = product->transposed ? product->in_width : product->out_width;
    blas_sgemm(&self->blas, false, product->transposed, (int)(end - first), (int)product->out_width,
               (int)product->in_width, 1, product->in + first * product->in_stride, (int)product->in_stride,
               product->weight, (int)weight_stride, product->add ? 1.0f : 0.0f,
               product->out + first * product->out_stride, (int)product->out_stride);
}

void outer_add(const struct train_model *self, const struct outer *outer, uint32_t thread)
{
    uint64_t first, end;
    thread_pool_share(self->team, thread, outer->in_width, LINE_FLOATS, &first, &end);
    if (first < end)
        blas_sgemm(&self->blas, true, false, (int)(end - first), (int)outer->out_width, (int)self->rows, 1,
                   outer->in + first, (int)outer->in_stride, outer->dout, (int)outer->dout_stride, 1,
                   outer->gradient + first * outer->out_width, (int)outer->out_width);
    if (!outer->bias_gradient)
        return;
    thread_pool_share(self->team, thread, outer->out_width, LINE_FLOATS, &first, &end);
    kernel_add_column_sums(outer->dout, outer->dout_stride, self->rows, first, end, outer->bias_gradient);
}

bool dropout_is_on(const struct train_model *self)
{
    return self->setup.dropout > 0 && self->batch.training;
}

struct dropout dropout_site(const struct train_model *self, size_t stage, unsigned place, uint64_t sample)
{
    if (!dropout_is_on(self))
        return (struct dropout){.scale = 1};
    uint64_t step_key = dropout_step_key(self->setup.seed, self->batch.step);
    return (struct dropout){.key =
                                dropout_site_key(step_key, self->batch.first_sample + sample, stage * PLACES + place),
                            .threshold = (uint32_t)((double)self->setup.dropout * 0x1p32),
                            .scale = 1.0f / (1.0f - self->setup.dropout)};
}

void dropout_rows(const struct train_model *self, size_t stage, unsigned place, const float *in, float *out,
                  uint64_t first, uint64_t end)
{
    uint64_t width = self->setup.shape.width, sequence = self->setup.sequence;
    for (uint64_t row = first; row < end;) {
        uint64_t sample = row / sequence, stop = (sample + 1) * sequence < end ? (sample + 1) * sequence : end;
        struct dropout site = dropout_site(self, stage, place, sample);
        kernel_dropout(&site, row % sequence * width, in + row * width, out + row * width, (stop - row) * width);
        row = stop;
    }
}
