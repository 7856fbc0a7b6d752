/* libckptbench through its header: ranks are threads that meet over TCP and share a folder. */
#include "library_ranks.h"

#include <sys/wait.h>

#include "lib/claims.h"

#define ROWS 40
#define COLUMNS 24
#define VALUE "any bytes"
#define MATRIX_PATH "('model', 0, 'it\\'s')"

static char path[128];

static const char *place(const char *name)
{
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static float element(uint64_t row, uint64_t column, uint64_t version)
{
    return (float)(row * 1000 + column + version * 100000);
}

/* A grid of ranks: rows of the matrix over half of the ranks, columns over two. */
static void grid_part(uint32_t rank, uint32_t ranks, uint64_t offset[2], uint64_t size[2])
{
    uint32_t down = ranks / 2;
    offset[0] = ROWS * (rank / 2) / down;
    size[0] = ROWS * (rank / 2 + 1) / down - offset[0];
    offset[1] = COLUMNS / 2 * (rank % 2);
    size[1] = COLUMNS / 2;
}

struct grid_state {
    struct described_state described;
    float matrix[ROWS * COLUMNS], bias[1000];
    int64_t step;
};

static void describe_grid(struct grid_state *self, uint32_t rank, uint32_t ranks, uint64_t version)
{
    uint64_t offset[2], size[2];
    grid_part(rank, ranks, offset, size);
    describe_nothing(&self->described);
    add_tensor(&self->described, "matrix", "float32", 2, (uint64_t[]){ROWS, COLUMNS});
    add_region(&self->described, self->matrix, offset, size);
    self->described.tensors[0].path = MATRIX_PATH;
    add_tensor(&self->described, "bias", "float32", 1, (uint64_t[]){1000});
    add_region(&self->described, self->bias, NULL, NULL);
    add_tensor(&self->described, "step", "int64", 0, NULL);
    add_region(&self->described, &self->step, NULL, NULL);
    add_tensor(&self->described, "nothing", "float16", 2, (uint64_t[]){0, 5});
    add_value(&self->described, "note", VALUE, strlen(VALUE));
    for (uint64_t i = 0; i < size[0] * size[1]; i++)
        self->matrix[i] = element(offset[0] + i / size[1], offset[1] + i % size[1], version);
    for (uint64_t i = 0; i < 1000; i++)
        self->bias[i] = (float)(i + version);
    self->step = (int64_t)version;
}

struct counts {
    pthread_mutex_t lock;
    uint64_t bytes, kept, most;
};

static void save_grid(ckptbench *handle, uint32_t rank, uint32_t ranks, void *context)
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
static void load_transposed(ckptbench *handle, uint32_t rank, uint32_t ranks, void *context)
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
    add_tensor(&grid->described, "bias", "float32", 1, (uint64_t[]){1000});
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

static void replicas_are_written_once_and_loads_may_have_another_layout(void **state)
{
    (void)state;
    const uint64_t each = (ROWS * COLUMNS + 1000) * sizeof(float) + sizeof(int64_t);
    struct counts counts = {.lock = PTHREAD_MUTEX_INITIALIZER};
    clear();
    run_ranks(4, NULL, save_grid, &counts);
    assert_int_equal(counts.bytes, 2 * each);
    assert_in_range(counts.most, each / 4, each / 4 + 64); /* bias is cut into four */
    assert_int_equal(counts.kept, 4);                      /* the second save of each rank */
    for (uint64_t version = 1; version <= 2; version++) {
        run_ranks(1, NULL, load_transposed, &version);
        run_ranks(3, NULL, load_transposed, &version);
    }
}

static void options_of_runs_apply_to_described_states(void **state)
{
    (void)state;
    static const struct {
        const char *words[3];
        uint64_t copies; /* of what all ranks hold */
        const char *file;
    } options[] = {
        {{"save.dedup=none"}, 4, "__3_0.distcp"},
        {{"save.dedup=lowest_rank"}, 1, "__3_0.distcp"},
        {{"io.files=2"}, 1, "__1_1.distcp"},
        {{"io.files=item"}, 1, "__0_1.distcp"},
        {{"io.files=shared"}, 1, "__0_0.distcp"},
        {{"checksum=none", "io.engine=psync"}, 1, "__3_0.distcp"},
        {{"io.block=4KiB", "io.depth=2"}, 1, "__3_0.distcp"},
        {{"save.plan_cache=false", "io.fsync=false"}, 1, "__3_0.distcp"},
    };
    uint64_t version = 2;
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        struct counts counts = {.lock = PTHREAD_MUTEX_INITIALIZER};
        char file[64];
        clear();
        run_ranks(4, options[i].words, save_grid, &counts);
        assert_int_equal(counts.bytes, 2 * (ROWS * COLUMNS * 4 + options[i].copies * (1000 * 4 + 8)));
        snprintf(file, sizeof file, "deep/step-2/%s", options[i].file);
        assert_true(exists(file));
        run_ranks(3, options[i].words, load_transposed, &version);
    }
    const char *const copies[] = {"copies=2", NULL};
    struct counts counts = {.lock = PTHREAD_MUTEX_INITIALIZER};
    clear();
    run_ranks(4, copies, save_grid, &counts);
    assert_true(exists("deep/step-2/copy-1/__1_0.distcp"));
    run_ranks(3, copies, load_transposed, &version);
}

