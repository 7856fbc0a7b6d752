/* Reads DCP's .metadata, of PyTorch 2.2 and later.
 *
 * Untrusted input: every value's kind and range is checked before use, and a traversal never takes more steps than the
 * file has bytes, even if values are shared. */
#include <stdlib.h>
#include <string.h>

#include "ckpt/format/dcp.h"
#include "ckpt/format/dcp_values.h"
#include "ckpt/format/literal.h"
#include "ckpt/format/save_id.h"
#include "ckpt/stored.h"

#define MAX_KEYS 64
#define MAX_KEY_BYTES 4096
#define MAX_PATH_SHARE 8     /* limit of all keys together, per byte of the file */
#define LEAST_PLACE_BYTES 32 /* minimum size of an entry of storage_data, from any writer */

/* Index of names already seen: open addressing with a power of two of slots, each holding a number + 1. */
struct name_table {
    uint32_t *slots;
    size_t mask;
};

struct reader {
    const char *name;
    const struct pickle *pickle;
    size_t bytes; /* of the file: limits everything else */
    struct stored_checkpoint *checkpoint;
    size_t chunk_capacity, file_capacity;
    size_t listed; /* items with a place: about as many as chunks */
    bool *stored;  /* per chunk: its place in a file is known */
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
        size_t capacity = self->chunk_capacity ? self->chunk_capacity * 2 : 64 + self->listed;
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
        !dcp_read_sizes(self->pickle, pickle_get(self->pickle, state, "offsets"), chunk.region.offset,
                        &chunk.region.dims) ||
        !dcp_read_sizes(self->pickle, pickle_get(self->pickle, state, "sizes"), chunk.region.size, &sizes) ||
        sizes != chunk.region.dims || sizes != tensor->dims)
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
    if (!dcp_read_sizes(self->pickle, pickle_get(self->pickle, state, "size"), tensor->shape, &tensor->dims))
        return bad(self, tensor->fqn, "no shape of at most 6 dimensions");
    if (!chunks || chunks->kind != PICKLE_LIST)
        return bad(self, tensor->fqn, "no list of chunks");
    for (uint32_t i = 0; i < chunks->count && !code; i++)
        code = read_chunk(self, tensor, pickle_child(self->pickle, chunks, i));
    return code;
}

static int read_entry(struct reader *self, const struct pickle_node *key, const struct pickle_node *value)
{
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

/* A dict entry with a text as its key. */
struct entry {
    const struct pickle_node *key, *value;
};

static int compare_entries(const void *a, const void *b)
{
    const struct pickle_node *x = ((const struct entry *)a)->key, *y = ((const struct entry *)b)->key;
    int order = memcmp(x->value.text, y->value.text, x->count < y->count ? x->count : y->count);
    return order ? order : (x->count > y->count) - (x->count < y->count);
}

/* Sorted by name, so that chunks are created in their final order and never copied. */
static int sort_entries(struct reader *self, const struct pickle_node *dict, struct entry **sorted)
{
    uint32_t count = dict->count / 2;
    struct entry *entries = malloc((count + 1) * sizeof *entries);
    if (!entries)
        return no_memory(self);
    for (uint32_t i = 0; i < count; i++) {
        entries[i] =
            (struct entry){pickle_child(self->pickle, dict, 2 * i), pickle_child(self->pickle, dict, 2 * i + 1)};
        if (entries[i].key->kind == PICKLE_TEXT && entries[i].key->count > 0)
            continue;
        free(entries);
        return bad(self, NULL, "a tensor without a name");
    }
    qsort(entries, count, sizeof *entries, compare_entries);
    *sorted = entries;
    return 0;
}

static int read_entries(struct reader *self, const struct pickle_node *dict)
{
    struct entry *entries = NULL;
    if (!dict || dict->kind != PICKLE_DICT)
        return bad(self, NULL, "no state_dict_metadata: this is no metadata of a DCP checkpoint");
    self->checkpoint->tensors = calloc(dict->count / 2 + 1, sizeof *self->checkpoint->tensors);
    if (!self->checkpoint->tensors)
        return no_memory(self);
    int code = sort_entries(self, dict, &entries);
    for (uint32_t i = 0; i < dict->count / 2 && !code; i++)
        code = read_entry(self, entries[i].key, entries[i].value);
    free(entries);
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

/* The same for tensors, once they are in their final order. */
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
                                       const struct region *wanted)
{
    struct stored_chunk key = {.region = *wanted};
    memset(key.region.size, 0, sizeof key.region.size);
    size_t low = tensor->first_chunk, end = low + tensor->chunk_count, high = end;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (stored_chunk_compare(&self->checkpoint->chunks[middle], &key) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == end ||
        memcmp(self->checkpoint->chunks[low].region.offset, wanted->offset, wanted->dims * sizeof *wanted->offset) != 0)
        return NULL;
    return &self->checkpoint->chunks[low];
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
    struct region region = {0};
    if (offset && offset->kind != PICKLE_NONE && !dcp_read_sizes(self->pickle, offset, region.offset, &region.dims))
        return bad(self, tensor->fqn, "an item without an offset");
    struct stored_chunk *chunk = region.dims == tensor->dims ? find_chunk(self, tensor, &region) : NULL;
    if (!chunk)
        return bad(self, tensor->fqn, "an item that is none of its chunks");
    bool compressed;
    int code = check_transforms(self, tensor->fqn, state, &compressed);
    uint64_t begin = 0, length = 0;
    if (!code && (!dcp_read_count(pickle_get(self->pickle, state, "offset"), &begin) ||
                  !dcp_read_count(pickle_get(self->pickle, state, "length"), &length)))
        code = bad(self, tensor->fqn, "an item without offset and length in its file");
    uint32_t file;
    if (!code)
        code = find_file(self, table, path, &file);
    if (code)
        return code;
    /* Chunks at one offset share their item, as in PyTorch, which finds items by name and offset: empty chunks, and a
     * chunk that several ranks wrote. */
    struct stored_chunk *end = self->checkpoint->chunks + tensor->first_chunk + tensor->chunk_count;
    for (struct stored_chunk *other = chunk; other < end; other++) {
        if (memcmp(other->region.offset, region.offset, region.dims * sizeof *region.offset) != 0)
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

/* --- the nested keys of each value --- */

/* A tuple of texts and numbers, as a literal; other types from a foreign planner are dropped. */
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
    if (code || self->path_bytes > MAX_PATH_SHARE * self->bytes) /* shared keys could multiply the output */
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

/* The first settling only sorts, so missing files must not make it fail. */
static int read_all(struct reader *self)
{
    const struct pickle_node *root = pickle_root(self->pickle), *state = pickle_state(self->pickle, root);
    if (!is_metadata(self, root))
        return bad(self, NULL, "not the metadata of a checkpoint");
    uint32_t none;
    static const char no_file[] = "-";
    struct pickle_node placeholder = {.kind = PICKLE_TEXT, .count = 1, .value.text = no_file};
    const struct pickle_node *places = pickle_get(self->pickle, state, "storage_data");
    if (places && places->kind == PICKLE_DICT)
        self->listed =
            places->count / 2 < self->bytes / LEAST_PLACE_BYTES ? places->count / 2 : self->bytes / LEAST_PLACE_BYTES;
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
        code = read_places(self, places);
    if (!code)
        code = read_paths(self, pickle_get(self->pickle, state, "planner_data"));
    self->checkpoint->save_id = read_save_id(self->pickle, state);
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
