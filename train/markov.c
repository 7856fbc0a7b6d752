/* A token source that needs no file: each token depends only on the one before, so a model can learn it. */
#include <math.h>

#include "engine/rng.h"
#include "train/data_internal.h"

#define MOST_STATES 1024 /* fewer than a large vocabulary, so that a short run sees each state often */
#define MOST_BRANCHES 8

void markov_init(struct markov *self, uint32_t vocabulary, uint64_t seed)
{
    self->seed = rng_mix(seed ^ UINT64_C(0x6D61726B6F760000));
    self->states = vocabulary < MOST_STATES ? vocabulary : MOST_STATES;
    self->branches = self->states < MOST_BRANCHES ? self->states : MOST_BRANCHES;
}

/* Entropy of 1/2, 1/4, ..., 2^(1-b), 2^(1-b): ln 2 times 2 - 4 / 2^b bits. */
double markov_entropy(const struct markov *self)
{
    return (2.0 - 4.0 / (double)(1u << self->branches)) * log(2.0);
}

/* The branches of a state lead to distinct states: equal steps that sum to less than a full turn. */
static uint32_t follow(const struct markov *self, uint32_t state, uint32_t branch)
{
    uint64_t random = rng_mix(self->seed + state);
    uint32_t start = (uint32_t)(random % self->states);
    uint32_t step = 1 + (uint32_t)((random >> 32) % (self->states / self->branches));
    return (uint32_t)((start + (uint64_t)branch * step) % self->states);
}

uint32_t markov_walk(const struct markov *self, uint64_t walk, uint64_t count, uint32_t *tokens)
{
    uint64_t key = rng_mix(self->seed ^ rng_mix(walk));
    uint32_t state = (uint32_t)(key % self->states);
    for (uint64_t i = 0; i < count; i++) {
        tokens[i] = state;
        uint64_t random = rng_mix(key + i + 1);
        uint32_t branch = 0;
        while (branch + 1 < self->branches && (random >> branch & 1))
            branch++;
        state = follow(self, state, branch);
    }
    return state;
}