static void add_count(struct counts *counts, uint64_t bytes)
{
    pthread_mutex_lock(&counts->lock);
    counts->bytes += bytes;
    counts->most = bytes > counts->most ? bytes : counts->most;
    pthread_mutex_unlock(&counts->lock);
}

/* Ranks 0 and 1 want one half of the rows, ranks 2 and 3 the other; all of them want bias and step. Rank 0 has a value. */
static void load_halves(ckptbench *handle, uint32_t rank, uint32_t ranks, void *context)
{
    struct grid_state *grid = calloc(1, sizeof *grid);
    struct ckptbench_result result = {.struct_bytes = sizeof result};
    struct ckptbench_error error = {0};
    const void *bytes = NULL;
    uint64_t length = 0, first = rank / 2 * ROWS / 2;
    char where[160];
    assert_int_equal(ranks, 4);
    describe_nothing(&grid->described);
    add_tensor(&grid->described, "bias", "float32", 1, (uint64_t[]){1000});
    add_region(&grid->described, grid->bias, NULL, NULL);
    add_tensor(&grid->described, "matrix", "float32", 2, (uint64_t[]){ROWS, COLUMNS});
    add_region(&grid->described, grid->matrix, (uint64_t[]){first, 0}, (uint64_t[]){ROWS / 2, COLUMNS});
    add_tensor(&grid->described, "step", "int64", 0, NULL);
    add_region(&grid->described, &grid->step, NULL, NULL);
    if (rank == 2)
        add_value(&grid->described, "note", NULL, 0);
    snprintf(where, sizeof where, "%s/deep/step-2", folder);
    int code = ckptbench_load(handle, where, &grid->described.state, &result, &error);
    if (code)
        print_error("rank %u: %s\n", rank, error.text);
    assert_int_equal(code, 0);
    for (uint64_t i = 0; i < ROWS / 2 * COLUMNS; i++)
        assert_true(grid->matrix[i] == element(first + i / COLUMNS, i % COLUMNS, 2));
    for (uint64_t i = 0; i < 1000; i++)
        assert_true(grid->bias[i] == (float)(i + 2));
    assert_int_equal(grid->step, 2);
    assert_int_equal(ckptbench_loaded_value(handle, 0, &bytes, &length, NULL), rank == 2 ? 0 : CKPTBENCH_USAGE);
    assert_int_equal(length, rank == 2 ? strlen(VALUE) : 0);
    add_count(context, result.moved_bytes);
    free(grid);
}

static void ranks_that_need_the_same_read_it_once_and_exchange_it(void **state)
{
    (void)state;
    const char *const modes[][3] = {{"io.direct=false", "load.exchange=off"},
                                    {"io.direct=false", "load.exchange=broadcast"},
                                    {"io.direct=false", "load.exchange=split"}};
    struct counts saved = {.lock = PTHREAD_MUTEX_INITIALIZER}, read[3];
    clear();
    run_ranks(2, NULL, save_grid, &saved);
    for (size_t i = 0; i < 3; i++) {
        read[i] = (struct counts){.lock = PTHREAD_MUTEX_INITIALIZER};
        run_ranks(4, modes[i], load_halves, &read[i]);
    }
    /* Each byte of the matrix is wanted twice, the others four times; headers and gaps are read, too. */
    assert_true(2 * read[1].bytes < read[0].bytes && 3 * read[2].bytes < 2 * read[0].bytes);
    assert_true(read[2].most < read[1].most); /* split: each rank reads its share */
}

/* --- random states --- */

#define RANDOM_TENSORS 6
#define RANDOM_MOST 4096 /* elements in memory, gaps included */

static uint64_t draw(uint64_t *seed, uint64_t limit)
{
    *seed = *seed * UINT64_C(6364136223846793005) + 1442695040888963407;
    return (*seed >> 33) % limit;
}

/* A rank's part of random tensors: each is cut along one dimension, or whole on every rank, and lies in memory in a random
 * order of its dimensions with gaps between them. Types and shapes follow from `seed`, the cuts from `cuts`. */
struct random_state {
    struct described_state described;
    char names[RANDOM_TENSORS][16];
    unsigned char memory[RANDOM_TENSORS][RANDOM_MOST * 16];
    uint64_t element_bytes[RANDOM_TENSORS];
};

