/* Aligned tables for people: columns as wide as their widest cell, two spaces between them.
 *
 * Widths count what a terminal shows (UTF-8; combining marks 0, wide East Asian letters 2). Colour
 * is the caller's choice: table_wants_colour() says whether a stream is a terminal that takes it.
 * Values; table_release frees the cells. Nothing is printed here: the text goes into a buffer. */
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
    bool right[TABLE_MAX_COLUMNS]; /* aligned right: figures */
    struct table_cell *cells;      /* rows * columns */
    size_t count, capacity;
    int code; /* 0, or CB_ERR_MEMORY: reported by table_write */
};

/* `alignment` has one letter a column: 'l' or 'r'. */
void table_init(struct table *self, const char *alignment);
void table_release(struct table *self);

/* Cells come in reading order; a row is complete after as many as there are columns. NULL is "-". */
void table_add(struct table *self, enum table_style style, const char *text);
void table_addf(struct table *self, enum table_style style, const char *format, ...) CB_PRINTF(3, 4);
/* The row of headings, bold. */
void table_add_headings(struct table *self, const char *const *headings);

/* What every row below the headings has in a column; NULL where they differ, and where there is none. Borrowed. */
const char *table_same_cell(const struct table *self, size_t column);
void table_drop_column(struct table *self, size_t column);

/* Appends every row as a line, `indent` spaces in front, no blanks at the end of a line. */
int table_write(const struct table *self, size_t indent, bool colour, struct buf *out,
                struct cb_err *err) CB_MUST_CHECK;

/* A terminal, NO_COLOR unset or empty, TERM not "dumb". */
bool table_wants_colour(FILE *stream);
/* The escape that starts a style, "" for plain; and the one that ends any. */
const char *table_style_start(enum table_style style);
const char *table_style_end(void);

/* Columns of a terminal that `text` takes. */
size_t table_text_width(const char *text);

#endif
