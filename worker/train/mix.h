/* Random numbers by counting: SplitMix64's mixing of all bits of a counter. Pure. */
#ifndef WORKER_TRAIN_MIX_H
#define WORKER_TRAIN_MIX_H

#include <stdint.h>

static inline uint64_t train_mix(uint64_t x)
{
    x += UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

#endif
