/* Reads tokens from files: llm.c's format, bytes of a text, byte pairs. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/alloc.h"
#include "train/data_internal.h"
#include "train/tokenizer.h"

#define HEADER_NUMBERS 256
#define HEADER_BYTES (HEADER_NUMBERS * 4)
#define MAGIC_GPT2 20240520u
#define MAGIC_LLAMA3 20240801u
#define VERSION_GPT2 1u
#define BYTES_VOCABULARY 257u            /* and one for the end of the text */
#define CHUNK 8192                       /* tokens at a time */
#define LONGEST_TEXT (UINT64_C(8) << 30) /* largest text to encode in memory */

static bool given(const char *text)
{
    return text && text[0];
}

static uint32_t u32_at(const unsigned char *bytes)
{
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

static int read_at(const struct token_row *self, uint64_t offset, void *bytes, uint64_t len, struct cb_err *err)
{
    for (uint64_t done = 0; done < len;) {
        ssize_t got = pread(self->fd, (char *)bytes + done, len - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return cb_fail_errno(err, errno, "%s, byte %llu", self->path, (unsigned long long)(offset + done));
        if (got == 0)
            return cb_fail(err, CB_ERR_FORMAT, "%s ends at byte %llu: it became shorter since it was opened",
                           self->path, (unsigned long long)(offset + done));
        done += (uint64_t)got;
    }
    return 0;
}

int token_row_read(const struct token_row *self, uint64_t first, uint64_t count, uint32_t *tokens, struct cb_err *err)
{
    unsigned char bytes[2 * CHUNK] = {0};
    for (uint64_t i = 0; self->memory && i < count; i++)
        tokens[i] = self->memory[first + i];
    for (uint64_t done = 0; !self->memory && done < count;) {
        uint64_t now = count - done < CHUNK ? count - done : CHUNK, at = first + done, stored = now;
        if (self->token_bytes == 1 && at + now == self->count)
            stored--; /* the end-of-text token is not in the file */
        int rc = read_at(self, self->first_byte + at * self->token_bytes, bytes, stored * self->token_bytes, err);
        if (rc)
            return rc;
        for (uint64_t i = 0; i < stored; i++)
            tokens[done + i] =
                self->token_bytes == 1 ? bytes[i] : (uint32_t)bytes[2 * i] | (uint32_t)bytes[2 * i + 1] << 8;
        if (stored < now)
            tokens[done + stored] = BYTES_VOCABULARY - 1;
        done += now;
    }
    return 0;
}

static int check_tokens(struct token_row *self, uint32_t vocabulary, struct cb_err *err)
{
    uint32_t *tokens = malloc(CHUNK * sizeof *tokens);
    int rc = tokens ? 0 : alloc_fail(err, "to check %s", self->path);
    for (uint64_t at = 0; at < self->count && !rc; at += CHUNK) {
        uint64_t now = self->count - at < CHUNK ? self->count - at : CHUNK;
        rc = token_row_read(self, at, now, tokens, err);
        for (uint64_t i = 0; i < now && !rc; i++) {
            if (tokens[i] >= vocabulary)
                rc = cb_fail(err, CB_ERR_FORMAT,
                             "%s, byte %llu: token %u is not in the model's vocabulary of %u; the file was made for "
                             "another tokenizer",
                             self->path, (unsigned long long)(self->first_byte + 2 * (at + i)), tokens[i], vocabulary);
            else if (tokens[i] >= self->vocabulary)
                self->vocabulary = tokens[i] + 1;
        }
    }
    free(tokens);
    return rc;
}

static int open_tokens(struct token_row *self, const unsigned char *header, uint64_t file_bytes, uint32_t vocabulary,
                       struct cb_err *err)
{
    uint32_t version = u32_at(header + 4), count = u32_at(header + 8);
    if (version != VERSION_GPT2)
        return cb_fail(err, CB_ERR_FORMAT, "%s: a token file of version %u; only version %u can be read", self->path,
                       version, VERSION_GPT2);
    if (file_bytes != HEADER_BYTES + 2 * (uint64_t)count)
        return cb_fail(err, CB_ERR_FORMAT,
                       "%s has %llu bytes, but %u tokens and the header are %llu: cut off or damaged", self->path,
                       (unsigned long long)file_bytes, count, (unsigned long long)(HEADER_BYTES + 2 * (uint64_t)count));
    self->kind = "llm.c tokens";
    self->first_byte = HEADER_BYTES;
    self->token_bytes = 2;
    self->count = count;
    return check_tokens(self, vocabulary, err);
}

static int encode_text(struct token_row *self, const struct tokenizer *tokenizer, uint64_t file_bytes,
                       struct cb_err *err)
{
    if (file_bytes > LONGEST_TEXT)
        return cb_fail(err, CB_ERR_USAGE,
                       "%s has %llu bytes: too long to be encoded at every start; make a token file of it", self->path,
                       (unsigned long long)file_bytes);
    unsigned char *text = malloc(file_bytes + 1);
    if (!text)
        return alloc_fail(err, "for the %llu bytes of %s", (unsigned long long)file_bytes, self->path);
    int rc = read_at(self, 0, text, file_bytes, err);
    if (!rc)
        rc = tokenizer_encode(tokenizer, text, file_bytes, &self->memory, &self->count, err);
    free(text);
    uint32_t end = tokenizer_end_of_text(tokenizer);
    if (!rc && end != TOKENIZER_NO_TOKEN) {
        uint16_t *longer = realloc(self->memory, (self->count + 1) * sizeof *longer);
        if (!longer)
            return alloc_fail(err, "for the tokens of %s", self->path);
        self->memory = longer;
        self->memory[self->count++] = (uint16_t)end;
    }
    return rc;
}

static int open_pairs(struct token_row *self, const struct train_data_setup *setup, uint64_t file_bytes,
                      struct cb_err *err)
{
    struct tokenizer *tokenizer = NULL;
    int rc = tokenizer_open(setup->vocab_json, setup->merges, &tokenizer, err);
    if (rc)
        return rc;
    self->kind = "byte pairs";
    self->vocabulary = tokenizer_vocabulary(tokenizer);
    if (self->vocabulary > setup->vocabulary)
        rc = cb_fail(err, CB_ERR_USAGE, "%s has a vocabulary of %u, the model one of %u: take a model with room for it",
                     setup->vocab_json, self->vocabulary, setup->vocabulary);
    else
        rc = encode_text(self, tokenizer, file_bytes, err);
    tokenizer_free(tokenizer);
    return rc;
}

static int open_bytes(struct token_row *self, const struct train_data_setup *setup, uint64_t file_bytes,
                      struct cb_err *err)
{
    if (setup->vocabulary < BYTES_VOCABULARY)
        return cb_fail(err, CB_ERR_USAGE,
                       "bytes of %s are a vocabulary of %u, the model's is %u: take one with room for it", self->path,
                       BYTES_VOCABULARY, setup->vocabulary);
    self->kind = "bytes";
    self->vocabulary = BYTES_VOCABULARY;
    self->token_bytes = 1;
    self->count = file_bytes + 1;
    return 0;
}

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), want = strlen(end);
    return length >= want && strcmp(text + length - want, end) == 0;
}

