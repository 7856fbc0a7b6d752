/* GPT-2's byte-pair encoding, from its two vocabulary files.
 *
 * Text is cut into words as in GPT-2 (contractions, runs of letters, numbers, other characters, each with one
 * preceding space; white space), and the bytes of a word are merged pair by pair, in the order of merges.txt. Bytes
 * that are not valid UTF-8 count as other characters. Letters and numbers follow the Unicode version in
 * unicode_ranges.def. Immutable once created; encoding and decoding are thread-safe. */
#ifndef TRAIN_TOKENIZER_H
#define TRAIN_TOKENIZER_H

#include <stddef.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/err.h"

#define TOKENIZER_NO_TOKEN UINT32_MAX

struct tokenizer;

/* CB_ERR_FORMAT names the key of vocab.json or the line of merges.txt; tokens must be below 65536, and every byte
 * must have a token. */
int tokenizer_open(const char *vocab_json, const char *merges, struct tokenizer **tokenizer,
                   struct cb_err *err) CB_MUST_CHECK;
/* The same from the contents of the files. */
int tokenizer_parse(const char *vocab, size_t vocab_len, const char *merges, size_t merges_len,
                    struct tokenizer **tokenizer, struct cb_err *err) CB_MUST_CHECK;
void tokenizer_free(struct tokenizer *self);

uint32_t tokenizer_vocabulary(const struct tokenizer *self);  /* all tokens are below it */
uint32_t tokenizer_end_of_text(const struct tokenizer *self); /* TOKENIZER_NO_TOKEN if the vocabulary has none */

/* *tokens is allocated; free it with free(). Fails only if out of memory. */
int tokenizer_encode(const struct tokenizer *self, const unsigned char *text, uint64_t len, uint16_t **tokens,
                     uint64_t *count, struct cb_err *err) CB_MUST_CHECK;
/* Appends the bytes of tokens; CB_ERR_FORMAT for a token outside the vocabulary. */
int tokenizer_decode(const struct tokenizer *self, const uint16_t *tokens, uint64_t count, struct buf *text,
                     struct cb_err *err) CB_MUST_CHECK;

/* Length of the first word of a non-empty text. */
uint64_t tokenizer_word(const unsigned char *text, uint64_t len);

#endif
