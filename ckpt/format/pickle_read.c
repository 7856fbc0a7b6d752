/* Reads pickles: a stack machine that builds values and calls nothing.
 *
 * Bounds: each opcode creates at most one value and has at least a byte, so there are never more values than bytes; a
 * memo index must be smaller than the input; lists double in a pool. Values may share parts or even contain
 * themselves, so walks over them must be bounded by the schema.
 *
 * A pickle whose large dicts are passed on pair by pair is read in a memory that does not grow with them: values that
 * nothing refers to any more are dropped whenever there are twice as many as before. */
#include "ckpt/format/pickle.h"

#include <assert.h>
#include <endian.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/dtype.h"
#include "ckpt/format/pickle_memo.h"
#include "ckpt/format/pickle_values.h"

#define NOTHING PICKLE_NOWHERE
#define ALIKE 1024 /* integers and tuples that are cached for reuse */
#define MOST_TEXT_BYTES (UINT64_C(1) << 30)

/* Values, words of children and bytes of texts that are worth dropping what is not used. */
#ifdef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION
#define MANY_NODES 16
#define MANY_WORDS 32
#define MANY_TEXT_BYTES 4096
#else
#define MANY_NODES (UINT32_C(1) << 17)
#define MANY_WORDS (UINT32_C(1) << 18)
#define MANY_TEXT_BYTES (UINT64_C(1) << 20)
#endif

struct machine {
    struct pickle *pickle;
    const char *name;
    struct byte_window in;
    const struct pickle_dicts *dicts; /* NULL: all values are kept */
    bool dicts_begun, first_dict_ended;
    uint32_t full_nodes, full_words; /* sizes at which unused values are dropped */
    uint64_t full_text_bytes;
    struct pickle_memo memo;
    struct words stack, marks;
    uint32_t passed;               /* stands for a value that has been passed on */
    uint32_t none, no, yes, empty; /* values created once; the last is the empty tuple */
    /* Cache of integers and tuples by a hash of their contents. They are immutable, and a million chunks have few
     * distinct sizes and offsets, which would otherwise take a third of all memory. */
    uint32_t integers[ALIKE], tuples[ALIKE];
    struct cb_err *err;
};

static int fail(struct machine *self, const char *what)
{
    return cb_fail(self->err, CB_ERR_FORMAT, "%s: byte %" PRIu64 " of the pickle: %s", self->name,
                   byte_window_position(&self->in), what);
}

static int no_memory(struct machine *self)
{
    return cb_fail(self->err, CB_ERR_MEMORY, "%s: no memory for a pickle of %" PRIu64 " bytes", self->name,
                   self->in.source->len);
}

static int words_reserve(struct machine *self, struct words *words, uint64_t count)
{
    if (count <= words->capacity)
        return 0;
    uint64_t capacity = words->capacity ? words->capacity : 64;
    while (capacity < count)
        capacity *= 2;
    uint32_t *data = capacity < NOTHING ? realloc(words->data, capacity * sizeof *data) : NULL;
    if (!data)
        return no_memory(self);
    words->data = data;
    words->capacity = (uint32_t)capacity;
    return 0;
}

static int words_push(struct machine *self, struct words *words, uint32_t value)
{
    int code = words_reserve(self, words, (uint64_t)words->count + 1);
    if (!code)
        words->data[words->count++] = value;
    return code;
}

static int add_node(struct machine *self, const struct pickle_node *node, uint32_t *index)
{
    struct pickle *pickle = self->pickle;
    if (pickle->node_count == pickle->node_capacity) {
        uint64_t capacity = pickle->node_capacity ? (uint64_t)pickle->node_capacity * 2 : 256;
        struct pickle_node *nodes =
            capacity < NOTHING ? realloc(pickle->nodes, capacity * sizeof *pickle->nodes) : NULL;
        if (!nodes)
            return no_memory(self);
        pickle->nodes = nodes;
        pickle->node_capacity = (uint32_t)capacity;
    }
    *index = pickle->node_count;
    pickle->nodes[pickle->node_count++] = *node;
    return 0;
}

