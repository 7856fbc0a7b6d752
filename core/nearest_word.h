/* For "did you mean": finds the word that a mistyped one was meant to be. Pure. */
#ifndef CORE_NEAREST_WORD_H
#define CORE_NEAREST_WORD_H

#include <stddef.h>

/* The candidate with the smallest edit distance to `word`, or NULL if none is close enough to be a typo. */
const char *nearest_word(const char *word, const char *const *candidates, size_t count);

#endif
