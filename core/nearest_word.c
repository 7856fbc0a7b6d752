/* "Did you mean": the candidate that a mistyped word is closest to. */
#include "core/nearest_word.h"

#include <string.h>

#define WORD_MAX_BYTES 64 /* longer words get no suggestion */

/* Edit distance where swapped neighbours count as one edit (optimal string alignment). */
static unsigned edit_distance(const char *a, size_t a_len, const char *b, size_t b_len)
{
    unsigned rows[3][WORD_MAX_BYTES + 1];
    unsigned *before = rows[0], *last = rows[1], *row = rows[2];
    for (size_t j = 0; j <= b_len; j++)
        last[j] = (unsigned)j;
    for (size_t i = 1; i <= a_len; i++) {
        row[0] = (unsigned)i;
        for (size_t j = 1; j <= b_len; j++) {
            unsigned best = last[j - 1] + (a[i - 1] != b[j - 1]);
            if (last[j] + 1 < best)
                best = last[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && before[j - 2] + 1 < best)
                best = before[j - 2] + 1;
            row[j] = best;
        }
        unsigned *spare = before;
        before = last;
        last = row;
        row = spare;
    }
    return last[b_len];
}

/* "depth" suggests "io.depth", "iter" suggests "iterations". */
static const char *word_by_part(const char *word, size_t len, const char *const *candidates, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const char *dot = strrchr(candidates[i], '.');
        if (dot && strcmp(dot + 1, word) == 0)
            return candidates[i];
    }
    for (size_t i = 0; i < count; i++)
        if (len >= 3 && strncmp(candidates[i], word, len) == 0)
            return candidates[i];
    return NULL;
}

const char *nearest_word(const char *word, const char *const *candidates, size_t count)
{
    size_t len = strlen(word);
    if (len == 0 || len > WORD_MAX_BYTES)
        return NULL;
    const char *nearest = NULL;
    unsigned best = len <= 3 ? 2 : (unsigned)(len / 3 + 2); /* one more than the largest distance that suggests */
    for (size_t i = 0; i < count; i++) {
        size_t candidate_len = strlen(candidates[i]);
        if (candidate_len > WORD_MAX_BYTES)
            continue;
        unsigned distance = edit_distance(word, len, candidates[i], candidate_len);
        if (distance < best && distance < len) {
            best = distance;
            nearest = candidates[i];
        }
    }
    const char *part = nearest && best <= 1 ? NULL : word_by_part(word, len, candidates, count);
    return part ? part : nearest;
}