static int push_node(struct machine *self, const struct pickle_node *node)
{
    uint32_t index = 0;
    int code = add_node(self, node, &index);
    return code ? code : words_push(self, &self->stack, index);
}

/* Creates a constant value once. */
static int push_shared(struct machine *self, uint32_t *shared, enum pickle_kind kind, int64_t integer)
{
    if (*shared == NOTHING) {
        struct pickle_node node = {.kind = (uint8_t)kind, .value.integer = integer};
        int code = add_node(self, &node, shared);
        if (code)
            return code;
    }
    return words_push(self, &self->stack, *shared);
}

static int push_integer(struct machine *self, int64_t value)
{
    uint32_t *known = &self->integers[((uint64_t)value * UINT64_C(0x9e3779b97f4a7c15)) >> 32 & (ALIKE - 1)];
    if (*known != NOTHING && self->pickle->nodes[*known].value.integer != value)
        *known = NOTHING;
    return push_shared(self, known, PICKLE_INT, value);
}

static inline int take(struct machine *self, uint64_t count, const unsigned char **bytes)
{
    *bytes = byte_window_take(&self->in, count, self->err);
    if (*bytes)
        return 0;
    if (self->in.code)
        return self->in.code;
    return fail(self,
                count > byte_window_left(&self->in) ? "it ends in the middle of something" : "a text is too long");
}

/* At most 8 bytes, little-endian. */
static inline int take_integer(struct machine *self, unsigned count, uint64_t *value)
{
    const unsigned char *bytes = NULL;
    int code = take(self, count, &bytes);
    uint64_t little = 0;
    if (!code)
        memcpy(&little, bytes, count);
    *value = le64toh(little);
    return code;
}

/* The number of values that may be popped: those above the last mark. */
static uint32_t available(const struct machine *self)
{
    return self->stack.count - (self->marks.count ? self->marks.data[self->marks.count - 1] : 0);
}

static int pop(struct machine *self, uint32_t *index)
{
    if (available(self) == 0)
        return fail(self, "it takes a value from an empty stack");
    assert(self->stack.data);
    *index = self->stack.data[--self->stack.count];
    return 0;
}

static int pop_mark(struct machine *self, uint32_t *first)
{
    if (self->marks.count == 0)
        return fail(self, "there is no mark on the stack");
    *first = self->marks.data[--self->marks.count];
    return 0;
}

/* --- allowed classes and functions --- */

static const struct {
    const char *module, *name;
    enum pickle_global global;
} globals[] = {
    {"torch.distributed.checkpoint.metadata", "Metadata", PICKLE_G_METADATA},
    {"torch.distributed.checkpoint.metadata", "TensorStorageMetadata", PICKLE_G_TENSOR_STORAGE_METADATA},
    {"torch.distributed.checkpoint.metadata", "BytesStorageMetadata", PICKLE_G_BYTES_STORAGE_METADATA},
    {"torch.distributed.checkpoint.metadata", "ChunkStorageMetadata", PICKLE_G_CHUNK_STORAGE_METADATA},
    {"torch.distributed.checkpoint.metadata", "TensorProperties", PICKLE_G_TENSOR_PROPERTIES},
    {"torch.distributed.checkpoint.metadata", "_MEM_FORMAT_ENCODING", PICKLE_G_MEM_FORMAT},
    {"torch.distributed.checkpoint.metadata", "MetadataIndex", PICKLE_G_METADATA_INDEX},
    {"torch.distributed.checkpoint.metadata", "StorageMeta", PICKLE_G_STORAGE_META},
    {"torch.distributed._shard.sharded_tensor.metadata", "TensorProperties", PICKLE_G_TENSOR_PROPERTIES},
    {"torch.distributed._shard.sharded_tensor.metadata", "MEM_FORMAT_ENCODING", PICKLE_G_MEM_FORMAT},
    {"torch.distributed.checkpoint.filesystem", "_StorageInfo", PICKLE_G_STORAGE_INFO},
    {"torch", "Size", PICKLE_G_SIZE},
    {"torch.serialization", "_get_layout", PICKLE_G_LAYOUT},
    {"pathlib", "PosixPath", PICKLE_G_PATH},
    {"pathlib._local", "PosixPath", PICKLE_G_PATH},
    {"torch._utils", "_rebuild_tensor_v2", PICKLE_G_REBUILD_V2},
    {"torch._utils", "_rebuild_tensor_v3", PICKLE_G_REBUILD_V3},
    {"torch.storage", "UntypedStorage", PICKLE_G_UNTYPED_STORAGE},
    {"collections", "OrderedDict", PICKLE_G_ORDERED_DICT},
};

