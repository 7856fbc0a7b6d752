/* Writes and reads the header and the index of safetensors. */
#include "ckpt/format/safetensors.h"

#include <stdlib.h>
#include <string.h>

#include "ckpt/format/save_id.h"
#include "ckpt/stored.h"
#include "core/json.h"

#define KEY_METADATA "__metadata__"
#define KEY_SAVE_ID "ckptbench.save"
#define KEY_SHARDING "DCP_SHARDING_INFO"
#define KEY_VALUES "ckptbench.values"
#define KEY_MARKER "ckptbench.marker"
#define MAX_ELEMENTS (UINT64_C(1) << 56)

/* --- writing --- */

static void put_numbers(struct json_writer *json, const uint64_t *values, uint32_t count)
{
    json_write_begin_array(json);
    for (uint32_t i = 0; i < count; i++)
        json_write_u64(json, values[i]);
    json_write_end_array(json);
}

static bool is_value(const struct layout *layout, const struct plan_item *item)
{
    return layout_tensor(layout, item->tensor)->kind == KIND_BYTES;
}

/* A text under __metadata__ that is itself JSON: either the places of parts, or the values. */
static int put_nested(struct json_writer *json, const char *key, bool values, const struct layout *layout,
                      const struct plan_item *items, size_t count, struct cb_err *err)
{
    struct buf text;
    struct json_writer inner;
    buf_init(&text, SAFETENSORS_MAX_HEADER);
    json_writer_init(&inner, &text, 0);
    json_write_begin_object(&inner);
    for (size_t i = 0; i < count; i++) {
        const struct state_tensor *tensor = layout_tensor(layout, items[i].tensor);
        if (is_value(layout, &items[i]) != values)
            continue;
        json_write_key(&inner, tensor->fqn);
        if (values) {
            json_write_text(&inner, tensor->literal);
            continue;
        }
        json_write_begin_object(&inner);
        json_write_key(&inner, "saved_offsets");
        put_numbers(&inner, items[i].region.offset, items[i].region.dims);
        json_write_end_object(&inner);
    }
    json_write_end_object(&inner);
    int code = buf_check(&text, "the header of a safetensors file", err);
    if (!code) {
        json_member_text(json, key, text.data);
    }
    buf_release(&text);
    return code;
}

static void put_save_id(struct json_writer *json, uint64_t save_id)
{
    char text[SAVE_ID_TEXT_BYTES];
    save_id_format(save_id, text);
    json_member_text(json, KEY_SAVE_ID, text);
}

static int put_metadata(struct json_writer *json, bool parts, const struct layout *layout,
                        const struct plan_item *items, size_t count, uint64_t save_id, struct cb_err *err)
{
    int code = 0;
    bool values = false;
    for (size_t i = 0; i < count && !values; i++)
        values = is_value(layout, &items[i]);
    json_write_key(json, KEY_METADATA);
    json_write_begin_object(json);
    put_save_id(json, save_id); /* first: see FRONT */
    if (parts) {
        code = put_nested(json, KEY_SHARDING, false, layout, items, count, err);
        json_member_text(json, "DCP_VERSION", "1.0");
    }
    if (values && !code)
        code = put_nested(json, KEY_VALUES, true, layout, items, count, err);
    json_member_text(json, KEY_MARKER, parts ? STORED_MARKER : SAFETENSORS_INDEX);
    json_member_text(json, "format", "pt");
    json_write_end_object(json);
    return code;
}

