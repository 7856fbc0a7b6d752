/* The values of ckpt/payload.h, one element at a time, as a device computes them: the same function in C and in CUDA,
 * so that tests on any machine prove that both agree with ckpt/payload.c. Pure. */
#ifndef ENGINE_DEVICE_VALUES_H
#define ENGINE_DEVICE_VALUES_H

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define VALUES_INLINE static __host__ __device__ inline
#else
#define VALUES_INLINE static inline
#endif

#define VALUES_MAX_DIMS 6

enum values_form { VALUES_ZERO, VALUES_RAW, VALUES_BF16, VALUES_F16, VALUES_F32, VALUES_F64, VALUES_C64 };

/* A region of a tensor, row-major. */
struct values_job {
    uint32_t form, element_bytes;
    uint32_t mask; /* of VALUES_RAW */
    uint32_t dims;
    uint64_t key, count; /* elements of the region */
    uint64_t offset[VALUES_MAX_DIMS], size[VALUES_MAX_DIMS], shape[VALUES_MAX_DIMS];
};

VALUES_INLINE uint32_t values_word(uint64_t key, uint64_t index)
{
    uint64_t mixed = key + (index >> 20) * UINT64_C(0x9e3779b97f4a7c15);
    mixed = (mixed ^ mixed >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    mixed = (mixed ^ mixed >> 27) * UINT64_C(0x94d049bb133111eb);
    mixed ^= mixed >> 31;
    uint32_t x = (uint32_t)(index & 0xfffff) * UINT32_C(0x9e3779b1) + (uint32_t)mixed;
    x ^= x >> 15;
    x *= UINT32_C(0x85ebca77);
    x ^= x >> 13;
    return x + (uint32_t)(mixed >> 32);
}

VALUES_INLINE uint32_t values_float_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

VALUES_INLINE uint32_t values_narrow(uint32_t word)
{
    int32_t difference = (int32_t)(word & 0xffff) - (int32_t)(word >> 16);
    return values_float_bits((float)difference * (1.0f / 1048576.0f)); /* 2^-20 */
}

VALUES_INLINE uint32_t values_wide(uint32_t word)
{
    uint32_t other = (word ^ word >> 16) * UINT32_C(0x27d4eb2f);
    int32_t difference = (int32_t)(word >> 1) - (int32_t)(other >> 1);
    return values_float_bits((float)difference * (1.0f / 34359738368.0f)); /* 2^-35 */
}

VALUES_INLINE uint32_t values_f16(uint32_t word)
{
    uint32_t bits = values_narrow(word);
    uint32_t magnitude = ((bits & 0x7fffffff) >> 13) - (UINT32_C(106) << 10);
    return (bits >> 16 & 0x8000) | (bits << 1 != 0 ? magnitude & 0xffff : 0);
}

VALUES_INLINE uint64_t values_f64(uint32_t word)
{
    uint64_t bits = values_wide(word);
    uint64_t magnitude = (bits & 0x7fffffff) << 29 | word * UINT32_C(0xc2b2ae35) >> 3;
    return (bits >> 31) << 63 | (magnitude + (UINT64_C(896) << 52));
}

/* The tensor's element that is number `index` of the region. */
VALUES_INLINE uint64_t values_element_of(const struct values_job *job, uint64_t index)
{
    uint64_t element = 0, stride = 1;
    for (uint32_t i = job->dims; i-- > 0;) {
        uint64_t size = job->size[i];
        element += (job->offset[i] + index % size) * stride;
        index /= size;
        stride *= job->shape[i];
    }
    return element;
}

/* An element's bytes, the first of them lowest in words[0]. */
VALUES_INLINE void values_element(const struct values_job *job, uint64_t element, uint32_t words[4])
{
    words[0] = words[1] = words[2] = words[3] = 0;
    switch (job->form) {
    case VALUES_ZERO:
        break;
    case VALUES_BF16:
        words[0] = values_narrow(values_word(job->key, element)) >> 16;
        break;
    case VALUES_F16:
        words[0] = values_f16(values_word(job->key, element));
        break;
    case VALUES_F32:
        words[0] = values_wide(values_word(job->key, element));
        break;
    case VALUES_F64: {
        uint64_t bits = values_f64(values_word(job->key, element));
        words[0] = (uint32_t)bits;
        words[1] = (uint32_t)(bits >> 32);
        break;
    }
    case VALUES_C64:
        words[0] = values_wide(values_word(job->key, 2 * element));
        words[1] = values_wide(values_word(job->key, 2 * element + 1));
        break;
    default: /* VALUES_RAW: bytes of the stream of words */
        if (job->element_bytes < 4) {
            uint64_t byte = element * job->element_bytes;
            uint32_t word = values_word(job->key, byte / 4) & job->mask;
            words[0] = word >> 8 * (byte % 4) & (job->element_bytes == 1 ? 0xff : 0xffff);
        } else {
            uint32_t count = job->element_bytes / 4;
            for (uint32_t i = 0; i < count; i++)
                words[i] = values_word(job->key, element * count + i) & job->mask;
        }
    }
}

#ifdef __cplusplus
extern "C" {
#endif
struct device_values;
/* Converts values (engine/device.h) to a kernel's parameters. */
void values_job_make(const struct device_values *values, struct values_job *job);
#ifdef __cplusplus
}
#endif

#endif
