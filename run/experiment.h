/* An experiment: one complete, valid value for every key of the option table, and its labels.
 *
 * It is frozen as experiment.yaml in the run folder, where agent and worker read it; a different version is a clear
 * error. Its identity is a hash over the identity keys that differ from their default, so a key added in a later
 * release leaves old hashes unchanged. The default of s3.checksum has changed: the hash leaves out its former
 * default, sha256, and includes any other value if the store is a bucket. */
#ifndef RUN_EXPERIMENT_H
#define RUN_EXPERIMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/err.h"
#include "core/setting.h"
#include "run/options.h"

#define EXPERIMENT_VERSION 1
#define EXPERIMENT_HASH_LENGTH 16 /* hex digits */

struct experiment;
struct json_writer;

int experiment_new(struct experiment **self, struct cb_err *err) CB_MUST_CHECK; /* all keys at their default */
int experiment_copy(const struct experiment *source, struct experiment **copy, struct cb_err *err) CB_MUST_CHECK;
void experiment_free(struct experiment *self);

/* Sets a key or a label ("label.kind"). Error messages start with `origin`. */
int experiment_set(struct experiment *self, const char *key, const char *value, const char *origin,
                   struct cb_err *err) CB_MUST_CHECK;
/* Gives a key its default again, as if it had not been set. */
int experiment_reset(struct experiment *self, enum option_id id, struct cb_err *err) CB_MUST_CHECK;
bool experiment_was_set(const struct experiment *self, enum option_id id);

/* Checks keys against each other, as far as that requires neither model nor machine. */
int experiment_validate(const struct experiment *self, struct cb_err *err) CB_MUST_CHECK;

/* Access by type; another type than the row's fails an assertion. Borrowed. */
bool experiment_bool(const struct experiment *self, enum option_id id);
uint64_t experiment_u64(const struct experiment *self, enum option_id id); /* U64, BYTES, DURATION (ns), RATE */
double experiment_double(const struct experiment *self, enum option_id id);
const char *experiment_text(const struct experiment *self, enum option_id id); /* canonical text, any type */
bool experiment_is(const struct experiment *self, enum option_id id,
                   const char *choice); /* `choice` must be one of the row's choices */

/* Whether the key has any effect on this run: the s3.* keys have one only if the store is a bucket. */
bool experiment_uses(const struct experiment *self, enum option_id id);
/* Why a key rules out that a state on a device is saved and loaded without host memory (io.gds), or NULL. */
const char *experiment_rules_out_gds(const struct experiment *self);
/* Whether PyTorch processes save and load, which map the memory of the ranks. */
bool experiment_is_in_python(const struct experiment *self);

size_t experiment_label_count(const struct experiment *self);
const char *experiment_label_key(const struct experiment *self, size_t index); /* without "label." */
const char *experiment_label_value(const struct experiment *self, size_t index);

/* All keys in table order, then the labels. */
int experiment_write_yaml(const struct experiment *self, struct buf *out, struct cb_err *err) CB_MUST_CHECK;
int experiment_read_yaml(const char *name, const char *text, size_t len, struct experiment **self,
                         struct cb_err *err) CB_MUST_CHECK;

/* {"model": "gpt2", "tp": 2, …} with every key, or those for which has_key (may be NULL) is true: numbers and booleans as
 * such, other types as their canonical text. */
void experiment_write_json(const struct experiment *self,
                           bool (*has_key)(const struct experiment *self, enum option_id id), struct json_writer *json);
/* {"kind": "nightly", …} */
void experiment_write_labels_json(const struct experiment *self, struct json_writer *json);

/* Lower-case hex of the identity, EXPERIMENT_HASH_LENGTH digits and a NUL. */
void experiment_hash(const struct experiment *self, char hash[EXPERIMENT_HASH_LENGTH + 1]);

#endif
