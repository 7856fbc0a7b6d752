/* Reads DCP's .metadata, of PyTorch 2.2 and later, and passes on what it lists while it reads: of millions of items it
 * keeps the names of tensors and files.
 *
 * Untrusted input: every value's kind and range is checked before use, and no more is passed on than the file has bytes,
 * even if values are shared. */
#include <string.h>

#include "ckpt/format/dcp.h"
#include "ckpt/format/dcp_values.h"
#include "ckpt/format/literal.h"
#include "ckpt/format/save_id.h"
#include "core/alloc.h"

#define MAX_KEYS 64
#define MAX_KEY_BYTES 4096
#define MAX_PATH_SHARE 8 /* limit of all keys together, per byte of the file */
#define LEAST_SLOTS 64

enum dict { DICT_TENSORS, DICT_PATHS, DICT_PLACES };
static const char *const dict_keys[] = {"state_dict_metadata", "planner_data", "storage_data", NULL};

/* Names and their numbers: open addressing with a power of two of slots, each holding a number + 1. */
struct name_table {
    char **names;
    size_t count;
    uint32_t *slots;
    size_t slot_count;
};

struct reader {
    const char *name;
    const struct pickle *pickle;
    uint64_t bytes; /* of the file: limits everything else */
    const struct stored_sink *sink;
    struct name_table tensors, files;
    uint8_t *dims; /* of the tensors */
    uint64_t chunk_count, path_bytes;
    struct stored_chunk batch[STORED_AT_ONCE]; /* of one tensor, not passed on yet */
    uint32_t batch_count, batch_tensor;
    struct buf literal; /* of a path */
    struct cb_err *err;
};

static int bad(struct reader *self, const char *fqn, const char *what)
{
    return cb_fail(self->err, CB_ERR_FORMAT, "%s: %s%s%s", self->name, fqn ? fqn : "", fqn ? ": " : "", what);
}

static int no_memory(struct reader *self)
{
    return cb_fail(self->err, CB_ERR_MEMORY, "%s: no memory for what it lists", self->name);
}

/* --- names --- */

/* Eight bytes at a time, since this runs once per item. */
static uint64_t text_hash(const char *text, size_t len)
{
    uint64_t hash = len * UINT64_C(0x9e3779b97f4a7c15);
    for (size_t i = 0; i < len; i += sizeof(uint64_t)) {
        uint64_t word = 0;
        memcpy(&word, text + i, len - i < sizeof word ? len - i : sizeof word);
        hash = (hash ^ word) * UINT64_C(0xff51afd7ed558ccd);
        hash ^= hash >> 32;
    }
    return hash;
}

/* The slot of this name, or the free one where it belongs. */
static uint32_t *find_slot(const struct name_table *table, const char *text, size_t len)
{
    size_t slot = text_hash(text, len) & (table->slot_count - 1);
    for (; table->slots[slot]; slot = (slot + 1) & (table->slot_count - 1)) {
        const char *name = table->names[table->slots[slot] - 1];
        if (strncmp(name, text, len) == 0 && name[len] == '\0')
            break;
    }
    return &table->slots[slot];
}

static bool find_name(const struct name_table *table, const struct pickle_node *text, uint32_t *number)
{
    const uint32_t *slot = table->slot_count ? find_slot(table, text->value.text, text->count) : NULL;
    if (!slot || !*slot)
        return false;
    *number = *slot - 1;
    return true;
}

/* At most half of the slots are in use. */
static int make_slots(struct reader *self, struct name_table *table)
{
    if (2 * (table->count + 1) <= table->slot_count)
        return 0;
    size_t slots = table->slot_count ? 2 * table->slot_count : LEAST_SLOTS;
    if (table->count >= UINT32_MAX / 2)
        return bad(self, NULL, "it has too many names");
    free(table->slots);
    table->slots = calloc(slots, sizeof *table->slots);
    table->slot_count = table->slots ? slots : 0;
    if (!table->slots)
        return no_memory(self);
    for (size_t i = 0; i < table->count; i++)
        *find_slot(table, table->names[i], strlen(table->names[i])) = (uint32_t)i + 1;
    return 0;
}

static int add_name(struct reader *self, struct name_table *table, const struct pickle_node *text)
{
    int code = make_slots(self, table);
    if (!code)
        code = alloc_add_text(&table->names, &table->count, text->value.text, text->count, self->err);
    if (!code)
        *find_slot(table, text->value.text, text->count) = (uint32_t)table->count;
    return code;
}

static void release_names(struct name_table *table)
{
    alloc_free_texts(table->names, table->count);
    free(table->slots);
}