/* Checkpoints of Megatron-Core keep the plans of all ranks beside their metadata, and metadata of a class of its own. */
static const char *const inert_modules[] = {"torch.distributed.checkpoint.", "megatron.core.",
                                            "nvidia_resiliency_ext."};

#define MOST_CLASS_BYTES 4096 /* of a module and a name */

static bool text_equal(const char *text, size_t len, const char *other)
{
    return strlen(other) == len && memcmp(text, other, len) == 0;
}

static bool find_torch_type(const char *name, size_t len, struct pickle_node *node)
{
    for (unsigned i = 0; i < DTYPE_COUNT; i++) {
        const char *storage = dtype_torch_storage((enum dtype)i);
        bool is_dtype = text_equal(name, len, dtype_torch_name((enum dtype)i));
        if (!is_dtype && !(storage && text_equal(name, len, storage)))
            continue;
        node->global = is_dtype ? PICKLE_G_DTYPE : PICKLE_G_STORAGE;
        node->dtype = (uint8_t)i;
        return true;
    }
    return false;
}

/* Fills `global` and `dtype` of the node; false if the name is not on the list. */
static bool find_global(const char *module, size_t module_len, const char *name, size_t name_len,
                        struct pickle_node *node)
{
    for (size_t i = 0; i < sizeof globals / sizeof *globals; i++) {
        if (text_equal(module, module_len, globals[i].module) && text_equal(name, name_len, globals[i].name)) {
            node->global = (uint8_t)globals[i].global;
            return true;
        }
    }
    for (size_t i = 0; i < sizeof inert_modules / sizeof *inert_modules; i++) {
        size_t len = strlen(inert_modules[i]);
        if (module_len > len && memcmp(module, inert_modules[i], len) == 0) {
            node->global = PICKLE_G_INERT;
            return true;
        }
    }
    return text_equal(module, module_len, "torch") && find_torch_type(name, name_len, node);
}

static int push_global(struct machine *self, const char *module, size_t module_len, const char *name, size_t name_len)
{
    struct pickle_node node = {.kind = PICKLE_GLOBAL};
    if (find_global(module, module_len, name, name_len, &node))
        return push_node(self, &node);
    return cb_fail(self->err, CB_ERR_FORMAT,
                   "%s: byte %" PRIu64 " of the pickle: \"%.*s.%.*s\" is nothing that a checkpoint may name",
                   self->name, byte_window_position(&self->in), (int)(module_len < 100 ? module_len : 100), module,
                   (int)(name_len < 100 ? name_len : 100), name);
}

static int op_global(struct machine *self)
{
    uint64_t left = byte_window_left(&self->in), most = left < MOST_CLASS_BYTES ? left : MOST_CLASS_BYTES;
    if (!byte_window_fill(&self->in, most, self->err))
        return self->in.code;
    const char *module = (const char *)self->in.bytes + self->in.at;
    const char *end = memchr(module, '\n', most);
    const char *name = end ? end + 1 : NULL;
    const char *name_end = name ? memchr(name, '\n', most - (size_t)(name - module)) : NULL;
    if (!name_end)
        return fail(self, "it ends inside the name of a class");
    self->in.at += (size_t)(name_end + 1 - module);
    return push_global(self, module, (size_t)(end - module), name, (size_t)(name_end - name));
}

