/* Owns the reading of DCP: .metadata of PyTorch 2.2 and later, and stored items. Knows nothing of writing.
 *
 * Foreign bytes: every value is checked for kind and range before use, and a walk never takes more steps
 * than the file has bytes, though its values may be shared. */
#include <stdlib.h>
#include <string.h>

#include "ckpt/dcp.h"
#include "ckpt/literal.h"
#include "ckpt/pickle.h"
#include "ckpt/stored.h"
#include "ckpt/zip.h"
#include "core/hash.h"

#define MAX_KEYS 64
#define MAX_KEY_BYTES 4096
#define MAX_PATH_SHARE 8 /* all keys together, to the bytes of the file */

/* Index of names already seen: open addressing over a power of two of slots, each a number + 1. */
struct name_table {
    uint32_t *slots;
    size_t mask;
};

struct reader {
    const char *name;
    const struct pickle *pickle;
    size_t bytes; /* of the file: a bound for everything */
    struct stored_checkpoint *checkpoint;
    size_t chunk_capacity, file_capacity;
    bool *stored; /* a chunk: its place in a file is known */
    uint64_t path_bytes;
    struct name_table names; /* of tensors */
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

/* A tuple (or list) of at most CKPT_MAX_DIMS integers that are not negative. */
static bool read_sizes(const struct pickle *pickle, const struct pickle_node *node, uint64_t *values, uint32_t *count)
{
    if (!node || (node->kind != PICKLE_TUPLE && node->kind != PICKLE_LIST) || node->count > CKPT_MAX_DIMS)
        return false;
    for (uint32_t i = 0; i < node->count; i++) {
        const struct pickle_node *value = pickle_child(pickle, node, i);
        if (value->kind != PICKLE_INT || value->value.integer < 0)
            return false;
        values[i] = (uint64_t)value->value.integer;
    }
    *count = node->count;
    return true;
}

static bool read_count(const struct pickle_node *node, uint64_t *value)
{
    if (!node || node->kind != PICKLE_INT || node->value.integer < 0)
        return false;
    *value = (uint64_t)node->value.integer;
    return true;
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

static int add_chunk(struct reader *self, const struct stored_chunk *chunk)
{
    struct stored_checkpoint *checkpoint = self->checkpoint;
    if (checkpoint->chunk_count >= self->bytes || checkpoint->chunk_count >= UINT32_MAX - 1)
        return bad(self, NULL, "more chunks than the file can list");
    if (checkpoint->chunk_count == self->chunk_capacity) {
        size_t capacity = self->chunk_capacity ? self->chunk_capacity * 2 : 64;
        struct stored_chunk *chunks = realloc(checkpoint->chunks, capacity * sizeof *chunks);
        if (!chunks)
            return no_memory(self);
        checkpoint->chunks = chunks;
        self->chunk_capacity = capacity;
    }
    checkpoint->chunks[checkpoint->chunk_count++] = *chunk;
    return 0;
}

static int read_chunk(struct reader *self, const struct stored_tensor *tensor, const struct pickle_node *node)
{
    struct stored_chunk chunk = {0};
    const struct pickle_node *state = pickle_state(self->pickle, node);
    uint32_t sizes;
    if (!pickle_is(self->pickle, node, PICKLE_G_CHUNK_STORAGE_METADATA) ||
        !read_sizes(self->pickle, pickle_get(self->pickle, state, "offsets"), chunk.box.offset, &chunk.box.dims) ||
        !read_sizes(self->pickle, pickle_get(self->pickle, state, "sizes"), chunk.box.size, &sizes) ||
        sizes != chunk.box.dims || sizes != tensor->dims)
        return bad(self, tensor->fqn, "a chunk that is none of this tensor");
    return add_chunk(self, &chunk);
}

static int read_tensor(struct reader *self, const struct pickle_node *node, struct stored_tensor *tensor)
{
    const struct pickle_node *state = pickle_state(self->pickle, node);
    const struct pickle_node *chunks = pickle_get(self->pickle, state, "chunks");
    int code = read_dtype(self, tensor->fqn, pickle_get(self->pickle, state, "properties"), &tensor->dtype);
    if (code)
        return code;
    if (!read_sizes(self->pickle, pickle_get(self->pickle, state, "size"), tensor->shape, &tensor->dims))
        return bad(self, tensor->fqn, "no shape of at most 6 dimensions");
    if (!chunks || chunks->kind != PICKLE_LIST)
        return bad(self, tensor->fqn, "no list of chunks");
    for (uint32_t i = 0; i < chunks->count && !code; i++)
        code = read_chunk(self, tensor, pickle_child(self->pickle, chunks, i));
    return code;
}

static int read_entry(struct reader *self, const struct pickle_node *key, const struct pickle_node *value)
{
    if (key->kind != PICKLE_TEXT || key->count == 0)
        return bad(self, NULL, "a tensor without a name");
    struct stored_tensor *tensor = &self->checkpoint->tensors[self->checkpoint->tensor_count];
    tensor->first_chunk = (uint32_t)self->checkpoint->chunk_count;
    tensor->fqn = strndup(key->value.text, key->count);
    if (!tensor->fqn)
        return no_memory(self);
    self->checkpoint->tensor_count++;
    int code;
    if (pickle_is(self->pickle, value, PICKLE_G_BYTES_STORAGE_METADATA)) {
        struct stored_chunk chunk = {0};
        tensor->is_bytes = true;
        tensor->dtype = DTYPE_U8;
        code = add_chunk(self, &chunk);
    } else if (pickle_is(self->pickle, value, PICKLE_G_TENSOR_STORAGE_METADATA)) {
        code = read_tensor(self, value, tensor);
    } else {
        code = bad(self, tensor->fqn, "neither a tensor nor a value");
    }
    tensor->chunk_count = (uint32_t)self->checkpoint->chunk_count - tensor->first_chunk;
    return code;
}

static int read_entries(struct reader *self, const struct pickle_node *dict)
{
    if (!dict || dict->kind != PICKLE_DICT)
        return bad(self, NULL, "no state_dict_metadata: this is no metadata of a DCP checkpoint");
    self->checkpoint->tensors = calloc(dict->count / 2 + 1, sizeof *self->checkpoint->tensors);
    if (!self->checkpoint->tensors)
        return no_memory(self);
    int code = 0;
    for (uint32_t i = 0; i + 1 < dict->count && !code; i += 2)
        code = read_entry(self, pickle_child(self->pickle, dict, i), pickle_child(self->pickle, dict, i + 1));
    return code;
}

/* --- where chunks are stored --- */

static int add_file(struct reader *self, const struct pickle_node *text, uint32_t *file)
{
    struct stored_checkpoint *checkpoint = self->checkpoint;
    if (checkpoint->file_count == self->file_capacity) {
        size_t capacity = self->file_capacity ? self->file_capacity * 2 : 64;
        char **files = realloc(checkpoint->files, capacity * sizeof *files);
        if (!files)
            return no_memory(self);
        checkpoint->files = files;
        self->file_capacity = capacity;
    }
    char *name = strndup(text->value.text, text->count);
    if (!name)
        return no_memory(self);
    *file = (uint32_t)checkpoint->file_count;
    checkpoint->files[checkpoint->file_count++] = name;
    return 0;
}

static uint64_t text_hash(const char *text, size_t len)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < len; i++)
        hash = (hash ^ (unsigned char)text[i]) * UINT64_C(0x100000001b3);
    return hash ^ hash >> 29;
}

