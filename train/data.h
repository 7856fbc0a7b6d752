/* Where the tokens of training come from.
 *
 * Sources: llm.c token files (256 int32, magic 20240520, version 1, count; then uint16 tokens), any other file as
 * text (bytes and an end-of-text mark, vocabulary 257; or GPT-2's byte pairs where its vocab.json and merges.txt are
 * given), and a seeded Markov chain, whose loss falls from ln(vocabulary) towards train_data_entropy.
 *
 * Sample s of a split is a function of (source, seed, s) alone, so that any number of ranks reads the same stream: step
 * k of a run with global batch G reads samples k G ... k G + G - 1. Files are cut into windows of sequence + 1 tokens
 * that overlap by one; an epoch takes each window once, in an order of its own. The last windows of a file are the
 * validation split. Immutable after it was opened, and thread-safe; knows nothing of models. */
#ifndef TRAIN_DATA_H
#define TRAIN_DATA_H

#include <stdint.h>

#include "core/err.h"

enum data_split { DATA_TRAINING, DATA_VALIDATION };

struct train_data_setup {
    const char *source;     /* "markov" or the path of a file */
    const char *vocab_json; /* GPT-2's vocabulary files, both or neither (NULL or ""); for text files */
    const char *merges;
    uint32_t vocabulary;     /* the model's: a token from it on is an error; the Markov source uses at most so many */
    uint32_t sequence;       /* tokens a sample */
    double validation_share; /* of a file's windows, 0 <= share < 1; above 0 it is at least one window */
    uint64_t seed;           /* of the order of windows, and of the Markov source */
};

struct train_data;

/* Sentences name the file, and the byte or token where it stops being what it should be: CB_ERR_FORMAT for a wrong
 * magic, version or length, CB_ERR_USAGE for a vocabulary that the model does not have room for or a file with less
 * than one sample, CB_ERR_NOT_FOUND, CB_ERR_MEMORY. A token file is read once to check its tokens. */
int train_data_open(const struct train_data_setup *setup, struct train_data **data, struct cb_err *err) CB_MUST_CHECK;
void train_data_close(struct train_data *self);

/* One line for people: "llm.c tokens, 1,048,576 of FILE". */
const char *train_data_about(const struct train_data *self);
uint32_t train_data_vocabulary(const struct train_data *self); /* tokens are below it */
/* Samples of an epoch; 0 where there is no end (Markov). */
uint64_t train_data_samples(const struct train_data *self, enum data_split split);
/* Nats a token that no model can go below on average; NaN where nobody knows. */
double train_data_entropy(const struct train_data *self);

/* Fills `tokens` and `targets` (the next tokens), `sequence` each. Beyond an epoch comes the next one; validation
 * samples are always in the file's order. Fails where the file does (shortened since, an I/O error). */
int train_data_sample(const struct train_data *self, enum data_split split, uint64_t sample, uint32_t *tokens,
                      uint32_t *targets, struct cb_err *err) CB_MUST_CHECK;

#endif