static int op_stack_global(struct machine *self)
{
    uint32_t name = 0, module = 0;
    int code = pop(self, &name);
    if (!code)
        code = pop(self, &module);
    if (code)
        return code;
    const struct pickle_node *m = &self->pickle->nodes[module], *n = &self->pickle->nodes[name];
    if (m->kind != PICKLE_TEXT || n->kind != PICKLE_TEXT)
        return fail(self, "the name of a class is no text");
    return push_global(self, m->value.text, m->count, n->value.text, n->count);
}

/* --- containers --- */

/* A value whose children are the top `count` values of the stack. */
static int gather(struct machine *self, enum pickle_kind kind, uint32_t count)
{
    struct words *pool = &self->pickle->pool;
    int code = words_reserve(self, pool, (uint64_t)pool->count + count);
    if (code)
        return code;
    struct pickle_node node = {.kind = (uint8_t)kind, .count = count, .value.first = pool->count};
    self->stack.count -= count;
    if (count > 0)
        memcpy(pool->data + pool->count, self->stack.data + self->stack.count, count * sizeof *pool->data);
    pool->count += count;
    return push_node(self, &node);
}

/* A tuple, or the cached one with the same values. */
static int gather_tuple(struct machine *self, uint32_t count)
{
    if (count == 0)
        return push_shared(self, &self->empty, PICKLE_TUPLE, 0);
    const struct pickle *pickle = self->pickle;
    const uint32_t *children = self->stack.data + self->stack.count - count;
    uint64_t hash = count;
    for (uint32_t i = 0; i < count; i++)
        hash = (hash ^ children[i]) * UINT64_C(0x9e3779b97f4a7c15);
    uint32_t *known = &self->tuples[hash >> 32 & (ALIKE - 1)];
    const struct pickle_node *node = *known != NOTHING ? &pickle->nodes[*known] : NULL;
    assert(!node || pickle->pool.data); /* a tuple that is known has children */
    if (node && node->count == count &&
        memcmp(pickle->pool.data + node->value.first, children, count * sizeof *children) == 0) {
        self->stack.count -= count;
        return words_push(self, &self->stack, *known);
    }
    int code = gather(self, PICKLE_TUPLE, count);
    if (!code)
        *known = pickle->node_count - 1;
    return code;
}

#define TO_MARK UINT32_MAX

static int op_tuple(struct machine *self, uint32_t count)
{
    uint32_t first = 0;
    int code = count == TO_MARK ? pop_mark(self, &first) : 0;
    if (code)
        return code;
    if (count == TO_MARK)
        return gather_tuple(self, self->stack.count - first);
    if (available(self) < count)
        return fail(self, "a tuple has fewer items than it should");
    return gather_tuple(self, count);
}

/* Makes room for `wanted` children, at least doubling the capacity, so that appending stays cheap. */
static int reserve_children(struct machine *self, struct pickle_node *node, uint64_t wanted)
{
    struct words *pool = &self->pickle->pool;
    assert(node->count == 0 || pool->data);
    uint64_t room = node->count > 0 ? pool->data[node->value.first - 1] : 0;
    if (wanted <= room)
        return 0;
    room = 2 * room < wanted ? wanted : 2 * room;
    int code = words_reserve(self, pool, pool->count + room + 1);
    if (code)
        return code;
    uint32_t first = pool->count + 1;
    pool->data[pool->count] = (uint32_t)room;
    if (node->count > 0)
        memcpy(pool->data + first, pool->data + node->value.first, node->count * sizeof *pool->data);
    node->value.first = first;
    pool->count = first + (uint32_t)room;
    return 0;
}

/* --- dicts that are passed on --- */

#define NO_DICT (-1)

/* The number of the dict at this place of the stack, if it is one of those that are passed on: the value of its key in
 * the state of the pickle's only object. While it is filled, the stack holds that object, its state, which is a dict
 * that is not filled yet, a mark, and keys and values. */
