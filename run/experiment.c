/* Experiments: a complete set of values for all keys, frozen and hashed. run/experiment_rules.c checks keys against
 * each other. */
#include "run/experiment.h"

#include <assert.h>
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/hash.h"
#include "core/json.h"
#include "core/units.h"
#include "core/yaml.h"

#define MAX_YAML_BYTES (16 * MIB)
#define MAX_LABELS 1000
#define MAX_LABEL_KEY_BYTES 128
#define LABEL_PREFIX "label."

struct label {
    char *key, *value;
};

struct experiment {
    struct option_value values[OPTION_COUNT];
    bool was_set[OPTION_COUNT];
    struct label *labels; /* sorted by key, each key once */
    size_t label_count;
};

int experiment_new(struct experiment **self, struct cb_err *err)
{
    struct experiment *fresh = calloc(1, sizeof *fresh);
    if (!fresh)
        return alloc_fail(err, "for an experiment");
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        int rc = option_parse((enum option_id)i, option_row((enum option_id)i)->fallback, &fresh->values[i], err);
        if (rc) {
            experiment_free(fresh);
            return rc;
        }
    }
    *self = fresh;
    return 0;
}

void experiment_free(struct experiment *self)
{
    if (!self)
        return;
    for (size_t i = 0; i < OPTION_COUNT; i++)
        option_value_release(&self->values[i]);
    for (size_t i = 0; i < self->label_count; i++) {
        free(self->labels[i].key);
        free(self->labels[i].value);
    }
    free(self->labels);
    free(self);
}

