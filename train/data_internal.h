/* The two kinds of source behind train/data.h. Private to train/. */
#ifndef TRAIN_DATA_INTERNAL_H
#define TRAIN_DATA_INTERNAL_H

#include <stdbool.h>

#include "train/data.h"

/* A row of tokens: from a file of 2-byte tokens, from the bytes of a text, or in memory. */
struct token_row {
    int fd; /* -1 if all tokens are in memory */
    uint64_t first_byte;
    uint32_t token_bytes; /* in the file: 2, or 1 for text, which has one more token at its end */
    uint16_t *memory;
    uint64_t count;
    uint32_t vocabulary; /* all tokens are below it */
    const char *path;    /* borrowed: for error messages */
    const char *kind;    /* "llm.c tokens" */
};

/* Opens a token file (and checks its tokens against the vocabulary), or a text. Release also after a failure. */
int token_row_open(struct token_row *self, const struct train_data_setup *setup, struct cb_err *err) CB_MUST_CHECK;
void token_row_release(struct token_row *self);
/* Tokens [first, first + count), all within the row. */
int token_row_read(const struct token_row *self, uint64_t first, uint64_t count, uint32_t *tokens,
                   struct cb_err *err) CB_MUST_CHECK;

/* A chain of `states`, each followed by one of `branches` others with probability 1/2, 1/4, ... (the last two are
 * equal). */
struct markov {
    uint64_t seed;
    uint32_t states, branches;
};
void markov_init(struct markov *self, uint32_t vocabulary, uint64_t seed);
double markov_entropy(const struct markov *self);
/* `count` tokens of walk number `walk`, and the token after them. */
uint32_t markov_walk(const struct markov *self, uint64_t walk, uint64_t count, uint32_t *tokens);

#endif
