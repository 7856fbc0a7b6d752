/* Aligned tables for people: columns as wide as their widest cell, two spaces between them.
 *
 * Widths are those of a terminal (UTF-8; combining marks 0, wide East Asian letters 2). The caller decides about
 * colour: table_wants_colour() says whether a stream is a terminal that shows it. Text is appended to a buffer;
 * table_release frees the cells. */
#ifndef CLI_REPORT_TABLE_H
#define CLI_REPORT_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "core/buf.h"
#include "core/err.h"

#define TABLE_MAX_COLUMNS 64

enum table_style { TABLE_PLAIN, TABLE_BOLD, TABLE_DIM, TABLE_GOOD, TABLE_BAD, TABLE_WARN };

struct table_cell {
    char *text; /* owned */
    enum table_style style;
};

struct table {
    size_t columns;
    bool right[TABLE_MAX_COLUMNS]; /* aligned right, for figures */
    struct table_cell *cells;      /* rows * columns */
    size_t count, capacity;
    int code; /* 0, or CB_ERR_MEMORY, which table_write returns */
};

/* `alignment` has one letter for each column: 'l' or 'r'. */
void table_init(struct table *self, const char *alignment);
void table_release(struct table *self);

/* Adds the next cell, row by row from left to right. NULL is "-". */
void table_add(struct table *self, enum table_style style, const char *text);
void table_addf(struct table *self, enum table_style style, const char *format, ...) CB_PRINTF(3, 4);
/* The same, or "-" for an unknown value. */
void table_add_known(struct table *self, enum table_style style, bool known, const char *format, ...) CB_PRINTF(4, 5);
/* Adds the row of headings, in bold. */
void table_add_headings(struct table *self, const char *const *headings);

/* The text that a column has in all rows below the headings; NULL if they differ or there are no rows. Borrowed. */
const char *table_same_cell(const struct table *self, size_t column);
void table_drop_column(struct table *self, size_t column);
/* Drops columns from the right until a line has at most so many characters; the first `kept` columns stay. Returns how
 * many it dropped. */
size_t table_fit(struct table *self, size_t most, size_t kept);

/* Appends every row as a line after `indent` spaces, without trailing blanks. */
int table_write(const struct table *self, size_t indent, bool colour, struct buf *out,
                struct cb_err *err) CB_MUST_CHECK;

/* Writes the table, unless it has no rows below the headings, and releases it. */
int table_finish(struct table *self, bool colour, struct buf *out, struct cb_err *err) CB_MUST_CHECK;
/* Whether it has rows below the headings. */
bool table_has_rows(const struct table *self);

/* Whether the stream is a terminal, NO_COLOR is unset or empty, and TERM is not "dumb". */
bool table_wants_colour(FILE *stream);
/* The escape sequence that starts a style ("" for plain), and the one that ends any style. */
const char *table_style_start(enum table_style style);
const char *table_style_end(void);

/* Terminal columns that `text` occupies. */
size_t table_text_width(const char *text);

#endif
