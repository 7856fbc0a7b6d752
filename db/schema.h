/* The schema of the history, as numbered migrations. Private to db/; docs/history.md explains the tables. */
#ifndef DB_SCHEMA_H
#define DB_SCHEMA_H

#include <stdbool.h>

#include "core/err.h"

struct history;

#define SCHEMA_VERSION 3
#define SCHEMA_APPLICATION_ID 0x636b7074 /* "ckpt": identifies the database as ours */

/* Whether the database must be migrated. Here and below, another program's database and a newer schema fail with a
 * message that names the file. */
int schema_is_older(struct history *self, bool *older, struct cb_err *err) CB_MUST_CHECK;

/* Migrates the database, open for writing, to SCHEMA_VERSION in one transaction. */
int schema_migrate(struct history *self, struct cb_err *err) CB_MUST_CHECK;

/* Updates table catalogue to match run/metrics.def and reads the ids of the metrics. */
int schema_sync_catalogue(struct history *self, struct cb_err *err) CB_MUST_CHECK;

#endif
