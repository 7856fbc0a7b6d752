/* The operations of engine/device_math.h as kernels, matching engine/kernels.c on the CPU. One block per row (or one thread
 * for some elements). Sums are computed in a fixed order on every device, so that results are reproducible bit for bit. */
#include "cuda/cuda_math.h"

#include <cuda_runtime.h>

#include "engine/rng.h"

#define THREADS 256
#define WARP 32
#define WARPS (THREADS / WARP)
#define MOST_BLOCKS 16384
#define SLICES 64          /* rows of a slice when summing columns of a matrix */
#define SLICE_COLUMNS 8192 /* limit: two sums per slice and column fill the scratch memory */
#define SQUARES_BLOCKS 1024
#define IGNORED 0xFFFFFFFFu

static_assert(2 * SLICES * SLICE_COLUMNS * sizeof(float) <= CUDA_MATH_SCRATCH_BYTES, "the parts of sums fit");
static_assert(SQUARES_BLOCKS * sizeof(double) <= CUDA_MATH_SCRATCH_BYTES, "the parts of sums fit");

static unsigned blocks_for(uint64_t count)
{
    uint64_t blocks = (count + THREADS - 1) / THREADS;
    return (unsigned)(blocks < 1 ? 1 : blocks > MOST_BLOCKS ? MOST_BLOCKS : blocks);
}

#define EACH(i, count)                                                                                                 \
    uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;                                                      \
    i < (count);                                                                                                       \
    i += (uint64_t)gridDim.x * blockDim.x

/* --- reductions over a block; every thread gets the result --- */

template <typename T> __device__ static T warp_sum(T value)
{
    for (int step = WARP / 2; step > 0; step /= 2)
        value += __shfl_xor_sync(0xFFFFFFFFu, value, step);
    return value;
}

template <typename T> __device__ static T block_sum(T value)
{
    __shared__ T parts[WARPS];
    value = warp_sum(value);
    __syncthreads(); /* the previous reduction's values have been read */
    if (threadIdx.x % WARP == 0)
        parts[threadIdx.x / WARP] = value;
    __syncthreads();
    T sum = 0;
    for (int i = 0; i < WARPS; i++)
        sum += parts[i];
    return sum;
}

/* A NaN among the inputs may or may not be the result, as on the CPU; in both cases the final value is NaN. */
__device__ static float block_largest(float value)
{
    __shared__ float parts[WARPS];
    for (int step = WARP / 2; step > 0; step /= 2)
        value = fmaxf(value, __shfl_xor_sync(0xFFFFFFFFu, value, step));
    __syncthreads();
    if (threadIdx.x % WARP == 0)
        parts[threadIdx.x / WARP] = value;
    __syncthreads();
    float most = parts[0];
    for (int i = 1; i < WARPS; i++)
        most = fmaxf(most, parts[i]);
    return most;
}

/* --- layer norm: one block per row --- */

__global__ static void norm(const float *__restrict__ x, const float *__restrict__ weight,
                            const float *__restrict__ bias, uint64_t width, float *__restrict__ out, float *mean,
                            float *scale)
{
    const float *row = x + blockIdx.x * width;
    float *to = out + blockIdx.x * width, sum = 0, squares = 0;
    for (uint64_t i = threadIdx.x; i < width; i += THREADS)
        sum += row[i];
    float m = block_sum(sum) / (float)width;
    for (uint64_t i = threadIdx.x; i < width; i += THREADS)
        squares += (row[i] - m) * (row[i] - m);
    float s = 1.0f / sqrtf(block_sum(squares) / (float)width + LAYER_NORM_EPSILON);
    for (uint64_t i = threadIdx.x; i < width; i += THREADS)
        to[i] = (row[i] - m) * s * weight[i] + bias[i];
    if (threadIdx.x == 0) {
        mean[blockIdx.x] = m;
        scale[blockIdx.x] = s;
    }
}

__global__ static void norm_again(const float *__restrict__ x, const float *__restrict__ weight,
                                  const float *__restrict__ bias, const float *mean, const float *scale, uint64_t width,
                                  float *__restrict__ out)
{
    const float *row = x + blockIdx.x * width;
    float *to = out + blockIdx.x * width, m = mean[blockIdx.x], s = scale[blockIdx.x];
    for (uint64_t i = threadIdx.x; i < width; i += THREADS)
        to[i] = (row[i] - m) * s * weight[i] + bias[i];
}

