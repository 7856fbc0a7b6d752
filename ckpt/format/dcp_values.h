/* Values that DCP's metadata and items share, as nodes of a pickle. */
#ifndef CKPT_FORMAT_DCP_VALUES_H
#define CKPT_FORMAT_DCP_VALUES_H

#include "ckpt/format/pickle.h"

/* A tuple (or list) of at most CKPT_MAX_DIMS non-negative integers; false for anything else. */
bool dcp_read_sizes(const struct pickle *pickle, const struct pickle_node *node, uint64_t *values, uint32_t *count);
/* A non-negative integer. The node may be NULL. */
bool dcp_read_count(const struct pickle_node *node, uint64_t *value);

#endif