static int find_file(struct reader *self, struct name_table *table, const struct pickle_node *text, uint32_t *file)
{
    size_t slot = text_hash(text->value.text, text->count) & table->mask;
    for (; table->slots[slot]; slot = (slot + 1) & table->mask) {
        const char *known = self->checkpoint->files[table->slots[slot] - 1];
        if (strlen(known) == text->count && memcmp(known, text->value.text, text->count) == 0) {
            *file = table->slots[slot] - 1;
            return 0;
        }
    }
    int code = add_file(self, text, file);
    if (!code)
        table->slots[slot] = *file + 1;
    return code;
}

/* The same of tensors, once they are settled. */
static int index_tensors(struct reader *self)
{
    const struct stored_checkpoint *checkpoint = self->checkpoint;
    struct name_table *table = &self->names;
    table->mask = 64 - 1;
    while (table->mask < 2 * checkpoint->tensor_count)
        table->mask = table->mask * 2 + 1;
    table->slots = calloc(table->mask + 1, sizeof *table->slots);
    if (!table->slots)
        return no_memory(self);
    for (size_t i = 0; i < checkpoint->tensor_count; i++) {
        const char *fqn = checkpoint->tensors[i].fqn;
        size_t slot = text_hash(fqn, strlen(fqn)) & table->mask;
        while (table->slots[slot])
            slot = (slot + 1) & table->mask;
        table->slots[slot] = (uint32_t)i + 1;
    }
    return 0;
}