__global__ static void norm_backward(const float *__restrict__ x, const float *__restrict__ weight, const float *mean,
                                     const float *scale, const float *__restrict__ dout, uint64_t width,
                                     float *__restrict__ dx)
{
    const float *row = x + blockIdx.x * width, *drow = dout + blockIdx.x * width;
    float *to = dx + blockIdx.x * width, m = mean[blockIdx.x], s = scale[blockIdx.x], sum = 0, along = 0;
    for (uint64_t i = threadIdx.x; i < width; i += THREADS) {
        float d = drow[i] * weight[i];
        sum += d;
        along += d * ((row[i] - m) * s);
    }
    sum = block_sum(sum) / (float)width;
    along = block_sum(along) / (float)width;
    for (uint64_t i = threadIdx.x; i < width; i += THREADS)
        to[i] += s * (drow[i] * weight[i] - sum - (row[i] - m) * s * along);
}

/* --- sums of columns: blocks of 32 columns and a slice of the rows, then over the slices --- */

/* Rows of this block's slice for thread row y: begin, begin + WARPS, ... */
__device__ static uint64_t slice_begin(uint64_t rows)
{
    return rows * blockIdx.y / SLICES;
}

__device__ static uint64_t slice_end(uint64_t rows)
{
    return rows * (blockIdx.y + 1) / SLICES;
}

/* Sums over the thread rows of a block of WARP x WARPS, to parts[slice][column]. */
__device__ static void keep_part(float sum, uint64_t column, uint64_t columns, float *parts)
{
    __shared__ float sums[WARPS][WARP];
    __syncthreads();
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y != 0 || column >= columns)
        return;
    sum = 0;
    for (int i = 0; i < WARPS; i++)
        sum += sums[i][threadIdx.x];
    parts[blockIdx.y * columns + column] = sum;
}

__global__ static void column_parts(const float *__restrict__ matrix, uint64_t stride, uint64_t rows, uint64_t columns,
                                    float *__restrict__ parts)
{
    uint64_t column = (uint64_t)blockIdx.x * WARP + threadIdx.x;
    float sum = 0;
    if (column < columns)
        for (uint64_t r = slice_begin(rows) + threadIdx.y; r < slice_end(rows); r += WARPS)
            sum += matrix[r * stride + column];
    keep_part(sum, column, columns, parts);
}

/* The terms of the gradients of a norm's weight and bias. */
__global__ static void norm_parts(const float *__restrict__ x, const float *mean, const float *scale,
                                  const float *__restrict__ dout, uint64_t width, uint64_t rows, uint64_t columns,
                                  float *__restrict__ weight_parts, float *__restrict__ bias_parts)
{
    uint64_t column = (uint64_t)blockIdx.x * WARP + threadIdx.x;
    float weight = 0, bias = 0;
    if (column < columns)
        for (uint64_t r = slice_begin(rows) + threadIdx.y; r < slice_end(rows); r += WARPS) {
            float d = dout[r * width + column];
            weight += d * ((x[r * width + column] - mean[r]) * scale[r]);
            bias += d;
        }
    keep_part(weight, column, columns, weight_parts);
    keep_part(bias, column, columns, bias_parts);
}

__global__ static void add_parts(const float *__restrict__ parts, uint64_t columns, float *sums)
{
    for (EACH(column, columns)) {
        float sum = 0;
        for (int slice = 0; slice < SLICES; slice++)
            sum += parts[slice * columns + column];
        sums[column] += sum;
    }
}

static dim3 slices_of(uint64_t columns)
{
    return dim3((unsigned)((columns + WARP - 1) / WARP), SLICES);
}

/* --- elements --- */

#define GELU_CUBE 0.044715f
#define GELU_SCALE 0.7978845608028654f /* sqrt(2 / pi) */

__device__ static float gelu_share(float x)
{
    return 1.0f / (1.0f + expf(-2.0f * GELU_SCALE * (x + GELU_CUBE * x * x * x)));
}

