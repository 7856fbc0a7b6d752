/* Regions whose elements are not in row-major order in memory: the engine sees a packed copy of them. */
#ifndef LIB_PACKING_H
#define LIB_PACKING_H

#include "core/err.h"
#include "lib/join.h"

/* Packed copies, reused from call to call while they fit. */
struct packing {
    char *memory;
    uint64_t bytes;
    void **addresses; /* of each piece: its region's memory, or its place in `memory` */
    size_t count;
};

/* Finds the addresses of all pieces. The copies of regions that need one are undefined until packing_pack. */
int packing_prepare(struct packing *self, const struct ckptbench_state *state, const struct joined *joined,
                    struct cb_err *err) CB_MUST_CHECK;
/* Copies the regions to their packed copies, or back. */
void packing_pack(const struct packing *self, const struct ckptbench_state *state, const struct joined *joined);
void packing_unpack(const struct packing *self, const struct ckptbench_state *state, const struct joined *joined);
void packing_release(struct packing *self);

#endif