static struct stored_tensor *find_tensor(const struct reader *self, const struct pickle_node *text)
{
    const struct name_table *table = &self->names;
    size_t slot = text_hash(text->value.text, text->count) & table->mask;
    for (; table->slots[slot]; slot = (slot + 1) & table->mask) {
        struct stored_tensor *tensor = &self->checkpoint->tensors[table->slots[slot] - 1];
        if (strncmp(tensor->fqn, text->value.text, text->count) == 0 && tensor->fqn[text->count] == '\0')
            return tensor;
    }
    return NULL;
}

/* The first chunk at this offset, or NULL. Chunks are sorted by offset. */
static struct stored_chunk *find_chunk(const struct reader *self, const struct stored_tensor *tensor,
                                       const struct box *wanted)
{
    struct stored_chunk key = {.box = *wanted};
    memset(key.box.size, 0, sizeof key.box.size);
    size_t low = tensor->first_chunk, end = low + tensor->chunk_count, high = end;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (stored_chunk_compare(&self->checkpoint->chunks[middle], &key) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == end ||
        memcmp(self->checkpoint->chunks[low].box.offset, wanted->offset, wanted->dims * sizeof *wanted->offset) != 0)
        return NULL;
    return &self->checkpoint->chunks[low];
}

/* The one extension that PyTorch ships compresses the whole item. */
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

static int read_place(struct reader *self, struct name_table *table, const struct pickle_node *index,
                      const struct pickle_node *info)
{
    const struct pickle_node *index_state = pickle_state(self->pickle, index);
    const struct pickle_node *state = pickle_state(self->pickle, info);
    const struct pickle_node *fqn = pickle_get(self->pickle, index_state, "fqn");
    const struct pickle_node *offset = pickle_get(self->pickle, index_state, "offset");
    const struct pickle_node *path = pickle_get(self->pickle, state, "relative_path");
    if (!pickle_is(self->pickle, index, PICKLE_G_METADATA_INDEX) ||
        !pickle_is(self->pickle, info, PICKLE_G_STORAGE_INFO) || !fqn || fqn->kind != PICKLE_TEXT || !path ||
        path->kind != PICKLE_TEXT)
        return bad(self, NULL, "an entry of storage_data that names no item and file");
    struct stored_tensor *tensor = find_tensor(self, fqn);
    if (!tensor)
        return cb_fail(self->err, CB_ERR_FORMAT, "%s: \"%.*s\" is stored, but not listed", self->name,
                       (int)(fqn->count < 200 ? fqn->count : 200), fqn->value.text);
    struct box box = {0};
    if (offset && offset->kind != PICKLE_NONE && !read_sizes(self->pickle, offset, box.offset, &box.dims))
        return bad(self, tensor->fqn, "an item without an offset");
    struct stored_chunk *chunk = box.dims == tensor->dims ? find_chunk(self, tensor, &box) : NULL;
    if (!chunk)
        return bad(self, tensor->fqn, "an item that is none of its chunks");
    bool compressed;
    int code = check_transforms(self, tensor->fqn, state, &compressed);
    uint64_t begin = 0, length = 0;
    if (!code && (!read_count(pickle_get(self->pickle, state, "offset"), &begin) ||
                  !read_count(pickle_get(self->pickle, state, "length"), &length)))
        code = bad(self, tensor->fqn, "an item without offset and length in its file");
    uint32_t file;
    if (!code)
        code = find_file(self, table, path, &file);
    if (code)
        return code;
    /* Chunks at one offset share their item, as for PyTorch, which finds items by name and offset: empty ones,
     * and one that several ranks wrote. */
    struct stored_chunk *end = self->checkpoint->chunks + tensor->first_chunk + tensor->chunk_count;
    for (struct stored_chunk *other = chunk; other < end; other++) {
        if (memcmp(other->box.offset, box.offset, box.dims * sizeof *box.offset) != 0)
            break;
        size_t number = (size_t)(other - self->checkpoint->chunks);
        if (self->stored[number])
            break;
        other->file = file;
        other->offset = begin;
        other->length = length;
        other->compressed = compressed;
        self->stored[number] = true;
    }
    return 0;
}