static int dict_at(struct machine *self, uint32_t place)
{
    const struct pickle_node *nodes = self->pickle->nodes;
    const uint32_t *stack = self->stack.data;
    assert(stack && nodes);
    bool in_state = self->dicts && place >= 3 && place % 2 == 1 && self->marks.count > 0 && self->marks.data[0] == 2 &&
                    (self->marks.count == 1 || self->marks.data[1] > place) && nodes[stack[0]].kind == PICKLE_OBJECT &&
                    nodes[stack[1]].kind == PICKLE_DICT && nodes[stack[place]].kind == PICKLE_DICT;
    for (int i = 0; in_state && self->dicts->keys[i]; i++) {
        if (!pickle_text_is(&nodes[stack[place - 1]], self->dicts->keys[i]))
            continue;
        if (i == 0 ? self->first_dict_ended : !self->dicts_begun)
            break; /* it must wait for the first one */
        self->dicts_begun = true;
        self->first_dict_ended |= i > 0;
        return i;
    }
    return NO_DICT;
}

/* `pairs` are indices of keys and values. */
static int pass_pairs(struct machine *self, int dict, const uint32_t *pairs, uint32_t count)
{
    const struct pickle_node *nodes = self->pickle->nodes;
    int code = 0;
    for (uint32_t i = 0; i + 1 < count && !code; i += 2) {
        if (pairs[i + 1] != self->passed)
            code = self->dicts->pair(self->dicts->context, self->pickle, dict, &nodes[pairs[i]], &nodes[pairs[i + 1]],
                                     self->err);
    }
    return code;
}

/* An instance that is complete now, and a value of such a dict, is passed on at once: the tensors of a batch can have
 * millions of chunks together. One that is fetched again must be kept. */
static int pass_instance(struct machine *self)
{
    uint32_t place = self->stack.count - 1, mark = self->marks.count ? self->marks.data[self->marks.count - 1] : 0;
    bool is_value = self->dicts && mark > 0 && place > mark && (place - mark) % 2 == 1;
    int dict = is_value ? dict_at(self, mark - 1) : NO_DICT;
    if (dict == NO_DICT || self->pickle->nodes[self->stack.data[place]].remembered)
        return 0;
    int code = pass_pairs(self, dict, self->stack.data + place - 1, 2);
    if (!code)
        code = push_shared(self, &self->passed, PICKLE_NONE, 1);
    if (!code)
        self->stack.data[place] = self->stack.data[--self->stack.count];
    return code;
}

/* Dicts that the machine did not see come, in their order. */
static int pass_rest(struct machine *self)
{
    const struct pickle *pickle = self->pickle;
    const struct pickle_node *state = self->dicts ? pickle_state(pickle, pickle_root(pickle)) : NULL;
    int code = 0;
    for (int i = 0; state && self->dicts->keys[i] && !code; i++) {
        const struct pickle_node *dict = pickle_get(pickle, state, self->dicts->keys[i]);
        if (dict && dict->kind == PICKLE_DICT && dict->count > 0)
            code = pass_pairs(self, i, pickle->pool.data + dict->value.first, dict->count);
    }
    return code;
}

/* Whether it is an instance of an inert class, which may be a container of its own kind. */
static bool is_inert(const struct machine *self, const struct pickle_node *node)
{
    bool is_instance = node->kind == PICKLE_OBJECT || node->kind == PICKLE_CALL;
    assert(!is_instance || self->pickle->pool.data);
    return is_instance && self->pickle->nodes[self->pickle->pool.data[node->value.first]].global == PICKLE_G_INERT;
}