/* --- tensors and their chunks --- */

static int read_dtype(struct reader *self, const char *fqn, const struct pickle_node *properties, enum dtype *dtype)
{
    const struct pickle_node *state = pickle_state(self->pickle, properties);
    const struct pickle_node *node = NULL;
    if (pickle_is(self->pickle, properties, PICKLE_G_TENSOR_PROPERTIES) && state)
        node = state->kind == PICKLE_DICT ? pickle_get(self->pickle, state, "dtype")
                                          : pickle_child(self->pickle, state, 0);
    if (!node || node->kind != PICKLE_GLOBAL || node->global != PICKLE_G_DTYPE)
        return bad(self, fqn, "the properties of the tensor name no type");
    *dtype = (enum dtype)node->dtype;
    return 0;
}

static int pass_batch(struct reader *self, enum stored_known known)
{
    uint32_t count = self->batch_count;
    self->batch_count = 0;
    if (count == 0)
        return 0;
    return self->sink->chunks(self->sink->context, self->batch_tensor, known, self->batch, count, self->err);
}

static int add_to_batch(struct reader *self, enum stored_known known, uint32_t tensor, const struct stored_chunk *chunk)
{
    int code = 0;
    if (self->batch_count == STORED_AT_ONCE || (self->batch_count > 0 && self->batch_tensor != tensor))
        code = pass_batch(self, known);
    self->batch_tensor = tensor;
    self->batch[self->batch_count++] = *chunk;
    return code;
}

static int read_chunk(struct reader *self, const struct stored_tensor *tensor, const struct pickle_node *node)
{
    struct stored_chunk chunk = {0};
    const struct pickle_node *state = pickle_state(self->pickle, node);
    uint32_t sizes;
    if (!pickle_is(self->pickle, node, PICKLE_G_CHUNK_STORAGE_METADATA) ||
        !dcp_read_sizes(self->pickle, pickle_get(self->pickle, state, "offsets"), chunk.region.offset,
                        &chunk.region.dims) ||
        !dcp_read_sizes(self->pickle, pickle_get(self->pickle, state, "sizes"), chunk.region.size, &sizes) ||
        sizes != chunk.region.dims || sizes != tensor->dims)
        return bad(self, tensor->fqn, "a chunk that is none of this tensor");
    if (++self->chunk_count > self->bytes || self->chunk_count >= UINT32_MAX - 1)
        return bad(self, NULL, "more chunks than the file can list");
    int code = stored_check_region(self->name, tensor, &chunk.region, self->err);
    return code ? code : add_to_batch(self, STORED_REGIONS, (uint32_t)self->tensors.count - 1, &chunk);
}

static int read_tensor(struct reader *self, const struct pickle_node *node, struct stored_tensor *tensor)
{
    const struct pickle_node *state = pickle_state(self->pickle, node);
    const struct pickle_node *chunks = pickle_get(self->pickle, state, "chunks");
    int code = read_dtype(self, tensor->fqn, pickle_get(self->pickle, state, "properties"), &tensor->dtype);
    if (code)
        return code;
    if (!dcp_read_sizes(self->pickle, pickle_get(self->pickle, state, "size"), tensor->shape, &tensor->dims))
        return bad(self, tensor->fqn, "no shape of at most 6 dimensions");
    if (!chunks || chunks->kind != PICKLE_LIST)
        return bad(self, tensor->fqn, "no list of chunks");
    self->dims[self->tensors.count - 1] = (uint8_t)tensor->dims;
    code = self->sink->tensor(self->sink->context, tensor, self->err);
    for (uint32_t i = 0; i < chunks->count && !code; i++)
        code = read_chunk(self, tensor, pickle_child(self->pickle, chunks, i));
    return code ? code : pass_batch(self, STORED_REGIONS);
}

static int read_value(struct reader *self, struct stored_tensor *tensor)
{
    struct stored_chunk chunk = {0};
    tensor->is_bytes = true;
    tensor->dtype = DTYPE_U8;
    int code = self->sink->tensor(self->sink->context, tensor, self->err);
    if (!code)
        code = add_to_batch(self, STORED_REGIONS, (uint32_t)self->tensors.count - 1, &chunk);
    return code ? code : pass_batch(self, STORED_REGIONS);
}