static int check_all_stored(struct reader *self)
{
    for (size_t i = 0; i < self->checkpoint->chunk_count; i++) {
        const struct stored_tensor *tensor = &self->checkpoint->tensors[self->checkpoint->chunks[i].tensor];
        if (!self->stored[i])
            return bad(self, tensor->fqn, "a chunk that no file holds");
    }
    return 0;
}

static int read_places(struct reader *self, const struct pickle_node *dict)
{
    if (!dict || dict->kind != PICKLE_DICT)
        return bad(self, NULL, "no storage_data: this is no metadata that a file system writer made");
    struct name_table table = {.mask = 64 - 1};
    while (table.mask < dict->count)
        table.mask = table.mask * 2 + 1;
    table.slots = calloc(table.mask + 1, sizeof *table.slots);
    self->stored = calloc(self->checkpoint->chunk_count + 1, sizeof *self->stored);
    int code = table.slots && self->stored ? 0 : no_memory(self);
    for (uint32_t i = 0; i + 1 < dict->count && !code; i += 2)
        code = read_place(self, &table, pickle_child(self->pickle, dict, i), pickle_child(self->pickle, dict, i + 1));
    if (!code)
        code = check_all_stored(self);
    free(table.slots);
    return code;
}

/* --- the keys that lead to each --- */

/* A tuple of texts and numbers, as a literal; what else a foreign planner may have put there is left out. */
static int read_path(struct reader *self, const struct pickle_node *path, struct stored_tensor *tensor,
                     struct buf *literal)
{
    bool plain = path->kind == PICKLE_TUPLE && path->count > 0 && path->count <= MAX_KEYS;
    for (uint32_t i = 0; plain && i < path->count; i++) {
        const struct pickle_node *key = pickle_child(self->pickle, path, i);
        plain = (key->kind == PICKLE_TEXT && key->count <= MAX_KEY_BYTES) || key->kind == PICKLE_INT;
    }
    if (!plain || (path->count == 1 && pickle_text_is(pickle_child(self->pickle, path, 0), tensor->fqn)))
        return 0;
    buf_clear(literal);
    int code = literal_from_pickle(self->pickle, path, literal, self->err);
    self->path_bytes += literal->len;
    if (code || self->path_bytes > MAX_PATH_SHARE * self->bytes) /* keys that are shared can be made to multiply */
        return code ? code : bad(self, tensor->fqn, "planner_data has more keys than its file");
    if (!tensor->path)
        tensor->path = strdup(literal->data);
    return tensor->path ? 0 : no_memory(self);
}

static int read_paths(struct reader *self, const struct pickle_node *dict)
{
    struct buf literal;
    int code = 0;
    buf_init(&literal, MAX_KEYS * (4 * MAX_KEY_BYTES + 8));
    for (uint32_t i = 0; dict && dict->kind == PICKLE_DICT && i + 1 < dict->count && !code; i += 2) {
        const struct pickle_node *key = pickle_child(self->pickle, dict, i);
        struct stored_tensor *tensor = key->kind == PICKLE_TEXT ? find_tensor(self, key) : NULL;
        if (tensor)
            code = read_path(self, pickle_child(self->pickle, dict, i + 1), tensor, &literal);
    }
    buf_release(&literal);
    return code;
}