/* Appends the top `count` values of the stack, or those above the mark, to the list or dict below them. */
static int op_extend(struct machine *self, enum pickle_kind kind, uint32_t count)
{
    uint32_t first = 0;
    int code = count == TO_MARK ? pop_mark(self, &first) : 0;
    if (code)
        return code;
    if (count == TO_MARK)
        count = self->stack.count - first;
    if (available(self) < (uint64_t)count + 1)
        return fail(self, "there is nothing to append to");
    first = self->stack.count - count;
    struct pickle_node *node = &self->pickle->nodes[self->stack.data[first - 1]];
    if (is_inert(self, node)) {
        self->stack.count = first;
        return 0;
    }
    int dict = kind == PICKLE_DICT && count % 2 == 0 ? dict_at(self, first - 1) : NO_DICT;
    if (dict != NO_DICT) {
        code = pass_pairs(self, dict, self->stack.data + first, count);
        self->stack.count = first;
        return code;
    }
    if (node->kind != kind || (kind == PICKLE_DICT && count % 2 != 0))
        return fail(self, "it appends to what is no such container");
    code = reserve_children(self, node, (uint64_t)node->count + count);
    if (code)
        return code;
    if (count > 0)
        memcpy(self->pickle->pool.data + node->value.first + node->count, self->stack.data + first,
               count * sizeof *self->stack.data);
    node->count += count;
    self->stack.count = first;
    return 0;
}

/* --- instances --- */

static int make_instance(struct machine *self, enum pickle_kind kind)
{
    if (available(self) < 2)
        return fail(self, "it makes an instance from nothing");
    const struct pickle_node *nodes = self->pickle->nodes;
    const struct pickle_node *class = &nodes[self->stack.data[self->stack.count - 2]];
    const struct pickle_node *arguments = &nodes[self->stack.data[self->stack.count - 1]];
    if (class->kind != PICKLE_GLOBAL || arguments->kind != PICKLE_TUPLE)
        return fail(self, "it calls what is no class or function");
    if (kind == PICKLE_CALL && class->global == PICKLE_G_SIZE) {
        /* torch.Size((2, 3)) is the tuple itself. */
        if (arguments->count != 1)
            return fail(self, "torch.Size has other than one argument");
        assert(self->pickle->pool.data);
        self->stack.count -= 2;
        return words_push(self, &self->stack, self->pickle->pool.data[arguments->value.first]);
    }
    int code = push_shared(self, &self->none, PICKLE_NONE, 0); /* the state, until BUILD */
    return code ? code : gather(self, kind, 3);
}

static int op_build(struct machine *self)
{
    uint32_t state = 0;
    int code = pop(self, &state);
    if (code)
        return code;
    if (available(self) == 0)
        return fail(self, "it sets the state of nothing");
    const struct pickle_node *node = &self->pickle->nodes[self->stack.data[self->stack.count - 1]];
    if (node->kind != PICKLE_OBJECT && node->kind != PICKLE_CALL)
        return fail(self, "it sets the state of what is no instance");
    self->pickle->pool.data[node->value.first + 2] = state;
    return pass_instance(self);
}

/* --- memo --- */

static int memo_put(struct machine *self, uint64_t number)
{
    if (available(self) == 0)
        return fail(self, "it remembers nothing");
    if (number >= self->in.source->len)
        return fail(self, "it has a memo of an unreasonable number");
    uint32_t *value = pickle_memo_at(&self->memo, number);
    if (number >= self->memo.next)
        self->memo.next = number + 1;
    if (!value)
        return 0;
    *value = self->stack.data[self->stack.count - 1];
    self->pickle->nodes[*value].remembered = true;
    return 0;
}

static int memo_get(struct machine *self, uint64_t number)
{
    const uint32_t *value = pickle_memo_at(&self->memo, number);
    if (!value || *value == NOTHING)
        return fail(self, "it fetches what it did not remember");
    return words_push(self, &self->stack, *value);
}

/* --- opcodes --- */

static int op_text(struct machine *self, unsigned length_bytes)
{
    uint64_t len = 0;
    const unsigned char *text = NULL;
    int code = take_integer(self, length_bytes, &len);
    if (!code)
        code = take(self, len, &text);
    if (code)
        return code;
    if (len >= MOST_TEXT_BYTES || memchr(text, '\0', len))
        return fail(self, "a text that is too long or holds a NUL");
    struct pickle_node node = {.kind = PICKLE_TEXT, .count = (uint32_t)len, .value.text = (const char *)text};
    if (self->in.memory) /* which will have other bytes */
        node.value.text = pickle_keep_text(self->pickle, node.value.text, len);
    if (!node.value.text)
        return no_memory(self);
    return push_node(self, &node);
}

