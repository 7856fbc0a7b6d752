/* UTF-8: what is a character, and what is not. Pure. */
#ifndef CORE_UTF8_H
#define CORE_UTF8_H

#include <stddef.h>

/* Length of the sequence at `at`, 0 where it is none (RFC 3629). A NUL stops short ones. */
size_t utf8_length(const unsigned char *at);

/* Puts '?' for every byte of a character that terminals obey (C0 but those in `kept`, DEL, C1). */
void utf8_hide_controls(char *text, const char *kept);

#endif
