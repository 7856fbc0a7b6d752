/* GPT-2's byte-pair encoding, from its two vocabulary files.
 *
 * Text is cut into words as GPT-2 cuts it (contractions, runs of letters, numbers, other signs, each with
 * one space before it; white space), and the bytes of a word are joined pair by pair, the pair first in merges.txt
 * first. Bytes that are no UTF-8 are signs of their own. Letters and numbers are those of the Unicode that
 * unicode_ranges.def names. Immutable after it was made; encoding and decoding are thread-safe. */
#ifndef TRAIN_TOKENIZER_H
#define TRAIN_TOKENIZER_H

#include <stddef.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/err.h"

#define TOKENIZER_NO_TOKEN UINT32_MAX

struct tokenizer;

/* CB_ERR_FORMAT naming the key of vocab.json or the line of merges.txt; tokens must be below 65536, and every byte must have one. */
int tokenizer_open(const char *vocab_json, const char *merges, struct tokenizer **tokenizer,
                   struct cb_err *err) CB_MUST_CHECK;
/* The same from what the files hold. */
int tokenizer_parse(const char *vocab, size_t vocab_len, const char *merges, size_t merges_len,
                    struct tokenizer **tokenizer, struct cb_err *err) CB_MUST_CHECK;
void tokenizer_free(struct tokenizer *self);

uint32_t tokenizer_vocabulary(const struct tokenizer *self);  /* tokens are below it */
uint32_t tokenizer_end_of_text(const struct tokenizer *self); /* TOKENIZER_NO_TOKEN where the vocabulary has none */

/* *tokens is allocated, freed with free(). Fails only for want of memory. */
int tokenizer_encode(const struct tokenizer *self, const unsigned char *text, uint64_t len, uint16_t **tokens,
                     uint64_t *count, struct cb_err *err) CB_MUST_CHECK;
/* Appends the bytes of tokens; CB_ERR_FORMAT for one that the vocabulary does not have. */
int tokenizer_decode(const struct tokenizer *self, const uint16_t *tokens, uint64_t count, struct buf *text,
                     struct cb_err *err) CB_MUST_CHECK;

/* Length of the first word of a text that is not empty. */
uint64_t tokenizer_word(const unsigned char *text, uint64_t len);

#endif