/* Position of the label, or where to insert it. */
static size_t label_position(const struct experiment *self, const char *key)
{
    size_t low = 0, high = self->label_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (strcmp(self->labels[middle].key, key) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static int check_label(const char *key, const char *value, struct cb_err *err)
{
    if (*key == '\0')
        return cb_fail(err, CB_ERR_USAGE, "a label without a name; write label.NAME=value");
    if (strlen(key) > MAX_LABEL_KEY_BYTES)
        return cb_fail(err, CB_ERR_USAGE, "a label's name of %zu bytes; the limit is %d", strlen(key),
                       MAX_LABEL_KEY_BYTES);
    for (const char *at = key; *at; at++)
        if (!isalnum((unsigned char)*at) && !strchr("._-", *at))
            return cb_fail(err, CB_ERR_USAGE, "label.%s: a label's name is made of letters, digits, '.', '_' and '-'",
                           key);
    return option_check_text(key, value, err);
}

static int set_label(struct experiment *self, const char *key, const char *value, struct cb_err *err)
{
    int rc = check_label(key, value, err);
    if (rc)
        return rc;
    size_t position = label_position(self, key);
    bool found = position < self->label_count && strcmp(self->labels[position].key, key) == 0;
    if (!found && self->label_count == MAX_LABELS)
        return cb_fail(err, CB_ERR_USAGE, "more than %d labels", MAX_LABELS);
    struct label fresh = {strdup(key), strdup(value)};
    if (!fresh.key || !fresh.value || alloc_grow(&self->labels, self->label_count, sizeof fresh, NULL)) {
        free(fresh.key);
        free(fresh.value);
        return alloc_fail(err, "for label.%s", key);
    }
    struct label *place = self->labels + position;
    if (found) {
        free(place->key);
        free(place->value);
    } else {
        memmove(place + 1, place, (self->label_count++ - position) * sizeof *place);
    }
    *place = fresh;
    return 0;
}

static int set_option(struct experiment *self, const char *key, const char *value, struct cb_err *err)
{
    enum option_id id;
    struct option_value parsed;
    int rc = option_find(key, &id, err);
    if (rc == 0)
        rc = option_parse(id, value, &parsed, err);
    if (rc)
        return rc;
    option_value_release(&self->values[id]);
    self->values[id] = parsed;
    self->was_set[id] = true;
    return 0;
}

int experiment_set(struct experiment *self, const char *key, const char *value, const char *origin, struct cb_err *err)
{
    size_t prefix = strlen(LABEL_PREFIX);
    int rc = strncmp(key, LABEL_PREFIX, prefix) == 0 ? set_label(self, key + prefix, value, err)
                                                     : set_option(self, key, value, err);
    if (rc && err && origin)
        cb_context(err, "%s", origin);
    return rc;
}

int experiment_reset(struct experiment *self, enum option_id id, struct cb_err *err)
{
    int rc = set_option(self, option_row(id)->name, option_row(id)->fallback, err);
    self->was_set[id] = false;
    return rc;
}

int experiment_copy(const struct experiment *source, struct experiment **copy, struct cb_err *err)
{
    struct experiment *fresh = calloc(1, sizeof *fresh);
    if (!fresh)
        return alloc_fail(err, "for an experiment");
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < OPTION_COUNT; i++) {
        fresh->values[i] = source->values[i];
        fresh->values[i].text = strdup(source->values[i].text);
        fresh->was_set[i] = source->was_set[i];
        if (!fresh->values[i].text)
            rc = alloc_fail(err, "for an experiment");
    }
    for (size_t i = 0; rc == 0 && i < source->label_count; i++)
        rc = set_label(fresh, source->labels[i].key, source->labels[i].value, err);
    if (rc) {
        experiment_free(fresh);
        return rc;
    }
    *copy = fresh;
    return 0;
}

bool experiment_uses(const struct experiment *self, enum option_id id)
{
    return strncmp(option_row(id)->name, "s3.", 3) != 0 || strstr(experiment_text(self, OPT_STORE), "://");
}

bool experiment_is_in_python(const struct experiment *self)
{
    return experiment_is(self, OPT_ENGINE, "torch-dcp") || experiment_is(self, OPT_ENGINE, "torch-native");
}

bool experiment_was_set(const struct experiment *self, enum option_id id)
{
    return self->was_set[id];
}

bool experiment_bool(const struct experiment *self, enum option_id id)
{
    assert(option_row(id)->type == OPTION_BOOL);
    return self->values[id].boolean;
}

uint64_t experiment_u64(const struct experiment *self, enum option_id id)
{
    enum option_type type = option_row(id)->type;
    assert(type == OPTION_U64 || type == OPTION_BYTES || type == OPTION_DURATION || type == OPTION_RATE);
    (void)type;
    return self->values[id].u64;
}

double experiment_double(const struct experiment *self, enum option_id id)
{
    assert(option_row(id)->type == OPTION_DOUBLE);
    return self->values[id].number;
}

const char *experiment_text(const struct experiment *self, enum option_id id)
{
    return self->values[id].text;
}

/* Whether `choice` is one of "a|b|c". */
static bool is_choice(const char *choices, const char *choice)
{
    size_t len = strlen(choice);
    for (const char *at = choices; at; at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL)
        if (strncmp(at, choice, len) == 0 && (at[len] == '|' || at[len] == '\0'))
            return true;
    return false;
}

bool experiment_is(const struct experiment *self, enum option_id id, const char *choice)
{
    assert(option_row(id)->type == OPTION_ENUM && is_choice(option_row(id)->choices, choice));
    return strcmp(self->values[id].text, choice) == 0;
}

size_t experiment_label_count(const struct experiment *self)
{
    return self->label_count;
}

const char *experiment_label_key(const struct experiment *self, size_t index)
{
    return self->labels[index].key;
}

const char *experiment_label_value(const struct experiment *self, size_t index)
{
    return self->labels[index].value;
}

/* Whether a text reads back unchanged without quotes in any YAML reader. */
static bool is_plain_text(const char *text)
{
    if (!isalnum((unsigned char)*text) || strstr(text, ".."))
        return false;
    for (; *text; text++)
        if (!isalnum((unsigned char)*text) && !strchr("._+-", *text))
            return false;
    return true;
}

static void write_quoted(struct buf *out, const char *text)
{
    buf_append_char(out, '"');
    for (const unsigned char *at = (const unsigned char *)text; *at; at++) {
        if (*at == '"' || *at == '\\')
            buf_printf(out, "\\%c", *at);
        else if (*at == '\n')
            buf_append_text(out, "\\n");
        else if (*at == '\t')
            buf_append_text(out, "\\t");
        else if (*at < 0x20 || *at == 0x7F)
            buf_printf(out, "\\x%02x", *at);
        else if (at[0] == 0xC2 && at[1] < 0xA0) /* C1 controls: U+0080 … U+009F, NEL among them */
            buf_printf(out, "\\x%02x", *++at);
        else if (at[0] == 0xE2 && at[1] == 0x80 && (at[2] == 0xA8 || at[2] == 0xA9)) { /* line separators */
            buf_printf(out, "\\u20%02x", at[2] - 0x80);
            at += 2;
        } else if (at[0] == 0xEF && ((at[1] == 0xBB && at[2] == 0xBF) || (at[1] == 0xBF && at[2] >= 0xBE))) {
            buf_printf(out, "\\u%s", at[1] == 0xBB ? "feff" : at[2] == 0xBE ? "fffe" : "ffff");
            at += 2;
        } else
            buf_append_char(out, (char)*at);
    }
    buf_append_char(out, '"');
}

static void write_member(struct buf *out, const char *prefix, const char *key, const char *value)
{
    buf_printf(out, "%s%s: ", prefix, key);
    if (is_plain_text(value))
        buf_append_text(out, value);
    else
        write_quoted(out, value);
    buf_append_char(out, '\n');
}

int experiment_write_yaml(const struct experiment *self, struct buf *out, struct cb_err *err)
{
    buf_printf(out, "version: %d\n", EXPERIMENT_VERSION);
    for (size_t i = 0; i < OPTION_COUNT; i++)
        write_member(out, "", option_row((enum option_id)i)->name, self->values[i].text);
    for (size_t i = 0; i < self->label_count; i++)
        write_member(out, LABEL_PREFIX, self->labels[i].key, self->labels[i].value);
    return buf_check(out, "the frozen experiment", err);
}

static int check_version(const char *name, const struct setting_list *settings, struct cb_err *err)
{
    char ours[16];
    snprintf(ours, sizeof ours, "%d", EXPERIMENT_VERSION);
    for (size_t i = 0; i < settings->count; i++) {
        const struct setting *item = &settings->items[i];
        if (strcmp(item->key, "version") != 0)
            continue;
        if (strcmp(item->values[0], ours) != 0)
            return cb_fail(
                err, CB_ERR_FORMAT,
                "%s: experiment of version %s, and this program reads version %s: use the release that wrote it",
                item->origin, item->values[0], ours);
        return 0;
    }
    return cb_fail(err, CB_ERR_FORMAT, "%s: no `version:`; this is not a frozen experiment", name);
}

static int set_all(struct experiment *self, const struct setting_list *settings, struct cb_err *err)
{
    for (size_t i = 0; i < settings->count; i++) {
        const struct setting *item = &settings->items[i];
        if (strcmp(item->key, "version") == 0)
            continue;
        if (item->value_count != 1)
            return cb_fail(err, CB_ERR_FORMAT, "%s: %s has %zu values; a frozen experiment has one", item->origin,
                           item->key, item->value_count);
        int rc = experiment_set(self, item->key, item->values[0], item->origin, err);
        if (rc)
            return rc;
    }
    return 0;
}

static bool is_default(const struct experiment *self, enum option_id id)
{
    struct option_value fallback;
    if (option_parse(id, option_row(id)->fallback, &fallback, NULL))
        return false;
    bool same = strcmp(fallback.text, self->values[id].text) == 0;
    option_value_release(&fallback);
    return same;
}

int experiment_read_yaml(const char *name, const char *text, size_t len, struct experiment **self, struct cb_err *err)
{
    struct setting_list settings = {0};
    struct experiment *fresh = NULL;
    int rc = len > MAX_YAML_BYTES ? cb_fail(err, CB_ERR_FORMAT, "%s: %zu bytes are no experiment", name, len) : 0;
    if (rc == 0)
        rc = yaml_read_settings(name, text, len, &settings, err);
    if (rc == 0)
        rc = check_version(name, &settings, err);
    if (rc == 0)
        rc = experiment_new(&fresh, err);
    if (rc == 0)
        rc = set_all(fresh, &settings, err);
    setting_list_release(&settings);
    if (rc) {
        experiment_free(fresh);
        return rc;
    }
    for (size_t i = 0; i < OPTION_COUNT; i++)
        fresh->was_set[i] = !is_default(fresh, (enum option_id)i);
    *self = fresh;
    return 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(option_row(*(const enum option_id *)a)->name, option_row(*(const enum option_id *)b)->name);
}

static void append_escaped(struct buf *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '\n')
            buf_append_text(out, "\\n");
        else if (*text == '\\')
            buf_append_text(out, "\\\\");
        else
            buf_append_char(out, *text);
    }
}

