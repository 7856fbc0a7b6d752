/* Sources of training tokens.
 *
 * Sources: llm.c token files (256 int32, magic 20240520, version 1, count; then uint16 tokens), any other file as
 * text (bytes and an end-of-text mark, vocabulary 257; or GPT-2's byte pairs if its vocab.json and merges.txt are
 * given), and a seeded Markov chain, whose loss falls from ln(vocabulary) towards its
 * entropy.
 *
 * Sample s of a split is a function of (source, seed, s) only, so any number of ranks reads the same stream: step k
 * of a run with global batch G reads samples k G ... k G + G - 1. Files are cut into windows of sequence + 1 tokens
 * that overlap by one; an epoch uses each window once, in an order of its own. The last windows of a file are the
 * validation split. Immutable once opened, and thread-safe. */
#ifndef TRAIN_DATA_H
#define TRAIN_DATA_H

#include <stdint.h>

#include "core/err.h"

enum data_split { DATA_TRAINING, DATA_VALIDATION };

struct train_data_setup {
    const char *source;     /* "markov" or the path of a file */
    const char *vocab_json; /* GPT-2's vocabulary files, both or neither (NULL or ""); for text files */
    const char *merges;
    uint32_t vocabulary;     /* of the model: larger tokens are an error. Also limits the states of the Markov chain */
    uint32_t sequence;       /* tokens per sample */
    double validation_share; /* share of a file's windows, 0 <= share < 1; if above 0, at least one window */
    uint64_t seed;           /* of the order of windows, and of the Markov chain */
};

struct train_data;

/* Errors name the file, and the position of a malformed byte or token: CB_ERR_FORMAT for a wrong magic, version or
 * length, CB_ERR_USAGE for a vocabulary larger than the model's or a file with less than one sample,
 * CB_ERR_NOT_FOUND, CB_ERR_MEMORY. A token file is read once to check its tokens. */
int train_data_open(const struct train_data_setup *setup, struct train_data **data, struct cb_err *err) CB_MUST_CHECK;
void train_data_close(struct train_data *self);

/* One line for people: "llm.c tokens, 1,048,576 of FILE". */
const char *train_data_about(const struct train_data *self);
/* Samples per epoch; 0 if unlimited (Markov). */
uint64_t train_data_samples(const struct train_data *self, enum data_split split);

/* Fills `tokens` and `targets` (the next tokens), `sequence` of each. Samples past an epoch belong to the next one;
 * validation samples are always in file order. Fails if the file cannot be read (truncated since it was opened, an
 * I/O error). */
int train_data_sample(const struct train_data *self, enum data_split split, uint64_t sample, uint32_t *tokens,
                      uint32_t *targets, struct cb_err *err) CB_MUST_CHECK;

#endif