static int put_entry(struct json_writer *json, const struct state_tensor *tensor, const struct region *region,
                     uint64_t begin, uint64_t bytes, struct cb_err *err)
{
    const char *type = dtype_safetensors_name(tensor->dtype);
    if (!type)
        return cb_fail(err, CB_ERR_USAGE, "%s is %s, a type that safetensors does not have", tensor->fqn,
                       dtype_name(tensor->dtype));
    if (strcmp(tensor->fqn, KEY_METADATA) == 0)
        return cb_fail(err, CB_ERR_USAGE, "a tensor of the name %s cannot be stored in safetensors", tensor->fqn);
    json_write_key(json, tensor->fqn);
    json_write_begin_object(json);
    json_member_text(json, "dtype", type);
    json_write_key(json, "shape");
    put_numbers(json, region->size, region->dims);
    json_write_key(json, "data_offsets");
    put_numbers(json, (uint64_t[]){begin, begin + bytes}, 2);
    json_write_end_object(json);
    return 0;
}

int safetensors_put_header(const struct layout *layout, const struct plan_item *items, size_t count, bool parts,
                           uint32_t alignment, uint64_t save_id, struct buf *out, struct cb_err *err)
{
    size_t begin = out->len;
    uint64_t place = 0, length;
    struct json_writer json;
    if (!buf_extend(out, SAFETENSORS_LENGTH_BYTES))
        return buf_check(out, "the header of a safetensors file", err);
    json_writer_init(&json, out, 0);
    json_write_begin_object(&json);
    int code = put_metadata(&json, parts, layout, items, count, save_id, err);
    for (size_t i = 0; i < count && !code; i++) {
        const struct state_tensor *tensor = layout_tensor(layout, items[i].tensor);
        if (tensor->kind == KIND_BYTES)
            continue;
        uint64_t bytes = region_elements(&items[i].region) * dtype_bytes(tensor->dtype);
        code = put_entry(&json, tensor, &items[i].region, place, bytes, err);
        place += bytes;
    }
    if (code)
        goto out;
    json_write_end_object(&json);
    size_t padding = -(out->len - begin) & (alignment - 1);
    char *spaces = padding > 0 ? buf_extend(out, padding) : NULL;
    if (spaces)
        memset(spaces, ' ', padding);
    length = out->len - begin - SAFETENSORS_LENGTH_BYTES;
    code = buf_check(out, "the header of a safetensors file", err);
    if (!code && length > SAFETENSORS_MAX_HEADER)
        code = cb_fail(err, CB_ERR_USAGE,
                       "%zu tensors do not fit into the header of one safetensors file: give more "
                       "files (io.files)",
                       count);
    if (!code)
        memcpy(out->data + begin, &length, sizeof length);
out:
    if (code)
        out->len = begin;
    return code;
}

/* Writes an index to a sink, in pieces of about FLUSH_BYTES. */
struct index_writer {
    const struct layout *layout;
    const struct plan *plan;
    struct metadata_sink *sink;
    struct buf out; /* not yet passed to the sink */
    struct json_writer json;
    struct cb_err *err;
};

#define FLUSH_BYTES ((size_t)1 << 20)
#define PIECE_BYTES ((size_t)1 << 28) /* a name and what surrounds it */

static int flush(struct index_writer *self, size_t least)
{
    if (self->out.len < least && !self->out.code)
        return 0;
    int code = buf_check(&self->out, "the index of the checkpoint", self->err);
    if (!code)
        code = metadata_sink_put(self->sink, self->out.data, self->out.len, self->err);
    buf_clear(&self->out);
    return code;
}

/* Files that only have values: no tensor in the index names them. */
static int put_value_files(struct index_writer *self)
{
    char name[PLAN_NAME_BYTES];
    int code = 0;
    json_write_key(&self->json, KEY_VALUES);
    json_write_begin_array(&self->json);
    for (uint32_t rank = 0; rank < self->plan->world_size && !code; rank++) {
        uint64_t count = plan_rank_items(self->plan, rank);
        bool only_values = true;
        for (uint64_t i = 0; i < count && !code; i++) {
            struct plan_item item = plan_item_at(self->plan, rank, i);
            only_values = only_values && is_value(self->layout, &item);
            if (i + 1 < count && plan_item_at(self->plan, rank, i + 1).file == item.file)
                continue;
            plan_file_name(self->plan, item.file, name);
            if (only_values)
                json_write_text(&self->json, name);
            only_values = true;
            code = flush(self, FLUSH_BYTES);
        }
    }
    json_write_end_array(&self->json);
    return code;
}

