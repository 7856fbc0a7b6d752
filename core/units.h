/* Numbers with units, parsed and printed the same way everywhere.
 *
 * Sizes: 4MiB, 4M (binary, as in fio), 4MB (1e6), 4194304; printed in IEC units. Durations: 250ms, 30s, 2h, 1m30s,
 * 7d; a bare number is seconds. Rates: 1.5GiB/s. Parsers accept the whole text or fail with CB_ERR_USAGE and a
 * message with an example. */
#ifndef CORE_UNITS_H
#define CORE_UNITS_H

#include <stddef.h>
#include <stdint.h>

#include "core/err.h"

#define KIB UINT64_C(1024)
#define MIB (UINT64_C(1024) * KIB)
#define GIB (UINT64_C(1024) * MIB)

int units_parse_u64(const char *text, uint64_t *value, struct cb_err *err) CB_MUST_CHECK;
int units_parse_double(const char *text, double *value, struct cb_err *err) CB_MUST_CHECK;
int units_parse_bytes(const char *text, uint64_t *bytes, struct cb_err *err) CB_MUST_CHECK;
int units_parse_duration(const char *text, uint64_t *duration_ns, struct cb_err *err) CB_MUST_CHECK;
int units_parse_rate(const char *text, uint64_t *bytes_per_s, struct cb_err *err) CB_MUST_CHECK;
int units_parse_bool(const char *text, int *value, struct cb_err *err) CB_MUST_CHECK; /* true/false/yes/no/on/off/1/0 */

/* Printers write at most 32 bytes including the NUL and return `text`. For people: "1.62 GiB", "0.80 s", "2.03
 * GiB/s". Exact: the shortest text that parses back to the same value ("4MiB", "1536", "250ms"). */
char *units_format_bytes(double bytes, char text[32]);
char *units_format_duration(double duration_ns, char text[32]);
char *units_format_rate(double bytes_per_s, char text[32]);
/* With decimal (1000) prefixes: 8.97 GB/s, 33.1 Gflop/s. */
char *units_format_decimal(double value, const char *unit, char text[32]);
char *units_format_count(uint64_t count, char text[32]); /* 1,184 */
/* The plural ending of an English noun: "" for 1, else "s". */
const char *units_plural(uint64_t count);
char *units_format_bytes_exact(uint64_t bytes, char text[32]);
char *units_format_duration_exact(uint64_t duration_ns, char text[32]);

#endif
