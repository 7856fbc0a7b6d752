/* libckptbench with tensors on a GPU: saved after what their stream still has to do, mixed with others in host memory, and
 * loaded into device memory. Needs a GPU, or the plugin's source built for the processor (tests/cuda_on_cpu). */
#include "tests/unit/library_ranks.h"

#include "core/clock.h"
#include "engine/device_plugin.h"

#define ROWS 64
#define COLUMNS 48
#define ELEMENTS (ROWS * COLUMNS)

static struct device_plugin plugin;

/* The program's own device, with a stream that the library knows nothing of. */
struct program {
    struct device *device;
    float *memory;  /* the matrix, on the device, and after it a scalar */
    float *pinned;  /* the same in pinned memory */
    float bias[96]; /* in host memory */
};

/* The start of struct cuda_device (cuda/cuda.h): its stream of copies. */
struct cuda_start {
    struct device base;
    int index;
    void *stream;
};

static void *stream_of(const struct program *self)
{
    return ((struct cuda_start *)(void *)self->device)->stream;
}

static void copy(const struct program *self, enum device_direction direction)
{
    const struct device_copy whole = {.to = direction == HOST_TO_DEVICE ? self->memory : self->pinned,
                                      .from = direction == HOST_TO_DEVICE ? self->pinned : self->memory,
                                      .row_bytes = (ELEMENTS + 1) * sizeof(float),
                                      .rows = 1};
    assert_int_equal(self->device->ops->copy(self->device, direction, &whole, 1, NULL), 0);
}

static void finish(const struct program *self)
{
    uint64_t event;
    assert_int_equal(self->device->ops->record(self->device, &event, NULL), 0);
    assert_int_equal(self->device->ops->wait(self->device, event, clock_monotonic_ns() + 60 * NS_PER_S, NULL), 0);
}

static void open_program(struct program *self)
{
    struct cb_err err;
    *self = (struct program){0};
    if (plugin.ops->open(0, &self->device, &err))
        fail_msg("%s", err.message);
    void *memory = NULL, *pinned = NULL;
    uint64_t bytes = (ELEMENTS + 1) * sizeof(float);
    assert_int_equal(self->device->ops->allocate(self->device, MEMORY_DEVICE, bytes, &memory, NULL), 0);
    assert_int_equal(self->device->ops->allocate(self->device, MEMORY_PINNED, bytes, &pinned, NULL), 0);
    self->memory = memory;
    self->pinned = pinned;
    assert_int_equal(self->device->ops->set(self->device, memory, 0xff, bytes, NULL), 0);
}

static void close_program(struct program *self)
{
    uint64_t bytes = (ELEMENTS + 1) * sizeof(float);
    self->device->ops->release(self->device, MEMORY_DEVICE, self->memory, bytes);
    self->device->ops->release(self->device, MEMORY_PINNED, self->pinned, bytes);
    device_close(self->device);
}

/* Elements [begin, begin + count) of a dimension that the ranks divide. */
static void divide(uint64_t all, uint32_t rank, uint32_t ranks, uint64_t *begin, uint64_t *count)
{
    *begin = all * rank / ranks;
    *count = all * (rank + 1) / ranks - *begin;
}

/* Rows of the matrix are in row-major order, columns each at a time. */
static void describe(struct described_state *state, struct program *program, bool by_rows, uint32_t rank,
                     uint32_t ranks)
{
    uint64_t offset[2] = {0, 0}, size[2] = {ROWS, COLUMNS};
    divide(by_rows ? ROWS : COLUMNS, rank, ranks, &offset[by_rows ? 0 : 1], &size[by_rows ? 0 : 1]);
    describe_nothing(state);
    add_tensor(state, "matrix", "float32", 2, (uint64_t[]){ROWS, COLUMNS});
    struct ckptbench_region *region = add_region(state, program->memory, offset, size);
    if (!by_rows) {
        region->stride[0] = 1;
        region->stride[1] = ROWS;
    }
    region->device = 1;
    region->stream = stream_of(program);
    add_tensor(state, "scalar", "float32", 0, NULL);
    region = add_region(state, program->memory + ELEMENTS, NULL, NULL);
    region->device = 1;
    region->stream = stream_of(program);
    add_tensor(state, "bias", "float32", 1, (uint64_t[]){96});
    add_region(state, program->bias, NULL, NULL);
}

static float expected(uint64_t row, uint64_t column, uint64_t version)
{
    return (float)(row * COLUMNS + column + 10000 * version);
}

/* The matrix as the program has it, after `version` steps, on its way to the device when the save begins. */
static void compute(struct program *self, uint32_t rank, uint32_t ranks, uint64_t version)
{
    uint64_t first, rows;
    divide(ROWS, rank, ranks, &first, &rows);
    for (uint64_t i = 0; i < rows * COLUMNS; i++)
        self->pinned[i] = expected(first + i / COLUMNS, i % COLUMNS, version);
    self->pinned[ELEMENTS] = (float)version;
    for (size_t i = 0; i < 96; i++)
        self->bias[i] = (float)(i + version);
    copy(self, HOST_TO_DEVICE);
}