static int put_weight_map(struct index_writer *self)
{
    char name[PLAN_NAME_BYTES];
    int code = 0;
    json_write_key(&self->json, "weight_map");
    json_write_begin_object(&self->json);
    for (uint32_t rank = 0; rank < self->plan->world_size && !code; rank++) {
        for (size_t i = 0; i < plan_rank_items(self->plan, rank) && !code; i++) {
            struct plan_item item = plan_item_at(self->plan, rank, i);
            if (is_value(self->layout, &item))
                continue;
            plan_file_name(self->plan, item.file, name);
            json_write_key(&self->json, layout_tensor(self->layout, item.tensor)->fqn);
            json_write_text(&self->json, name);
            code = flush(self, FLUSH_BYTES);
        }
    }
    json_write_end_object(&self->json);
    return code;
}

int safetensors_write_index(const struct layout *layout, const struct plan *plan, const char *checkpoint_id,
                            uint64_t save_id, struct metadata_sink *sink, struct cb_err *err)
{
    struct index_writer self = {.layout = layout, .plan = plan, .sink = sink, .err = err};
    (void)checkpoint_id;
    buf_init(&self.out, PIECE_BYTES);
    json_writer_init(&self.json, &self.out, 2);
    json_write_begin_object(&self.json);
    json_write_key(&self.json, "metadata");
    json_write_begin_object(&self.json);
    json_member_u64(&self.json, "total_size", layout_total_bytes(layout));
    put_save_id(&self.json, save_id);
    int code = put_value_files(&self);
    json_write_end_object(&self.json);
    if (!code)
        code = put_weight_map(&self);
    json_write_end_object(&self.json);
    buf_append_char(&self.out, '\n');
    if (!code)
        code = flush(&self, 0);
    buf_release(&self.out);
    return code;
}

/* --- reading --- */

struct reader {
    const char *name;
    struct safetensors_header *header;
    struct json_value *sharding; /* NULL if the file has none */
    struct cb_err *err;
};

static int bad(const struct reader *self, const char *fqn, const char *what)
{
    return cb_fail(self->err, CB_ERR_FORMAT, "%s: %s%s%s", self->name, fqn ? fqn : "", fqn ? ": " : "", what);
}

static int no_memory(const struct reader *self)
{
    return cb_fail(self->err, CB_ERR_MEMORY, "%s: no memory for its header", self->name);
}

/* Our files begin with the same bytes after their length, followed by the id. */
#define FRONT "{\"" KEY_METADATA "\": {\"" KEY_SAVE_ID "\": \""
_Static_assert(SAFETENSORS_LENGTH_BYTES + sizeof FRONT + SAVE_ID_TEXT_BYTES <= SAVE_ID_FRONT_BYTES,
               "it is in the front");

uint64_t safetensors_read_save_id(const void *front, size_t len)
{
    const char *json = (const char *)front + SAFETENSORS_LENGTH_BYTES;
    size_t before = sizeof FRONT - 1;
    if (len < SAFETENSORS_LENGTH_BYTES + before + SAVE_ID_TEXT_BYTES - 1 || memcmp(json, FRONT, before) != 0)
        return 0;
    return save_id_parse(json + before, SAVE_ID_TEXT_BYTES - 1);
}

int safetensors_header_bytes(const char *name, const void *bytes, uint64_t file_bytes, uint64_t *json_bytes,
                             struct cb_err *err)
{
    uint64_t length = 0;
    if (file_bytes < SAFETENSORS_LENGTH_BYTES)
        return cb_fail(err, CB_ERR_CORRUPT, "%s: the file ends before its header's length", name);
    memcpy(&length, bytes, sizeof length);
    if (length > SAFETENSORS_MAX_HEADER)
        return cb_fail(err, CB_ERR_FORMAT, "%s: a header of %llu bytes is more than any safetensors file has (%d)",
                       name, (unsigned long long)length, SAFETENSORS_MAX_HEADER);
    if (length > file_bytes - SAFETENSORS_LENGTH_BYTES)
        return cb_fail(err, CB_ERR_CORRUPT, "%s: the header says that it has %llu bytes, the file has only %llu", name,
                       (unsigned long long)length, (unsigned long long)file_bytes);
    *json_bytes = length;
    return 0;
}

