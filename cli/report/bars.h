/* A row of bars for a terminal: one character a value. */
#ifndef CLI_REPORT_BARS_H
#define CLI_REPORT_BARS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "core/buf.h"

/* Whether block characters can be written to the stream: it is no terminal (files and pipes are UTF-8), or the locale's
 * encoding (LC_ALL, LC_CTYPE, LANG) is UTF-8. */
bool bars_have_blocks(FILE *stream);

/* Appends a bar for each value between the least and the most of them: one of eight blocks, or without `blocks` a digit
 * from 1 to 8. */
void bars_write(const double *values, size_t count, bool blocks, struct buf *out);

#endif
