/* UTF-8: valid sequences, and characters that must not reach a terminal. Pure. */
#ifndef CORE_UTF8_H
#define CORE_UTF8_H

#include <stddef.h>

/* Length of the sequence at `at`, 0 if invalid (RFC 3629). A NUL ends an incomplete sequence. */
size_t utf8_length(const unsigned char *at);

/* Replaces every byte of a terminal control character with '?' (C0 except those in `kept`, DEL, C1). */
void utf8_hide_controls(char *text, const char *kept);

/* Makes a text safe to print anywhere: escapes controls (C0 but tabs and line ends, DEL, C1) and characters that turn
 * the direction of writing as \u001b, invalid bytes as \xff. `out` has room for UTF8_ESCAPED_MAX bytes a byte of the
 * text; returns how many were written. Sequences for which `is_ours` returns their length are kept; it may be NULL. */
#define UTF8_ESCAPED_MAX 6
size_t utf8_escape(const char *text, size_t len, size_t (*is_ours)(const char *at, size_t left), char *out);

#endif
