/* Sources of training tokens: files (llm.c's format, bytes of a text, byte pairs), cut into windows in a new order for each
 * epoch, and walks of a Markov chain. */
#include "train/data.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/alloc.h"
#include "engine/rng.h"
#include "train/tokenizer.h"

#define HEADER_NUMBERS 256
#define HEADER_BYTES (HEADER_NUMBERS * 4)
#define MAGIC_GPT2 20240520u
#define MAGIC_LLAMA3 20240801u
#define VERSION_GPT2 1u
#define BYTES_VOCABULARY 257u            /* 256 bytes and the end-of-text token */
#define CHUNK 8192                       /* number of tokens checked in one read */
#define LONGEST_TEXT (UINT64_C(8) << 30) /* largest text to encode in memory */

#define MOST_STATES 1024 /* fewer states than a large vocabulary, so that a short run sees each state often */
#define MOST_BRANCHES 8
#define ROUNDS 4

/* A row of tokens: from a file of 2-byte tokens, from the bytes of a text, or in memory. */
struct token_row {
    int fd; /* -1 if all tokens are in memory */
    uint64_t first_byte;
    uint32_t token_bytes; /* in the file: 2, or 1 for text, whose end-of-text token is not stored */
    uint16_t *memory;
    uint64_t count;
    const char *path; /* borrowed: for error messages */
    const char *kind; /* "llm.c tokens" */
};

/* A chain of `states`, each followed by one of `branches` others with probability 1/2, 1/4, ... (the last two are
 * equal). */
struct markov {
    uint64_t seed;
    uint32_t states, branches;
};

struct train_data {
    char *source;
    uint32_t sequence;
    uint64_t seed;
    bool is_markov;
    struct markov markov;
    struct token_row row;
    uint64_t training, validation; /* number of windows; the last ones are for validation */
    char about[512];
};

/* --- files --- */

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

static int token_row_read(const struct token_row *self, uint64_t first, uint64_t count, uint32_t *tokens,
                          struct cb_err *err)
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

static int check_tokens(const struct token_row *self, uint32_t vocabulary, struct cb_err *err)
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
    if (tokenizer_vocabulary(tokenizer) > setup->vocabulary)
        rc = cb_fail(err, CB_ERR_USAGE, "%s has a vocabulary of %u, the model one of %u: take a model with room for it",
                     setup->vocab_json, tokenizer_vocabulary(tokenizer), setup->vocabulary);
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
    self->token_bytes = 1;
    self->count = file_bytes + 1;
    return 0;
}

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), want = strlen(end);
    return length >= want && strcmp(text + length - want, end) == 0;
}

static int token_row_open(struct token_row *self, const struct train_data_setup *setup, struct cb_err *err)
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
    if (bytes == 0)
        return cb_fail(err, CB_ERR_USAGE, "%s is empty: there is nothing to train on", self->path);
    return given(setup->vocab_json) ? open_pairs(self, setup, bytes, err) : open_bytes(self, setup, bytes, err);
}

/* --- a Markov chain: each token depends only on the previous one, so a model can learn it --- */

static void markov_init(struct markov *self, uint32_t vocabulary, uint64_t seed)
{
    self->seed = rng_mix(seed ^ UINT64_C(0x6D61726B6F760000));
    self->states = vocabulary < MOST_STATES ? vocabulary : MOST_STATES;
    self->branches = self->states < MOST_BRANCHES ? self->states : MOST_BRANCHES;
}

/* The branches of a state lead to distinct states: equal steps that sum to less than a full turn. */
static uint32_t follow(const struct markov *self, uint32_t state, uint32_t branch)
{
    uint64_t random = rng_mix(self->seed + state);
    uint32_t start = (uint32_t)(random % self->states);
    uint32_t step = 1 + (uint32_t)((random >> 32) % (self->states / self->branches));
    return (uint32_t)((start + (uint64_t)branch * step) % self->states);
}

/* `count` tokens of walk number `walk`, and the token after them. */
static uint32_t markov_walk(const struct markov *self, uint64_t walk, uint64_t count, uint32_t *tokens)
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

/* --- windows and samples --- */

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
    if (self->row.fd >= 0)
        close(self->row.fd);
    free(self->row.memory);
    free(self->source);
    free(self);
}

const char *train_data_about(const struct train_data *self)
{
    return self->about;
}

uint64_t train_data_samples(const struct train_data *self, enum data_split split)
{
    return split == DATA_TRAINING ? self->training : self->validation;
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
