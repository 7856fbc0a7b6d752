/* Layout and styles of aligned tables. */
#include "cli/report/table.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/utf8.h"

void table_init(struct table *self, const char *alignment)
{
    *self = (struct table){0};
    for (; alignment[self->columns] && self->columns < TABLE_MAX_COLUMNS; self->columns++)
        self->right[self->columns] = alignment[self->columns] == 'r';
}

void table_release(struct table *self)
{
    for (size_t i = 0; i < self->count; i++)
        free(self->cells[i].text);
    free(self->cells);
    *self = (struct table){.columns = self->columns};
}

static void add_taken(struct table *self, enum table_style style, char *text)
{
    if (!text || self->code) {
        free(text);
        self->code = CB_ERR_MEMORY;
        return;
    }
    utf8_hide_controls(text, ""); /* names and labels may contain anything; a cell is one line */
    if (self->count == self->capacity) {
        size_t capacity = self->capacity ? self->capacity * 2 : 64;
        struct table_cell *cells = realloc(self->cells, capacity * sizeof *cells);
        if (!cells) {
            free(text);
            self->code = CB_ERR_MEMORY;
            return;
        }
        self->cells = cells;
        self->capacity = capacity;
    }
    self->cells[self->count++] = (struct table_cell){.text = text, .style = style};
}

void table_add(struct table *self, enum table_style style, const char *text)
{
    add_taken(self, style, strdup(text ? text : "-"));
}

static void add_formatted(struct table *self, enum table_style style, const char *format, va_list arguments)
{
    char *text = NULL;
    if (vasprintf(&text, format, arguments) < 0)
        text = NULL;
    add_taken(self, style, text);
}

void table_addf(struct table *self, enum table_style style, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    add_formatted(self, style, format, arguments);
    va_end(arguments);
}

void table_add_known(struct table *self, enum table_style style, bool known, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    add_formatted(self, style, known ? format : "-", arguments);
    va_end(arguments);
}

void table_add_headings(struct table *self, const char *const *headings)
{
    for (size_t i = 0; i < self->columns; i++)
        table_add(self, TABLE_BOLD, headings[i]);
}

const char *table_same_cell(const struct table *self, size_t column)
{
    const char *same = NULL;
    for (size_t i = self->columns + column; i < self->count; i += self->columns) {
        if (same && strcmp(same, self->cells[i].text) != 0)
            return NULL;
        same = self->cells[i].text;
    }
    return same;
}

void table_drop_column(struct table *self, size_t column)
{
    size_t kept = 0;
    for (size_t i = 0; i < self->count; i++) {
        if (i % self->columns == column)
            free(self->cells[i].text);
        else
            self->cells[kept++] = self->cells[i];
    }
    self->count = kept;
    self->columns--;
    memmove(&self->right[column], &self->right[column + 1], (self->columns - column) * sizeof self->right[0]);
}

/* The next code point; a byte that is not UTF-8 counts as one. */
static uint32_t next_code_point(const unsigned char **text)
{
    const unsigned char *p = *text;
    uint32_t point = *p++;
    size_t more = point >= 0xF0 ? 3 : point >= 0xE0 ? 2 : point >= 0xC0 ? 1 : 0;
    if (more)
        point &= 0x3Fu >> more;
    for (; more && (*p & 0xC0) == 0x80; more--)
        point = point << 6 | (*p++ & 0x3F);
    *text = p;
    return point;
}

static bool in_ranges(uint32_t point, const uint32_t (*ranges)[2], size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (point >= ranges[i][0] && point <= ranges[i][1])
            return true;
    return false;
}