static void describe_random(struct random_state *self, uint64_t seed, uint64_t cuts, uint32_t rank, uint32_t ranks)
{
    static const char *const types[] = {"uint8", "bfloat16", "float32", "int64", "complex128"};
    memset(self, 0, sizeof *self);
    describe_nothing(&self->described);
    for (uint64_t i = 0; i < RANDOM_TENSORS; i++) {
        uint64_t dims = draw(&seed, 5), shape[4], offset[4] = {0}, size[4], order[4] = {0, 1, 2, 3};
        const char *type = types[draw(&seed, 5)];
        snprintf(self->names[i], sizeof self->names[i], "t%u", (unsigned)i);
        for (uint64_t d = 0; d < dims; d++)
            shape[d] = size[d] = 1 + draw(&seed, 6);
        add_tensor(&self->described, self->names[i], type, dims, shape);
        self->element_bytes[i] = ckptbench_dtype_bytes(ckptbench_dtype(type));
        uint64_t cut = draw(&cuts, 5), turns = draw(&cuts, 24), gap = draw(&cuts, 3), stride = 1;
        if (cut < dims) {
            offset[cut] = shape[cut] * rank / ranks;
            size[cut] = shape[cut] * (rank + 1) / ranks - offset[cut];
        }
        struct ckptbench_region *region = add_region(&self->described, self->memory[i], offset, size);
        for (uint64_t k = 0; k < dims; k++) { /* a random order of dimensions */
            uint64_t other = k + turns % (dims - k), swap = order[k];
            turns /= dims - k;
            order[k] = order[other];
            order[other] = swap;
        }
        for (uint64_t k = 0; k < dims; k++) {
            region->stride[order[k]] = stride;
            stride = stride * (size[order[k]] ? size[order[k]] : 1) + gap;
        }
    }
}

/* Fills all elements with numbers of their own, or compares. */
static void visit_random(struct random_state *self, bool compares)
{
    for (size_t i = 0; i < self->described.state.region_count; i++) {
        const struct ckptbench_region *region = &self->described.regions[i];
        const struct ckptbench_tensor *tensor = &self->described.tensors[i];
        uint64_t count = 1;
        for (uint64_t d = 0; d < tensor->dims; d++)
            count *= region->size[d];
        for (uint64_t n = 0; n < count; n++) {
            uint64_t rest = n, element = 0, place = 0, scale = 1, at[4] = {0};
            for (uint64_t d = tensor->dims; d-- > 0; rest /= region->size[d])
                at[d] = rest % region->size[d];
            for (uint64_t d = tensor->dims; d-- > 0; scale *= tensor->shape[d]) {
                element += (region->offset[d] + at[d]) * scale;
                place += at[d] * region->stride[d];
            }
            assert_true(place < RANDOM_MOST);
            unsigned char *bytes = &self->memory[i][place * self->element_bytes[i]];
            for (uint64_t b = 0; b < self->element_bytes[i]; b++) {
                unsigned char expected = (unsigned char)(element * 7 + b * 31 + i + 1);
                assert_true(!compares || bytes[b] == expected);
                bytes[b] = expected;
            }
        }
    }
}

static void save_random(ckptbench *handle, uint32_t rank, uint32_t ranks, void *context)
{
    struct random_state *self = malloc(sizeof *self);
    struct ckptbench_error error = {0};
    char where[160];
    (void)context;
    for (uint64_t seed = 0; seed < 12; seed++) {
        describe_random(self, seed, seed + 100 * ranks, rank, ranks);
        visit_random(self, false);
        snprintf(where, sizeof where, "%s/random-%u", folder, (unsigned)seed);
        int code = seed % 2 ? ckptbench_save_async(handle, where, &self->described.state, NULL, &error)
                            : ckptbench_save(handle, where, &self->described.state, NULL, &error);
        if (code)
            print_error("rank %u, seed %u: %s\n", rank, (unsigned)seed, error.text);
        assert_int_equal(code, 0);
        memset(self->memory, 0, sizeof self->memory);
    }
    free(self);
}

static void load_random(ckptbench *handle, uint32_t rank, uint32_t ranks, void *context)
{
    struct random_state *self = malloc(sizeof *self);
    struct ckptbench_error error = {0};
    char where[160];
    (void)context;
    for (uint64_t seed = 0; seed < 12; seed++) {
        describe_random(self, seed, seed + 100 * ranks, rank, ranks);
        snprintf(where, sizeof where, "%s/random-%u", folder, (unsigned)seed);
        int code = ckptbench_load(handle, where, &self->described.state, NULL, &error);
        if (code)
            print_error("rank %u, seed %u: %s\n", rank, (unsigned)seed, error.text);
        assert_int_equal(code, 0);
        visit_random(self, true);
    }
    free(self);
}

static void random_states_with_random_strides_are_loaded_in_other_layouts(void **state)
{
    (void)state;
    const char *const modes[][2] = {{"load.exchange=off"}, {"load.exchange=broadcast"}, {"load.exchange=split"}};
    clear();
    run_ranks(3, NULL, save_random, NULL);
    for (size_t i = 0; i < 3; i++) {
        run_ranks(2, modes[i], load_random, NULL);
        run_ranks(4, modes[i], load_random, NULL);
    }
}

/* --- refusals --- */

struct refusal {
    const char *word; /* in the error of at least one rank */
    void (*spoil)(struct grid_state *grid, uint32_t rank);
    bool found;
    pthread_mutex_t lock;
};