static bool is_in_hash(const struct experiment *self, enum option_id id)
{
    if (option_row(id)->class != OPTION_IDENTITY)
        return false;
    if (id == OPT_S3_CHECKSUM)
        return experiment_uses(self, id) && !experiment_is(self, id, "sha256");
    return !is_default(self, id);
}

void experiment_hash(const struct experiment *self, char hash[EXPERIMENT_HASH_LENGTH + 1])
{
    enum option_id ids[OPTION_COUNT];
    size_t count = 0;
    for (size_t i = 0; i < OPTION_COUNT; i++)
        if (is_in_hash(self, (enum option_id)i))
            ids[count++] = (enum option_id)i;
    qsort(ids, count, sizeof *ids, by_name);
    struct buf text;
    buf_init(&text, MAX_YAML_BYTES);
    buf_printf(&text, "%d\n", EXPERIMENT_VERSION);
    for (size_t i = 0; i < count; i++) {
        buf_printf(&text, "%s=", option_row(ids[i])->name);
        append_escaped(&text, self->values[ids[i]].text);
        buf_append_char(&text, '\n');
    }
    char hex[65];
    hash_sha256_hex(text.data, text.len, hex);
    memcpy(hash, hex, EXPERIMENT_HASH_LENGTH);
    hash[EXPERIMENT_HASH_LENGTH] = '\0';
    buf_release(&text);
}

static void write_value(const struct experiment *self, enum option_id id, struct json_writer *json)
{
    enum option_type type = option_row(id)->type;
    if (type == OPTION_BOOL)
        json_write_bool(json, experiment_bool(self, id));
    else if (type == OPTION_U64)
        json_write_u64(json, experiment_u64(self, id));
    else if (type == OPTION_DOUBLE)
        json_write_double(json, experiment_double(self, id));
    else
        json_write_text(json, experiment_text(self, id));
}

void experiment_write_json(const struct experiment *self,
                           bool (*has_key)(const struct experiment *self, enum option_id id), struct json_writer *json)
{
    json_write_begin_object(json);
    for (int i = 0; i < OPTION_COUNT; i++) {
        if (has_key && !has_key(self, (enum option_id)i))
            continue;
        json_write_key(json, option_row((enum option_id)i)->name);
        write_value(self, (enum option_id)i, json);
    }
    json_write_end_object(json);
}

void experiment_write_labels_json(const struct experiment *self, struct json_writer *json)
{
    json_write_begin_object(json);
    for (size_t i = 0; i < experiment_label_count(self); i++)
        json_member_text(json, experiment_label_key(self, i), experiment_label_value(self, i));
    json_write_end_object(json);
}