static int read_entry(struct reader *self, const struct pickle_node *key, const struct pickle_node *value)
{
    struct stored_tensor tensor = {0};
    uint32_t known;
    if (key->kind != PICKLE_TEXT || key->count == 0)
        return bad(self, NULL, "a tensor without a name");
    if (find_name(&self->tensors, key, &known))
        return bad(self, self->tensors.names[known], "it is listed twice");
    int code = alloc_grow(&self->dims, self->tensors.count, sizeof *self->dims, self->err);
    if (code)
        return code;
    self->dims[self->tensors.count] = 0;
    code = add_name(self, &self->tensors, key);
    if (code)
        return code;
    tensor.fqn = self->tensors.names[self->tensors.count - 1];
    if (pickle_is(self->pickle, value, PICKLE_G_BYTES_STORAGE_METADATA))
        return read_value(self, &tensor);
    if (pickle_is(self->pickle, value, PICKLE_G_TENSOR_STORAGE_METADATA))
        return read_tensor(self, value, &tensor);
    return bad(self, tensor.fqn, "neither a tensor nor a value");
}

/* --- where chunks are stored --- */

static int find_file(struct reader *self, const struct pickle_node *text, uint32_t *file)
{
    if (find_name(&self->files, text, file))
        return 0;
    *file = (uint32_t)self->files.count;
    return add_name(self, &self->files, text);
}

/* PyTorch's only extension compresses the whole item. */
static int check_transforms(struct reader *self, const char *fqn, const struct pickle_node *state, bool *compressed)
{
    *compressed = false;
    const struct pickle_node *list = pickle_get(self->pickle, state, "transform_descriptors");
    if (!list || list->kind == PICKLE_NONE || list->count == 0)
        return 0;
    const struct pickle_node *first = pickle_child(self->pickle, list, 0);
    bool is_text = first && first->kind == PICKLE_TEXT;
    if (list->kind == PICKLE_LIST && list->count == 1 && is_text && first->count >= 13 &&
        memcmp(first->value.text, "stream.zstd/1", 13) == 0) {
        *compressed = true;
        return 0;
    }
    return cb_fail(self->err, CB_ERR_UNSUPPORTED, "%s: %s is stored transformed (%.*s), which cannot be read here",
                   self->name, fqn, is_text ? (int)(first->count < 64 ? first->count : 64) : 1,
                   is_text ? first->value.text : "?");
}

static int read_place(struct reader *self, const struct pickle_node *index, const struct pickle_node *info)
{
    const struct pickle_node *index_state = pickle_state(self->pickle, index);
    const struct pickle_node *state = pickle_state(self->pickle, info);
    const struct pickle_node *fqn = pickle_get(self->pickle, index_state, "fqn");
    const struct pickle_node *offset = pickle_get(self->pickle, index_state, "offset");
    const struct pickle_node *path = pickle_get(self->pickle, state, "relative_path");
    struct stored_chunk place = {0};
    uint32_t tensor;
    if (!pickle_is(self->pickle, index, PICKLE_G_METADATA_INDEX) ||
        !pickle_is(self->pickle, info, PICKLE_G_STORAGE_INFO) || !fqn || fqn->kind != PICKLE_TEXT || !path ||
        path->kind != PICKLE_TEXT)
        return bad(self, NULL, "an entry of storage_data that names no item and file");
    if (!find_name(&self->tensors, fqn, &tensor))
        return cb_fail(self->err, CB_ERR_FORMAT, "%s: \"%.*s\" is stored, but not listed", self->name,
                       (int)(fqn->count < 200 ? fqn->count : 200), fqn->value.text);
    const char *name = self->tensors.names[tensor];
    if (offset && offset->kind != PICKLE_NONE &&
        !dcp_read_sizes(self->pickle, offset, place.region.offset, &place.region.dims))
        return bad(self, name, "an item without an offset");
    if (place.region.dims != self->dims[tensor])
        return bad(self, name, "an item that is none of its chunks");
    int code = check_transforms(self, name, state, &place.compressed);
    if (!code && (!dcp_read_count(pickle_get(self->pickle, state, "offset"), &place.offset) ||
                  !dcp_read_count(pickle_get(self->pickle, state, "length"), &place.length)))
        code = bad(self, name, "an item without offset and length in its file");
    if (!code)
        code = find_file(self, path, &place.file);
    return code ? code : add_to_batch(self, STORED_PLACES, tensor, &place);
}

/* --- the nested keys of each value --- */