static void spoil_type(struct grid_state *grid, uint32_t rank)
{
    grid->described.tensors[2].dtype = ckptbench_dtype(rank == 1 ? "float64" : "int64");
}

static void spoil_shape(struct grid_state *grid, uint32_t rank)
{
    grid->described.tensors[3].shape[1] += rank;
}

static void spoil_kind(struct grid_state *grid, uint32_t rank)
{
    if (rank == 1)
        grid->described.tensors[3].fqn = "note";
}

static void spoil_other_kind(struct grid_state *grid, uint32_t rank)
{
    if (rank == 1)
        grid->described.values[0].fqn = "step";
    if (rank == 1)
        grid->described.tensors[2].fqn = "pace";
}

static void spoil_value(struct grid_state *grid, uint32_t rank)
{
    grid->described.values[0].length -= rank;
}

static void spoil_overlap(struct grid_state *grid, uint32_t rank)
{
    if (rank == 0)
        grid->described.regions[0].size[1]++;
}

static void spoil_gap(struct grid_state *grid, uint32_t rank)
{
    if (rank == 0)
        grid->described.regions[0].size[0]--;
}

static void spoil_region(struct grid_state *grid, uint32_t rank)
{
    if (rank == 1)
        grid->described.regions[1].size[0] = 1001;
}

static void spoil_number(struct grid_state *grid, uint32_t rank)
{
    if (rank == 0)
        grid->described.tensors[0].dtype = -1;
}

static void spoil_twice(struct grid_state *grid, uint32_t rank)
{
    if (rank == 1)
        grid->described.tensors[3].fqn = "bias";
}

static void save_spoiled(ckptbench *handle, uint32_t rank, uint32_t ranks, void *context)
{
    struct refusal *refusal = context;
    struct grid_state *grid = calloc(1, sizeof *grid);
    struct ckptbench_error error = {0};
    char where[160];
    snprintf(where, sizeof where, "%s/refused", folder);
    describe_grid(grid, rank, ranks, 1);
    refusal->spoil(grid, rank);
    int code = ckptbench_save(handle, where, &grid->described.state, NULL, &error);
    assert_true(code == CKPTBENCH_USAGE || code == CKPTBENCH_ABORTED);
    assert_int_equal(error.code, code);
    pthread_mutex_lock(&refusal->lock);
    refusal->found |= strstr(error.text, refusal->word) != NULL;
    pthread_mutex_unlock(&refusal->lock);
    describe_grid(grid, rank, ranks, 1); /* and the handle still works */
    snprintf(where, sizeof where, "%s/right", folder);
    code = ckptbench_save(handle, where, &grid->described.state, NULL, &error);
    if (code)
        print_error("rank %u after '%s': %s\n", rank, refusal->word, error.text);
    assert_int_equal(code, 0);
    free(grid);
}

static void contradictions_are_named_and_nothing_is_saved(void **state)
{
    (void)state;
    struct refusal refusals[] = {
        {.spoil = spoil_type, .word = "step: ranks 0 and 1 have different types"},
        {.spoil = spoil_shape, .word = "nothing: ranks 0 and 1 have different shapes"},
        {.spoil = spoil_kind, .word = "note: rank 1 has two entries"},
        {.spoil = spoil_other_kind, .word = "step: ranks 0 and 1 have a tensor and a value of this name"},
        {.spoil = spoil_value, .word = "note: ranks 0 and 1 have different values"},
        {.spoil = spoil_overlap, .word = "matrix: regions overlap in 20 elements"},
        {.spoil = spoil_gap, .word = "matrix: 12 of its 960 elements are in no rank's region"},
        {.spoil = spoil_region, .word = "bias: a region reaches beyond its shape in dimension 0"},
        {.spoil = spoil_number, .word = "matrix: there is no type -1"},
        {.spoil = spoil_twice, .word = "bias: rank 1 has two entries"},
    };
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        clear();
        pthread_mutex_init(&refusals[i].lock, NULL);
        run_ranks(4, NULL, save_spoiled, &refusals[i]);
        if (!refusals[i].found)
            fail_msg("no rank said '%s'", refusals[i].word);
        assert_false(exists("refused/.metadata"));
        assert_true(exists("right/.metadata"));
    }
}

static void disagree(ckptbench *handle, uint32_t rank, uint32_t ranks, void *context)
{
    struct grid_state *grid = calloc(1, sizeof *grid);
    struct ckptbench_error error = {0};
    char where[160];
    (void)context;
    describe_grid(grid, rank, ranks, 1);
    for (int i = 0; i < 2; i++) { /* without a plan that is kept, and with one */
        snprintf(where, sizeof where, "%s/other-%u", folder, rank);
        int code = ckptbench_save(handle, where, &grid->described.state, NULL, &error);
        assert_true(code == CKPTBENCH_USAGE || code == CKPTBENCH_ABORTED);
        snprintf(where, sizeof where, "%s/same-%d", folder, i);
        assert_int_equal(ckptbench_save(handle, where, &grid->described.state, NULL, NULL), 0);
    }
    int code = rank == 0 ? ckptbench_load(handle, where, &grid->described.state, NULL, &error)
                         : ckptbench_save(handle, where, &grid->described.state, NULL, &error);
    assert_int_equal(code, CKPTBENCH_USAGE);
    assert_non_null(strstr(error.text, "ranks call differently"));
    snprintf(where, sizeof where, "%s/last", folder);
    assert_int_equal(ckptbench_save(handle, where, &grid->described.state, NULL, NULL), 0);
    free(grid);
}

