/* Selects the tokens of a sample: windows of a file in a new order for each epoch, or walks of a Markov chain. */
#include "train/data.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "engine/rng.h"
#include "train/data_internal.h"

#define ROUNDS 4

struct train_data {
    char *source;
    uint32_t sequence;
    uint64_t seed;
    bool is_markov;
    struct markov markov;
    struct token_row row;
    uint64_t training, validation; /* windows; those for validation are the last */
    char about[512];
};

/* Cuts the row into windows. */
static int divide(struct train_data *self, const struct train_data_setup *setup, struct cb_err *err)
{
    uint64_t windows = self->row.count > 0 ? (self->row.count - 1) / self->sequence : 0;
    bool validates = setup->validation_share > 0;
    uint64_t held = validates ? (uint64_t)(setup->validation_share * (double)windows + 0.5) : 0;
    if (validates && held == 0)
        held = 1;
    if (windows < held + 1)
        return cb_fail(
            err, CB_ERR_USAGE,
            "%s has %llu tokens, which are %llu samples of %u: too few%s; a shorter train.seq_length makes more",
            self->source, (unsigned long long)self->row.count, (unsigned long long)windows, self->sequence,
            validates ? " to train and to validate with" : "");
    self->training = windows - held;
    self->validation = held;
    return 0;
}

static int open_file(struct train_data *self, const struct train_data_setup *setup, struct cb_err *err)
{
    struct train_data_setup owned = *setup;
    owned.source = self->source;
    int rc = token_row_open(&self->row, &owned, err);
    if (!rc)
        rc = divide(self, setup, err);
    if (!rc)
        snprintf(self->about, sizeof self->about, "%s, %llu of %s", self->row.kind, (unsigned long long)self->row.count,
                 self->source);
    return rc;
}

static void open_markov(struct train_data *self, const struct train_data_setup *setup)
{
    self->is_markov = true;
    markov_init(&self->markov, setup->vocabulary, setup->seed);
    snprintf(self->about, sizeof self->about, "a Markov chain of %u states, seed %llu", self->markov.states,
             (unsigned long long)setup->seed);
}

int train_data_open(const struct train_data_setup *setup, struct train_data **data, struct cb_err *err)
{
    if (!setup->vocabulary || !setup->sequence || !(setup->validation_share >= 0 && setup->validation_share < 1))
        return cb_fail(err, CB_ERR_USAGE, "no samples of %u tokens out of %u, a share of %g of them to validate with",
                       setup->sequence, setup->vocabulary, setup->validation_share);
    struct train_data *self = calloc(1, sizeof *self);
    char *source = strdup(setup->source);
    if (!self || !source) {
        free(self);
        free(source);
        return alloc_fail(err, "to open %s", setup->source);
    }
    self->source = source;
    self->sequence = setup->sequence;
    self->seed = setup->seed;
    self->row.fd = -1;
    int rc = 0;
    if (strcmp(source, "markov") == 0)
        open_markov(self, setup);
    else
        rc = open_file(self, setup, err);
    if (rc)
        train_data_close(self);
    else
        *data = self;
    return rc;
}

void train_data_close(struct train_data *self)
{
    if (!self)
        return;
    token_row_release(&self->row);
    free(self->source);
    free(self);
}

const char *train_data_about(const struct train_data *self)
{
    return self->about;
}

uint32_t train_data_vocabulary(const struct train_data *self)
{
    return self->is_markov ? self->markov.states : self->row.vocabulary;
}

uint64_t train_data_samples(const struct train_data *self, enum data_split split)
{
    return split == DATA_TRAINING ? self->training : self->validation;
}

double train_data_entropy(const struct train_data *self)
{
    return self->is_markov ? markov_entropy(&self->markov) : (double)NAN;
}

/* A permutation of 0 ... count - 1: a Feistel network on as many bits as count requires, repeated until the result is
 * below count. */
static uint64_t shuffled(uint64_t index, uint64_t count, uint64_t key)
{
    unsigned half = 1;
    while (half < 32 && (UINT64_C(1) << 2 * half) < count)
        half++;
    uint64_t mask = (UINT64_C(1) << half) - 1;
    do {
        uint64_t left = index >> half, right = index & mask;
        for (uint64_t round = 0; round < ROUNDS; round++) {
            uint64_t swap = left ^ (rng_mix(key + round * UINT64_C(0x100000001B3) + rng_mix(right)) & mask);
            left = right;
            right = swap;
        }
        index = left << half | right;
    } while (index >= count);
    return index;
}

static uint64_t window_of(const struct train_data *self, enum data_split split, uint64_t sample)
{
    if (split == DATA_VALIDATION)
        return self->training + sample % self->validation;
    uint64_t epoch = sample / self->training;
    return shuffled(sample % self->training, self->training, rng_mix(self->seed ^ rng_mix(epoch)));
}

static int read_window(const struct train_data *self, enum data_split split, uint64_t sample, uint32_t *tokens,
                       uint32_t *last, struct cb_err *err)
{
    if (train_data_samples(self, split) == 0)
        return cb_fail(err, CB_ERR_USAGE, "%s has no samples to validate with", self->source);
    uint64_t first = window_of(self, split, sample) * self->sequence;
    int rc = token_row_read(&self->row, first, self->sequence, tokens, err);
    return rc ? rc : token_row_read(&self->row, first + self->sequence, 1, last, err);
}

int train_data_sample(const struct train_data *self, enum data_split split, uint64_t sample, uint32_t *tokens,
                      uint32_t *targets, struct cb_err *err)
{
    uint64_t sequence = self->sequence;
    uint32_t last = 0;
    int rc = 0;
    if (self->is_markov)
        last = markov_walk(&self->markov, 2 * sample + (split == DATA_VALIDATION), sequence, tokens);
    else
        rc = read_window(self, split, sample, tokens, &last, err);
    if (rc)
        return rc;
    memcpy(targets, tokens + 1, (sequence - 1) * sizeof *targets);
    targets[sequence - 1] = last;
    return 0;
}
