/* How saves and loads scale over the sides of compare --by nodes or --by ranks: efficiency of each size, and a model of
 * the time (core/scaling.h). */
#ifndef CLI_COMPARE_SCALING_REPORT_H
#define CLI_COMPARE_SCALING_REPORT_H

#include "cli/compare/compare_sides.h"
#include "core/json.h"

/* Whether sides of this key are sizes. */
bool scaling_is_size(const char *key);

/* Appends a table and a line about the model for each operation; nothing if the runs have neither saves nor loads. */
int scaling_write(const struct sides *sides, const char *key, bool colour, struct buf *out,
                  struct cb_err *err) CB_MUST_CHECK;
/* The member "scaling". */
int scaling_write_json(const struct sides *sides, const char *key, struct json_writer *json,
                       struct cb_err *err) CB_MUST_CHECK;

#endif