static void ranks_that_call_differently_are_refused(void **state)
{
    (void)state;
    clear();
    run_ranks(2, NULL, disagree, NULL);
    assert_false(exists("other-0/.metadata") || exists("other-1/.metadata"));
}

/* A value that changes on one rank only is noticed although the plan is kept. */
static void change_value(ckptbench *handle, uint32_t rank, uint32_t ranks, void *context)
{
    struct grid_state *grid = calloc(1, sizeof *grid);
    struct ckptbench_error error = {0};
    char where[160], value[] = VALUE;
    (void)context;
    describe_grid(grid, rank, ranks, 1);
    grid->described.values[0].bytes = value;
    snprintf(where, sizeof where, "%s/first", folder);
    assert_int_equal(ckptbench_save(handle, where, &grid->described.state, NULL, NULL), 0);
    value[0] = 'A'; /* the same on all ranks */
    snprintf(where, sizeof where, "%s/second", folder);
    assert_int_equal(ckptbench_save(handle, where, &grid->described.state, NULL, NULL), 0);
    value[0] = rank == 1 ? 'B' : 'A';
    snprintf(where, sizeof where, "%s/third", folder);
    int code = ckptbench_save(handle, where, &grid->described.state, NULL, &error);
    assert_int_equal(code, CKPTBENCH_USAGE);
    assert_non_null(strstr(error.text, "note: ranks 0 and 1 have different values"));
    free(grid);
}

static void a_value_that_differs_on_one_rank_is_noticed_with_a_kept_plan(void **state)
{
    (void)state;
    clear();
    run_ranks(2, NULL, change_value, NULL);
    assert_false(exists("third/.metadata"));
}

/* --- asynchronous saves --- */

static void save_behind(ckptbench *handle, uint32_t rank, uint32_t ranks, void *context)
{
    struct grid_state *grid = calloc(1, sizeof *grid);
    struct ckptbench_result result = {.struct_bytes = sizeof result};
    struct ckptbench_error error = {0};
    ckptbench_async *saves[3] = {0};
    char where[160];
    (void)context;
    for (uint64_t version = 1; version <= 3; version++) {
        describe_grid(grid, rank, ranks, version);
        snprintf(where, sizeof where, "%s/deep/step-%llu", folder, (unsigned long long)version);
        int code = ckptbench_save_async(handle, where, &grid->described.state, &saves[version - 1], &error);
        if (code)
            print_error("rank %u: %s\n", rank, error.text);
        assert_int_equal(code, 0);
        memset(grid->matrix, 0xff, sizeof grid->matrix);
        memset(grid->bias, 0xff, sizeof grid->bias);
        grid->step = -1;
    }
    for (size_t i = 0; i < 3; i++) {
        int ended = 0;
        assert_int_equal(ckptbench_async_wait(saves[i], -1, &ended, &result, &error), 0);
        assert_int_equal(ended, 1);
        assert_true(result.total_s >= result.stall_s && result.durable_s > 0);
        assert_int_equal(result.plan_is_kept, i > 0);
        assert_int_equal(ckptbench_async_wait(saves[i], 0, &ended, &result, &error), 0);
        ckptbench_async_free(saves[i]);
    }
    free(grid);
}

static void a_state_may_change_while_it_is_saved_behind(void **state)
{
    (void)state;
    clear();
    run_ranks(2, NULL, save_behind, NULL);
    for (uint64_t version = 1; version <= 3; version++)
        run_ranks(2, NULL, load_transposed, &version);
}

static void fail_behind(ckptbench *handle, uint32_t rank, uint32_t ranks, void *context)
{
    struct grid_state *grid = calloc(1, sizeof *grid);
    struct ckptbench_error error = {0};
    ckptbench_async *save;
    char where[160];
    (void)context;
    snprintf(where, sizeof where, "%s/taken", folder);
    describe_grid(grid, rank, ranks, 1);
    const struct ckptbench_state *state = &grid->described.state;
    assert_int_equal(ckptbench_save(handle, where, state, NULL, &error), 0);
    /* Nobody asks: the next call returns it, once. */
    assert_int_equal(ckptbench_save_async(handle, where, state, NULL, &error), 0);
    int code = ckptbench_load(handle, where, state, NULL, &error);
    assert_int_equal(code, rank == 0 ? CKPTBENCH_EXISTS : CKPTBENCH_ABORTED);
    assert_non_null(strstr(error.text, "taken"));
    assert_int_equal(ckptbench_load(handle, where, state, NULL, &error), 0);
    /* Who waits is told, and the next call is not. */
    assert_int_equal(ckptbench_save_async(handle, where, state, &save, &error), 0);
    code = ckptbench_async_wait(save, -1, NULL, NULL, &error);
    assert_int_equal(code, rank == 0 ? CKPTBENCH_EXISTS : CKPTBENCH_ABORTED);
    assert_int_equal(ckptbench_load(handle, where, state, NULL, &error), 0);
    assert_int_equal(ckptbench_async_wait(save, 0, NULL, NULL, &error), code);
    ckptbench_async_free(save);
    free(grid);
}

