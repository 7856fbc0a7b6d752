/* For tests of libckptbench: a state whose matrix is spread over a grid of ranks, saved by them and loaded in other parts. */
#ifndef TESTS_UNIT_LIBRARY_GRID_H
#define TESTS_UNIT_LIBRARY_GRID_H

#include "library_ranks.h"

#define ROWS 40
#define COLUMNS 24
#define BIAS 5000 /* large enough to be divided among ranks */
#define VALUE "any bytes"
#define MATRIX_PATH "('model', 0, 'it\\'s')"

static char path[128];

static inline const char *place(const char *name)
{
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static inline float element(uint64_t row, uint64_t column, uint64_t version)
{
    return (float)(row * 1000 + column + version * 100000);
}

/* A grid of ranks: rows of the matrix over half of the ranks, columns over two. */
static inline void grid_part(uint32_t rank, uint32_t ranks, uint64_t offset[2], uint64_t size[2])
{
    uint32_t down = ranks / 2;
    offset[0] = ROWS * (rank / 2) / down;
    size[0] = ROWS * (rank / 2 + 1) / down - offset[0];
    offset[1] = COLUMNS / 2 * (rank % 2);
    size[1] = COLUMNS / 2;
}

struct grid_state {
    struct described_state described;
    float matrix[ROWS * COLUMNS], bias[BIAS];
    int64_t step;
};

static inline void describe_grid(struct grid_state *self, uint32_t rank, uint32_t ranks, uint64_t version)
{
    uint64_t offset[2], size[2];
    grid_part(rank, ranks, offset, size);
    describe_nothing(&self->described);
    add_tensor(&self->described, "matrix", "float32", 2, (uint64_t[]){ROWS, COLUMNS});
    add_region(&self->described, self->matrix, offset, size);
    self->described.tensors[0].path = MATRIX_PATH;
    add_tensor(&self->described, "bias", "float32", 1, (uint64_t[]){BIAS});
    add_region(&self->described, self->bias, NULL, NULL);
    add_tensor(&self->described, "step", "int64", 0, NULL);
    add_region(&self->described, &self->step, NULL, NULL);
    add_tensor(&self->described, "nothing", "float16", 2, (uint64_t[]){0, 5});
    add_value(&self->described, "note", VALUE, strlen(VALUE));
    for (uint64_t i = 0; i < size[0] * size[1]; i++)
        self->matrix[i] = element(offset[0] + i / size[1], offset[1] + i % size[1], version);
    for (uint64_t i = 0; i < BIAS; i++)
        self->bias[i] = (float)(i + version);
    self->step = (int64_t)version;
}

struct counts {
    pthread_mutex_t lock;
    uint64_t bytes, kept, most;
};

static inline void save_grid(ckptbench *handle, uint32_t rank, uint32_t ranks, void *context)
{
    struct counts *counts = context;
    struct grid_state *grid = calloc(1, sizeof *grid);
    struct ckptbench_result result = {.struct_bytes = sizeof result};
    struct ckptbench_error error = {0};
    char where[160];
    for (uint64_t version = 1; version <= 2; version++) {
        describe_grid(grid, rank, ranks, version);
        snprintf(where, sizeof where, "%s/deep/step-%llu", folder, (unsigned long long)version);
        int code = ckptbench_save(handle, where, &grid->described.state, &result, &error);
        if (code)
            print_error("rank %u: %s\n", rank, error.text);
        assert_int_equal(code, 0);
        pthread_mutex_lock(&counts->lock);
        counts->bytes += result.bytes;
        counts->kept += result.plan_is_kept;
        counts->most = result.bytes > counts->most ? result.bytes : counts->most;
        pthread_mutex_unlock(&counts->lock);
        assert_true(result.total_s >= result.stall_s && result.stall_s >= result.plan_s && result.plan_s > 0);
    }
    free(grid);
}

/* Each rank loads some columns, which lie transposed in its memory, and everything else. */
static inline void load_transposed(ckptbench *handle, uint32_t rank, uint32_t ranks, void *context)
{
    uint64_t version = *(uint64_t *)context, first = COLUMNS * rank / ranks,
             columns = COLUMNS * (rank + 1) / ranks - first;
    struct grid_state *grid = calloc(1, sizeof *grid);
    struct ckptbench_error error = {0};
    char where[160];
    describe_nothing(&grid->described);
    add_tensor(&grid->described, "matrix", "float32", 2, (uint64_t[]){ROWS, COLUMNS});
    struct ckptbench_region *region =
        add_region(&grid->described, grid->matrix, (uint64_t[]){0, first}, (uint64_t[]){ROWS, columns});
    region->stride[0] = 1;
    region->stride[1] = ROWS;
    add_tensor(&grid->described, "bias", "float32", 1, (uint64_t[]){BIAS});
    add_region(&grid->described, grid->bias, (uint64_t[]){10}, (uint64_t[]){100});
    add_tensor(&grid->described, "step", "int64", 0, NULL);
    add_region(&grid->described, &grid->step, NULL, NULL);
    add_value(&grid->described, "note", NULL, 0);
    snprintf(where, sizeof where, "%s/deep/step-%llu", folder, (unsigned long long)version);
    int code = ckptbench_load(handle, where, &grid->described.state, NULL, &error);
    if (code)
        print_error("rank %u: %s\n", rank, error.text);
    assert_int_equal(code, 0);
    for (uint64_t row = 0; row < ROWS; row++) {
        for (uint64_t column = 0; column < columns; column++)
            assert_true(grid->matrix[column * ROWS + row] == element(row, first + column, version));
    }
    for (uint64_t i = 0; i < 100; i++)
        assert_true(grid->bias[i] == (float)(i + 10 + version));
    assert_true(grid->bias[100] == 0);
    assert_int_equal(grid->step, (int64_t)version);
    const void *bytes = NULL;
    uint64_t length = 0;
    assert_int_equal(ckptbench_loaded_value(handle, 0, &bytes, &length, NULL), 0);
    assert_int_equal(length, strlen(VALUE));
    assert_memory_equal(bytes, VALUE, length);
    assert_int_equal(ckptbench_loaded_value(handle, 1, &bytes, &length, NULL), CKPTBENCH_USAGE);
    free(grid);
}

#endif
