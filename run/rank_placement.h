/* How the ranks of a run are spread over its nodes: in order, as evenly as it goes, the first nodes
 * taking one more. Agent, launcher and ranks must agree on it, so it is a rule and not a message. */
#ifndef RUN_RANK_PLACEMENT_H
#define RUN_RANK_PLACEMENT_H

#include <stdint.h>

/* The first rank of a node, 0 <= node <= nodes; that of node + 1 is the end. nodes <= ranks. */
uint32_t spread_first_rank(uint32_t ranks, uint32_t nodes, uint32_t node);
uint32_t spread_node_of(uint32_t ranks, uint32_t nodes, uint32_t rank);

/* "BASE.NODE": the folder of a node's status pages, where there are several nodes. Its number is in the
 * name because nodes may share one memory file system. 0, or -1 where it does not fit. */
int spread_node_folder(const char *base, uint32_t node, char *path, unsigned long path_bytes);

#endif
