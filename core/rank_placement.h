/* How the ranks of a run are distributed over its nodes: in order and as evenly as possible; if they do not divide
 * evenly, the first nodes get one more. Agent, launcher and ranks all compute it, so they agree without a message. */
#ifndef CORE_RANK_PLACEMENT_H
#define CORE_RANK_PLACEMENT_H

#include <stdint.h>

/* The first rank of a node, 0 <= node <= nodes; the value for node + 1 is the end. nodes <= ranks. */
uint32_t rank_placement_first_rank(uint32_t ranks, uint32_t nodes, uint32_t node);
uint32_t rank_placement_node_of(uint32_t ranks, uint32_t nodes, uint32_t rank);

/* "BASE.NODE": the folder of a node's status pages in a run with several nodes. The number is in the name because
 * nodes may share one memory file system. Returns 0, or -1 if it does not fit. */
int rank_placement_node_folder(const char *base, uint32_t node, char *path, unsigned long path_bytes);

#endif
