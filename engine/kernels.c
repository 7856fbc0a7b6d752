/* Loops over rows, compiled for several instruction sets; the best one is chosen when the program starts. The Makefile
 * allows the compiler to fuse multiply and add, and to reorder sums in loops marked omp simd, but nothing else that
 * changes values. */
#include "engine/kernels.h"

#include <math.h>
#include <string.h>

#include "engine/rng.h"

/* Not with sanitizers: resolvers of clones run before their run-time is initialised. */
#if defined(__x86_64__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define VECTOR_CLONES __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define VECTOR_CLONES
#endif
#define INLINE static inline __attribute__((always_inline))

#define GELU_CUBE 0.044715f
#define GELU_SCALE 0.7978845608028654f /* sqrt(2 / pi) */

INLINE float float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

INLINE uint32_t bits_of_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* e^x within 2 units in the last place; clamped below -87 and above 88. x = n ln 2 + r, |r| <= ln 2 / 2, and e^r by its
 * Taylor series. */
INLINE float exponential(float x)
{
    x = x < -87.0f ? -87.0f : x;
    x = x > 88.0f ? 88.0f : x;
    float scaled = x * 1.44269504088896f;
    int32_t n = (int32_t)(scaled + (scaled < 0 ? -0.5f : 0.5f));
    float whole = (float)n;
    float r = x - whole * 0.693145751953125f; /* ln 2 in two parts: the first has few bits, so this is exact */
    r -= whole * 1.42860682030941723e-6f;
    float power = 1.0f / 5040;
    power = power * r + 1.0f / 720;
    power = power * r + 1.0f / 120;
    power = power * r + 1.0f / 24;
    power = power * r + 1.0f / 6;
    power = power * r + 0.5f;
    power = power * r + 1.0f;
    power = power * r + 1.0f;
    return power * float_of_bits((uint32_t)(n + 127) << 23);
}

/* Layer norm */

VECTOR_CLONES
void kernel_layer_norm_again(const float *restrict x, const float *restrict weight, const float *restrict bias,
                             const float *mean, const float *scale, uint64_t rows, uint64_t width, float *restrict out)
{
    for (uint64_t r = 0; r < rows; r++) {
        float m = mean[r], s = scale[r];
        for (uint64_t i = 0; i < width; i++)
            out[r * width + i] = (x[r * width + i] - m) * s * weight[i] + bias[i];
    }
}

VECTOR_CLONES
void kernel_layer_norm(const float *restrict x, const float *restrict weight, const float *restrict bias, uint64_t rows,
                       uint64_t width, float *restrict out, float *mean, float *scale)
{
    for (uint64_t r = 0; r < rows; r++) {
        const float *row = x + r * width;
        float sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
        for (uint64_t i = 0; i < width; i++)
            sum += row[i];
        float m = sum / (float)width;
#pragma omp simd reduction(+ : squares)
        for (uint64_t i = 0; i < width; i++)
            squares += (row[i] - m) * (row[i] - m);
        float s = 1.0f / sqrtf(squares / (float)width + LAYER_NORM_EPSILON);
        for (uint64_t i = 0; i < width; i++)
            out[r * width + i] = (row[i] - m) * s * weight[i] + bias[i];
        mean[r] = m;
        scale[r] = s;
    }
}

VECTOR_CLONES
void kernel_layer_norm_backward(const float *restrict x, const float *restrict weight, const float *mean,
                                const float *scale, const float *restrict dout, uint64_t rows, uint64_t width,
                                float *restrict dx, float *restrict dweight, float *restrict dbias)
{
    for (uint64_t r = 0; r < rows; r++) {
        const float *row = x + r * width, *drow = dout + r * width;
        float m = mean[r], s = scale[r], sum = 0, along = 0;
#pragma omp simd reduction(+ : sum, along)
        for (uint64_t i = 0; i < width; i++) {
            float normal = (row[i] - m) * s, d = drow[i] * weight[i];
            dweight[i] += drow[i] * normal;
            dbias[i] += drow[i];
            sum += d;
            along += d * normal;
        }
        sum /= (float)width;
        along /= (float)width;
        for (uint64_t i = 0; i < width; i++)
            dx[r * width + i] += s * (drow[i] * weight[i] - sum - (row[i] - m) * s * along);
    }
}