static bool read_numbers(const struct json_value *array, uint64_t *values, uint32_t *count)
{
    if (!json_is_array(array) || json_count(array) > CKPT_MAX_DIMS)
        return false;
    *count = (uint32_t)json_count(array);
    for (uint32_t i = 0; i < *count; i++) {
        if (!json_as_u64(json_at(array, i), &values[i]))
            return false;
    }
    return true;
}

/* The offset of this file's part in the whole tensor. */
static int read_place(const struct reader *self, struct safetensors_entry *entry)
{
    uint32_t count;
    if (!self->sharding)
        return 0;
    const struct json_value *place = json_get(json_get(self->sharding, entry->fqn), "saved_offsets");
    if (!read_numbers(place, entry->region.offset, &count) || count != entry->region.dims)
        return bad(self, entry->fqn, "no saved_offsets in " KEY_SHARDING);
    for (uint32_t i = 0; i < count; i++) {
        if (entry->region.offset[i] > MAX_ELEMENTS)
            return bad(self, entry->fqn, "impossible saved_offsets in " KEY_SHARDING);
    }
    return 0;
}

static int read_entry(const struct reader *self, const struct json_value *value, struct safetensors_entry *entry)
{
    const char *type;
    uint64_t offsets[CKPT_MAX_DIMS], elements = 1;
    uint32_t count;
    if (!json_as_text(json_get(value, "dtype"), &type))
        return bad(self, entry->fqn, "no dtype");
    if (!dtype_find_safetensors(type, &entry->dtype))
        return cb_fail(self->err, CB_ERR_UNSUPPORTED, "%s: %s: the type \"%.40s\" is not known here", self->name,
                       entry->fqn, type);
    if (!read_numbers(json_get(value, "shape"), entry->region.size, &entry->region.dims))
        return bad(self, entry->fqn, "no shape of at most 6 dimensions");
    if (!read_numbers(json_get(value, "data_offsets"), offsets, &count) || count != 2 || offsets[0] > offsets[1])
        return bad(self, entry->fqn, "no data_offsets of two numbers");
    for (uint32_t i = 0; i < entry->region.dims; i++) {
        if (entry->region.size[i] > MAX_ELEMENTS ||
            (entry->region.size[i] && elements > MAX_ELEMENTS / entry->region.size[i]))
            return bad(self, entry->fqn, "the shape is impossibly large");
        elements *= entry->region.size[i];
    }
    if (offsets[1] - offsets[0] != elements * dtype_bytes(entry->dtype))
        return cb_fail(self->err, CB_ERR_FORMAT,
                       "%s: %s: its type and shape need %llu bytes, its data_offsets are %llu", self->name, entry->fqn,
                       (unsigned long long)(elements * dtype_bytes(entry->dtype)),
                       (unsigned long long)(offsets[1] - offsets[0]));
    entry->offset = offsets[0];
    entry->bytes = offsets[1] - offsets[0];
    return read_place(self, entry);
}

/* The caller has reserved the memory. */
static int add_value(struct reader *self, const char *fqn, const char *literal)
{
    struct safetensors_value *next = &self->header->values[self->header->value_count++];
    next->fqn = strdup(fqn);
    next->literal = strdup(literal);
    return next->fqn && next->literal ? 0 : no_memory(self);
}

