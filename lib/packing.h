/* Regions that are not in row-major order in host memory: the engine sees a packed copy of them there. */
#ifndef LIB_PACKING_H
#define LIB_PACKING_H

#include "core/err.h"
#include "lib/join.h"
#include "lib/program_gpu.h"

/* Packed copies, reused from call to call while they fit. */
struct packing {
    char *memory;
    uint64_t bytes;
    struct device *device; /* whose pinned memory it is; NULL: ordinary memory */
    void **addresses;      /* of each piece: its region's memory, or its place in `memory` */
    size_t count;
};

/* Finds the addresses of all pieces. The copies of regions that need one are undefined until packing_pack. `gpu` is that
 * of the state's regions, and stays open until packing_release. */
int packing_prepare(struct packing *self, const struct ckptbench_state *state, const struct joined *joined,
                    const struct gpu *gpu, struct cb_err *err) CB_MUST_CHECK;
/* Copies the regions to their packed copies, or back, and waits until that is done: after what the program has queued so
 * far on the streams of its regions. */
int packing_pack(const struct packing *self, const struct ckptbench_state *state, const struct joined *joined,
                 const struct gpu *gpu, uint64_t deadline_ns, struct cb_err *err) CB_MUST_CHECK;
int packing_unpack(const struct packing *self, const struct ckptbench_state *state, const struct joined *joined,
                   const struct gpu *gpu, uint64_t deadline_ns, struct cb_err *err) CB_MUST_CHECK;
void packing_release(struct packing *self);

#endif