/* Elements */

/* GELU(x) = x / (1 + e^(-2u)) with u = sqrt(2/pi) (x + 0.044715 x^3), since (1 + tanh u) / 2 is 1 / (1 + e^(-2u)). */
INLINE float gelu_share(float x)
{
    return 1.0f / (1.0f + exponential(-2.0f * GELU_SCALE * (x + GELU_CUBE * x * x * x)));
}

VECTOR_CLONES
void kernel_gelu(const float *restrict x, float *restrict y, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        y[i] = x[i] * gelu_share(x[i]);
}

VECTOR_CLONES
void kernel_gelu_and_slope(float *restrict x, float *restrict y, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        float value = x[i], share = gelu_share(value);
        float inner = 2.0f * GELU_SCALE * (1.0f + 3.0f * GELU_CUBE * value * value);
        y[i] = value * share;
        x[i] = share + value * share * (1.0f - share) * inner;
    }
}

VECTOR_CLONES
void kernel_multiply(float *restrict x, const float *restrict factor, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        x[i] *= factor[i];
}

VECTOR_CLONES
void kernel_add(float *restrict x, const float *restrict addend, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        x[i] += addend[i];
}

VECTOR_CLONES
void kernel_start_rows(const float *restrict base, const float *restrict bias, uint64_t rows, uint64_t width,
                       float *restrict out)
{
    for (uint64_t r = 0; r < rows; r++) {
        float *row = out + r * width;
        if (!bias)
            memset(row, 0, width * sizeof *row);
        else if (!base)
            memcpy(row, bias, width * sizeof *row);
        else
            for (uint64_t i = 0; i < width; i++)
                row[i] = base[r * width + i] + bias[i];
    }
}

/* Four rows at a time, so that the sums are loaded and stored a quarter as often. */
VECTOR_CLONES
void kernel_add_column_sums(const float *restrict matrix, uint64_t stride, uint64_t rows, uint64_t first, uint64_t end,
                            float *restrict sums)
{
    uint64_t r = 0;
    for (; r + 4 <= rows; r += 4) {
        const float *a = matrix + r * stride, *b = a + stride, *c = b + stride, *d = c + stride;
        for (uint64_t i = first; i < end; i++)
            sums[i] += (a[i] + b[i]) + (c[i] + d[i]);
    }
    for (; r < rows; r++)
        for (uint64_t i = first; i < end; i++)
            sums[i] += matrix[r * stride + i];
}

VECTOR_CLONES
double kernel_sum(const float *values, uint64_t count)
{
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (uint64_t i = 0; i < count; i++)
        sum += (double)values[i];
    return sum;
}

VECTOR_CLONES
double kernel_sum_of_squares(const float *values, uint64_t count)
{
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (uint64_t i = 0; i < count; i++)
        sum += (double)values[i] * (double)values[i];
    return sum;
}

/* Attention */

INLINE float largest(const float *values, uint64_t count)
{
    float most = values[0];
#pragma omp simd reduction(max : most)
    for (uint64_t i = 0; i < count; i++)
        most = values[i] > most ? values[i] : most;
    return most;
}

VECTOR_CLONES
void kernel_causal_softmax(float *scores, uint64_t stride, uint64_t rows, uint64_t first, uint64_t keys, float *log_sum)
{
    for (uint64_t r = 0; r < rows; r++) {
        float *row = scores + r * stride, sum = 0;
        uint64_t seen = first + r + 1;
        float most = largest(row, seen);
#pragma omp simd reduction(+ : sum)
        for (uint64_t i = 0; i < seen; i++) {
            row[i] = exponential(row[i] - most);
            sum += row[i];
        }
        float share = 1.0f / sum;
        for (uint64_t i = 0; i < seen; i++)
            row[i] *= share;
        for (uint64_t i = seen; i < keys; i++)
            row[i] = 0;
        log_sum[r] = most + logf(sum);
    }
}