/* Files that are not known yet must not fail the first settling, which only sorts. */
static int read_all(struct reader *self)
{
    const struct pickle_node *root = pickle_root(self->pickle), *state = pickle_state(self->pickle, root);
    if (!pickle_is(self->pickle, root, PICKLE_G_METADATA))
        return bad(self, NULL, "not the metadata of a checkpoint");
    uint32_t none;
    static const char no_file[] = "-";
    struct pickle_node placeholder = {.kind = PICKLE_TEXT, .count = 1, .value.text = no_file};
    int code = read_entries(self, pickle_get(self->pickle, state, "state_dict_metadata"));
    if (!code)
        code = add_file(self, &placeholder, &none);
    if (!code)
        code = stored_checkpoint_settle(self->checkpoint, self->name, self->err);
    if (code)
        return code;
    free(self->checkpoint->files[--self->checkpoint->file_count]);
    code = index_tensors(self);
    if (!code)
        code = read_places(self, pickle_get(self->pickle, state, "storage_data"));
    if (!code)
        code = read_paths(self, pickle_get(self->pickle, state, "planner_data"));
    return code ? code : stored_checkpoint_settle(self->checkpoint, self->name, self->err);
}

int dcp_read_metadata(const char *name, const void *bytes, size_t len, struct stored_checkpoint **checkpoint,
                      struct cb_err *err)
{
    struct pickle *pickle;
    int code = pickle_read(name, bytes, len, &pickle, err);
    if (code)
        return code;
    struct reader reader = {.name = name, .pickle = pickle, .bytes = len, .err = err};
    reader.checkpoint = calloc(1, sizeof *reader.checkpoint);
    if (reader.checkpoint) {
        reader.checkpoint->format = PLAN_DCP;
        reader.checkpoint->marked = true;
    }
    code = reader.checkpoint ? read_all(&reader) : no_memory(&reader);
    free(reader.stored);
    free(reader.names.slots);
    pickle_free(pickle);
    if (code)
        stored_checkpoint_free(reader.checkpoint);
    else
        *checkpoint = reader.checkpoint;
    return code;
}

/* --- items --- */

struct item_tensor { /* what data.pkl says */
    enum dtype dtype;
    uint64_t storage_bytes, offset; /* offset in elements */
    uint32_t dims, strides;
    uint64_t size[CKPT_MAX_DIMS], stride[CKPT_MAX_DIMS];
    char record[64]; /* "data/0" */
};

static bool read_storage(const struct pickle *pickle, const struct pickle_node *node, struct item_tensor *item,
                         bool *untyped)
{
    const struct pickle_node *id = node && node->kind == PICKLE_PERSISTENT ? pickle_child(pickle, node, 0) : NULL;
    if (!id || id->kind != PICKLE_TUPLE || id->count != 5 || !pickle_text_is(pickle_child(pickle, id, 0), "storage"))
        return false;
    const struct pickle_node *class = pickle_child(pickle, id, 1), *key = pickle_child(pickle, id, 2);
    uint64_t count;
    if (class->kind != PICKLE_GLOBAL || key->kind != PICKLE_TEXT || key->count > 40 ||
        !read_count(pickle_child(pickle, id, 4), &count))
        return false;
    *untyped = class->global == PICKLE_G_UNTYPED_STORAGE;
    if (!*untyped && class->global != PICKLE_G_STORAGE)
        return false;
    item->dtype = *untyped ? DTYPE_U8 : (enum dtype) class->dtype;
    if (__builtin_mul_overflow(count, dtype_bytes(item->dtype), &item->storage_bytes))
        return false;
    memcpy(item->record, "data/", 5);
    memcpy(item->record + 5, key->value.text, key->count);
    item->record[5 + key->count] = '\0';
    return true;
}

