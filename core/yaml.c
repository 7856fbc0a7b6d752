/* YAML as settings and items, with libyaml. */
#include "core/yaml.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <yaml.h>

#include "core/alloc.h"
#include "core/buf.h"

#define MAX_DEPTH 16
#define MAX_ITEM_FIELDS 64

static int no_memory(struct cb_err *err)
{
    return alloc_fail(err, "for YAML");
}

struct reader {
    yaml_parser_t parser;
    yaml_event_t event; /* the current event */
    bool has_event;
    const char *name;
    struct setting_list *list;
    struct cb_err *err;
};

/* "nightly.yaml:3:5" */
static void place_of(const struct reader *self, yaml_mark_t mark, char text[320])
{
    snprintf(text, 320, "%.280s:%zu:%zu", self->name, mark.line + 1, mark.column + 1);
}

static int fail_here(const struct reader *self, const char *sentence)
{
    char place[320];
    place_of(self, self->event.start_mark, place);
    return cb_fail(self->err, CB_ERR_USAGE, "%s: %s", place, sentence);
}

static const char *refusal(const yaml_event_t *event)
{
    switch (event->type) {
    case YAML_ALIAS_EVENT:
        return "aliases (*name) are not supported; write the value again";
    case YAML_SCALAR_EVENT:
        return event->data.scalar.anchor ? "anchors (&name) are not supported"
               : event->data.scalar.tag  ? "tags (!name) are not supported"
                                         : NULL;
    case YAML_SEQUENCE_START_EVENT:
        return event->data.sequence_start.anchor ? "anchors (&name) are not supported"
               : event->data.sequence_start.tag  ? "tags (!name) are not supported"
                                                 : NULL;
    case YAML_MAPPING_START_EVENT:
        return event->data.mapping_start.anchor ? "anchors (&name) are not supported"
               : event->data.mapping_start.tag  ? "tags (!name) are not supported"
                                                : NULL;
    default:
        return NULL;
    }
}

static int next_event(struct reader *self)
{
    if (self->has_event)
        yaml_event_delete(&self->event);
    self->has_event = false;
    if (!yaml_parser_parse(&self->parser, &self->event)) {
        const yaml_parser_t *parser = &self->parser;
        if (parser->error == YAML_MEMORY_ERROR)
            return no_memory(self->err);
        char place[320];
        place_of(self, parser->problem_mark, place);
        return cb_fail(self->err, CB_ERR_USAGE, "%s: not YAML: %s", place,
                       parser->problem ? parser->problem : "unreadable");
    }
    self->has_event = true;
    const char *sentence = refusal(&self->event);
    if (sentence)
        return fail_here(self, sentence);
    if (self->event.type == YAML_SCALAR_EVENT &&
        strlen((const char *)self->event.data.scalar.value) != self->event.data.scalar.length)
        return fail_here(self, "a text with a NUL byte");
    return 0;
}

static bool is_plain(const yaml_event_t *event)
{
    return event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
}

static int add_scalar(struct reader *self, struct setting *item)
{
    const char *text = (const char *)self->event.data.scalar.value;
    if (!is_plain(&self->event))
        return setting_add_value(item, text, strlen(text), self->err);
    if (*text == '\0')
        return fail_here(self, "a key without a value; write '' for an empty text");
    int rc = setting_add_sweep(item, text, self->err);
    if (rc && self->err) {
        char place[320];
        place_of(self, self->event.start_mark, place);
        cb_context(self->err, "%s", place);
    }
    return rc;
}

static int read_sequence(struct reader *self, struct setting *item)
{
    for (;;) {
        int rc = next_event(self);
        if (rc)
            return rc;
        if (self->event.type == YAML_SEQUENCE_END_EVENT)
            break;
        if (self->event.type != YAML_SCALAR_EVENT)
            return fail_here(self, "a list may hold plain values only");
        rc = add_scalar(self, item);
        if (rc)
            return rc;
    }
    return item->value_count ? 0 : fail_here(self, "an empty list");
}

