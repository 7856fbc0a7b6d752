/* The schema of the history, as numbered migrations. Private to db/; docs/history.md explains the tables. */
#ifndef DB_SCHEMA_H
#define DB_SCHEMA_H

#include <stdbool.h>

#include "core/err.h"

struct history;

#define SCHEMA_VERSION 2
#define SCHEMA_APPLICATION_ID 0x636b7074 /* "ckpt": says whose database a file is */

/* Whether the database is to be migrated. Another program's database and a newer schema are refused by name, here and below. */
int schema_is_older(struct history *self, bool *older, struct cb_err *err) CB_MUST_CHECK;

/* Brings the database, open for writing, to SCHEMA_VERSION in one transaction. */
int schema_migrate(struct history *self, struct cb_err *err) CB_MUST_CHECK;

/* Brings table catalogue in line with run/metrics.def and fills the ids of the metrics. */
int schema_sync_catalogue(struct history *self, struct cb_err *err) CB_MUST_CHECK;

#endif