static int op_integer(struct machine *self, unsigned bytes)
{
    uint64_t value = 0;
    int code = take_integer(self, bytes, &value);
    if (code)
        return code;
    return push_integer(self, bytes == 4 ? (int32_t)(uint32_t)value : (int64_t)value);
}

static int op_long(struct machine *self)
{
    uint64_t count = 0, value = 0;
    int code = take_integer(self, 1, &count);
    if (!code && count > 8)
        return fail(self, "an integer of more than 64 bits");
    if (!code)
        code = take_integer(self, (unsigned)count, &value);
    if (code)
        return code;
    if (count > 0 && count < 8 && (value >> (8 * count - 1) & 1))
        value |= ~UINT64_C(0) << (8 * count);
    return push_integer(self, (int64_t)value);
}

static int op_float(struct machine *self)
{
    const unsigned char *bytes = NULL;
    int code = take(self, 8, &bytes);
    if (code)
        return code;
    uint64_t bits = 0;
    for (int i = 0; i < 8; i++)
        bits = bits << 8 | bytes[i];
    struct pickle_node node = {.kind = PICKLE_FLOAT};
    memcpy(&node.value.real, &bits, sizeof bits);
    return push_node(self, &node);
}

static int op_numbered(struct machine *self, unsigned bytes, int (*then)(struct machine *, uint64_t))
{
    uint64_t value = 0;
    int code = take_integer(self, bytes, &value);
    return code ? code : then(self, value);
}

static int op_proto(struct machine *self, uint64_t version)
{
    return version >= 2 && version <= 5 ? 0 : fail(self, "a pickle protocol other than 2 to 5");
}

static int op_frame(struct machine *self, uint64_t bytes)
{
    return bytes <= byte_window_left(&self->in) ? 0 : fail(self, "it ends inside a frame");
}

static int step(struct machine *self, unsigned char opcode)
{
    switch (opcode) {
    case 0x80:
        return op_numbered(self, 1, op_proto);
    case 0x95:
        return op_numbered(self, 8, op_frame);
    case 0x8c:
        return op_text(self, 1);
    case 'X':
        return op_text(self, 4);
    case 0x8d:
        return op_text(self, 8);
    case 'K':
        return op_integer(self, 1);
    case 'M':
        return op_integer(self, 2);
    case 'J':
        return op_integer(self, 4);
    case 0x8a:
        return op_long(self);
    case 'G':
        return op_float(self);
    case 'N':
        return push_shared(self, &self->none, PICKLE_NONE, 0);
    case 0x88:
        return push_shared(self, &self->yes, PICKLE_BOOL, 1);
    case 0x89:
        return push_shared(self, &self->no, PICKLE_BOOL, 0);
    case '(':
        return words_push(self, &self->marks, self->stack.count);
    case ')':
        return gather_tuple(self, 0);
    case 0x85:
    case 0x86:
    case 0x87:
        return op_tuple(self, opcode - 0x84u);
    case 't':
        return op_tuple(self, TO_MARK);
    case ']':
        return gather(self, PICKLE_LIST, 0);
    case '}':
        return gather(self, PICKLE_DICT, 0);
    case 'a':
        return op_extend(self, PICKLE_LIST, 1);
    case 'e':
        return op_extend(self, PICKLE_LIST, TO_MARK);
    case 's':
        return op_extend(self, PICKLE_DICT, 2);
    case 'u':
        return op_extend(self, PICKLE_DICT, TO_MARK);
    case 'c':
        return op_global(self);
    case 0x93:
        return op_stack_global(self);
    case 0x81:
        return make_instance(self, PICKLE_OBJECT);
    case 'R':
        return make_instance(self, PICKLE_CALL);
    case 'b':
        return op_build(self);
    case 'Q':
        return available(self) ? gather(self, PICKLE_PERSISTENT, 1) : fail(self, "a persistent id of nothing");
    case 0x94:
        return memo_put(self, self->memo.next);
    case 'q':
        return op_numbered(self, 1, memo_put);
    case 'r':
        return op_numbered(self, 4, memo_put);
    case 'h':
        return op_numbered(self, 1, memo_get);
    case 'j':
        return op_numbered(self, 4, memo_get);
    default:
        return cb_fail(self->err, CB_ERR_FORMAT,
                       "%s: byte %" PRIu64 " of the pickle: opcode 0x%02x is none that checkpoints use", self->name,
                       byte_window_position(&self->in) - 1, opcode);
    }
}

