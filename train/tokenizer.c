/* Byte-pair encoding: vocabulary, merges, cutting a text into words, and merging the pairs of a word. */
#include "train/tokenizer.h"

#include <stdbool.h>
#include <string.h>

#include "core/alloc.h"
#include "core/hash.h"
#include "core/json.h"

#define MOST_TOKENS 65536
#define FILE_BYTES (UINT64_C(64) << 20)
#define WORD_BYTES 24    /* bytes of a cached word */
#define WORD_TOKENS 8    /* its tokens */
#define WORDS (1u << 15) /* slots of the word cache */
#define ON_STACK 256     /* pieces of a word that fit on the stack */

struct piece_text {
    unsigned char *bytes; /* inside `texts`; NULL if there is no such token */
    uint32_t len;
};

/* A pair that merges into one token. */
struct merge {
    uint32_t left, right, joined;
    uint32_t rank; /* 0 is an empty slot; the first rank is 1 */
};

struct tokenizer {
    struct piece_text *tokens; /* [vocabulary] */
    unsigned char *texts;      /* bytes of all tokens */
    uint32_t vocabulary, end_of_text;
    uint32_t byte_tokens[256];
    uint32_t *by_text; /* open hash of token + 1 by its bytes; 0 is an empty slot */
    uint32_t text_places;
    struct merge *merges;
    uint32_t merge_places;
};