static void a_failure_behind_is_returned_once(void **state)
{
    (void)state;
    clear();
    run_ranks(2, NULL, fail_behind, NULL);
}

static void close_without_waiting(void **state)
{
    (void)state;
    struct ckptbench_open_options options = {.struct_bytes = sizeof options, .rank_count = 1};
    struct grid_state *grid = calloc(1, sizeof *grid);
    struct ckptbench_error error = {0};
    ckptbench *handle;
    ckptbench_async *save;
    uint64_t offset[2] = {0}, size[2] = {ROWS, COLUMNS};
    clear();
    describe_nothing(&grid->described);
    add_tensor(&grid->described, "matrix", "float32", 2, size);
    add_region(&grid->described, grid->matrix, offset, size);
    assert_int_equal(ckptbench_open(&options, &handle, &error), 0);
    assert_int_equal(ckptbench_save_async(handle, place("last"), &grid->described.state, &save, &error), 0);
    assert_int_equal(ckptbench_close(handle, &error), 0);
    assert_true(exists("last/.metadata")); /* closing waits */
    assert_int_equal(ckptbench_async_wait(save, 0, NULL, NULL, &error), 0);
    ckptbench_async_free(save);
    /* A failure of the last save is returned by the close. */
    assert_int_equal(ckptbench_open(&options, &handle, &error), 0);
    assert_int_equal(ckptbench_save_async(handle, place("last"), &grid->described.state, NULL, &error), 0);
    assert_int_equal(ckptbench_close(handle, &error), CKPTBENCH_EXISTS);
    assert_non_null(strstr(error.text, "last"));
    free(grid);
}

/* --- ranks that die --- */

static void a_rank_that_dies_is_named_and_the_others_can_close(void **state)
{
    (void)state;
    struct ckptbench_open_options options = {.struct_bytes = sizeof options, .rank_count = 2};
    struct grid_state *grid = calloc(1, sizeof *grid);
    struct ckptbench_error error = {0};
    char meeting[CKPTBENCH_MEETING_BYTES];
    ckptbench *handle = NULL;
    clear();
    assert_int_equal(ckptbench_listen("127.0.0.1", &options.listener, meeting, &error), 0);
    pid_t child = fork();
    if (child == 0) {
        struct ckptbench_open_options other = {
            .struct_bytes = sizeof other, .rank = 1, .rank_count = 2, .meeting = meeting};
        _exit(ckptbench_open(&other, &handle, NULL) ? 1 : 0); /* and dies, without a word */
    }
    assert_int_equal(ckptbench_open(&options, &handle, &error), 0);
    int status;
    assert_true(waitpid(child, &status, 0) == child && status == 0);
    describe_grid(grid, 0, 2, 1);
    int code = ckptbench_save(handle, place("half"), &grid->described.state, NULL, &error);
    assert_int_equal(code, CKPTBENCH_ABORTED);
    assert_non_null(strstr(error.text, "rank 1 is gone"));
    assert_true(ckptbench_save(handle, path, &grid->described.state, NULL, &error) != 0);
    assert_false(exists("half"));
    assert_int_equal(ckptbench_close(handle, &error), 0);
    free(grid);
}

/* --- other programs --- */

static ckptbench *open_alone(struct described_state *described, float *matrix)
{
    struct ckptbench_open_options options = {.struct_bytes = sizeof options, .rank_count = 1};
    ckptbench *handle = NULL;
    describe_nothing(described);
    add_tensor(described, "matrix", "float32", 2, (uint64_t[]){8, 8});
    add_region(described, matrix, NULL, NULL);
    assert_int_equal(ckptbench_open(&options, &handle, NULL), 0);
    return handle;
}

static struct claims *open_other(void)
{
    struct experiment *experiment;
    struct claims *other;
    assert_int_equal(experiment_new(&experiment, NULL), 0);
    assert_int_equal(experiment_set(experiment, "store", folder, "test", NULL), 0);
    assert_int_equal(claims_new(experiment, true, &other, NULL), 0);
    experiment_free(experiment);
    return other;
}

static bool leaves_claims(void)
{
    return exists(".ckptbench-saving-step") || exists("step/.ckptbench-run");
}