size_t table_text_width(const char *text)
{
    static const uint32_t none[][2] = {{0x300, 0x36F}, {0x200B, 0x200F}, {0xFE00, 0xFE0F}, {0x20D0, 0x20FF}};
    static const uint32_t wide[][2] = {{0x1100, 0x115F}, {0x2E80, 0xA4CF},   {0xAC00, 0xD7A3},
                                       {0xF900, 0xFAFF}, {0xFE30, 0xFE6F},   {0xFF00, 0xFF60},
                                       {0xFFE0, 0xFFE6}, {0x1F300, 0x1FAFF}, {0x20000, 0x3FFFD}};
    const unsigned char *p = (const unsigned char *)text;
    size_t width = 0;
    while (*p) {
        uint32_t point = next_code_point(&p);
        if (in_ranges(point, none, sizeof none / sizeof none[0]))
            continue;
        width += in_ranges(point, wide, sizeof wide / sizeof wide[0]) ? 2 : 1;
    }
    return width;
}

const char *table_style_start(enum table_style style)
{
    static const char *const starts[] = {"", "\033[1m", "\033[2m", "\033[32m", "\033[31m", "\033[33m"};
    return starts[style];
}

const char *table_style_end(void)
{
    return "\033[0m";
}

static void append_spaces(struct buf *out, size_t count)
{
    buf_printf(out, "%*s", (int)count, "");
}

static void write_cell(const struct table_cell *cell, bool colour, struct buf *out)
{
    bool styled = colour && cell->style != TABLE_PLAIN && cell->text[0];
    if (styled)
        buf_append_text(out, table_style_start(cell->style));
    buf_append_text(out, cell->text);
    if (styled)
        buf_append_text(out, table_style_end());
}

static void write_row(const struct table *self, const struct table_cell *row, const size_t *widths, size_t indent,
                      bool colour, struct buf *out)
{
    size_t last = self->columns;
    while (last > 0 && !row[last - 1].text[0])
        last--;
    append_spaces(out, last ? indent : 0);
    for (size_t column = 0; column < last; column++) {
        size_t padding = widths[column] - table_text_width(row[column].text);
        if (self->right[column])
            append_spaces(out, padding);
        write_cell(&row[column], colour, out);
        if (column + 1 < last)
            append_spaces(out, (self->right[column] ? 0 : padding) + 2);
    }
    buf_append_char(out, '\n');
}

static void find_widths(const struct table *self, size_t widths[TABLE_MAX_COLUMNS])
{
    memset(widths, 0, TABLE_MAX_COLUMNS * sizeof *widths);
    for (size_t i = 0; self->columns && i < self->count; i++) {
        size_t width = table_text_width(self->cells[i].text);
        if (width > widths[i % self->columns])
            widths[i % self->columns] = width;
    }
}

size_t table_fit(struct table *self, size_t most, size_t kept)
{
    size_t widths[TABLE_MAX_COLUMNS], before = self->columns, used = 0, column = 0;
    find_widths(self, widths);
    while (column < self->columns && (column < kept || used + widths[column] <= most))
        used += widths[column++] + 2;
    while (self->columns > column)
        table_drop_column(self, self->columns - 1);
    return before - self->columns;
}

int table_write(const struct table *self, size_t indent, bool colour, struct buf *out, struct cb_err *err)
{
    if (self->code)
        return cb_fail(err, self->code, "no memory for a table of %zu cells", self->count);
    size_t widths[TABLE_MAX_COLUMNS], rows = self->columns ? self->count / self->columns : 0;
    find_widths(self, widths);
    for (size_t row = 0; row < rows; row++)
        write_row(self, self->cells + row * self->columns, widths, indent, colour, out);
    return buf_check(out, "a table", err);
}

int table_finish(struct table *self, bool colour, struct buf *out, struct cb_err *err)
{
    int rc = table_has_rows(self) ? table_write(self, 0, colour, out, err) : 0;
    table_release(self);
    return rc;
}

bool table_has_rows(const struct table *self)
{
    return self->count > self->columns;
}

bool table_wants_colour(FILE *stream)
{
    const char *none = getenv("NO_COLOR");
    const char *terminal = getenv("TERM");
    return isatty(fileno(stream)) && !(none && *none) && terminal && strcmp(terminal, "dumb") != 0;
}