/* --- dropping what is not used --- */

static inline bool is_full(const struct machine *self)
{
    const struct pickle *pickle = self->pickle;
    return pickle->node_count >= self->full_nodes || pickle->pool.count >= self->full_words ||
           pickle->text_bytes >= self->full_text_bytes;
}

static void choose_full(struct machine *self)
{
    const struct pickle *pickle = self->pickle;
    bool keeps_all = !self->dicts || pickle->node_count > NOTHING / 4 || pickle->pool.count > NOTHING / 4;
    self->full_nodes = keeps_all ? NOTHING : 2 * pickle->node_count + MANY_NODES;
    self->full_words = keeps_all ? NOTHING : 2 * pickle->pool.count + MANY_WORDS;
    self->full_text_bytes = keeps_all ? UINT64_MAX : 2 * pickle->text_bytes + MANY_TEXT_BYTES;
}

static int drop_unused(struct machine *self)
{
    const struct pickle_roots roots[] = {{self->stack.data, self->stack.count},
                                         {self->memo.values, self->memo.count},
                                         {&self->none, 1},
                                         {&self->yes, 1},
                                         {&self->no, 1},
                                         {&self->empty, 1},
                                         {&self->passed, 1}};
    if (!pickle_compact(self->pickle, roots, sizeof roots / sizeof *roots))
        return no_memory(self);
    memset(self->integers, 0xff, sizeof self->integers);
    memset(self->tuples, 0xff, sizeof self->tuples);
    choose_full(self);
    return 0;
}

static int run(struct machine *self)
{
    const unsigned char *opcode = NULL;
    for (;;) {
        if (byte_window_left(&self->in) == 0)
            return fail(self, "it ends without a value");
        int code = take(self, 1, &opcode);
        if (!code && *opcode == '.')
            break;
        code = code ? code : step(self, *opcode);
        if (!code && is_full(self))
            code = drop_unused(self);
        if (code)
            return code;
    }
    if (self->stack.count != 1 || self->marks.count != 0)
        return fail(self, "it ends with other than one value");
    if (byte_window_left(&self->in) != 0)
        return fail(self, "there are bytes after its end");
    self->pickle->root = self->stack.data[0];
    return 0;
}

int pickle_read_dicts(const char *name, const struct byte_source *source, const struct pickle_dicts *dicts,
                      struct pickle **pickle, struct cb_err *err)
{
    struct machine machine = {.name = name, .dicts = dicts, .err = err};
    memset(machine.integers, 0xff, sizeof machine.integers);
    memset(machine.tuples, 0xff, sizeof machine.tuples);
    machine.none = machine.no = machine.yes = machine.empty = machine.passed = NOTHING;
    int code = byte_window_init(&machine.in, source, err);
    if (code)
        return code;
    code = pickle_memo_init(&machine.memo, &machine.in, err);
    machine.pickle = calloc(1, sizeof *machine.pickle);
    if (!code && !machine.pickle)
        code = no_memory(&machine);
    if (!code) {
        choose_full(&machine);
        code = run(&machine);
    }
    byte_window_release(&machine.in);
    pickle_memo_release(&machine.memo);
    free(machine.stack.data);
    free(machine.marks.data);
    if (!code)
        code = pass_rest(&machine);
    if (code) {
        pickle_free(machine.pickle);
        return code;
    }
    *pickle = machine.pickle;
    return 0;
}

int pickle_read(const char *name, const void *bytes, size_t len, struct pickle **pickle, struct cb_err *err)
{
    struct byte_source source = byte_source_of(bytes, len);
    return pickle_read_dicts(name, &source, NULL, pickle, err);
}
