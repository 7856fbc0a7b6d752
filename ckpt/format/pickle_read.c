/* Reads pickles: a stack machine that builds values and calls nothing.
 *
 * Bounds: each opcode creates at most one value and has at least a byte, so there are never more values than bytes; a
 * memo index must be smaller than the input; lists double in a pool. Values may share parts or even contain
 * themselves, so walks over them must be bounded by the schema. */
#include "ckpt/format/pickle.h"

#include <assert.h>
#include <endian.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/dtype.h"
#include "ckpt/format/pickle_values.h"

#define NOTHING UINT32_MAX
#define ALIKE 1024 /* integers and tuples that are cached for reuse */

struct machine {
    struct pickle *pickle;
    const char *name;
    const unsigned char *bytes;
    size_t len, at;
    struct words stack, marks, memo;
    uint32_t none, no, yes, empty; /* values created once; the last is the empty tuple */
    /* Cache of integers and tuples by a hash of their contents. They are immutable, and a million chunks have few
     * distinct sizes and offsets, which would otherwise take a third of all memory. */
    uint32_t integers[ALIKE], tuples[ALIKE];
    struct cb_err *err;
};

static int fail(struct machine *self, const char *what)
{
    return cb_fail(self->err, CB_ERR_FORMAT, "%s: byte %zu of the pickle: %s", self->name, self->at, what);
}

static int no_memory(struct machine *self)
{
    return cb_fail(self->err, CB_ERR_MEMORY, "%s: no memory for a pickle of %zu bytes", self->name, self->len);
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

static int take(struct machine *self, uint64_t count, const unsigned char **bytes)
{
    if (count > self->len - self->at)
        return fail(self, "it ends in the middle of something");
    *bytes = self->bytes + self->at;
    self->at += count;
    return 0;
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
                   "%s: byte %zu of the pickle: \"%.*s.%.*s\" is nothing that a checkpoint may name", self->name,
                   self->at, (int)(module_len < 100 ? module_len : 100), module, (int)(name_len < 100 ? name_len : 100),
                   name);
}

static int op_global(struct machine *self)
{
    const char *module = (const char *)self->bytes + self->at;
    const char *end = memchr(module, '\n', self->len - self->at);
    const char *name = end ? end + 1 : NULL;
    size_t left = end ? self->len - self->at - (size_t)(name - module) : 0;
    const char *name_end = name ? memchr(name, '\n', left) : NULL;
    if (!name_end)
        return fail(self, "it ends inside the name of a class");
    self->at += (size_t)(name_end + 1 - module);
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

/* Whether it is an instance of an inert class, which may be a container of its own kind. */
static bool is_inert(const struct machine *self, const struct pickle_node *node)
{
    return (node->kind == PICKLE_OBJECT || node->kind == PICKLE_CALL) &&
           self->pickle->nodes[self->pickle->pool.data[node->value.first]].global == PICKLE_G_INERT;
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
    return 0;
}

/* --- memo --- */

static int memo_put(struct machine *self, uint64_t index)
{
    if (available(self) == 0)
        return fail(self, "it remembers nothing");
    if (index >= self->len)
        return fail(self, "it has a memo of an unreasonable number");
    int code = words_reserve(self, &self->memo, index + 1);
    if (code)
        return code;
    while (self->memo.count <= index)
        self->memo.data[self->memo.count++] = NOTHING;
    self->memo.data[index] = self->stack.data[self->stack.count - 1];
    return 0;
}

static int memo_get(struct machine *self, uint64_t index)
{
    if (index >= self->memo.count || self->memo.data[index] == NOTHING)
        return fail(self, "it fetches what it did not remember");
    return words_push(self, &self->stack, self->memo.data[index]);
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
    if (len >= NOTHING || memchr(text, '\0', len))
        return fail(self, "a text that is too long or holds a NUL");
    struct pickle_node node = {.kind = PICKLE_TEXT, .count = (uint32_t)len, .value.text = (const char *)text};
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
    return bytes <= self->len - self->at ? 0 : fail(self, "it ends inside a frame");
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
        return memo_put(self, self->memo.count);
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
                       "%s: byte %zu of the pickle: opcode 0x%02x is none that checkpoints use", self->name,
                       self->at - 1, opcode);
    }
}

static int run(struct machine *self)
{
    for (;;) {
        if (self->at == self->len)
            return fail(self, "it ends without a value");
        unsigned char opcode = self->bytes[self->at++];
        if (opcode == '.')
            break;
        int code = step(self, opcode);
        if (code)
            return code;
    }
    if (self->stack.count != 1 || self->marks.count != 0)
        return fail(self, "it ends with other than one value");
    if (self->at != self->len)
        return fail(self, "there are bytes after its end");
    self->pickle->root = self->stack.data[0];
    return 0;
}

int pickle_read(const char *name, const void *bytes, size_t len, struct pickle **pickle, struct cb_err *err)
{
    struct machine machine = {.name = name, .bytes = bytes, .len = len, .err = err};
    memset(machine.integers, 0xff, sizeof machine.integers);
    memset(machine.tuples, 0xff, sizeof machine.tuples);
    machine.none = machine.no = machine.yes = machine.empty = NOTHING;
    machine.pickle = calloc(1, sizeof *machine.pickle);
    int code = machine.pickle ? 0 : no_memory(&machine);
    if (!code && len >= NOTHING / 4)
        code = fail(&machine, "it is larger than 1 GiB");
    if (!code)
        code = run(&machine);
    free(machine.stack.data);
    free(machine.marks.data);
    free(machine.memo.data);
    if (code) {
        pickle_free(machine.pickle);
        return code;
    }
    *pickle = machine.pickle;
    return 0;
}