static void a_path_that_another_program_is_saving_to_is_refused(void **state)
{
    (void)state;
    struct described_state described;
    struct ckptbench_error error = {0};
    float matrix[64] = {0};
    clear();
    ckptbench *handle = open_alone(&described, matrix);
    struct claims *other = open_other();
    assert_int_equal(claims_enter(other, "step", NULL), 0);
    assert_int_equal(ckptbench_save(handle, place("step"), &described.state, NULL, &error), CKPTBENCH_EXISTS);
    assert_non_null(strstr(error.text, "step is being saved by another program"));
    assert_false(exists("step"));
    assert_int_equal(ckptbench_save(handle, place("other"), &described.state, NULL, &error), 0);
    claims_leave(other);
    assert_int_equal(ckptbench_save(handle, place("step"), &described.state, NULL, &error), 0);
    assert_false(leaves_claims());
    claims_free(other);
    assert_int_equal(ckptbench_close(handle, NULL), 0);
}

static void the_claim_of_a_program_that_died_is_taken_over(void **state)
{
    (void)state;
    struct described_state described;
    struct ckptbench_error error = {0};
    float matrix[64] = {0};
    int status;
    clear();
    pid_t child = fork();
    if (child == 0)
        _exit(claims_enter(open_other(), "step", NULL) ? 1 : 0);
    assert_true(waitpid(child, &status, 0) == child && status == 0);
    assert_true(leaves_claims());
    ckptbench *handle = open_alone(&described, matrix);
    assert_int_equal(ckptbench_save(handle, place("step"), &described.state, NULL, &error), 0);
    assert_false(leaves_claims());
    assert_int_equal(ckptbench_close(handle, NULL), 0);
}

static void the_folder_of_a_run_is_refused(void **state)
{
    (void)state;
    struct described_state described;
    struct ckptbench_error error = {0};
    float matrix[64] = {0};
    clear();
    ckptbench *handle = open_alone(&described, matrix);
    FILE *claim = fopen(place(".ckptbench-run"), "w");
    assert_true(claim && fputs("20261121-k3f9\ntemporary\n", claim) >= 0 && fclose(claim) == 0);
    assert_int_equal(ckptbench_save(handle, place("step"), &described.state, NULL, &error), CKPTBENCH_EXISTS);
    assert_non_null(strstr(error.text, "run 20261121-k3f9"));
    assert_false(exists("step") || leaves_claims());
    assert_int_equal(ckptbench_close(handle, NULL), 0);
}

/* --- the rest --- */

static void list_contents(ckptbench *handle, uint32_t rank, uint32_t ranks, void *context)
{
    static const char *const names[] = {"bias", "matrix", "note", "nothing", "step"};
    struct ckptbench_entry entry = {.struct_bytes = sizeof entry};
    ckptbench_checkpoint *checkpoint;
    struct ckptbench_error error;
    char where[160];
    (void)rank, (void)ranks, (void)context;
    snprintf(where, sizeof where, "%s/deep/step-1/", folder);
    assert_int_equal(ckptbench_inspect(handle, where, &checkpoint, &error), 0);
    assert_int_equal(ckptbench_checkpoint_count(checkpoint), 5);
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(ckptbench_checkpoint_entry(checkpoint, i, &entry, &error), 0);
        assert_string_equal(entry.fqn, names[i]);
        assert_int_equal(entry.is_value, i == 2);
    }
    assert_int_equal(ckptbench_checkpoint_entry(checkpoint, 1, &entry, &error), 0);
    assert_string_equal(ckptbench_dtype_name(entry.dtype), "float32");
    assert_string_equal(entry.path, MATRIX_PATH);
    assert_true(entry.dims == 2 && entry.shape[0] == ROWS && entry.shape[1] == COLUMNS);
    assert_int_equal(entry.bytes, ROWS * COLUMNS * 4);
    assert_int_equal(ckptbench_checkpoint_entry(checkpoint, 5, &entry, &error), CKPTBENCH_USAGE);
    ckptbench_checkpoint_free(checkpoint);
    snprintf(where, sizeof where, "%s/deep/step-7", folder);
    assert_int_equal(ckptbench_inspect(handle, where, &checkpoint, &error), CKPTBENCH_NOT_FOUND);
    assert_non_null(strstr(error.text, "step-7"));
}

static void a_checkpoint_can_be_listed(void **state)
{
    struct counts counts = {.lock = PTHREAD_MUTEX_INITIALIZER};
    (void)state;
    clear();
    run_ranks(2, NULL, save_grid, &counts);
    run_ranks(1, NULL, list_contents, NULL);
}

