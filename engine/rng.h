/* Counter-based random numbers: the mixing function of SplitMix64, and the numbers that dropout uses. Pure; the same
 * functions in C and in CUDA. */
#ifndef ENGINE_RNG_H
#define ENGINE_RNG_H

#include <stdint.h>

#ifdef __CUDACC__
#define MIX_INLINE static __host__ __device__ __forceinline__
#else
#define MIX_INLINE static inline __attribute__((always_inline))
#endif

MIX_INLINE uint64_t rng_mix(uint64_t x)
{
    x += UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

/* The key of a dropout site: seed and step (`step_key`), the sample's number in the step, a place in the model. */
MIX_INLINE uint64_t dropout_step_key(uint64_t seed, uint64_t step)
{
    return rng_mix(seed ^ rng_mix(step));
}

MIX_INLINE uint64_t dropout_site_key(uint64_t step_key, uint64_t sample, uint64_t place)
{
    return rng_mix(rng_mix(step_key ^ rng_mix(sample)) ^ place);
}

/* An element is dropped if this hash of its index and the two halves of the site's key is below the threshold. The
 * multipliers are those of MurmurHash3's finalizer. */
MIX_INLINE uint32_t dropout_word(uint32_t counter, uint32_t low, uint32_t high)
{
    uint32_t x = counter * UINT32_C(0x9E3779B9) + low;
    x ^= x >> 16;
    x *= UINT32_C(0x85EBCA6B);
    x ^= (x >> 13) ^ high;
    x *= UINT32_C(0xC2B2AE35);
    return x ^ (x >> 16);
}

#endif
