/* Splits a text into words as GPT-2 does. */
#include <stdbool.h>
#include <string.h>

#include "train/tokenizer.h"

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

/* All white space but its last character, which belongs to the next word; all of it at the end of the text, or if it
 * is a single character. */
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
