/* How pickled values are stored in memory: for ckpt/format/pickle_read.c, which creates them, and
 * ckpt/format/pickle_values.c, through which all other code accesses them. */
#ifndef CKPT_FORMAT_PICKLE_VALUES_H
#define CKPT_FORMAT_PICKLE_VALUES_H

#include "ckpt/format/pickle.h"

struct words { /* a growable array of indices */
    uint32_t *data;
    uint32_t count, capacity;
};

struct pickle {
    struct pickle_node *nodes;
    uint32_t node_count, node_capacity;
    struct words pool; /* children */
    uint32_t root;
};

#endif