static int open_text(struct token_row *self, const struct train_data_setup *setup, uint64_t file_bytes,
                     struct cb_err *err)
{
    if (file_bytes == 0)
        return cb_fail(err, CB_ERR_USAGE, "%s is empty: there is nothing to train on", self->path);
    return given(setup->vocab_json) ? open_pairs(self, setup, file_bytes, err)
                                    : open_bytes(self, setup, file_bytes, err);
}

int token_row_open(struct token_row *self, const struct train_data_setup *setup, struct cb_err *err)
{
    unsigned char header[HEADER_BYTES] = {0};
    struct stat about;
    *self = (struct token_row){.fd = open(setup->source, O_RDONLY | O_CLOEXEC | O_NONBLOCK), .path = setup->source};
    if (self->fd < 0)
        return cb_fail_errno(err, errno, "opening %s to train on", self->path);
    if (fstat(self->fd, &about) != 0)
        return cb_fail_errno(err, errno, "%s", self->path);
    if (!S_ISREG(about.st_mode))
        return cb_fail(err, CB_ERR_USAGE, "%s is no file: train on a token file or a text", self->path);
    if (given(setup->vocab_json) != given(setup->merges))
        return cb_fail(err, CB_ERR_USAGE, "byte pairs need both vocab.json and merges.txt");
    uint64_t bytes = (uint64_t)about.st_size;
    int rc = read_at(self, 0, header, bytes < HEADER_BYTES ? bytes : HEADER_BYTES, err);
    if (rc)
        return rc;
    uint32_t magic = u32_at(header);
    if (bytes >= HEADER_BYTES && magic == MAGIC_GPT2)
        return open_tokens(self, header, bytes, setup->vocabulary, err);
    if (bytes >= 4 && magic == MAGIC_LLAMA3)
        return cb_fail(err, CB_ERR_FORMAT, "%s has Llama 3's tokens of 4 bytes; only GPT-2's of 2 can be read",
                       self->path);
    if (ends_with(self->path, ".bin") || magic == MAGIC_GPT2)
        return cb_fail(
            err, CB_ERR_FORMAT,
            "%s is no llm.c token file: it begins with %u and has %llu bytes, not with %u and a header of %d",
            self->path, magic, (unsigned long long)bytes, MAGIC_GPT2, HEADER_BYTES);
    return open_text(self, setup, bytes, err);
}

void token_row_release(struct token_row *self)
{
    if (self->fd >= 0)
        close(self->fd);
    free(self->memory);
    *self = (struct token_row){.fd = -1};
}
