/* Values that DCP's metadata and its items have in common, as pickles hold them. */
#ifndef CKPT_FORMAT_DCP_VALUES_H
#define CKPT_FORMAT_DCP_VALUES_H

#include "ckpt/format/pickle.h"

/* A tuple (or list) of at most CKPT_MAX_DIMS integers that are not negative; false where it is something else. */
bool dcp_read_sizes(const struct pickle *pickle, const struct pickle_node *node, uint64_t *values, uint32_t *count);
/* An integer that is not negative. The node may be NULL. */
bool dcp_read_count(const struct pickle_node *node, uint64_t *value);

#endif
