/* Arithmetic of N-dimensional regions. */
#include "ckpt/region.h"

#include <assert.h>
#include <string.h>

struct region region_whole(uint32_t dims, const uint64_t *shape)
{
    assert(dims <= CKPT_MAX_DIMS);
    struct region region = {.dims = dims};
    for (uint32_t i = 0; i < dims; i++)
        region.size[i] = shape[i];
    return region;
}

uint64_t region_elements(const struct region *region)
{
    uint64_t elements = 1;
    for (uint32_t i = 0; i < region->dims; i++)
        elements *= region->size[i];
    return elements;
}

static int compare_numbers(const uint64_t *a, const uint64_t *b, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (a[i] != b[i])
            return a[i] < b[i] ? -1 : 1;
    }
    return 0;
}

int region_compare_offsets(const struct region *a, const struct region *b)
{
    return compare_numbers(a->offset, b->offset, a->dims < b->dims ? a->dims : b->dims);
}

int region_compare(const struct region *a, const struct region *b)
{
    int order = region_compare_offsets(a, b);
    return order ? order : compare_numbers(a->size, b->size, a->dims < b->dims ? a->dims : b->dims);
}

bool region_equal(const struct region *a, const struct region *b)
{
    return a->dims == b->dims && region_compare(a, b) == 0;
}

bool region_contains(const struct region *outer, const struct region *inner)
{
    if (outer->dims != inner->dims)
        return false;
    for (uint32_t i = 0; i < outer->dims; i++) {
        if (inner->offset[i] < outer->offset[i] ||
            inner->offset[i] + inner->size[i] > outer->offset[i] + outer->size[i])
            return false;
    }
    return true;
}

bool region_intersect(const struct region *a, const struct region *b, struct region *common)
{
    if (a->dims != b->dims)
        return false;
    struct region result = {.dims = a->dims};
    for (uint32_t i = 0; i < a->dims; i++) {
        uint64_t begin = a->offset[i] > b->offset[i] ? a->offset[i] : b->offset[i];
        uint64_t a_end = a->offset[i] + a->size[i];
        uint64_t b_end = b->offset[i] + b->size[i];
        uint64_t end = a_end < b_end ? a_end : b_end;
        if (begin >= end)
            return false;
        result.offset[i] = begin;
        result.size[i] = end - begin;
    }
    *common = result;
    return true;
}

/* `count` rows of dimension `dim`: one index in each dimension before it, all indices in those after it. */
static struct region slab(const struct region *whole, const uint64_t *stride, uint32_t dim, uint64_t begin,
                          uint64_t count)
{
    struct region region = *whole;
    for (uint32_t i = 0; i <= dim; i++) {
        region.offset[i] += begin / stride[i] % whole->size[i];
        region.size[i] = i < dim ? 1 : count;
    }
    return region;
}

uint32_t region_of_interval(const struct region *whole, uint64_t begin, uint64_t end, struct region *regions)
{
    uint32_t dims = whole->dims;
    const uint64_t *shape = whole->size;
    if (begin >= end)
        return 0;
    if (dims == 0) {
        regions[0] = *whole;
        return 1;
    }
    uint64_t stride[CKPT_MAX_DIMS];
    stride[dims - 1] = 1;
    for (uint32_t i = dims - 1; i > 0; i--)
        stride[i - 1] = stride[i] * shape[i];
    uint32_t count = 0;
    /* Up: from the innermost dimension, complete the current row, until an outer stride is reached. */
    uint32_t dim = dims - 1;
    while (begin < end && dim > 0) {
        uint64_t next = begin / stride[dim - 1] * stride[dim - 1];
        if (next != begin)
            next += stride[dim - 1];
        if (next > end)
            break;
        if (next > begin)
            regions[count++] = slab(whole, stride, dim, begin, (next - begin) / stride[dim]);
        begin = next;
        dim--;
    }
    /* Down: whole rows of the largest stride that fits, then the rest in smaller ones. */
    for (; begin < end; dim++) {
        uint64_t rows = (end - begin) / stride[dim];
        if (rows > 0) {
            regions[count++] = slab(whole, stride, dim, begin, rows);
            begin += rows * stride[dim];
        }
    }
    assert(count <= BOX_MAX_OF_INTERVAL);
    return count;
}

/* The outermost dimension from which on `inner` spans all of `outer`: a run covers the rows of the dimension before
 * it. */
static uint32_t run_dim(const struct region *outer, const struct region *inner)
{
    uint32_t dim = inner->dims;
    while (dim > 0 && inner->size[dim - 1] == outer->size[dim - 1])
        dim--;
    return dim > 0 ? dim - 1 : 0;
}

void region_runs(const struct region *outer, const struct region *inner, uint64_t *runs, uint64_t *run_elements)
{
    assert(region_contains(outer, inner));
    uint32_t dim = run_dim(outer, inner);
    *runs = 1;
    *run_elements = 1;
    for (uint32_t i = 0; i < inner->dims; i++)
        *(i < dim ? runs : run_elements) *= inner->size[i];
}

void region_run(const struct region *outer, const struct region *inner, uint64_t index, uint64_t *outer_element,
                uint64_t *inner_element)
{
    uint32_t dim = run_dim(outer, inner);
    uint64_t element = 0, stride = 1, run_elements = 1, left = index;
    for (uint32_t i = inner->dims; i-- > 0;) {
        uint64_t position = inner->offset[i] - outer->offset[i];
        if (i < dim) {
            position += left % inner->size[i];
            left /= inner->size[i];
        } else {
            run_elements *= inner->size[i];
        }
        element += position * stride;
        stride *= outer->size[i];
    }
    *outer_element = element;
    *inner_element = index * run_elements;
}

uint64_t region_first_element(const struct region *region, const uint64_t *shape)
{
    uint64_t element = 0;
    for (uint32_t i = 0; i < region->dims; i++)
        element = element * shape[i] + region->offset[i];
    return element;
}

uint32_t region_row_dim(const struct region *region)
{
    uint32_t dim = 0;
    while (dim + 1 < region->dims && region->size[dim] == 1)
        dim++;
    return dim;
}