static bool read_item_tensor(const struct pickle *pickle, struct item_tensor *item)
{
    const struct pickle_node *root = pickle_root(pickle), *arguments = pickle_arguments(pickle, root);
    bool third = pickle_is(pickle, root, PICKLE_G_REBUILD_V3), untyped;
    if ((!third && !pickle_is(pickle, root, PICKLE_G_REBUILD_V2)) || root->kind != PICKLE_CALL ||
        !read_storage(pickle, pickle_child(pickle, arguments, 0), item, &untyped) || untyped != third ||
        !read_count(pickle_child(pickle, arguments, 1), &item->offset) ||
        !read_sizes(pickle, pickle_child(pickle, arguments, 2), item->size, &item->dims) ||
        !read_sizes(pickle, pickle_child(pickle, arguments, 3), item->stride, &item->strides) ||
        item->dims != item->strides)
        return false;
    if (!third)
        return true;
    const struct pickle_node *dtype = pickle_child(pickle, arguments, 6);
    if (!dtype || dtype->kind != PICKLE_GLOBAL || dtype->global != PICKLE_G_DTYPE)
        return false;
    item->dtype = (enum dtype)dtype->dtype;
    return true;
}

/* Elements from the first to the last one that the strides reach; false where that does not fit. */
static bool span_of(const struct item_tensor *item, uint64_t *span)
{
    uint64_t last = 0;
    for (uint32_t i = 0; i < item->dims; i++) {
        uint64_t reach;
        if (item->size[i] == 0) {
            *span = 0;
            return true;
        }
        if (__builtin_mul_overflow(item->size[i] - 1, item->stride[i], &reach) ||
            __builtin_add_overflow(last, reach, &last))
            return false;
    }
    return !__builtin_add_overflow(last, 1, span);
}

static bool is_contiguous(const struct item_tensor *item)
{
    uint64_t step = 1;
    for (uint32_t i = item->dims; i-- > 0;) {
        if (item->size[i] == 0)
            return true;
        if (item->size[i] != 1 && item->stride[i] != step)
            return false;
        step *= item->size[i];
    }
    return true;
}

static int check_item(const struct stored_tensor *tensor, const struct box *box, const struct item_tensor *item,
                      struct cb_err *err)
{
    if (item->dtype != tensor->dtype)
        return cb_fail(err, CB_ERR_CORRUPT, "%s: the item holds %s, the metadata says %s", tensor->fqn,
                       dtype_name(item->dtype), dtype_name(tensor->dtype));
    if (item->dims != box->dims || memcmp(item->size, box->size, box->dims * sizeof *box->size) != 0)
        return cb_fail(err, CB_ERR_CORRUPT, "%s: the item has another shape than the metadata says", tensor->fqn);
    return 0;
}

static int locate(const struct stored_tensor *tensor, const struct item_tensor *item, uint64_t data, uint64_t length,
                  struct stored_payload *payload, struct cb_err *err)
{
    uint64_t span, end, element = dtype_bytes(item->dtype);
    if (!span_of(item, &span) || __builtin_add_overflow(span, item->offset, &end) ||
        __builtin_mul_overflow(end, element, &end) || (span > 0 && end > item->storage_bytes))
        return cb_fail(err, CB_ERR_CORRUPT, "%s: the item's strides leave its storage", tensor->fqn);
    if (data > length || item->storage_bytes > length - data)
        return cb_fail(err, CB_ERR_CORRUPT, "%s: the item of %llu bytes is too short for its payload of %llu",
                       tensor->fqn, (unsigned long long)length, (unsigned long long)item->storage_bytes);
    *payload = (struct stored_payload){.offset = data + (span > 0 ? item->offset * element : 0),
                                       .bytes = span * element,
                                       .contiguous = is_contiguous(item),
                                       .whole = span * element == item->storage_bytes};
    memcpy(payload->stride, item->stride, item->dims * sizeof *item->stride);
    return 0;
}

static bool record_is(const struct zip_record *record, const char *name)
{
    const char *slash = memchr(record->name, '/', record->name_len);
    if (!slash)
        return false;
    size_t rest = record->name_len - (size_t)(slash + 1 - record->name);
    return rest == strlen(name) && memcmp(slash + 1, name, rest) == 0;
}

