/* Maps stored elements with arbitrary strides to memory.
 *
 * Dimensions are visited from the largest stored stride to the smallest, and in each only the indices whose bytes overlap
 * the requested range. The cost is proportional to the elements in that range. */
#include "engine/strided.h"

#include "engine/copy_rows.h"

static void add_dimension(struct strided *self, uint64_t size, uint64_t from_stride, uint64_t to_stride)
{
    uint32_t at = self->dims++;
    for (; at > 0 && self->from_stride[at - 1] < from_stride; at--) {
        self->size[at] = self->size[at - 1];
        self->from_stride[at] = self->from_stride[at - 1];
        self->to_stride[at] = self->to_stride[at - 1];
    }
    self->size[at] = size;
    self->from_stride[at] = from_stride;
    self->to_stride[at] = to_stride;
}

void strided_init(struct strided *self, const struct stored_payload *payload, const struct region *stored,
                  const struct region *held, const struct region *common, size_t element_bytes)
{
    uint64_t held_stride = element_bytes;
    *self = (struct strided){.element_bytes = element_bytes};
    for (uint32_t i = common->dims; i-- > 0;) {
        uint64_t from_stride = payload->stride[i] * element_bytes;
        self->from += (common->offset[i] - stored->offset[i]) * from_stride;
        self->to += (common->offset[i] - held->offset[i]) * held_stride;
        if (common->size[i] > 1)
            add_dimension(self, common->size[i], from_stride, held_stride);
        held_stride *= held->size[i];
    }
    if (self->dims == 0)
        add_dimension(self, 1, element_bytes, element_bytes);
    self->reach[self->dims] = element_bytes;
    for (uint32_t i = self->dims; i-- > 0;)
        self->reach[i] = self->reach[i + 1] + (self->size[i] - 1) * self->from_stride[i];
}

void strided_span(const struct strided *self, uint64_t *begin, uint64_t *end)
{
    *begin = self->from;
    *end = self->from + self->reach[0];
}

/* The iteration over one dimension: indices [next, end), starting at the places of the enclosing dimension. */
struct level {
    uint64_t next, end, from, to;
};

struct walk {
    const struct strided *strided;
    uint64_t begin, end; /* the requested payload bytes */
    strided_fn each;
    void *context;
    struct cb_err *err;
    struct level levels[CKPT_MAX_DIMS];
};

/* The indices of dimension `dim` whose bytes overlap [begin, end). */
static void enter(struct walk *self, uint32_t dim, uint64_t from, uint64_t to)
{
    const struct strided *strided = self->strided;
    uint64_t stride = strided->from_stride[dim], size = strided->size[dim], inner = strided->reach[dim + 1];
    struct level level = {.from = from, .to = to};
    if (from < self->end)
        level.end = stride == 0 ? size : (self->end - from + stride - 1) / stride;
    if (level.end > size)
        level.end = size;
    if (from + inner <= self->begin) /* if not, the first one overlaps already */
        level.next = stride == 0 ? size : (self->begin - from - inner) / stride + 1;
    self->levels[dim] = level;
}

static int give(struct walk *self, uint64_t from, uint64_t to, uint64_t row_bytes, uint64_t rows, uint64_t from_stride,
                uint64_t to_stride)
{
    struct mapping_rows told = {.bytes_at = from - self->begin,
                                .bytes_stride = from_stride,
                                .memory_at = to,
                                .memory_stride = to_stride,
                                .row_bytes = row_bytes,
                                .rows = rows};
    if (rows > 1 && from_stride == row_bytes && to_stride == row_bytes) {
        told.row_bytes = row_bytes * rows;
        told.rows = 1;
    }
    return self->each(self->context, &told, self->err);
}

/* One element that is partly outside of the requested range. */
static int give_partly(struct walk *self, uint64_t from, uint64_t to)
{
    uint64_t begin = from > self->begin ? from : self->begin;
    uint64_t end = from + self->strided->element_bytes < self->end ? from + self->strided->element_bytes : self->end;
    return give(self, begin, to + (begin - from), end - begin, 1, 0, 0);
}

/* The elements of the innermost dimension. */
static int give_elements(struct walk *self, const struct level *level)
{
    const struct strided *strided = self->strided;
    uint32_t last = strided->dims - 1;
    uint64_t element = strided->element_bytes, next = level->next, end = level->end;
    uint64_t from_stride = strided->from_stride[last], to_stride = strided->to_stride[last];
    int rc = 0;
    while (next < end && !rc && level->from + next * from_stride < self->begin) {
        rc = give_partly(self, level->from + next * from_stride, level->to + next * to_stride);
        next++;
    }
    uint64_t whole = end;
    while (whole > next && level->from + (whole - 1) * from_stride + element > self->end)
        whole--;
    if (!rc && from_stride == 0) { /* one element with several destinations */
        for (; next < whole && !rc; next++)
            rc = give(self, level->from, level->to + next * to_stride, element, 1, 0, 0);
    } else if (!rc && next < whole) {
        rc = give(self, level->from + next * from_stride, level->to + next * to_stride, element, whole - next,
                  from_stride, to_stride);
    }
    for (next = whole > next ? whole : next; next < end && !rc; next++)
        rc = give_partly(self, level->from + next * from_stride, level->to + next * to_stride);
    return rc;
}

int strided_each(const struct strided *self, uint64_t begin, uint64_t len, strided_fn each, void *context,
                 struct cb_err *err)
{
    struct walk walk = {self, begin, begin + len, each, context, err, {{0}}};
    uint32_t dim = 0;
    if (len == 0)
        return 0;
    enter(&walk, 0, self->from, self->to);
    for (;;) {
        struct level *level = &walk.levels[dim];
        if (dim + 1 == self->dims) {
            int rc = give_elements(&walk, level);
            if (rc)
                return rc;
            level->next = level->end;
        }
        if (level->next < level->end) {
            uint64_t index = level->next++;
            dim++;
            enter(&walk, dim, level->from + index * self->from_stride[dim - 1],
                  level->to + index * self->to_stride[dim - 1]);
        } else if (dim-- == 0) {
            return 0;
        }
    }
}

/* --- in this machine's memory --- */

struct scatter {
    const char *bytes;
    char *memory;
    uint64_t copied;
};

static int scatter_rows(void *context, const struct mapping_rows *rows, struct cb_err *err)
{
    struct scatter *self = context;
    (void)err;
    copy_rows(self->memory + rows->memory_at, rows->memory_stride, self->bytes + rows->bytes_at, rows->bytes_stride,
              rows->row_bytes, rows->rows);
    self->copied += rows->row_bytes * rows->rows;
    return 0;
}

uint64_t strided_scatter(const struct strided *self, uint64_t begin, const void *bytes, uint64_t len, void *memory)
{
    struct scatter scatter = {bytes, memory, 0};
    int rc = strided_each(self, begin, len, scatter_rows, &scatter, NULL);
    (void)rc; /* of scatter_rows, which does not fail */
    return scatter.copied;
}
