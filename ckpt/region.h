/* N-dimensional regions, which describe parts of tensors. Pure functions. */
#ifndef CKPT_REGION_H
#define CKPT_REGION_H

#include <stdbool.h>
#include <stdint.h>

#define CKPT_MAX_DIMS 6

/* Elements [offset, offset + size) in each dimension; dims == 0 is a scalar of one element. */
struct region {
    uint32_t dims;
    uint64_t offset[CKPT_MAX_DIMS];
    uint64_t size[CKPT_MAX_DIMS];
};

struct region region_whole(uint32_t dims, const uint64_t *shape);
uint64_t region_elements(const struct region *region);
bool region_equal(const struct region *a, const struct region *b);
int region_compare(const struct region *a, const struct region *b); /* by offsets, then by sizes */
int region_compare_offsets(const struct region *a, const struct region *b);
bool region_contains(const struct region *outer, const struct region *inner);
/* False if they share no element. */
bool region_intersect(const struct region *a, const struct region *b, struct region *common);

/* The regions that cover elements [begin, end) of the region's own row-major order: at most 2 (dims - 1) + 1 of them.
 * Returns their number; `regions` holds BOX_MAX_OF_INTERVAL. */
#define BOX_MAX_OF_INTERVAL (2 * (CKPT_MAX_DIMS - 1) + 1)
uint32_t region_of_interval(const struct region *whole, uint64_t begin, uint64_t end, struct region *regions);

/* How `inner` is stored in row-major memory of `outer`: `runs` runs of `run_elements` contiguous elements each.
 * region_run gives the start of run i, in elements from the start of outer's and of inner's memory. */
void region_runs(const struct region *outer, const struct region *inner, uint64_t *runs, uint64_t *run_elements);
void region_run(const struct region *outer, const struct region *inner, uint64_t index, uint64_t *outer_element,
                uint64_t *inner_element);

/* The dimension of its rows: the first that has several indices, or the last one. 0 for a scalar. */
uint32_t region_row_dim(const struct region *region);

/* Row-major index of the region's first element in the whole tensor. */
uint64_t region_first_element(const struct region *region, const uint64_t *shape);

#endif