/* A tuple of texts and numbers, as a literal; other types from a foreign planner are dropped. */
static int read_path(struct reader *self, const struct pickle_node *key, const struct pickle_node *path)
{
    struct buf *literal = &self->literal;
    uint32_t tensor;
    if (key->kind != PICKLE_TEXT || !find_name(&self->tensors, key, &tensor))
        return 0;

    bool plain = path->kind == PICKLE_TUPLE && path->count > 0 && path->count <= MAX_KEYS;
    for (uint32_t i = 0; plain && i < path->count; i++) {
        const struct pickle_node *part = pickle_child(self->pickle, path, i);
        plain = (part->kind == PICKLE_TEXT && part->count <= MAX_KEY_BYTES) || part->kind == PICKLE_INT;
    }
    const char *fqn = self->tensors.names[tensor];
    if (!plain || (path->count == 1 && pickle_text_is(pickle_child(self->pickle, path, 0), fqn)))
        return 0;
    buf_clear(literal);
    int code = literal_from_pickle(self->pickle, path, literal, self->err);
    self->path_bytes += literal->len;
    if (code || self->path_bytes > MAX_PATH_SHARE * self->bytes) /* shared keys could multiply the output */
        return code ? code : bad(self, fqn, "planner_data has more keys than its file");
    return self->sink->path(self->sink->context, tensor, literal->data, self->err);
}

/* PyTorch's own id is a UUID, which its files do not have. */
static uint64_t read_save_id(const struct pickle *pickle, const struct pickle_node *state)
{
    const struct pickle_node *meta = pickle_state(pickle, pickle_get(pickle, state, "storage_meta"));
    const struct pickle_node *text = pickle_get(pickle, meta, "save_id");
    return text && text->kind == PICKLE_TEXT ? save_id_parse(text->value.text, text->count) : 0;
}

/* Megatron-Core's own class of metadata has PyTorch's members. */
static bool is_metadata(const struct reader *self, const struct pickle_node *root)
{
    return pickle_is(self->pickle, root, PICKLE_G_METADATA) ||
           (pickle_is(self->pickle, root, PICKLE_G_INERT) &&
            pickle_get(self->pickle, pickle_state(self->pickle, root), "state_dict_metadata"));
}

static int read_pair(void *context, const struct pickle *pickle, int dict, const struct pickle_node *key,
                     const struct pickle_node *value, struct cb_err *err)
{
    struct reader *self = context;
    (void)err; /* which is the reader's, too */
    self->pickle = pickle;
    switch ((enum dict)dict) {
    case DICT_TENSORS:
        return read_entry(self, key, value);
    case DICT_PATHS:
        return read_path(self, key, value);
    case DICT_PLACES:
        return read_place(self, key, value);
    }
    return 0;
}

static bool is_dict(const struct reader *self, enum dict dict)
{
    const struct pickle_node *state = pickle_state(self->pickle, pickle_root(self->pickle));
    const struct pickle_node *node = pickle_get(self->pickle, state, dict_keys[dict]);
    return node && node->kind == PICKLE_DICT;
}

/* What is not in the dicts, and the end. */
static int read_rest(struct reader *self)
{
    const struct pickle_node *root = pickle_root(self->pickle);
    struct stored_checkpoint facts = {.format = PLAN_DCP, .marked = true};
    if (!is_metadata(self, root))
        return bad(self, NULL, "not the metadata of a checkpoint");
    if (!is_dict(self, DICT_TENSORS))
        return bad(self, NULL, "no state_dict_metadata: this is no metadata of a DCP checkpoint");
    if (!is_dict(self, DICT_PLACES))
        return bad(self, NULL, "no storage_data: this is no metadata that a file system writer made");
    facts.save_id = read_save_id(self->pickle, pickle_state(self->pickle, root));
    int code = pass_batch(self, STORED_PLACES);
    for (size_t i = 0; i < self->files.count && !code; i++)
        code = self->sink->file(self->sink->context, self->files.names[i], self->err);
    return code ? code : self->sink->end(self->sink->context, &facts, self->err);
}

int dcp_pass_metadata(const char *name, const struct byte_source *source, const struct stored_sink *sink,
                      struct cb_err *err)
{
    struct pickle *pickle = NULL;
    struct reader *self = calloc(1, sizeof *self);
    if (!self)
        return alloc_fail(err, "to read %s", name);
    struct pickle_dicts dicts = {dict_keys, read_pair, self};
    self->name = name;
    self->bytes = source->len;
    self->sink = sink;
    self->err = err;
    buf_init(&self->literal, MAX_KEYS * (4 * MAX_KEY_BYTES + 8));
    int code = pickle_read_dicts(name, source, &dicts, &pickle, err);
    self->pickle = pickle;
    if (!code)
        code = read_rest(self);
    release_names(&self->tensors);
    release_names(&self->files);
    buf_release(&self->literal);
    free(self->dims);
    free(self);
    pickle_free(pickle);
    return code;
}