static void load_what_is_not_there(ckptbench *handle, uint32_t rank, uint32_t ranks, void *context)
{
    struct described_state described;
    struct ckptbench_error error = {0};
    float memory[64];
    (void)rank, (void)ranks, (void)context;
    const struct {
        const char *fqn, *dtype, *value, *error;
        uint64_t length;
    } wishes[] = {
        {"bias", "float32", NULL, "bias: the checkpoint has shape", 64},
        {"bias", "float16", NULL, "bias: the checkpoint has fp32", 1000},
        {"absent", "float32", NULL, "absent: not in the checkpoint", 64},
        {"note", "float32", NULL, "note: the checkpoint has a value", 64},
        {NULL, NULL, "absent", "absent is not in", 0},
    };
    for (size_t i = 0; i < sizeof wishes / sizeof *wishes; i++) {
        describe_nothing(&described);
        if (wishes[i].fqn) {
            add_tensor(&described, wishes[i].fqn, wishes[i].dtype, 1, &wishes[i].length);
            add_region(&described, memory, (uint64_t[]){0}, (uint64_t[]){64});
        } else {
            add_value(&described, wishes[i].value, NULL, 0);
        }
        int code = ckptbench_load(handle, context, &described.state, NULL, &error);
        assert_int_equal(code, CKPTBENCH_CORRUPT);
        if (!strstr(error.text, wishes[i].error))
            fail_msg("'%s' is not in '%s'", wishes[i].error, error.text);
    }
}

static void a_load_names_what_the_checkpoint_lacks(void **state)
{
    struct counts counts = {.lock = PTHREAD_MUTEX_INITIALIZER};
    (void)state;
    clear();
    run_ranks(2, NULL, save_grid, &counts);
    run_ranks(1, NULL, load_what_is_not_there, (void *)place("deep/step-1"));
}

static void a_save_replaces_a_checkpoint_only_if_told(void **state)
{
    const char *const words[] = {"folder=overwrite", NULL};
    struct counts counts = {.lock = PTHREAD_MUTEX_INITIALIZER};
    uint64_t version = 1;
    (void)state;
    clear();
    run_ranks(4, NULL, save_grid, &counts);
    run_ranks(2, words, save_grid, &counts);
    run_ranks(2, NULL, load_transposed, &version);
}

static void keys_without_meaning_are_refused(void **state)
{
    static const char *const wrong[] = {"model=gpt2", "save.async=true", "load.dp=2",         "format=raw",
                                        "io.depth",   "io.depht=3",      "folder=rotate",     "store=/tmp",
                                        "io.depth=0", "timeout.run=3s",  "load.exchange=auto"};
    struct ckptbench_open_options options = {.struct_bytes = sizeof options, .rank_count = 1, .word_count = 1};
    struct ckptbench_error error;
    ckptbench *handle;
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        options.words = &wrong[i];
        error.code = 0;
        int code = ckptbench_open(&options, &handle, &error);
        if (code != CKPTBENCH_USAGE && code != CKPTBENCH_NOT_FOUND)
            fail_msg("%s is accepted", wrong[i]);
        assert_int_equal(error.code, code);
    }
    options.word_count = 0;
    options.rank = 1;
    assert_int_equal(ckptbench_open(&options, &handle, NULL), CKPTBENCH_USAGE);
    options = (struct ckptbench_open_options){.struct_bytes = sizeof options, .rank = 1, .rank_count = 2};
    options.meeting = "somewhere 1 00";
    assert_int_equal(ckptbench_open(&options, &handle, &error), CKPTBENCH_USAGE);
}

static void types_have_the_names_of_pytorch(void **state)
{
    (void)state;
    assert_int_equal(ckptbench_dtype_bytes(ckptbench_dtype("bfloat16")), 2);
    assert_int_equal(ckptbench_dtype_bytes(ckptbench_dtype("complex128")), 16);
    assert_string_equal(ckptbench_dtype_name(ckptbench_dtype("float8_e4m3fn")), "float8_e4m3fn");
    assert_true(ckptbench_dtype("float33") < 0);
    assert_null(ckptbench_dtype_name(-1));
    assert_int_equal(ckptbench_dtype_bytes(1000), 0);
    assert_string_equal(ckptbench_version(), "1.0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replicas_are_written_once_and_loads_may_have_another_layout),
        cmocka_unit_test(options_of_runs_apply_to_described_states),
        cmocka_unit_test(ranks_that_need_the_same_read_it_once_and_exchange_it),
        cmocka_unit_test(random_states_with_random_strides_are_loaded_in_other_layouts),
        cmocka_unit_test(contradictions_are_named_and_nothing_is_saved),
        cmocka_unit_test(ranks_that_call_differently_are_refused),
        cmocka_unit_test(a_value_that_differs_on_one_rank_is_noticed_with_a_kept_plan),
        cmocka_unit_test(a_state_may_change_while_it_is_saved_behind),
        cmocka_unit_test(a_failure_behind_is_returned_once),
        cmocka_unit_test(close_without_waiting),
        cmocka_unit_test(a_rank_that_dies_is_named_and_the_others_can_close),
        cmocka_unit_test(a_path_that_another_program_is_saving_to_is_refused),
        cmocka_unit_test(the_claim_of_a_program_that_died_is_taken_over),
        cmocka_unit_test(the_folder_of_a_run_is_refused),
        cmocka_unit_test(a_checkpoint_can_be_listed),
        cmocka_unit_test(a_load_names_what_the_checkpoint_lacks),
        cmocka_unit_test(a_save_replaces_a_checkpoint_only_if_told),
        cmocka_unit_test(keys_without_meaning_are_refused),
        cmocka_unit_test(types_have_the_names_of_pytorch),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
