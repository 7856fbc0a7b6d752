/* The schema of the history, as numbered migrations. Private to db/; docs/history.md explains the tables. */
#ifndef DB_SCHEMA_H
#define DB_SCHEMA_H

#include "core/err.h"

struct history;

#define SCHEMA_VERSION 2
#define SCHEMA_APPLICATION_ID 0x636b7074 /* "ckpt": says whose database a file is */

/* Brings the database to SCHEMA_VERSION in one transaction. Another program's database and a newer
 * schema are refused by name. With `read_only` an older schema is refused, too. */
int schema_migrate(struct history *self, struct cb_err *err) CB_MUST_CHECK;

/* Brings table catalogue in line with core/metrics.def and fills the ids of the metrics. */
int schema_sync_catalogue(struct history *self, struct cb_err *err) CB_MUST_CHECK;

#endif