/* GPT-2 represents a byte as a character: itself if printable, else from U+0100 on, in order. */
static bool byte_prints(unsigned byte)
{
    return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

static void characters_of_bytes(int bytes[512])
{
    unsigned next = 256;
    for (unsigned code = 0; code < 512; code++)
        bytes[code] = -1;
    for (unsigned byte = 0; byte < 256; byte++)
        bytes[byte_prints(byte) ? byte : next++] = (int)byte;
}

/* Bytes of a token in vocab.json; false if it has a character that represents no byte. `out` has room for `len`. */
static bool bytes_of_text(const int bytes[512], const char *text, size_t len, unsigned char *out, uint32_t *count)
{
    *count = 0;
    for (size_t i = 0; i < len; i++) {
        unsigned code = (unsigned char)text[i];
        if (code >= 0xC2 && code < 0xC8 && i + 1 < len)
            code = (code & 0x1Fu) << 6 | ((unsigned char)text[++i] & 0x3Fu);
        else if (code >= 0x80)
            return false;
        if (bytes[code] < 0)
            return false;
        out[(*count)++] = (unsigned char)bytes[code];
    }
    return true;
}

static uint32_t places_for(uint64_t count)
{
    uint32_t places = 16;
    while (places < 2 * count)
        places *= 2;
    return places;
}

/* The slot of these bytes, or the empty slot where they would go. */
static uint32_t text_place(const struct tokenizer *self, const unsigned char *bytes, uint32_t len)
{
    uint32_t place = (uint32_t)hash_u64(bytes, len) & (self->text_places - 1);
    while (self->by_text[place]) {
        const struct piece_text *token = &self->tokens[self->by_text[place] - 1];
        if (token->len == len && memcmp(token->bytes, bytes, len) == 0)
            break;
        place = (place + 1) & (self->text_places - 1);
    }
    return place;
}

static uint32_t find_text(const struct tokenizer *self, const unsigned char *bytes, uint32_t len)
{
    uint32_t found = self->by_text[text_place(self, bytes, len)];
    return found ? found - 1 : TOKENIZER_NO_TOKEN;
}

static struct merge *merge_place(const struct tokenizer *self, uint32_t left, uint32_t right)
{
    uint32_t pair[2] = {left, right}, place = (uint32_t)hash_u64(pair, sizeof pair) & (self->merge_places - 1);
    while (self->merges[place].rank && (self->merges[place].left != left || self->merges[place].right != right))
        place = (place + 1) & (self->merge_places - 1);
    return &self->merges[place];
}

/* Highest token, and an upper bound of the bytes of all texts. */
static int measure_vocabulary(const struct json_value *root, uint64_t *tokens, uint64_t *bytes, struct cb_err *err)
{
    const char *key;
    const struct json_value *value;
    size_t position = 0;
    *tokens = *bytes = 0;
    while (json_next(root, &position, &key, &value)) {
        uint64_t token;
        if (!json_as_u64(value, &token) || token >= MOST_TOKENS)
            return cb_fail(err, CB_ERR_FORMAT, "vocab.json: \"%.40s\" has no number below %d", key, MOST_TOKENS);
        *tokens = token >= *tokens ? token + 1 : *tokens;
        *bytes += strlen(key);
    }
    return *tokens ? 0 : cb_fail(err, CB_ERR_FORMAT, "vocab.json: no object of tokens and their numbers");
}

static int take_token(struct tokenizer *self, const int bytes[512], const char *key, uint32_t token,
                      unsigned char **next, struct cb_err *err)
{
    struct piece_text *text = &self->tokens[token];
    size_t len = strlen(key);
    if (text->bytes)
        return cb_fail(err, CB_ERR_FORMAT, "vocab.json: two tokens are number %u, \"%.40s\" is the second", token, key);
    text->bytes = *next;
    if (!bytes_of_text(bytes, key, len, *next, &text->len)) { /* a special token: encoding a text never produces it */
        memcpy(*next, key, len);
        text->len = (uint32_t)len;
        *next += len;
        return 0;
    }
    *next += text->len;
    if (strcmp(key, "<|endoftext|>") == 0) {
        self->end_of_text = token;
        return 0;
    }
    uint32_t place = text_place(self, text->bytes, text->len);
    if (text->len > 0 && !self->by_text[place])
        self->by_text[place] = token + 1;
    return 0;
}

static int take_vocabulary(struct tokenizer *self, const struct json_value *root, const int bytes[512],
                           struct cb_err *err)
{
    uint64_t tokens, text_bytes;
    int rc = measure_vocabulary(root, &tokens, &text_bytes, err);
    if (rc)
        return rc;
    self->vocabulary = (uint32_t)tokens;
    self->end_of_text = TOKENIZER_NO_TOKEN;
    self->text_places = places_for(tokens);
    self->tokens = calloc(tokens, sizeof *self->tokens);
    self->by_text = calloc(self->text_places, sizeof *self->by_text);
    self->texts = malloc(text_bytes + 1);
    if (!self->tokens || !self->by_text || !self->texts)
        return alloc_fail(err, "for a vocabulary of %u tokens", self->vocabulary);
    const char *key;
    const struct json_value *value;
    unsigned char *next = self->texts;
    size_t position = 0;
    while (json_next(root, &position, &key, &value)) {
        uint64_t token = 0;
        (void)json_as_u64(value, &token);
        rc = take_token(self, bytes, key, (uint32_t)token, &next, err);
        if (rc)
            return rc;
    }
    for (unsigned byte = 0; byte < 256; byte++) {
        unsigned char one = (unsigned char)byte;
        self->byte_tokens[byte] = find_text(self, &one, 1);
        if (self->byte_tokens[byte] == TOKENIZER_NO_TOKEN)
            return cb_fail(err, CB_ERR_FORMAT, "vocab.json: no token for the byte 0x%02x", byte);
    }
    return 0;
}

/* One line "LEFT RIGHT" without its end. */
static int take_merge(struct tokenizer *self, const int bytes[512], const char *line, size_t len, uint64_t number,
                      uint32_t *rank, struct cb_err *err)
{
    unsigned char joined[512];
    uint32_t left_len = 0, right_len = 0;
    const char *space = memchr(line, ' ', len);
    size_t left_text = space ? (size_t)(space - line) : 0;
    if (!space || len > sizeof joined || !bytes_of_text(bytes, line, left_text, joined, &left_len) ||
        !bytes_of_text(bytes, space + 1, len - left_text - 1, joined + left_len, &right_len) || !left_len || !right_len)
        return cb_fail(err, CB_ERR_FORMAT, "merges.txt, line %llu: not two tokens with a space between them",
                       (unsigned long long)number);
    uint32_t left = find_text(self, joined, left_len), right = find_text(self, joined + left_len, right_len);
    uint32_t whole = find_text(self, joined, left_len + right_len);
    if (left == TOKENIZER_NO_TOKEN || right == TOKENIZER_NO_TOKEN || whole == TOKENIZER_NO_TOKEN)
        return cb_fail(err, CB_ERR_FORMAT,
                       "merges.txt, line %llu: vocab.json does not have these two tokens and the one they become; "
                       "the files belong to different vocabularies",
                       (unsigned long long)number);
    struct merge *merge = merge_place(self, left, right);
    if (!merge->rank)
        *merge = (struct merge){.left = left, .right = right, .joined = whole, .rank = ++*rank};
    return 0;
}

static int take_merges(struct tokenizer *self, const char *text, size_t len, const int bytes[512], struct cb_err *err)
{
    uint64_t lines = 1, number = 0;
    uint32_t rank = 0;
    for (size_t i = 0; i < len; i++)
        lines += text[i] == '\n';
    self->merge_places = places_for(lines);
    self->merges = calloc(self->merge_places, sizeof *self->merges);
    if (!self->merges)
        return alloc_fail(err, "for %llu merges", (unsigned long long)lines);
    for (size_t at = 0; at < len; number++) {
        const char *line = text + at, *end = memchr(line, '\n', len - at);
        size_t line_len = end ? (size_t)(end - line) : len - at;
        at += line_len + 1;
        if (line_len && line[line_len - 1] == '\r')
            line_len--;
        if (line_len == 0 || (number == 0 && line[0] == '#'))
            continue;
        int rc = take_merge(self, bytes, line, line_len, number + 1, &rank, err);
        if (rc)
            return rc;
    }
    return 0;
}

int tokenizer_parse(const char *vocab, size_t vocab_len, const char *merges, size_t merges_len,
                    struct tokenizer **tokenizer, struct cb_err *err)
{
    int bytes[512];
    struct json_value *root = NULL;
    int rc = json_parse(vocab, vocab_len, &root, err);
    if (rc)
        return err ? cb_context(err, "vocab.json") : rc;
    struct tokenizer *self = calloc(1, sizeof *self);
    characters_of_bytes(bytes);
    if (!self)
        rc = alloc_fail(err, "for a tokenizer");
    if (!rc)
        rc = take_vocabulary(self, root, bytes, err);
    if (!rc)
        rc = take_merges(self, merges, merges_len, bytes, err);
    json_value_free(root);
    if (rc)
        tokenizer_free(self);
    else
        *tokenizer = self;
    return rc;
}

int tokenizer_open(const char *vocab_json, const char *merges, struct tokenizer **tokenizer, struct cb_err *err)
{
    struct buf vocab_text, merges_text;
    buf_init(&vocab_text, FILE_BYTES);
    buf_init(&merges_text, FILE_BYTES);
    int rc = buf_read_file(&vocab_text, vocab_json, err);
    if (!rc)
        rc = buf_read_file(&merges_text, merges, err);
    if (!rc)
        rc = tokenizer_parse(vocab_text.data, vocab_text.len, merges_text.data, merges_text.len, tokenizer, err);
    if (rc && rc == CB_ERR_FORMAT && err)
        rc = cb_context(err, "%s and %s", vocab_json, merges);
    buf_release(&vocab_text);
    buf_release(&merges_text);
    return rc;
}

void tokenizer_free(struct tokenizer *self)
{
    if (!self)
        return;
    free(self->tokens);
    free(self->texts);
    free(self->by_text);
    free(self->merges);
    free(self);
}

uint32_t tokenizer_vocabulary(const struct tokenizer *self)
{
    return self->vocabulary;
}

uint32_t tokenizer_end_of_text(const struct tokenizer *self)
{
    return self->end_of_text;
}

/* --- words, as GPT-2 cuts a text --- */

enum sign { SIGN_SPACE, SIGN_LETTER, SIGN_NUMBER, SIGN_OTHER };

struct range {
    uint32_t first, last;
};

#include "train/unicode_ranges.def"

static bool is_in(const struct range *ranges, size_t count, uint32_t code)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (code > ranges[middle].last)
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && code >= ranges[low].first;
}

