/* Which rank's file a rank loads. */
#include "worker/load_shift.h"

uint32_t load_shift(const struct experiment *experiment, const struct comm *comm)
{
    uint64_t shift = experiment_u64(experiment, OPT_LOAD_SHIFT);
    uint32_t fullest = comm_fullest_node(comm);
    return shift == 1 && fullest < comm_size(comm) ? fullest : (uint32_t)shift;
}