__global__ static void gelu(const float *__restrict__ x, float *__restrict__ y, uint64_t count)
{
    for (EACH(i, count))
        y[i] = x[i] * gelu_share(x[i]);
}

__global__ static void gelu_and_slope(float *__restrict__ x, float *__restrict__ y, uint64_t count)
{
    for (EACH(i, count)) {
        float value = x[i], share = gelu_share(value);
        float inner = 2.0f * GELU_SCALE * (1.0f + 3.0f * GELU_CUBE * value * value);
        y[i] = value * share;
        x[i] = share + value * share * (1.0f - share) * inner;
    }
}

__global__ static void multiply(float *__restrict__ x, const float *__restrict__ factor, uint64_t count)
{
    for (EACH(i, count))
        x[i] *= factor[i];
}

__global__ static void add(float *__restrict__ x, const float *__restrict__ addend, uint64_t count)
{
    for (EACH(i, count))
        x[i] += addend[i];
}

__global__ static void fill(float *x, float value, uint64_t count)
{
    for (EACH(i, count))
        x[i] = value;
}

__global__ static void row_sums(const float *__restrict__ matrix, uint64_t width, double *sums)
{
    const float *row = matrix + blockIdx.x * width;
    double sum = 0;
    for (uint64_t i = threadIdx.x; i < width; i += THREADS)
        sum += (double)row[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        sums[blockIdx.x] = sum;
}

__global__ static void square_parts(const float *__restrict__ values, uint64_t count, double *parts)
{
    double sum = 0;
    for (EACH(i, count))
        sum += (double)values[i] * (double)values[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        parts[blockIdx.x] = sum;
}

__global__ static void add_square_parts(const double *parts, double *sum)
{
    double mine = 0;
    for (int i = (int)threadIdx.x; i < SQUARES_BLOCKS; i += THREADS)
        mine += parts[i];
    mine = block_sum(mine);
    if (threadIdx.x == 0)
        *sum = mine;
}

/* --- attention: one block per query --- */

__global__ static void causal_softmax(float *scores, uint64_t stride, uint64_t rows, float *log_sum)
{
    float *row = scores + blockIdx.x * stride, most = -INFINITY, sum = 0;
    uint64_t seen = blockIdx.x % rows + 1;
    for (uint64_t i = threadIdx.x; i < seen; i += THREADS)
        most = fmaxf(most, row[i]);
    most = block_largest(most);
    for (uint64_t i = threadIdx.x; i < seen; i += THREADS) {
        row[i] = expf(row[i] - most);
        sum += row[i];
    }
    sum = block_sum(sum);
    float share = 1.0f / sum;
    for (uint64_t i = threadIdx.x; i < rows; i += THREADS)
        row[i] = i < seen ? row[i] * share : 0.0f;
    if (threadIdx.x == 0)
        log_sum[blockIdx.x] = most + logf(sum);
}

__global__ static void causal_weights(float *scores, uint64_t stride, uint64_t rows, const float *log_sum)
{
    float *row = scores + blockIdx.x * stride, log = log_sum[blockIdx.x];
    uint64_t seen = blockIdx.x % rows + 1;
    for (uint64_t i = threadIdx.x; i < rows; i += THREADS)
        row[i] = i < seen ? expf(row[i] - log) : 0.0f;
}

__global__ static void causal_backward(const float *__restrict__ weights, float *__restrict__ dweights, uint64_t stride,
                                       uint64_t heads, uint64_t rows, const float *__restrict__ dout,
                                       const float *__restrict__ out, uint64_t out_stride, uint64_t size, float scale)
{
    uint64_t matrix = blockIdx.x / rows, query = blockIdx.x % rows;
    uint64_t at = (matrix / heads * rows + query) * out_stride + matrix % heads * size;
    const float *row = weights + blockIdx.x * stride;
    float *drow = dweights + blockIdx.x * stride, mean = 0;
    for (uint64_t i = threadIdx.x; i < size; i += THREADS)
        mean += dout[at + i] * out[at + i];
    mean = block_sum(mean);
    for (uint64_t i = threadIdx.x; i < rows; i += THREADS)
        drow[i] = row[i] * (drow[i] - mean) * scale;
}

/* --- loss: one block per row --- */

__global__ static void cross_entropy(float *logits, uint64_t stride, uint64_t count, const uint32_t *targets,
                                     float gradient_scale, double *row_loss)
{
    float *row = logits + blockIdx.x * stride, most = -INFINITY, sum = 0;
    uint32_t target = targets[blockIdx.x];
    if (target == IGNORED) {
        for (uint64_t i = threadIdx.x; i < count; i += THREADS)
            row[i] = 0;
        if (threadIdx.x == 0)
            row_loss[blockIdx.x] = 0;
        return;
    }
    float wanted = row[target];
    for (uint64_t i = threadIdx.x; i < count; i += THREADS)
        most = fmaxf(most, row[i]);
    most = block_largest(most); /* all threads have read `wanted` */
    for (uint64_t i = threadIdx.x; i < count; i += THREADS) {
        row[i] = expf(row[i] - most);
        sum += row[i];
    }
    sum = block_sum(sum);
    float factor = gradient_scale / sum;
    for (uint64_t i = threadIdx.x; i < count; i += THREADS)
        row[i] = row[i] * factor - (i == target ? gradient_scale : 0.0f);
    if (threadIdx.x == 0)
        row_loss[blockIdx.x] = log((double)sum) + (double)most - (double)wanted;
}

/* --- embeddings: one block per row, token, or position --- */

__global__ static void embed(const uint32_t *tokens, const float *__restrict__ tokens_weight,
                             const float *__restrict__ positions_weight, uint64_t sequence, uint64_t width,
                             float *__restrict__ out)
{
    const float *token = tokens_weight + tokens[blockIdx.x] * width;
    const float *position = positions_weight + blockIdx.x % sequence * width;
    float *row = out + blockIdx.x * width;
    for (uint64_t i = threadIdx.x; i < width; i += THREADS)
        row[i] = token[i] + position[i];
}

__global__ static void embed_tokens_backward(const uint32_t *distinct, const uint32_t *begins, const uint32_t *order,
                                             const float *__restrict__ gradient, uint64_t width,
                                             float *__restrict__ dtokens)
{
    float *token = dtokens + distinct[blockIdx.x] * width;
    uint32_t begin = begins[blockIdx.x], end = begins[blockIdx.x + 1];
    for (uint64_t i = threadIdx.x; i < width; i += THREADS) {
        float sum = token[i];
        for (uint32_t k = begin; k < end; k++)
            sum += gradient[order[k] * width + i];
        token[i] = sum;
    }
}

__global__ static void embed_positions_backward(const float *__restrict__ gradient, uint64_t rows, uint64_t sequence,
                                                uint64_t width, float *__restrict__ dpositions)
{
    float *position = dpositions + blockIdx.x * width;
    for (uint64_t i = threadIdx.x; i < width; i += THREADS) {
        float sum = position[i];
        for (uint64_t r = blockIdx.x; r < rows; r += sequence)
            sum += gradient[r * width + i];
        position[i] = sum;
    }
}

/* --- dropout: one block per row --- */

__global__ static void dropout(uint64_t step_key, uint64_t first_sample, uint64_t place, uint64_t sample_rows,
                               uint32_t threshold, float scale, const float *x, float *out, uint64_t stride,
                               uint64_t width)
{
    uint64_t key = dropout_site_key(step_key, first_sample + blockIdx.x / sample_rows, place);
    uint32_t first = (uint32_t)(blockIdx.x % sample_rows * width), low = (uint32_t)key, high = (uint32_t)(key >> 32);
    const float *from = x + blockIdx.x * stride;
    float *to = out + blockIdx.x * stride;
    for (uint64_t i = threadIdx.x; i < width; i += THREADS)
        to[i] = dropout_word(first + (uint32_t)i, low, high) < threshold ? 0.0f : from[i] * scale;
}

/* --- optimizers --- */

__global__ static void adamw(const adamw_factors f, float *__restrict__ weights, const float *__restrict__ gradients,
                             float *__restrict__ exp_avg, float *__restrict__ exp_avg_sq, uint64_t count)
{
    for (EACH(i, count)) {
        float gradient = gradients[i] * f.gradient_scale;
        float first = exp_avg[i] + f.one_less_beta1 * (gradient - exp_avg[i]);
        float second = f.beta2 * exp_avg_sq[i] + f.one_less_beta2 * gradient * gradient;
        exp_avg[i] = first;
        exp_avg_sq[i] = second;
        weights[i] = weights[i] * f.decay - f.rate * first / (sqrtf(second) * f.correction + f.epsilon);
    }
}

__global__ static void sgd(float decay, float rate, float *__restrict__ weights, const float *__restrict__ gradients,
                           uint64_t count)
{
    for (EACH(i, count))
        weights[i] = weights[i] * decay - rate * gradients[i];
}

/* The upper half to nearest even; a NaN stays a NaN. */
__device__ static uint32_t nearest_bf16(float value)
{
    uint32_t bits = __float_as_uint(value);
    bool is_nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;
    return is_nan ? (bits & 0xFFFF0000u) | 0x00400000u : (bits + 0x7FFFu + ((bits >> 16) & 1)) & 0xFFFF0000u;
}

__global__ static void round_bf16(const float *values, float *rounded, uint64_t count)
{
    for (EACH(i, count))
        rounded[i] = __uint_as_float(nearest_bf16(values[i]));
}

__global__ static void pack_bf16(const float *values, uint16_t *packed, uint64_t count)
{
    for (EACH(i, count))
        packed[i] = (uint16_t)(nearest_bf16(values[i]) >> 16);
}

__global__ static void unpack_bf16(const uint16_t *packed, float *values, uint64_t count)
{
    for (EACH(i, count))
        values[i] = __uint_as_float((uint32_t)packed[i] << 16);
}

/* --- operations --- */

/* NULL once an operation has failed: then nothing more may be queued. Clears older errors of CUDA, so that `finish` sees only
 * those of the launches between. */
static cuda_math *start(device_math *math)
{
    cuda_math *self = (cuda_math *)math;
    if (!cuda_math_is_well(self))
        return NULL;
    (void)cudaGetLastError();
    return self;
}

static void finish(cuda_math *self, const char *doing)
{
    if (self)
        cuda_math_keep(self, (int)cudaGetLastError(), doing);
}

#define STREAM (cudaStream_t) self->stream
/* Launch a kernel with a block per row, or with a thread for some elements; nothing if there are none. A launch has at
 * most 2^31 - 1 blocks. */
#define ROWS(doing, kernel, rows, ...)                                                                                 \
    do {                                                                                                               \
        cuda_math *self = start(math);                                                                                 \
        if (self && (rows) > INT32_MAX) {                                                                              \
            cuda_math_keep(self, cudaErrorInvalidConfiguration, doing);                                                \
            break;                                                                                                     \
        }                                                                                                              \
        if (self && (rows) > 0)                                                                                        \
            kernel<<<(unsigned)(rows), THREADS, 0, STREAM>>>(__VA_ARGS__);                                             \
        finish(self, doing);                                                                                           \
    } while (0)
#define ELEMENTS(doing, kernel, count, ...)                                                                            \
    do {                                                                                                               \
        cuda_math *self = start(math);                                                                                 \
        if (self && (count) > 0)                                                                                       \
            kernel<<<blocks_for(count), THREADS, 0, STREAM>>>(__VA_ARGS__);                                            \
        finish(self, doing);                                                                                           \
    } while (0)

static void math_layer_norm(struct device_math *math, const float *x, const float *weight, const float *bias,
                            uint64_t rows, uint64_t width, float *out, float *mean, float *scale)
{
    ROWS("a layer norm on the GPU", norm, rows, x, weight, bias, width, out, mean, scale);
}

static void math_layer_norm_again(struct device_math *math, const float *x, const float *weight, const float *bias,
                                  const float *mean, const float *scale, uint64_t rows, uint64_t width, float *out)
{
    ROWS("a layer norm on the GPU", norm_again, rows, x, weight, bias, mean, scale, width, out);
}

static void math_layer_norm_backward(struct device_math *math, const float *x, const float *weight, const float *mean,
                                     const float *scale, const float *dout, uint64_t rows, uint64_t width, float *dx,
                                     float *dweight, float *dbias)
{
    cuda_math *self = start(math);
    if (!self)
        return;
    float *weight_parts = (float *)self->scratch, *bias_parts = weight_parts + (uint64_t)SLICES * SLICE_COLUMNS;
    norm_backward<<<(unsigned)rows, THREADS, 0, STREAM>>>(x, weight, mean, scale, dout, width, dx);
    for (uint64_t first = 0; first < width; first += SLICE_COLUMNS) {
        uint64_t columns = width - first < SLICE_COLUMNS ? width - first : SLICE_COLUMNS;
        norm_parts<<<slices_of(columns), dim3(WARP, WARPS), 0, STREAM>>>(x + first, mean, scale, dout + first, width,
                                                                         rows, columns, weight_parts, bias_parts);
        add_parts<<<blocks_for(columns), THREADS, 0, STREAM>>>(weight_parts, columns, dweight + first);
        add_parts<<<blocks_for(columns), THREADS, 0, STREAM>>>(bias_parts, columns, dbias + first);
    }
    finish(self, "a layer norm's gradient on the GPU");
}

static void math_gelu(struct device_math *math, const float *x, float *y, uint64_t count)
{
    ELEMENTS("GELU on the GPU", gelu, count, x, y, count);
}

static void math_gelu_and_slope(struct device_math *math, float *x, float *y, uint64_t count)
{
    ELEMENTS("GELU's slope on the GPU", gelu_and_slope, count, x, y, count);
}

static void math_multiply(struct device_math *math, float *x, const float *factor, uint64_t count)
{
    ELEMENTS("multiplying on the GPU", multiply, count, x, factor, count);
}

static void math_add(struct device_math *math, float *x, const float *addend, uint64_t count)
{
    ELEMENTS("adding on the GPU", add, count, x, addend, count);
}

static void math_fill(struct device_math *math, float *x, float value, uint64_t count)
{
    ELEMENTS("filling on the GPU", fill, count, x, value, count);
}

static void math_add_column_sums(struct device_math *math, const float *matrix, uint64_t stride, uint64_t rows,
                                 uint64_t width, float *sums)
{
    cuda_math *self = start(math);
    if (!self)
        return;
    float *parts = (float *)self->scratch;
    for (uint64_t first = 0; first < width; first += SLICE_COLUMNS) {
        uint64_t columns = width - first < SLICE_COLUMNS ? width - first : SLICE_COLUMNS;
        column_parts<<<slices_of(columns), dim3(WARP, WARPS), 0, STREAM>>>(matrix + first, stride, rows, columns,
                                                                           parts);
        add_parts<<<blocks_for(columns), THREADS, 0, STREAM>>>(parts, columns, sums + first);
    }
    finish(self, "sums of columns on the GPU");
}

static void math_row_sums(struct device_math *math, const float *matrix, uint64_t rows, uint64_t width, double *sums)
{
    ROWS("sums of rows on the GPU", row_sums, rows, matrix, width, sums);
}

static void math_sum_of_squares(struct device_math *math, const float *values, uint64_t count, double *sum)
{
    cuda_math *self = start(math);
    if (!self)
        return;
    square_parts<<<SQUARES_BLOCKS, THREADS, 0, STREAM>>>(values, count, (double *)self->scratch);
    add_square_parts<<<1, THREADS, 0, STREAM>>>((const double *)self->scratch, sum);
    finish(self, "a sum of squares on the GPU");
}

static void math_causal_softmax(struct device_math *math, float *scores, uint64_t stride, uint64_t matrices,
                                uint64_t rows, float *log_sum)
{
    ROWS("a softmax on the GPU", causal_softmax, matrices * rows, scores, stride, rows, log_sum);
}

static void math_causal_weights(struct device_math *math, float *scores, uint64_t stride, uint64_t matrices,
                                uint64_t rows, const float *log_sum)
{
    ROWS("a softmax on the GPU", causal_weights, matrices * rows, scores, stride, rows, log_sum);
}

static void math_causal_backward(struct device_math *math, const float *weights, float *dweights, uint64_t stride,
                                 uint64_t samples, uint64_t heads, uint64_t rows, const float *dout, const float *out,
                                 uint64_t out_stride, uint64_t size, float scale)
{
    ROWS("a softmax's gradient on the GPU", causal_backward, samples * heads * rows, weights, dweights, stride, heads,
         rows, dout, out, out_stride, size, scale);
}

static void math_cross_entropy(struct device_math *math, float *logits, uint64_t stride, uint64_t rows, uint64_t count,
                               const uint32_t *targets, float gradient_scale, double *row_loss)
{
    ROWS("a loss on the GPU", cross_entropy, rows, logits, stride, count, targets, gradient_scale, row_loss);
}

static void math_embed(struct device_math *math, const uint32_t *tokens, const float *tokens_weight,
                       const float *positions_weight, uint64_t rows, uint64_t sequence, uint64_t width, float *out)
{
    ROWS("an embedding on the GPU", embed, rows, tokens, tokens_weight, positions_weight, sequence, width, out);
}

static void math_embed_backward(struct device_math *math, const struct device_token_rows *token_rows,
                                const float *gradient, uint64_t rows, uint64_t sequence, uint64_t width, float *dtokens,
                                float *dpositions)
{
    cuda_math *self = start(math);
    if (!self)
        return;
    embed_tokens_backward<<<(unsigned)token_rows->distinct_count, THREADS, 0, STREAM>>>(
        token_rows->distinct, token_rows->begins, token_rows->order, gradient, width, dtokens);
    embed_positions_backward<<<(unsigned)sequence, THREADS, 0, STREAM>>>(gradient, rows, sequence, width, dpositions);
    finish(self, "an embedding's gradient on the GPU");
}

static void math_dropout(struct device_math *math, const struct device_dropout *settings, const float *x, float *out,
                         uint64_t stride, uint64_t rows, uint64_t width)
{
    ROWS("dropout on the GPU", dropout, rows, settings->step_key, settings->first_sample, settings->place,
         settings->sample_rows, settings->threshold, settings->scale, x, out, stride, width);
}

static void math_adamw(struct device_math *math, const struct adamw_factors *factors, float *weights,
                       const float *gradients, float *exp_avg, float *exp_avg_sq, uint64_t count)
{
    ELEMENTS("AdamW on the GPU", adamw, count, *factors, weights, gradients, exp_avg, exp_avg_sq, count);
}

static void math_sgd(struct device_math *math, float decay, float rate, float *weights, const float *gradients,
                     uint64_t count)
{
    ELEMENTS("SGD on the GPU", sgd, count, decay, rate, weights, gradients, count);
}

static void math_round_bf16(struct device_math *math, const float *values, float *rounded, uint64_t count)
{
    ELEMENTS("rounding on the GPU", round_bf16, count, values, rounded, count);
}

static void math_pack_bf16(struct device_math *math, const float *values, uint16_t *packed, uint64_t count)
{
    ELEMENTS("packing on the GPU", pack_bf16, count, values, packed, count);
}

static void math_unpack_bf16(struct device_math *math, const uint16_t *packed, float *values, uint64_t count)
{
    ELEMENTS("unpacking on the GPU", unpack_bf16, count, packed, values, count);
}

extern "C" const struct device_math_ops cuda_math_ops = {
    .version = DEVICE_MATH_VERSION,
    .product = cuda_math_product,
    .layer_norm = math_layer_norm,
    .layer_norm_again = math_layer_norm_again,
    .layer_norm_backward = math_layer_norm_backward,
    .gelu = math_gelu,
    .gelu_and_slope = math_gelu_and_slope,
    .multiply = math_multiply,
    .add = math_add,
    .fill = math_fill,
    .add_column_sums = math_add_column_sums,
    .row_sums = math_row_sums,
    .sum_of_squares = math_sum_of_squares,
    .causal_softmax = math_causal_softmax,
    .causal_weights = math_causal_weights,
    .causal_backward = math_causal_backward,
    .cross_entropy = math_cross_entropy,
    .embed = math_embed,
    .embed_backward = math_embed_backward,
    .dropout = math_dropout,
    .adamw = math_adamw,
    .sgd = math_sgd,
    .round_bf16 = math_round_bf16,
    .pack_bf16 = math_pack_bf16,
    .unpack_bf16 = math_unpack_bf16,
    .check = cuda_math_check,
    .close = cuda_math_close,
};