static bool is_space(uint32_t code)
{
    return (code >= 9 && code <= 13) || code == ' ' || code == 0x85 || code == 0xA0 || code == 0x1680 ||
           (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F ||
           code == 0x3000;
}

/* Length of the character at `text`; 1 and no code point for an invalid byte. */
static uint64_t character(const unsigned char *text, uint64_t len, uint32_t *code)
{
    unsigned char first = text[0];
    uint64_t length = first < 0x80                    ? 1
                      : first >= 0xC2 && first < 0xE0 ? 2
                      : first >= 0xE0 && first < 0xF0 ? 3
                      : first >= 0xF0 && first < 0xF5 ? 4
                                                      : 0;
    static const unsigned char kept[] = {0, 0x7F, 0x1F, 0x0F, 0x07};
    *code = UINT32_MAX;
    if (length == 0 || length > len)
        return 1;
    uint32_t value = first & kept[length];
    for (uint64_t i = 1; i < length; i++) {
        if ((text[i] & 0xC0) != 0x80)
            return 1;
        value = value << 6 | (text[i] & 0x3Fu);
    }
    *code = value;
    return length;
}

static enum sign sign_at(const unsigned char *text, uint64_t len, uint64_t *length)
{
    uint32_t code;
    *length = character(text, len, &code);
    if (code < 0x80) {
        if ((code | 0x20) >= 'a' && (code | 0x20) <= 'z')
            return SIGN_LETTER;
        if (code >= '0' && code <= '9')
            return SIGN_NUMBER;
        return is_space(code) ? SIGN_SPACE : SIGN_OTHER;
    }
    if (is_in(letters, sizeof letters / sizeof *letters, code))
        return SIGN_LETTER;
    if (is_in(numbers, sizeof numbers / sizeof *numbers, code))
        return SIGN_NUMBER;
    return is_space(code) ? SIGN_SPACE : SIGN_OTHER;
}

/* Length of the contraction here ('s, 're, ...), 0 if there is none. */
static uint64_t contraction(const unsigned char *text, uint64_t len)
{
    static const char *const endings[] = {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"};
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        size_t length = strlen(endings[i]);
        if (len >= length && memcmp(text, endings[i], length) == 0)
            return length;
    }
    return 0;
}

/* White space except its last character, which belongs to the next word; all of it at the end of the text, or if it is
 * a single character. */
static uint64_t white_space(const unsigned char *text, uint64_t len)
{
    uint64_t at = 0, last = 0, length;
    while (at < len && sign_at(text + at, len - at, &length) == SIGN_SPACE) {
        last = at;
        at += length;
    }
    return at == len || last == 0 ? at : last;
}

uint64_t tokenizer_word(const unsigned char *text, uint64_t len)
{
    uint64_t found = contraction(text, len), length;
    if (found)
        return found;
    uint64_t at = text[0] == ' ' && len > 1 ? 1 : 0;
    enum sign sign = sign_at(text + at, len - at, &length);
    if (sign == SIGN_SPACE)
        return white_space(text, len);
    while (at < len && sign_at(text + at, len - at, &length) == sign)
        at += length;
    return at;
}

/* --- encoding --- */

/* Merges the pairs of the lowest rank until no pair can be merged; returns how many pieces remain. */
static uint64_t join_pairs(const struct tokenizer *self, uint32_t *pieces, uint64_t count)
{
    for (;;) {
        struct merge best = {.rank = 0};
        for (uint64_t i = 0; i + 1 < count; i++) {
            const struct merge *merge = merge_place(self, pieces[i], pieces[i + 1]);
            if (merge->rank && (!best.rank || merge->rank < best.rank))
                best = *merge;
        }
        if (!best.rank)
            return count;
        uint64_t kept = 0;
        for (uint64_t i = 0; i < count; i++, kept++) {
            bool pair = i + 1 < count && pieces[i] == best.left && pieces[i + 1] == best.right;
            pieces[kept] = pair ? best.joined : pieces[i];
            i += pair;
        }
        count = kept;
    }
}

/* Looks up the cache entry of a word: most words of a text have occurred before. */
struct known_word {
    unsigned char bytes[WORD_BYTES];
    uint16_t tokens[WORD_TOKENS];
    uint8_t len, count; /* len 0: an empty slot */
};

struct encoding {
    const struct tokenizer *tokenizer;
    struct known_word *known;
    uint16_t *tokens;
    uint64_t count, room;
};

static int append(struct encoding *self, const uint32_t *pieces, uint64_t count, struct cb_err *err)
{
    if (self->count + count > self->room) {
        uint64_t room = 2 * self->room + count;
        uint16_t *tokens = realloc(self->tokens, room * sizeof *tokens);
        if (!tokens)
            return alloc_fail(err, "for %llu tokens", (unsigned long long)room);
        self->tokens = tokens;
        self->room = room;
    }
    for (uint64_t i = 0; i < count; i++)
        self->tokens[self->count++] = (uint16_t)pieces[i];
    return 0;
}

static void remember(struct known_word *place, const unsigned char *word, uint64_t len, const uint32_t *pieces,
                     uint64_t count)
{
    if (len > WORD_BYTES || count > WORD_TOKENS)
        return;
    place->len = (uint8_t)len;
    place->count = (uint8_t)count;
    memcpy(place->bytes, word, len);
    for (uint64_t i = 0; i < count; i++)
        place->tokens[i] = (uint16_t)pieces[i];
}

static int encode_word(struct encoding *self, const unsigned char *word, uint64_t len, struct cb_err *err)
{
    uint32_t few[ON_STACK] = {0}, *pieces = few;
    struct known_word *place = &self->known[hash_u64(word, len) % WORDS];
    if (place->len && place->len == len && memcmp(place->bytes, word, len) == 0) {
        for (uint64_t i = 0; i < place->count; i++)
            few[i] = place->tokens[i];
        return append(self, few, place->count, err);
    }
    if (len > ON_STACK)
        pieces = malloc(len * sizeof *pieces);
    if (!pieces)
        return alloc_fail(err, "for a word of %llu bytes", (unsigned long long)len);
    for (uint64_t i = 0; i < len; i++)
        pieces[i] = self->tokenizer->byte_tokens[word[i]];
    uint64_t count = join_pairs(self->tokenizer, pieces, len);
    remember(place, word, len, pieces, count);
    int rc = append(self, pieces, count, err);
    if (pieces != few)
        free(pieces);
    return rc;
}

int tokenizer_encode(const struct tokenizer *self, const unsigned char *text, uint64_t len, uint16_t **tokens,
                     uint64_t *count, struct cb_err *err)
{
    struct encoding encoding = {.tokenizer = self, .room = len / 4 + 16};
    encoding.known = calloc(WORDS, sizeof *encoding.known);
    encoding.tokens = malloc(encoding.room * sizeof *encoding.tokens);
    int rc = encoding.known && encoding.tokens ? 0 : alloc_fail(err, "to encode a text");
    for (uint64_t at = 0; at < len && !rc;) {
        uint64_t word = tokenizer_word(text + at, len - at);
        rc = encode_word(&encoding, text + at, word, err);
        at += word;
    }
    free(encoding.known);
    if (rc) {
        free(encoding.tokens);
        return rc;
    }
    *tokens = encoding.tokens;
    *count = encoding.count;
    return 0;
}

int tokenizer_decode(const struct tokenizer *self, const uint16_t *tokens, uint64_t count, struct buf *text,
                     struct cb_err *err)
{
    for (uint64_t i = 0; i < count; i++) {
        if (tokens[i] >= self->vocabulary || !self->tokens[tokens[i]].bytes)
            return cb_fail(err, CB_ERR_FORMAT, "no token %u in the vocabulary", tokens[i]);
        buf_append(text, self->tokens[tokens[i]].bytes, self->tokens[tokens[i]].len);
    }
    return buf_check(text, "the decoded text", err);
}
