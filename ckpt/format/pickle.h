/* The part of Python's pickle that DCP checkpoints use: a writer that appends opcodes, and a strict reader that turns
 * them into a tree of values and executes nothing.
 *
 * The reader allows only the globals listed in ckpt/format/pickle_read.c, and classes of PyTorch and Megatron-Core as
 * inert data that nobody looks into; any other global is an error that names it. Its memory is a fixed multiple of the input, and nothing in it recurses. */
#ifndef CKPT_FORMAT_PICKLE_H
#define CKPT_FORMAT_PICKLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/format/byte_source.h"
#include "core/buf.h"
#include "core/err.h"

/* --- writing: opcodes to memory of sufficient size; each call returns the position after them --- */

#define PICKLE_TEXT_OVERHEAD 9 /* opcode and length before the bytes of a text */
#define PICKLE_INT_MAX 12      /* largest encoding of an integer */

char *pickle_put_text(char *at, const char *text, size_t len); /* protocol 4 */
char *pickle_put_int(char *at, uint64_t value);                /* protocol 2 and later */
char *pickle_put_get(char *at, uint32_t memo);
/* A tuple of integers: up to three without a mark. */
char *pickle_put_ints(char *at, const uint64_t *values, uint32_t count);

/* --- reading --- */

enum pickle_kind {
    PICKLE_NONE,
    PICKLE_BOOL,
    PICKLE_INT,
    PICKLE_FLOAT,
    PICKLE_TEXT,
    PICKLE_TUPLE,
    PICKLE_LIST,
    PICKLE_DICT,       /* alternating keys and values */
    PICKLE_GLOBAL,     /* a class or function: `global` */
    PICKLE_OBJECT,     /* an instance made by NEWOBJ: children are the global, arguments and the state of BUILD */
    PICKLE_CALL,       /* a value made by REDUCE: children are the global, its arguments and the state of BUILD */
    PICKLE_PERSISTENT, /* child: the id */
};

/* Meaning of the allowed globals; PICKLE_DTYPE and PICKLE_STORAGE come with the dtype. */
enum pickle_global {
    PICKLE_G_METADATA,
    PICKLE_G_TENSOR_STORAGE_METADATA,
    PICKLE_G_BYTES_STORAGE_METADATA,
    PICKLE_G_CHUNK_STORAGE_METADATA,
    PICKLE_G_TENSOR_PROPERTIES,
    PICKLE_G_MEM_FORMAT,
    PICKLE_G_METADATA_INDEX,
    PICKLE_G_STORAGE_META,
    PICKLE_G_STORAGE_INFO,
    PICKLE_G_SIZE,
    PICKLE_G_LAYOUT,
    PICKLE_G_PATH,
    PICKLE_G_REBUILD_V2,
    PICKLE_G_REBUILD_V3,
    PICKLE_G_ORDERED_DICT,
    PICKLE_G_STORAGE,         /* torch FloatStorage: implies the dtype */
    PICKLE_G_UNTYPED_STORAGE, /* bytes */
    PICKLE_G_DTYPE,           /* torch bfloat16 */
    PICKLE_G_INERT,           /* a class whose instances are read as data and used by nobody */
};

struct pickle_node {
    uint8_t kind;
    uint8_t global;     /* of PICKLE_GLOBAL */
    uint8_t dtype;      /* of PICKLE_G_DTYPE and PICKLE_G_STORAGE */
    uint8_t remembered; /* by the memo, from which it is fetched later */
    uint32_t count;
    union {
        int64_t integer;
        double real;
        const char *text; /* not terminated; `count` bytes of the input */
        uint32_t first;   /* of `count` children in the pool; lists and dicts have their capacity in the word before */
    } value;
};
_Static_assert(sizeof(struct pickle_node) == 16, "metadata of millions of items is some 20 nodes an item");

struct pickle; /* the values; valid as long as the input */

/* Parses all `len` bytes; bytes after STOP are an error. Error messages start with `name`. */
int pickle_read(const char *name, const void *bytes, size_t len, struct pickle **pickle,
                struct cb_err *err) CB_MUST_CHECK;
void pickle_free(struct pickle *pickle);

/* Large dicts in the state of the pickle's only object, which are passed on pair by pair instead of being kept. */
struct pickle_dicts {
    const char *const *keys; /* in the state; all of the first dict comes before the others; NULL after the last */
    /* A pair of the dict with that number. The nodes are valid until it returns. */
    int (*pair)(void *context, const struct pickle *pickle, int dict, const struct pickle_node *key,
                const struct pickle_node *value, struct cb_err *err);
    void *context;
};
/* The same for a pickle of any length, twice from its begin to its end. The result has everything else; dicts that were
 * passed on are empty, or have some of their pairs. Its memory does not grow with these dicts. */
int pickle_read_dicts(const char *name, const struct byte_source *source, const struct pickle_dicts *dicts,
                      struct pickle **pickle, struct cb_err *err) CB_MUST_CHECK;

const struct pickle_node *pickle_root(const struct pickle *pickle);
/* Child `index` of a tuple, list, dict, object or call; NULL if there is none. */
const struct pickle_node *pickle_child(const struct pickle *pickle, const struct pickle_node *node, uint32_t index);
/* Whether it is an instance of, or a call to, this global. */
bool pickle_is(const struct pickle *pickle, const struct pickle_node *node, enum pickle_global global);
/* Arguments and state of an object or a call; the state may be NULL. */
const struct pickle_node *pickle_arguments(const struct pickle *pickle, const struct pickle_node *node);
const struct pickle_node *pickle_state(const struct pickle *pickle, const struct pickle_node *node);
/* The value of a text key, or NULL. The node may be a dict, or NULL. */
const struct pickle_node *pickle_get(const struct pickle *pickle, const struct pickle_node *dict, const char *key);
bool pickle_text_is(const struct pickle_node *node, const char *text);

#endif