static int read_values(struct reader *self, const char *text)
{
    struct safetensors_header *header = self->header;
    struct json_value *root = NULL;
    size_t position = 0;
    const char *key, *literal;
    const struct json_value *value;
    int code = json_parse(text, strlen(text), &root, self->err);
    if (code)
        return cb_context(self->err, "%s: " KEY_VALUES, self->name);
    if (!header->values) /* the parser rejects duplicate keys */
        header->values = calloc(json_count(root) + 1, sizeof *header->values);
    if (!header->values)
        code = no_memory(self);
    while (!code && json_next(root, &position, &key, &value)) {
        code = json_as_text(value, &literal) && *key ? add_value(self, key, literal)
                                                     : bad(self, key, "a value that is no text in " KEY_VALUES);
    }
    json_value_free(root);
    return code;
}

static int read_metadata(struct reader *self, const struct json_value *metadata)
{
    size_t position = 0;
    const char *key, *text;
    const struct json_value *value;
    int code = 0;
    if (metadata && !json_is_object(metadata))
        return bad(self, NULL, KEY_METADATA " is no object");
    while (metadata && !code && json_next(metadata, &position, &key, &value)) {
        if (!json_as_text(value, &text))
            return bad(self, key, "a value under " KEY_METADATA " that is no text");
        if (strcmp(key, KEY_VALUES) == 0)
            code = read_values(self, text);
        else if (strcmp(key, KEY_MARKER) == 0 && !self->header->marker && !(self->header->marker = strdup(text)))
            code = no_memory(self);
        else if (strcmp(key, KEY_SHARDING) == 0 && json_parse(text, strlen(text), &self->sharding, self->err))
            code = cb_context(self->err, "%s: " KEY_SHARDING, self->name);
    }
    self->header->parts = self->sharding != NULL;
    return code;
}

