/* UTF-8 validation and escaping. */
#include "core/utf8.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

size_t utf8_length(const unsigned char *at)
{
    size_t len = at[0] < 0x80 ? 1 : at[0] < 0xC2 ? 0 : at[0] < 0xE0 ? 2 : at[0] < 0xF0 ? 3 : at[0] < 0xF5 ? 4 : 0;
    for (size_t i = 1; i < len; i++)
        if ((at[i] & 0xC0) != 0x80)
            return 0;
    if ((at[0] == 0xE0 && at[1] < 0xA0) || (at[0] == 0xED && at[1] > 0x9F) || (at[0] == 0xF0 && at[1] < 0x90) ||
        (at[0] == 0xF4 && at[1] > 0x8F))
        return 0;
    return len;
}

void utf8_hide_controls(char *text, const char *kept)
{
    for (unsigned char *p = (unsigned char *)text; *p; p++) {
        if ((*p < 0x20 || *p == 0x7F) && !strchr(kept, *p))
            *p = '?';
        else if (p[0] == 0xC2 && p[1] >= 0x80 && p[1] < 0xA0)
            p[0] = p[1] = '?';
    }
}

/* Bidirectional embeddings, overrides and isolates (Unicode TR 36, section 3.2). */
static bool turns_direction(unsigned point)
{
    return (point >= 0x202A && point <= 0x202E) || (point >= 0x2066 && point <= 0x2069);
}

size_t utf8_escape(const char *text, size_t len, size_t (*is_ours)(const char *at, size_t left), char *out)
{
    size_t made = 0;
    for (size_t at = 0; at < len;) {
        if (text[at] >= ' ' && text[at] < 0x7F) { /* nearly all of what is printed */
            out[made++] = text[at++];
            continue;
        }
        unsigned char bytes[5] = {0}; /* a NUL ends an incomplete sequence */
        memcpy(bytes, text + at, len - at < 4 ? len - at : 4);
        size_t ours = is_ours ? is_ours(text + at, len - at) : 0, count = ours ? ours : utf8_length(bytes);
        unsigned point = count == 1   ? bytes[0]
                         : count == 2 ? (bytes[0] & 0x1Fu) << 6 | (bytes[1] & 0x3Fu)
                         : count == 3 ? (bytes[0] & 0x0Fu) << 12 | (bytes[1] & 0x3Fu) << 6 | (bytes[2] & 0x3Fu)
                                      : 0x10000;
        bool ends_line = point == '\r' && bytes[1] == '\n'; /* as lines of CSV do */
        bool hidden = (point < 0x20 && point != '\n' && point != '\t' && !ends_line) ||
                      (point >= 0x7F && point < 0xA0) || turns_direction(point);
        if (count == 0)
            made += (size_t)sprintf(out + made, "\\x%02x", bytes[0]);
        else if (hidden && !ours)
            made += (size_t)sprintf(out + made, "\\u%04x", point);
        else
            memcpy(out + made, text + at, count), made += count;
        at += count ? count : 1;
    }
    return made;
}
