/* Distribution of ranks over nodes. */
#include "core/rank_placement.h"

#include <stdio.h>

uint32_t rank_placement_first_rank(uint32_t ranks, uint32_t nodes, uint32_t node)
{
    uint32_t share = ranks / nodes, fuller = ranks % nodes;
    return node * share + (node < fuller ? node : fuller);
}

uint32_t rank_placement_node_of(uint32_t ranks, uint32_t nodes, uint32_t rank)
{
    uint32_t share = ranks / nodes, fuller = ranks % nodes, in_fuller = fuller * (share + 1);
    return rank < in_fuller ? rank / (share + 1) : fuller + (rank - in_fuller) / share;
}

int rank_placement_node_folder(const char *base, uint32_t node, char *path, unsigned long path_bytes)
{
    int len = snprintf(path, path_bytes, "%s.%u", base, node);
    return len > 0 && (unsigned long)len < path_bytes ? 0 : -1;
}