static int compare_entries(const void *a, const void *b)
{
    const struct safetensors_entry *x = a, *y = b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

/* The tensors must cover the buffer in sequence; then their offsets become those in the file. */
static int settle(const struct reader *self, uint64_t buffer_at)
{
    struct safetensors_header *header = self->header;
    uint64_t end = 0;
    qsort(header->entries, header->entry_count, sizeof *header->entries, compare_entries);
    for (size_t i = 0; i < header->entry_count; i++) {
        struct safetensors_entry *entry = &header->entries[i];
        if (entry->offset != end)
            return cb_fail(self->err, CB_ERR_FORMAT,
                           "%s: %s begins at byte %llu of the data, %s the tensor before it "
                           "ends at %llu",
                           self->name, entry->fqn, (unsigned long long)entry->offset,
                           entry->offset < end ? "but" : "with a hole, since", (unsigned long long)end);
        end += entry->bytes;
        entry->offset += buffer_at;
    }
    header->end_bytes = buffer_at + end;
    return 0;
}

static int read_entries(struct reader *self, const struct json_value *root)
{
    struct safetensors_header *header = self->header;
    size_t position = 0;
    const char *key;
    const struct json_value *value;
    int code = 0;
    header->entries = calloc(json_count(root) + 1, sizeof *header->entries);
    if (!header->entries)
        return no_memory(self);
    while (!code && json_next(root, &position, &key, &value)) {
        if (strcmp(key, KEY_METADATA) == 0)
            continue;
        struct safetensors_entry *entry = &header->entries[header->entry_count];
        if (!*key)
            return bad(self, NULL, "a tensor without a name");
        entry->fqn = strdup(key);
        if (!entry->fqn)
            return no_memory(self);
        header->entry_count++;
        code = read_entry(self, value, entry);
    }
    return code;
}

int safetensors_read_header(const char *name, const char *json, size_t len, struct safetensors_header *header,
                            struct cb_err *err)
{
    struct safetensors_header read = {0};
    struct reader reader = {.name = name, .header = &read, .err = err};
    struct json_value *root = NULL;
    int code = json_parse(json, len, &root, err);
    if (code)
        return cb_context(err, "%s: the header", name);
    code =
        json_is_object(root) ? read_metadata(&reader, json_get(root, KEY_METADATA)) : bad(&reader, NULL, "no header");
    if (!code)
        code = read_entries(&reader, root);
    if (!code)
        code = settle(&reader, SAFETENSORS_LENGTH_BYTES + len);
    json_value_free(reader.sharding);
    json_value_free(root);
    if (code)
        safetensors_header_release(&read);
    else
        *header = read;
    return code;
}

void safetensors_header_release(struct safetensors_header *self)
{
    free(self->marker);
    for (size_t i = 0; i < self->entry_count; i++)
        free(self->entries[i].fqn);
    for (size_t i = 0; i < self->value_count; i++) {
        free(self->values[i].fqn);
        free(self->values[i].literal);
    }
    free(self->entries);
    free(self->values);
    *self = (struct safetensors_header){0};
}

static int no_index_memory(const char *name, struct cb_err *err)
{
    return cb_fail(err, CB_ERR_MEMORY, "%s: no memory for the index", name);
}

static int read_weight_map(const char *name, const struct json_value *map, struct safetensors_index *index,
                           struct cb_err *err)
{
    size_t position = 0;
    const char *key, *file;
    const struct json_value *value;
    index->entries = calloc(json_count(map) + 1, sizeof *index->entries);
    if (!index->entries)
        return no_index_memory(name, err);
    while (json_next(map, &position, &key, &value)) {
        if (!json_as_text(value, &file))
            return cb_fail(err, CB_ERR_FORMAT, "%s: weight_map has no file for %s", name, key);
        int code = stored_check_file_name(name, file, err);
        if (code)
            return code;
        struct safetensors_index_entry *entry = &index->entries[index->count++];
        entry->fqn = strdup(key);
        entry->file = strdup(file);
        if (!entry->fqn || !entry->file)
            return no_index_memory(name, err);
    }
    return 0;
}

/* Only our indexes have these; what is no list of names is another program's. */
static int read_value_files(const char *name, const struct json_value *list, struct safetensors_index *index,
                            struct cb_err *err)
{
    const char *file;
    size_t count = json_is_array(list) ? json_count(list) : 0;
    index->value_files = calloc(count + 1, sizeof *index->value_files);
    if (!index->value_files)
        return no_index_memory(name, err);
    for (size_t i = 0; i < count && json_as_text(json_at(list, i), &file); i++) {
        int code = stored_check_file_name(name, file, err);
        if (code)
            return code;
        index->value_files[i] = strdup(file);
        if (!index->value_files[i])
            return no_index_memory(name, err);
        index->value_file_count++;
    }
    return 0;
}

int safetensors_read_index(const char *name, const char *json, size_t len, struct safetensors_index *index,
                           struct cb_err *err)
{
    const char *text = "";
    struct safetensors_index read = {0};
    struct json_value *root = NULL;
    int code = json_parse(json, len, &root, err);
    if (code)
        return cb_context(err, "%s", name);
    const struct json_value *map = json_get(root, "weight_map"), *metadata = json_get(root, "metadata");
    (void)json_as_text(json_get(metadata, KEY_SAVE_ID), &text);
    read.save_id = save_id_parse(text, strlen(text));
    code = json_is_object(map)
               ? read_weight_map(name, map, &read, err)
               : cb_fail(err, CB_ERR_FORMAT, "%s: no weight_map: this is no index of safetensors files", name);
    if (!code)
        code = read_value_files(name, json_get(metadata, KEY_VALUES), &read, err);
    json_value_free(root);
    if (code)
        safetensors_index_release(&read);
    else
        *index = read;
    return code;
}

void safetensors_index_release(struct safetensors_index *self)
{
    for (size_t i = 0; i < self->count; i++) {
        free(self->entries[i].fqn);
        free(self->entries[i].file);
    }
    for (size_t i = 0; i < self->value_file_count; i++)
        free(self->value_files[i]);
    free(self->entries);
    free(self->value_files);
    *self = (struct safetensors_index){0};
}
