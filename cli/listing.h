/* The output of a verb that lists: a table for people or, with --json, an array of objects.
 *
 * A verb writes each row once: a member is a cell of the table and a member of the object. A member for only one of the
 * two is added to `table` or `json`, depending on cli->json. */
#ifndef CLI_LISTING_H
#define CLI_LISTING_H

#include <stdbool.h>
#include <stdint.h>

#include "cli/cli.h"
#include "cli/report/table.h"
#include "core/json.h"

struct listing {
    struct cli *cli;
    struct table table;
    struct json_writer json; /* rows are appended to the open array, or to an own array if none is open */
    size_t count;            /* of rows */
    const char *if_empty;    /* logged instead of an empty table, or NULL */
};

void listing_init(struct listing *self, struct cli *cli, int indent, const char *alignment,
                  const char *const *headings);
/* Appends the table, or ends the JSON document, unless `rc` is a failure; then releases. Returns `rc`, or its own
 * failure. */
int listing_end(struct listing *self, int rc, struct cb_err *err) CB_MUST_CHECK;

void listing_begin_row(struct listing *self);
void listing_end_row(struct listing *self);
/* "" is null in JSON. */
void listing_text(struct listing *self, const char *key, enum table_style style, const char *text);
void listing_u64(struct listing *self, const char *key, uint64_t value);
void listing_u64_or_none(struct listing *self, const char *key, uint64_t value); /* 0 is null, "-" in the table */
void listing_bytes(struct listing *self, const char *key, uint64_t bytes);
/* `text` is for the table. */
void listing_u64_as(struct listing *self, const char *key, uint64_t value, const char *text);
void listing_double(struct listing *self, const char *key, double value, const char *text);
void listing_date(struct listing *self, const char *key, uint64_t wall_ns);

/* A list of checks: in JSON an object with `site` (unless NULL), the checks, and whether all passed. */
void listing_init_checks(struct listing *self, struct cli *cli, const char *site);
/* `todo` is NULL if no action is needed. */
void listing_check(struct listing *self, const char *name, enum table_style style, const char *status,
                   const char *found, const char *todo);
/* The exit code is that of infrastructure unless all checks passed. */
int listing_end_checks(struct listing *self, bool all_well, int rc, struct cb_err *err) CB_MUST_CHECK;

#endif