static int read_mapping(struct reader *self, const char *prefix, int depth, size_t first);

/* The value of a key; the current event is the key's. */
static int read_member(struct reader *self, const char *key, const char *place, int depth, size_t first)
{
    int rc = next_event(self);
    if (rc)
        return rc;
    if (self->event.type == YAML_MAPPING_START_EVENT)
        return read_mapping(self, key, depth + 1, first);
    for (size_t i = first; i < self->list->count; i++)
        if (strcmp(self->list->items[i].key, key) == 0 && strcmp(key, "zip") != 0)
            return cb_fail(self->err, CB_ERR_USAGE, "%s: '%s' is set twice; the first is at %s", place, key,
                           self->list->items[i].origin);
    struct setting item;
    rc = setting_init(&item, key, place, self->err);
    if (rc == 0)
        rc = self->event.type == YAML_SCALAR_EVENT ? add_scalar(self, &item) : read_sequence(self, &item);
    if (rc == 0)
        rc = setting_list_take(self->list, &item, self->err);
    setting_release(&item);
    return rc;
}

/* Reads a mapping whose start event has been consumed, including its end event. `first` is the index of this
 * document's first setting. */
static int read_mapping(struct reader *self, const char *prefix, int depth, size_t first)
{
    if (depth > MAX_DEPTH)
        return fail_here(self, "nested too deeply");
    for (;;) {
        int rc = next_event(self);
        if (rc)
            return rc;
        if (self->event.type == YAML_MAPPING_END_EVENT)
            return 0;
        if (self->event.type != YAML_SCALAR_EVENT)
            return fail_here(self, "a key must be a plain word");
        char key[SETTING_MAX_KEY_BYTES + 1], place[320];
        const char *word = (const char *)self->event.data.scalar.value;
        int len = snprintf(key, sizeof key, "%s%s%s", prefix, *prefix ? "." : "", word);
        if (*word == '\0' || len >= (int)sizeof key)
            return fail_here(self, *word ? "a key that is too long" : "an empty key");
        place_of(self, self->event.start_mark, place);
        rc = read_member(self, key, place, depth, first);
        if (rc)
            return rc;
    }
}

static int reader_init(struct reader *self, const char *name, const char *text, size_t len, struct cb_err *err)
{
    *self = (struct reader){.name = name, .err = err};
    if (!yaml_parser_initialize(&self->parser))
        return no_memory(err);
    yaml_parser_set_encoding(&self->parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&self->parser, (const unsigned char *)text, len);
    return 0;
}

static void reader_release(struct reader *self)
{
    if (self->has_event)
        yaml_event_delete(&self->event);
    yaml_parser_delete(&self->parser);
}

/* Advances to the first event inside the document; *empty if there is none. */
static int begin_document(struct reader *self, bool *empty)
{
    *empty = false;
    do {
        int rc = next_event(self);
        if (rc)
            return rc;
        if (self->event.type == YAML_STREAM_END_EVENT) {
            *empty = true;
            return 0;
        }
    } while (self->event.type == YAML_STREAM_START_EVENT || self->event.type == YAML_DOCUMENT_START_EVENT);
    *empty = self->event.type == YAML_SCALAR_EVENT && is_plain(&self->event) && self->event.data.scalar.length == 0;
    return 0;
}

static int end_document(struct reader *self)
{
    for (;;) {
        int rc = next_event(self);
        if (rc)
            return rc;
        if (self->event.type == YAML_STREAM_END_EVENT)
            return 0;
        if (self->event.type == YAML_DOCUMENT_START_EVENT)
            return fail_here(self, "a second document (---); one file holds one");
    }
}

