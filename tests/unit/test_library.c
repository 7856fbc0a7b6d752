/* libckptbench through its header: what ranks describe, saved and loaded. Ranks are threads that meet over TCP and share a
 * folder. */
#include "library_grid.h"

static void replicas_are_written_once_and_loads_may_have_another_layout(void **state)
{
    (void)state;
    const uint64_t each = (ROWS * COLUMNS + BIAS) * sizeof(float) + sizeof(int64_t);
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

#define CHANNELS 1000

static void save_means(ckptbench *handle, uint32_t rank, uint32_t ranks, void *context)
{
    float mean[CHANNELS], variance[CHANNELS];
    struct described_state described;
    char where[160];
    (void)ranks, (void)context;
    snprintf(where, sizeof where, "%s/means", folder);
    describe_nothing(&described);
    add_tensor(&described, "mean", "float32", 1, (uint64_t[]){CHANNELS});
    add_region(&described, mean, NULL, NULL);
    add_tensor(&described, "variance", "float32", 1, (uint64_t[]){CHANNELS});
    add_region(&described, variance, NULL, NULL);
    for (uint64_t i = 0; i < CHANNELS; i++)
        mean[i] = variance[i] = (float)rank;
    assert_int_equal(ckptbench_save(handle, where, &described.state, NULL, NULL), 0);
}

static void load_means(ckptbench *handle, uint32_t rank, uint32_t ranks, void *context)
{
    float mean[CHANNELS];
    struct described_state described;
    (void)rank, (void)ranks, (void)context;
    describe_nothing(&described);
    add_tensor(&described, "mean", "float32", 1, (uint64_t[]){CHANNELS});
    add_region(&described, mean, NULL, NULL);
    assert_int_equal(ckptbench_load(handle, place("means"), &described.state, NULL, NULL), 0);
    for (uint64_t i = 1; i < CHANNELS; i++)
        assert_true(mean[i] == mean[0]);
}

/* As a BatchNorm's running mean does under DDP. */
static void a_small_tensor_that_differs_by_rank_is_stored_as_one_rank_has_it(void **state)
{
    (void)state;
    clear();
    run_ranks(3, NULL, save_means, NULL);
    run_ranks(1, NULL, load_means, NULL);
}

/* Values that differ in ways which a sum over ranks and names could hide. */
struct hiding {
    bool keeps_plan; /* a save with equal values comes before */
    bool
        swaps; /* rank 1 has the two values of the others the other way round; else the first and the last rank have one */
};

static void save_hidden_differences(ckptbench *handle, uint32_t rank, uint32_t ranks, void *context)
{
    const struct hiding *hiding = context;
    char where[160];
    for (int i = !hiding->keeps_plan; i < 2; i++) {
        bool is_one[2] = {i && (hiding->swaps ? rank == 1 : rank == ranks - 1),
                          i && (hiding->swaps ? rank != 1 : rank == 0)};
        struct described_state described;
        describe_nothing(&described);
        add_value(&described, "one", is_one[0] ? "1" : "0", 1);
        add_value(&described, "other", is_one[1] ? "1" : "0", 1);
        snprintf(where, sizeof where, "%s/hidden-%d", folder, i);
        int code = ckptbench_save(handle, where, &described.state, NULL, NULL);
        assert_true(i ? code == CKPTBENCH_USAGE || code == CKPTBENCH_ABORTED : code == 0);
    }
}

static void values_that_differ_are_found_however_they_differ(void **state)
{
    (void)state;
    for (uint32_t ranks = 2; ranks <= 8; ranks += 3) {
        for (unsigned i = 0; i < 4; i++) {
            struct hiding hiding = {.keeps_plan = i & 1, .swaps = i & 2};
            clear();
            run_ranks(ranks, NULL, save_hidden_differences, &hiding);
        }
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
        assert_int_equal(counts.bytes, 2 * (ROWS * COLUMNS * 4 + options[i].copies * (BIAS * 4 + 8)));
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
    add_tensor(&grid->described, "bias", "float32", 1, (uint64_t[]){BIAS});
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
    for (uint64_t i = 0; i < BIAS; i++)
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
        grid->described.regions[1].size[0] = BIAS + 1;
}

static void spoil_number(struct grid_state *grid, uint32_t rank)
{
    if (rank == 0)
        grid->described.tensors[0].dtype = -1;
}

/* A split of the bias by halves, which every rank says it has whole. */
static void spoil_split(struct grid_state *grid, uint32_t rank)
{
    static const uint64_t index[MOST_RANKS] = {0, 1, 0, 1, 0, 1, 0, 1};
    static const struct ckptbench_split split = {.pieces = 2, .index = index};
    grid->described.state.splits = &split;
    grid->described.state.split_count = 1;
    grid->described.regions[1].split[0] = rank == 1;
}

static void spoil_piece(struct grid_state *grid, uint32_t rank)
{
    static const uint64_t index[MOST_RANKS] = {0, 1, 2};
    static const struct ckptbench_split split = {.pieces = 2, .index = index};
    grid->described.state.splits = &split;
    grid->described.state.split_count = rank == 1;
}

static void spoil_split_number(struct grid_state *grid, uint32_t rank)
{
    grid->described.regions[1].split[0] = rank == 1 ? 5 : 0;
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
        {.spoil = spoil_split, .word = "bias: in dimension 0 a region is not this rank's piece of the split"},
        {.spoil = spoil_piece, .word = "split 0 gives rank 2 piece 2, and there are 2"},
        {.spoil = spoil_split_number, .word = "bias: a region has split 4, and there are 0"},
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
        cmocka_unit_test(a_small_tensor_that_differs_by_rank_is_stored_as_one_rank_has_it),
        cmocka_unit_test(values_that_differ_are_found_however_they_differ),
        cmocka_unit_test(options_of_runs_apply_to_described_states),
        cmocka_unit_test(ranks_that_need_the_same_read_it_once_and_exchange_it),
        cmocka_unit_test(random_states_with_random_strides_are_loaded_in_other_layouts),
        cmocka_unit_test(contradictions_are_named_and_nothing_is_saved),
        cmocka_unit_test(types_have_the_names_of_pytorch),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
