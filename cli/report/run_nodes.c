/* Nodes for `show`, from rendezvous.json; docs/rendezvous.md describes its members. */
#include "cli/report/run_nodes.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/report/table.h"
#include "core/alloc.h"
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

void run_nodes_free(struct run_node *nodes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        free(nodes[i].name);
    free(nodes);
}

static const char *own_name(const struct run_info *run)
{
    const char *node = run_info_fact(run, "node"), *host = run_info_fact(run, "hostname");
    return node ? node : host ? host : "this machine";
}

int run_nodes_load(const struct run_info *run, struct run_node **nodes, size_t *count, struct cb_err *err)
{
    struct buf text;
    struct json_value *root = NULL;
    bool listed = read_file(run, &text, &root) == 0 && json_count(json_get(root, "nodes")) > 0;
    size_t wanted = listed ? json_count(json_get(root, "nodes")) : 1;
    struct run_node *made = calloc(wanted, sizeof *made);
    bool complete = made != NULL;
    for (size_t i = 0; i < wanted && complete; i++) {
        const struct json_value *node = json_at(json_get(root, "nodes"), i);
        const char *name = listed ? text_of(node, "node") : own_name(run);
        uint64_t first = 0, ranks = listed ? 0 : experiment_u64(run->experiment, OPT_RANKS);
        if (listed &&
            (!json_as_u64(json_get(node, "first_rank"), &first) || !json_as_u64(json_get(node, "ranks"), &ranks)))
            ranks = 0; /* the node did not join */
        made[i] = (struct run_node){strdup(name ? name : "?"), (uint32_t)first, (uint32_t)ranks};
        complete = made[i].name != NULL;
    }
    json_value_free(root);
    buf_release(&text);
    if (!complete) {
        run_nodes_free(made, made ? wanted : 0);
        return alloc_fail(err, "for the nodes of a run");
    }
    *nodes = made;
    *count = wanted;
    return 0;
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