int yaml_read_settings(const char *name, const char *text, size_t len, struct setting_list *list, struct cb_err *err)
{
    struct reader reader;
    struct setting_list fresh = {0};
    bool empty;
    int rc = reader_init(&reader, name, text, len, err);
    if (rc)
        return rc;
    reader.list = &fresh;
    rc = begin_document(&reader, &empty);
    if (rc || empty)
        goto out;
    if (reader.event.type != YAML_MAPPING_START_EVENT) {
        rc = fail_here(&reader, "expected `key: value` lines");
        goto out;
    }
    rc = read_mapping(&reader, "", 1, 0);
    if (rc == 0)
        rc = end_document(&reader);
    for (size_t i = 0; rc == 0 && i < fresh.count; i++)
        rc = setting_list_take(list, &fresh.items[i], err);
out:
    reader_release(&reader);
    setting_list_release(&fresh);
    return rc;
}

struct item_fields {
    char *keys[MAX_ITEM_FIELDS], *values[MAX_ITEM_FIELDS];
    size_t count;
};

/* A scalar verbatim, or a list of scalars joined by commas. */
static int read_field_value(struct reader *self, struct buf *value)
{
    if (self->event.type == YAML_SCALAR_EVENT) {
        buf_append_text(value, (const char *)self->event.data.scalar.value);
        return buf_check(value, self->name, self->err);
    }
    if (self->event.type != YAML_SEQUENCE_START_EVENT)
        return fail_here(self, "expected a value or a list of values");
    for (bool first = true;; first = false) {
        int rc = next_event(self);
        if (rc)
            return rc;
        if (self->event.type == YAML_SEQUENCE_END_EVENT)
            return buf_check(value, self->name, self->err);
        if (self->event.type != YAML_SCALAR_EVENT)
            return fail_here(self, "a list may hold plain values only");
        if (!first)
            buf_append_char(value, ',');
        buf_append_text(value, (const char *)self->event.data.scalar.value);
    }
}

static int read_field(struct reader *self, struct item_fields *fields)
{
    if (self->event.type != YAML_SCALAR_EVENT)
        return fail_here(self, "a key must be a plain word");
    if (fields->count == MAX_ITEM_FIELDS)
        return fail_here(self, "an item with too many keys");
    char *key = strdup((const char *)self->event.data.scalar.value);
    if (!key)
        return no_memory(self->err);
    struct buf value;
    buf_init(&value, 65536);
    int rc = next_event(self);
    if (rc == 0)
        rc = read_field_value(self, &value);
    if (rc) {
        buf_release(&value);
        free(key);
        return rc;
    }
    fields->keys[fields->count] = key;
    fields->values[fields->count] = buf_take(&value);
    fields->count++;
    return fields->values[fields->count - 1] ? 0 : no_memory(self->err);
}

static int read_item(struct reader *self, yaml_item_fn item, void *context)
{
    if (self->event.type != YAML_MAPPING_START_EVENT)
        return fail_here(self, "expected an item of `key: value` pairs");
    size_t line = self->event.start_mark.line + 1;
    struct item_fields fields = {0};
    int rc;
    while ((rc = next_event(self)) == 0 && self->event.type != YAML_MAPPING_END_EVENT)
        if ((rc = read_field(self, &fields)))
            break;
    if (rc == 0)
        rc = item(context, (const char *const *)fields.keys, (const char *const *)fields.values, fields.count, line,
                  self->err);
    for (size_t i = 0; i < fields.count; i++) {
        free(fields.keys[i]);
        free(fields.values[i]);
    }
    return rc;
}

int yaml_read_items(const char *name, const char *text, size_t len, yaml_item_fn item, void *context,
                    struct cb_err *err)
{
    struct reader reader;
    bool empty;
    int rc = reader_init(&reader, name, text, len, err);
    if (rc)
        return rc;
    rc = begin_document(&reader, &empty);
    if (rc || empty)
        goto out;
    if (reader.event.type != YAML_SEQUENCE_START_EVENT) {
        rc = fail_here(&reader, "expected a list of items (`- key: value`)");
        goto out;
    }
    while ((rc = next_event(&reader)) == 0 && reader.event.type != YAML_SEQUENCE_END_EVENT)
        if ((rc = read_item(&reader, item, context)))
            goto out;
    if (rc == 0)
        rc = end_document(&reader);
out:
    reader_release(&reader);
    return rc;
}
