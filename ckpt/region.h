/* N-dimensional boxes, which describe parts of tensors. Pure functions. */
#ifndef CKPT_REGION_H
#define CKPT_REGION_H

#include <stdbool.h>
#include <stdint.h>

#define CKPT_MAX_DIMS 6

/* Elements [offset, offset + size) in each dimension; dims == 0 is a scalar of one element. */
struct box {
    uint32_t dims;
    uint64_t offset[CKPT_MAX_DIMS];
    uint64_t size[CKPT_MAX_DIMS];
};

struct box box_whole(uint32_t dims, const uint64_t *shape);
uint64_t box_elements(const struct box *box);
bool box_equal(const struct box *a, const struct box *b);
bool box_contains(const struct box *outer, const struct box *inner);
/* False if they share no element. */
bool box_intersect(const struct box *a, const struct box *b, struct box *common);

/* The boxes that cover elements [begin, end) of the row-major flattened shape, in order: at most 2 (dims - 1) + 1 of
 * them. Returns their number; `boxes` holds BOX_MAX_OF_INTERVAL. */
#define BOX_MAX_OF_INTERVAL (2 * (CKPT_MAX_DIMS - 1) + 1)
uint32_t box_of_interval(uint32_t dims, const uint64_t *shape, uint64_t begin, uint64_t end, struct box *boxes);

/* How `inner` is stored in row-major memory of `outer`: `runs` runs of `run_elements` contiguous elements each.
 * box_run gives the start of run i, in elements from the start of outer's and of inner's memory. */
void box_runs(const struct box *outer, const struct box *inner, uint64_t *runs, uint64_t *run_elements);
void box_run(const struct box *outer, const struct box *inner, uint64_t index, uint64_t *outer_element,
             uint64_t *inner_element);

/* Row-major index of the box's first element in the whole tensor. */
uint64_t box_first_element(const struct box *box, const uint64_t *shape);

#endif
