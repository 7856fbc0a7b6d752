/* Vocabulary, merges and text of any bytes, with a NUL between them: what is encoded must decode to the same text.
 * An empty vocabulary stands for one that has all bytes, so that merges and texts are met, too. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "train/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void all_bytes(struct buf *vocab)
{
    unsigned next = 256, token = 0;
    buf_append_text(vocab, "{");
    for (unsigned byte = 0; byte < 256; byte++) {
        int prints = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
        buf_printf(vocab, "\"\\u%04x\": %u, ", prints ? byte : next++, token++);
    }
    buf_append_text(vocab, "\"ab\": 256, \"aa\": 257, \"abab\": 258, \"<|endoftext|>\": 259}");
}

static void encode(const struct tokenizer *tokenizer, const uint8_t *text, size_t len)
{
    uint16_t *tokens = NULL;
    uint64_t count = 0;
    struct cb_err err = {0};
    struct buf back;
    buf_init(&back, len + 1);
    if (tokenizer_encode(tokenizer, text, len, &tokens, &count, &err) ||
        tokenizer_decode(tokenizer, tokens, count, &back, &err) || back.len != len || memcmp(back.data, text, len) != 0)
        abort();
    free(tokens);
    buf_release(&back);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    const uint8_t *first = memchr(bytes, 0, len);
    const uint8_t *second = first ? memchr(first + 1, 0, len - (size_t)(first + 1 - bytes)) : NULL;
    if (!second)
        return 0;
    struct buf vocab;
    struct cb_err err = {0};
    struct tokenizer *tokenizer = NULL;
    buf_init(&vocab, 1u << 20);
    if (first == bytes)
        all_bytes(&vocab);
    else
        buf_append(&vocab, bytes, (size_t)(first - bytes));
    int rc =
        tokenizer_parse(vocab.data, vocab.len, (const char *)first + 1, (size_t)(second - first - 1), &tokenizer, &err);
    if (rc && err.message[0] == '\0')
        abort();
    if (!rc)
        encode(tokenizer, second + 1, len - (size_t)(second + 1 - bytes));
    tokenizer_free(tokenizer);
    buf_release(&vocab);
    return 0;
}