VECTOR_CLONES
void kernel_causal_weights(float *scores, uint64_t stride, uint64_t rows, uint64_t first, uint64_t keys,
                           const float *log_sum)
{
    for (uint64_t r = 0; r < rows; r++) {
        float *row = scores + r * stride, log = log_sum[r];
        uint64_t seen = first + r + 1;
        for (uint64_t i = 0; i < seen; i++)
            row[i] = exponential(row[i] - log);
        for (uint64_t i = seen; i < keys; i++)
            row[i] = 0;
    }
}

VECTOR_CLONES
void kernel_causal_backward(const float *restrict weights, float *restrict dweights, uint64_t stride, uint64_t rows,
                            uint64_t keys, const float *restrict dout, const float *restrict out, uint64_t out_stride,
                            uint64_t size, float scale)
{
    for (uint64_t r = 0; r < rows; r++) {
        const float *dout_row = dout + r * out_stride, *out_row = out + r * out_stride, *row = weights + r * stride;
        float *drow = dweights + r * stride, mean = 0;
#pragma omp simd reduction(+ : mean)
        for (uint64_t i = 0; i < size; i++)
            mean += dout_row[i] * out_row[i];
        for (uint64_t i = 0; i < keys; i++)
            drow[i] = row[i] * (drow[i] - mean) * scale;
    }
}

/* Loss */

VECTOR_CLONES
double kernel_cross_entropy(float *logits, uint64_t count, uint32_t target, float gradient_scale)
{
    float most = largest(logits, count), wanted = logits[target], sum = 0;
#pragma omp simd reduction(+ : sum)
    for (uint64_t i = 0; i < count; i++) {
        logits[i] = exponential(logits[i] - most);
        sum += logits[i];
    }
    float factor = gradient_scale / sum;
    for (uint64_t i = 0; i < count; i++)
        logits[i] *= factor;
    logits[target] -= gradient_scale;
    return log((double)sum) + (double)most - (double)wanted;
}

/* Dropout */

VECTOR_CLONES
void kernel_dropout(const struct dropout *self, uint64_t first, const float *x, float *out, uint64_t count)
{
    uint32_t low = (uint32_t)self->key, high = (uint32_t)(self->key >> 32), start = (uint32_t)first;
    uint32_t threshold = self->threshold;
    float scale = self->scale;
#pragma omp simd
    for (uint64_t i = 0; i < count; i++)
        out[i] = dropout_word(start + (uint32_t)i, low, high) < threshold ? 0.0f : x[i] * scale;
}

/* Optimizers */

VECTOR_CLONES
void kernel_adamw(const struct adamw_factors *factors, float *restrict weights, const float *restrict gradients,
                  float *restrict exp_avg, float *restrict exp_avg_sq, uint64_t count)
{
    struct adamw_factors f = *factors;
    for (uint64_t i = 0; i < count; i++) {
        float gradient = gradients[i] * f.gradient_scale;
        float first = exp_avg[i] + f.one_less_beta1 * (gradient - exp_avg[i]);
        float second = f.beta2 * exp_avg_sq[i] + f.one_less_beta2 * gradient * gradient;
        exp_avg[i] = first;
        exp_avg_sq[i] = second;
        weights[i] = weights[i] * f.decay - f.rate * first / (sqrtf(second) * f.correction + f.epsilon);
    }
}

VECTOR_CLONES
void kernel_sgd(float decay, float rate, float *restrict weights, const float *restrict gradients, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        weights[i] = weights[i] * decay - rate * gradients[i];
}

/* bf16 is the upper half of fp32. A NaN must stay one: rounding must not carry into its exponent. */

INLINE uint32_t nearest_bf16(uint32_t bits)
{
    uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1)) & 0xFFFF0000u;
    return (bits & 0x7FFFFFFFu) > 0x7F800000u ? (bits & 0xFFFF0000u) | 0x00400000u : rounded;
}

VECTOR_CLONES
void kernel_round_bf16(const float *values, float *rounded, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        rounded[i] = float_of_bits(nearest_bf16(bits_of_float(values[i])));
}

VECTOR_CLONES
void kernel_pack_bf16(const float *restrict values, uint16_t *restrict packed, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        packed[i] = (uint16_t)(nearest_bf16(bits_of_float(values[i])) >> 16);
}

VECTOR_CLONES
void kernel_unpack_bf16(const uint16_t *restrict packed, float *restrict values, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        values[i] = float_of_bits((uint32_t)packed[i] << 16);
}