static int read_data_pickle(const struct stored_tensor *tensor, const void *bytes, const struct zip_record *record,
                            struct item_tensor *item, struct cb_err *err)
{
    struct pickle *pickle;
    if (record->bytes == UINT64_MAX)
        return cb_fail(err, CB_ERR_CORRUPT, "%s: the item ends inside its data.pkl", tensor->fqn);
    int code = pickle_read(tensor->fqn, (const char *)bytes + record->offset, (size_t)record->bytes, &pickle, err);
    if (code)
        return code;
    if (!read_item_tensor(pickle, item))
        code = cb_fail(err, CB_ERR_FORMAT, "%s: the item is no plain tensor", tensor->fqn);
    pickle_free(pickle);
    return code;
}

int dcp_parse_item(const struct stored_tensor *tensor, const struct box *box, const void *bytes, size_t len,
                   uint64_t item_length, struct stored_payload *payload, struct cb_err *err)
{
    if (tensor->is_bytes) {
        *payload = (struct stored_payload){.bytes = item_length, .contiguous = true};
        return 0;
    }
    if (len > item_length)
        len = item_length;
    struct item_tensor item = {0};
    bool known = false;
    for (size_t at = 0, records = 0; records < 16; records++) {
        struct zip_record record;
        int code = zip_next_record(bytes, len, at, &record, &at, err);
        if (code)
            return cb_context(err, "%s", tensor->fqn);
        if (known && record_is(&record, item.record) && record.bytes != UINT64_MAX && record.bytes < item.storage_bytes)
            return cb_fail(err, CB_ERR_CORRUPT, "%s: the item's storage of %llu bytes lies in a record of %llu",
                           tensor->fqn, (unsigned long long)item.storage_bytes, (unsigned long long)record.bytes);
        if (known && record_is(&record, item.record))
            return locate(tensor, &item, record.offset, item_length, payload, err);
        if (record.bytes == UINT64_MAX || record.bytes > len - record.offset)
            break;
        if (record_is(&record, "data.pkl")) {
            code = read_data_pickle(tensor, bytes, &record, &item, err);
            if (!code)
                code = check_item(tensor, box, &item, err);
            if (code)
                return code;
            known = true;
        } else if (record_is(&record, "byteorder") &&
                   (record.bytes != 6 || memcmp((const char *)bytes + record.offset, "little", 6) != 0)) {
            return cb_fail(err, CB_ERR_UNSUPPORTED, "%s: the item is not little-endian", tensor->fqn);
        }
    }
    return cb_fail(err, CB_ERR_CORRUPT, "%s: the item has no payload in its first %zu bytes", tensor->fqn, len);
}

int dcp_parse_trailer(const void *last_bytes, size_t len, uint32_t *crc, bool *has_crc, struct cb_err *err)
{
    uint64_t bytes;
    int code = zip_find_crc(last_bytes, len, "data/0", crc, &bytes, err);
    if (!code)
        *has_crc = *crc != 0; /* 0 is what torch and we write where none was computed */
    return code;
}

int dcp_parse_bytes_payload(const char *fqn, const void *bytes, size_t len, struct buf *literal, struct cb_err *err)
{
    struct zip_record record;
    size_t next;
    int code = zip_next_record(bytes, len, 0, &record, &next, err);
    if (code)
        return cb_context(err, "%s", fqn);
    if (!record_is(&record, "data.pkl") || record.bytes > len - record.offset)
        return cb_fail(err, CB_ERR_CORRUPT, "%s: the item does not begin with its data.pkl", fqn);
    uint32_t crc;
    uint64_t stored_bytes;
    code = zip_find_crc(bytes, len, "data.pkl", &crc, &stored_bytes, err);
    if (code)
        return cb_context(err, "%s", fqn);
    if (crc != 0 && crc32_zip(0, (const char *)bytes + record.offset, (size_t)record.bytes) != crc)
        return cb_fail(err, CB_ERR_CORRUPT, "%s: the checksum of the value is wrong", fqn);
    struct pickle *pickle;
    code = pickle_read(fqn, (const char *)bytes + record.offset, (size_t)record.bytes, &pickle, err);
    if (code)
        return code;
    code = literal_from_pickle(pickle, pickle_root(pickle), literal, err);
    if (code)
        cb_context(err, "%s", fqn);
    pickle_free(pickle);
    return code;
}