static void save_steps(ckptbench *handle, uint32_t rank, uint32_t ranks, void *context)
{
    struct program program;
    struct described_state state;
    struct ckptbench_error error;
    char path[128];
    (void)context;
    open_program(&program);
    for (uint64_t version = 1; version <= 6; version++) {
        ckptbench_async *save = NULL;
        snprintf(path, sizeof path, "%s/step-%d", folder, (int)version);
        describe(&state, &program, true, rank, ranks);
        compute(&program, rank, ranks, version);
        int code = version % 2 ? ckptbench_save_async(handle, path, &state.state, &save, &error)
                               : ckptbench_save(handle, path, &state.state, NULL, &error);
        if (code)
            print_error("rank %u: %s\n", rank, error.text);
        assert_int_equal(code, 0);
        finish(&program);
        memset(program.pinned, 0xff, ELEMENTS * sizeof(float)); /* the next step overwrites everything */
        memset(program.bias, 0xff, sizeof program.bias);
        copy(&program, HOST_TO_DEVICE);
        finish(&program);
        if (save)
            assert_int_equal(ckptbench_async_wait(save, -1, NULL, NULL, &error), 0);
        ckptbench_async_free(save);
    }
    close_program(&program);
}

static void load_columns(ckptbench *handle, uint32_t rank, uint32_t ranks, void *context)
{
    struct program program;
    struct described_state state;
    struct ckptbench_error error;
    uint64_t first, columns, version = *(uint64_t *)context;
    char path[128];
    open_program(&program);
    divide(COLUMNS, rank, ranks, &first, &columns);
    describe(&state, &program, false, rank, ranks);
    snprintf(path, sizeof path, "%s/step-%d", folder, (int)version);
    int code = ckptbench_load(handle, path, &state.state, NULL, &error);
    if (code)
        print_error("rank %u: %s\n", rank, error.text);
    assert_int_equal(code, 0);
    copy(&program, DEVICE_TO_HOST);
    finish(&program);
    for (uint64_t i = 0; i < columns * ROWS; i++)
        assert_true(program.pinned[i] == expected(i % ROWS, first + i / ROWS, version));
    assert_true(program.pinned[ELEMENTS] == (float)version);
    for (size_t i = 0; i < 96; i++)
        assert_true(program.bias[i] == (float)(i + version));
    close_program(&program);
}

static void saves_wait_for_the_stream_and_loads_fill_device_memory(void **unused)
{
    (void)unused;
    run_ranks(2, NULL, save_steps, NULL);
    for (uint64_t version = 1; version <= 6; version++)
        run_ranks((uint32_t)version % 3 + 1, NULL, load_columns, &version);
    clear();
}

static void a_gpu_that_is_not_there_or_a_second_one_is_refused(void **unused)
{
    struct ckptbench_open_options options = {.struct_bytes = sizeof options, .rank_count = 1};
    struct described_state state;
    struct ckptbench_error error;
    struct program program;
    ckptbench *handle = NULL;
    char path[128];
    (void)unused;
    snprintf(path, sizeof path, "%s/refused", folder);
    open_program(&program);
    describe(&state, &program, true, 0, 1);
    assert_int_equal(ckptbench_open(&options, &handle, NULL), 0);
    state.regions[0].device = 1000;
    assert_int_equal(ckptbench_save(handle, path, &state.state, NULL, &error), CKPTBENCH_UNSUPPORTED);
    assert_non_null(strstr(error.text, "GPU"));
    state.regions[0].device = state.regions[1].device = 1000;
    assert_int_equal(ckptbench_save(handle, path, &state.state, NULL, &error), CKPTBENCH_UNSUPPORTED);
    assert_non_null(strstr(error.text, "no GPU 999"));
    state.regions[0].device = state.regions[1].device = 1;
    state.regions[2].stream = path;
    assert_int_equal(ckptbench_save(handle, path, &state.state, NULL, &error), CKPTBENCH_USAGE);
    state.regions[2].stream = NULL;
    compute(&program, 0, 1, 1);
    assert_int_equal(ckptbench_save(handle, path, &state.state, NULL, &error), 0); /* the handle goes on */
    assert_int_equal(ckptbench_close(handle, NULL), 0);
    close_program(&program);
    clear();
}

static int open_all(void **unused)
{
    struct cb_err err;
    if (device_plugin_open(&plugin, &err)) {
        print_error("%s\n", err.message);
        return -1;
    }
    return make_folder(unused);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(saves_wait_for_the_stream_and_loads_fill_device_memory),
        cmocka_unit_test(a_gpu_that_is_not_there_or_a_second_one_is_refused),
    };
    return cmocka_run_group_tests(tests, open_all, remove_folder);
}
