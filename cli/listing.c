/* Writes each row of a list as cells or as an object. */
#include "cli/listing.h"

#include <inttypes.h>
#include <stdio.h>

#include "cli/report/history_reading.h"
#include "core/log.h"
#include "core/units.h"

void listing_init(struct listing *self, struct cli *cli, int indent, const char *alignment, const char *const *headings)
{
    *self = (struct listing){.cli = cli};
    json_writer_init(&self->json, &cli->out, indent);
    table_init(&self->table, alignment);
    if (!cli->json)
        table_add_headings(&self->table, headings);
}

static void need_array(struct listing *self)
{
    if (self->json.depth == 0)
        json_write_begin_array(&self->json);
}

int listing_end(struct listing *self, int rc, struct cb_err *err)
{
    if (rc == 0 && self->cli->json) {
        need_array(self);
        rc = cli_end_json(self->cli, &self->json, err);
    } else if (rc == 0 && self->count == 0 && self->if_empty) {
        log_info("%s", self->if_empty);
    } else if (rc == 0) {
        rc = table_write(&self->table, 0, self->cli->colour, &self->cli->out, err);
    }
    table_release(&self->table);
    return rc;
}

void listing_begin_row(struct listing *self)
{
    self->count++;
    if (!self->cli->json)
        return;
    need_array(self);
    json_write_begin_object(&self->json);
}

void listing_end_row(struct listing *self)
{
    if (self->cli->json)
        json_write_end_object(&self->json);
}

void listing_text(struct listing *self, const char *key, enum table_style style, const char *text)
{
    if (self->cli->json)
        json_member_text(&self->json, key, text && *text ? text : NULL);
    else
        table_add(&self->table, style, text);
}

void listing_u64_as(struct listing *self, const char *key, uint64_t value, const char *text)
{
    if (self->cli->json)
        json_member_u64(&self->json, key, value);
    else
        table_add(&self->table, TABLE_PLAIN, text);
}

void listing_u64(struct listing *self, const char *key, uint64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%" PRIu64, value);
    listing_u64_as(self, key, value, text);
}

void listing_u64_or_none(struct listing *self, const char *key, uint64_t value)
{
    if (value)
        listing_u64(self, key, value);
    else
        listing_text(self, key, TABLE_PLAIN, NULL);
}

void listing_bytes(struct listing *self, const char *key, uint64_t bytes)
{
    char text[32];
    listing_u64_as(self, key, bytes, units_format_bytes((double)bytes, text));
}

void listing_double(struct listing *self, const char *key, double value, const char *text)
{
    if (self->cli->json)
        json_member_double(&self->json, key, value);
    else
        table_add(&self->table, TABLE_PLAIN, text);
}

void listing_date(struct listing *self, const char *key, uint64_t wall_ns)
{
    char text[21];
    listing_text(self, key, TABLE_PLAIN, date_text(wall_ns, text));
}

void listing_init_checks(struct listing *self, struct cli *cli, const char *site)
{
    listing_init(self, cli, 2, "llll", (const char *const[]){"", "what", "found", "to do"});
    if (!cli->json)
        return;
    json_write_begin_object(&self->json);
    if (site)
        json_member_text(&self->json, "site", site);
    json_member_array(&self->json, "checks");
}

void listing_check(struct listing *self, const char *name, enum table_style style, const char *status,
                   const char *found, const char *todo)
{
    listing_begin_row(self);
    if (self->cli->json) {
        json_member_text(&self->json, "name", name);
        json_member_text(&self->json, "status", status);
        json_member_text(&self->json, "found", found);
        json_member_text(&self->json, "do", todo);
    } else {
        table_add(&self->table, style, status);
        table_add(&self->table, TABLE_BOLD, name);
        table_add(&self->table, TABLE_PLAIN, found);
        table_add(&self->table, TABLE_PLAIN, todo ? todo : "");
    }
    listing_end_row(self);
}

int listing_end_checks(struct listing *self, bool all_well, int rc, struct cb_err *err)
{
    if (rc == 0 && !all_well)
        self->cli->exit_code = CB_EXIT_INFRASTRUCTURE;
    if (rc == 0 && self->cli->json) {
        json_write_end_array(&self->json);
        json_member_bool(&self->json, "ok", all_well);
    }
    return listing_end(self, rc, err);
}
