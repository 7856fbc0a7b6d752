/* Nodes for `show`, from rendezvous.json; docs/rendezvous.md describes its members. */
#include "cli/report/run_nodes.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>

#include "cli/report/table.h"
#include "core/units.h"

#define FILE_MAX_BYTES (64 << 20)

static int read_file(const struct run_info *run, struct buf *text, struct json_value **root)
{
    char path[PATH_MAX];
    int len = snprintf(path, sizeof path, "%s/attempts/%u/rendezvous.json", run->folder, run->attempt);
    buf_init(text, FILE_MAX_BYTES);
    if (len >= (int)sizeof path || buf_read_file(text, path, NULL) != 0)
        return CB_ERR_NOT_FOUND;
    return json_parse(text->data, text->len, root, NULL);
}

static const char *text_of(const struct json_value *node, const char *key)
{
    const char *text;
    return json_as_text(json_get(node, key), &text) ? text : NULL;
}

static void add_node(struct table *table, const struct json_value *node)
{
    char text[64];
    double offset_s = 0;
    uint64_t first = 0, count = 0, free_bytes;
    const char *trouble = text_of(node, "trouble");
    bool ranks = json_as_u64(json_get(node, "first_rank"), &first) && json_as_u64(json_get(node, "ranks"), &count);
    table_add(table, TABLE_BOLD, text_of(node, "node"));
    table_add(table, TABLE_PLAIN, text_of(node, "host"));
    table_addf(table, TABLE_PLAIN, ranks && count > 1 ? "%llu-%llu" : "%llu", (unsigned long long)first,
               (unsigned long long)(first + count - 1));
    table_add(table, trouble ? TABLE_BAD : TABLE_PLAIN, text_of(node, "state"));
    bool known = json_as_double(json_get(node, "clock_offset_s"), &offset_s);
    table_add_known(table, fabs(offset_s) > 1 ? TABLE_WARN : TABLE_PLAIN, known, "%+.6f s", offset_s);
    table_add(table, TABLE_PLAIN,
              json_as_u64(json_get(node, "store_free_bytes"), &free_bytes)
                  ? units_format_bytes((double)free_bytes, text)
                  : NULL);
    table_add(table, TABLE_PLAIN, trouble ? trouble : "");
}

int run_nodes_write(const struct run_info *run, bool colour, bool *written, struct buf *out, struct cb_err *err)
{
    struct buf text;
    struct json_value *root = NULL;
    struct table table;
    int rc = 0;
    *written = read_file(run, &text, &root) == 0;
    if (*written) {
        table_init(&table, "llrlrrl");
        table_add_headings(&table,
                           (const char *const[]){"NODE", "HOST", "RANKS", "STATE", "CLOCK", "FREE AT STORE", ""});
        for (size_t i = 0; i < json_count(json_get(root, "nodes")); i++)
            add_node(&table, json_at(json_get(root, "nodes"), i));
        rc = table_write(&table, 0, colour, out, err);
        table_release(&table);
    }
    json_value_free(root);
    buf_release(&text);
    return rc;
}

void run_nodes_write_json(const struct run_info *run, struct json_writer *json)
{
    struct buf text;
    struct json_value *root = NULL;
    json_write_key(json, "rendezvous");
    if (read_file(run, &text, &root) == 0)
        json_write_raw(json, text.data);
    else
        json_write_null(json);
    json_value_free(root);
    buf_release(&text);
}
