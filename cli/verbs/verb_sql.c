/* ckptbench sql: runs one SELECT on the history, read-only. */
#include <inttypes.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/report/table.h"
#include "core/json.h"
#include "db/history.h"

#define MAX_CELL_BYTES 200 /* width limit of a cell in a table */

struct answer {
    struct cli *cli;
    struct table table;
    struct json_writer json;
    char names[TABLE_MAX_COLUMNS][128];
};

static void append_hex(struct buf *out, const struct query_cell *cell)
{
    for (size_t i = 0; i < cell->bytes; i++)
        buf_printf(out, "%02x", (unsigned)(unsigned char)cell->text[i]);
}

/* RFC 4180: quotes cells only if necessary; null is empty. */
static void append_csv(struct buf *out, const struct query_cell *cell)
{
    if (cell->type == CELL_INTEGER)
        buf_printf(out, "%" PRId64, cell->integer);
    else if (cell->type == CELL_REAL)
        buf_printf(out, "%.17g", cell->real);
    else if (cell->type == CELL_BLOB)
        append_hex(out, cell);
    if (cell->type != CELL_TEXT)
        return;
    if (!cell->text[strcspn(cell->text, ",\"\r\n")]) {
        buf_append_text(out, cell->text);
        return;
    }
    buf_append_char(out, '"');
    for (const char *c = cell->text; *c; c++)
        buf_printf(out, *c == '"' ? "\"\"" : "%c", *c);
    buf_append_char(out, '"');
}

static int csv_row(void *context, bool is_header, const struct query_cell *cells, size_t count, struct cb_err *err)
{
    struct answer *self = context;
    (void)is_header;
    for (size_t i = 0; i < count; i++) {
        if (i)
            buf_append_char(&self->cli->out, ',');
        append_csv(&self->cli->out, &cells[i]);
    }
    buf_append_text(&self->cli->out, "\r\n");
    return self->cli->out.len > (1u << 20) ? cli_flush(self->cli, err) : 0;
}

static void json_cell(struct json_writer *json, const struct query_cell *cell)
{
    struct buf hex;
    switch (cell->type) {
    case CELL_INTEGER:
        json_write_i64(json, cell->integer);
        break;
    case CELL_REAL:
        json_write_double(json, cell->real);
        break;
    case CELL_TEXT:
        json_write_text(json, cell->text);
        break;
    case CELL_BLOB:
        buf_init(&hex, 2 * cell->bytes + 1);
        append_hex(&hex, cell);
        json_write_text(json, hex.data);
        buf_release(&hex);
        break;
    default:
        json_write_null(json);
    }
}

static void add_cell(struct table *table, enum table_style style, const struct query_cell *cell)
{
    if (cell->type == CELL_INTEGER)
        table_addf(table, style, "%" PRId64, cell->integer);
    else if (cell->type == CELL_REAL)
        table_addf(table, style, "%.6g", cell->real);
    else if (cell->type == CELL_TEXT)
        table_addf(table, style, "%.*s%s", MAX_CELL_BYTES, cell->text, cell->bytes > MAX_CELL_BYTES ? "..." : "");
    else if (cell->type == CELL_BLOB)
        table_addf(table, TABLE_DIM, "(%zu bytes)", cell->bytes);
    else
        table_add(table, TABLE_DIM, NULL);
}

static int add_row(void *context, bool is_header, const struct query_cell *cells, size_t count, struct cb_err *err)
{
    struct answer *self = context;
    bool json = self->cli->json;
    char alignment[TABLE_MAX_COLUMNS + 1] = "";
    if (count > TABLE_MAX_COLUMNS)
        return cb_fail(err, CB_ERR_USAGE, "%zu columns are more than %d: name those you need, or use --csv", count,
                       TABLE_MAX_COLUMNS);
    if (json && !is_header)
        json_write_begin_object(&self->json);
    if (!json && is_header) {
        memset(alignment, 'l', count);
        table_init(&self->table, alignment);
    }
    for (size_t i = 0; i < count; i++) {
        bool is_number = cells[i].type == CELL_INTEGER || cells[i].type == CELL_REAL;
        if (json && is_header) {
            strncpy(self->names[i], cells[i].text, sizeof self->names[i] - 1);
        } else if (json) {
            json_write_key(&self->json, self->names[i]);
            json_cell(&self->json, &cells[i]);
        } else {
            self->table.right[i] |= is_number && !is_header;
            add_cell(&self->table, is_header ? TABLE_BOLD : TABLE_PLAIN, &cells[i]);
        }
    }
    if (json && !is_header)
        json_write_end_object(&self->json);
    return 0;
}

static int run_sql(struct cli *cli, struct cb_err *err)
{
    struct history *history;
    struct answer answer = {.cli = cli};
    bool csv = cli_has_flag(cli, "csv");
    if (cli->word_count != 1)
        return cb_fail(err, CB_ERR_USAGE, "sql takes one SELECT in quotes, as `ckptbench sql 'select run from run'`");
    int rc = history_open_read_only(NULL, &history, err);
    if (rc)
        return rc;
    table_init(&answer.table, "l");
    json_writer_init(&answer.json, &cli->out, 0);
    if (cli->json && !csv)
        json_write_begin_array(&answer.json);
    rc = history_query(history, cli->words[0], csv ? csv_row : add_row, &answer, err);
    if (rc == 0 && !csv)
        rc = cli->json ? cli_end_json(cli, &answer.json, err)
                       : table_write(&answer.table, 0, cli->colour, &cli->out, err);
    table_release(&answer.table);
    history_close(history);
    return rc;
}

static const struct verb_flag flags[] = {{"csv", NULL, "comma-separated values with a line of names"}};

const struct verb verb_sql = {
    .name = "sql",
    .arguments = "'SELECT …'",
    .summary = "ask the history with SQL, read-only",
    .about = "docs/history.md has the tables. Any SQLite reads the file, too: HOME/history.db.",
    .example = "ckptbench sql \"select run, median from metric where metric='save_s' order by median\"",
    VERB_FLAGS(flags),
    .run = run_sql,
};
