/* Pictures of blocks on a terminal: a column for each moment, higher or darker for more. Where the locale is not UTF-8
 * they are drawn with ASCII letters. They need no colours. */
#ifndef CLI_REPORT_BLOCKS_H
#define CLI_REPORT_BLOCKS_H

#include <stdbool.h>
#include <stddef.h>

#include "core/buf.h"

struct blocks {
    size_t columns; /* of the terminal, or 80 */
    bool unicode;
};

/* Whether the locale of characters (LC_ALL, LC_CTYPE, LANG) is UTF-8 by its name; the program itself stays in the C
 * locale. */
bool blocks_locale_is_utf8(void);

/* What an open file shows, such as stdout. */
struct blocks blocks_of(int fd);

enum blocks_kind { BLOCKS_HEIGHT, BLOCKS_SHADE };
/* Appends the block for a share of the largest value; a share above 0 is never blank. */
void blocks_add(const struct blocks *self, enum blocks_kind kind, double share, struct buf *out);
/* Appends a bar for each value between the least and the most of them: one of eight blocks, or a digit from 1 to 8. */
void blocks_add_bars(const struct blocks *self, const double *values, size_t count, struct buf *out);
/* Appends the mark for a moment in which something was under way and nothing came of it. */
void blocks_add_waiting(const struct blocks *self, struct buf *out);

#endif
