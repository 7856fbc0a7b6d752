/* UTF-8: valid sequences, and characters that must not reach a terminal. Pure. */
#ifndef CORE_UTF8_H
#define CORE_UTF8_H

#include <stddef.h>

/* Length of the sequence at `at`, 0 if invalid (RFC 3629). A NUL ends an incomplete sequence. */
size_t utf8_length(const unsigned char *at);

/* Replaces every byte of a terminal control character with '?' (C0 except those in `kept`, DEL, C1). */
void utf8_hide_controls(char *text, const char *kept);

#endif
