/* How pickled values are stored in memory: for the reader of pickles, which creates them, and
 * ckpt/format/pickle_values.c, through which all other code accesses them. */
#ifndef CKPT_FORMAT_PICKLE_VALUES_H
#define CKPT_FORMAT_PICKLE_VALUES_H

#include "ckpt/format/pickle.h"

#define PICKLE_NOWHERE UINT32_MAX /* the index of no value */

struct words { /* a growable array of indices */
    uint32_t *data;
    uint32_t count, capacity;
};

/* Copies of texts. They do not move. */
struct pickle_texts {
    struct pickle_texts *next;
    size_t len, capacity;
    char bytes[];
};

struct pickle {
    struct pickle_node *nodes;
    uint32_t node_count, node_capacity;
    struct words pool; /* children */
    struct pickle_texts *texts;
    uint64_t text_bytes; /* in all blocks */
    uint32_t root;
};

static inline bool pickle_has_children(const struct pickle_node *node)
{
    return node->kind == PICKLE_TUPLE || node->kind == PICKLE_LIST || node->kind == PICKLE_DICT ||
           node->kind == PICKLE_OBJECT || node->kind == PICKLE_CALL || node->kind == PICKLE_PERSISTENT;
}

/* Frees what it owns, but not itself. */
void pickle_release(struct pickle *pickle);

/* A copy that lives as long as the values; NULL without memory. */
const char *pickle_keep_text(struct pickle *pickle, const char *text, size_t len);

/* Indices of values that are in use. */
struct pickle_roots {
    uint32_t *indices;
    size_t count;
};
/* Drops all values that no root leads to. The others move: the roots are changed accordingly. False without memory,
 * and then nothing has changed. */
bool pickle_compact(struct pickle *pickle, const struct pickle_roots *roots, size_t root_count);

#endif
