/* libckptbench through its header: what a save leaves out if an earlier one had the same state, and in which steps files
 * in memory are read. */
#include "library_grid.h"

#include <sched.h>

#include "ckpt/plan.h"
#include "store/store.h"

static _Thread_local unsigned keys; /* that this rank has computed */

int __real_plan_key_of(const struct layout *layout, const struct plan_options *options, struct plan_key *key,
                       struct cb_err *err);
int __wrap_plan_key_of(const struct layout *layout, const struct plan_options *options, struct plan_key *key,
                       struct cb_err *err);

int __wrap_plan_key_of(const struct layout *layout, const struct plan_options *options, struct plan_key *key,
                       struct cb_err *err)
{
    keys++;
    return __real_plan_key_of(layout, options, key, err);
}

/* Returns whether the plan was kept. */
static bool save_as(ckptbench *handle, struct grid_state *grid, const char *name, bool behind)
{
    struct ckptbench_result result = {.struct_bytes = sizeof result};
    struct ckptbench_error error = {0};
    ckptbench_async *save = NULL;
    char where[160];
    snprintf(where, sizeof where, "%s/%s", folder, name);
    int code = behind ? ckptbench_save_async(handle, where, &grid->described.state, &save, &error)
                      : ckptbench_save(handle, where, &grid->described.state, &result, &error);
    if (behind && !code)
        code = ckptbench_async_wait(save, -1, NULL, &result, &error);
    ckptbench_async_free(save);
    if (code)
        print_error("%s: %s\n", name, error.text);
    assert_int_equal(code, 0);
    assert_true(result.plan_s > 0 && result.stall_s >= result.plan_s && result.wait_s >= 0);
    return result.plan_is_kept;
}

static void save_many_times(ckptbench *handle, uint32_t rank, uint32_t ranks, void *context)
{
    struct grid_state *grid = calloc(1, sizeof *grid);
    char value[] = VALUE;
    (void)context;
    keys = 0;
    describe_grid(grid, rank, ranks, 1);
    grid->described.values[0].bytes = value;
    assert_false(save_as(handle, grid, "a/first", false));
    assert_int_equal(keys, 1);
    value[0] = 'A'; /* the content of a value is not in the plan */
    assert_true(save_as(handle, grid, "a/again", false));
    assert_int_equal(keys, 1);
    assert_false(save_as(handle, grid, "a/behind", true)); /* opens the place anew, for saves that go on behind */
    assert_true(save_as(handle, grid, "a/behind-again", true));
    assert_true(save_as(handle, grid, "a/not-behind", false));
    assert_int_equal(keys, 2);
    /* Another layout, and then the one before. */
    grid->described.values[0].length--;
    assert_false(save_as(handle, grid, "a/shorter", true));
    assert_int_equal(keys, 3);
    grid->described.values[0].length++;
    assert_false(save_as(handle, grid, "a/longer", true));
    assert_true(save_as(handle, grid, "a/longer-again", true));
    assert_int_equal(keys, 4);
    /* A place of its own has a plan of its own. */
    assert_false(save_as(handle, grid, "deep/first", true));
    assert_int_equal(keys, 5);
    describe_grid(grid, rank, ranks, 2);
    snprintf(value, sizeof value, "%s", VALUE);
    assert_true(save_as(handle, grid, "deep/step-2", true));
    assert_int_equal(keys, 5);
    free(grid);
}

static void a_state_that_is_the_same_needs_no_key_of_its_plan(void **state)
{
    (void)state;
    uint64_t version = 2;
    clear();
    run_ranks(2, NULL, save_many_times, NULL);
    run_ranks(3, NULL, load_transposed, &version);
}

/* --- reads --- */

#define ELEMENTS 800000 /* of a tensor, 3.05 MiB */
#define STEP_BYTES (UINT64_C(256) * 1024)

static float *loaded;
static uint64_t reads, longest_read, read_into_place;

int __real_store_submit(struct store *self, const struct store_request *requests, size_t count, struct cb_err *err);
int __wrap_store_submit(struct store *self, const struct store_request *requests, size_t count, struct cb_err *err);

int __wrap_store_submit(struct store *self, const struct store_request *requests, size_t count, struct cb_err *err)
{
    for (size_t i = 0; i < count && loaded && requests[i].kind == STORE_READ; i++) {
        uint64_t bytes = 0;
        for (uint32_t k = 0; k < requests[i].segment_count; k++) {
            const struct iovec *segment = &requests[i].segments[k];
            const char *at = segment->iov_base;
            bytes += segment->iov_len;
            if (at >= (char *)loaded && at + segment->iov_len <= (char *)(loaded + ELEMENTS))
                read_into_place += segment->iov_len;
        }
        reads++;
        longest_read = bytes > longest_read ? bytes : longest_read;
    }
    return __real_store_submit(self, requests, count, err);
}

static void save_and_load(ckptbench *handle, uint32_t rank, uint32_t ranks, void *context)
{
    const char *in_memory = context;
    struct described_state described;
    struct ckptbench_error error = {0};
    char where[160];
    float *saved = malloc(ELEMENTS * sizeof *saved), *room = calloc(ELEMENTS, sizeof *room);
    (void)rank, (void)ranks;
    for (size_t i = 0; i < ELEMENTS; i++)
        saved[i] = (float)i;
    describe_nothing(&described);
    add_tensor(&described, "long", "float32", 1, (uint64_t[]){ELEMENTS});
    add_region(&described, saved, NULL, NULL);
    snprintf(where, sizeof where, "%s/one", in_memory);
    assert_int_equal(ckptbench_save(handle, where, &described.state, NULL, &error), 0);
    described.regions[0].address = loaded = room;
    reads = longest_read = read_into_place = 0;
    int code = ckptbench_load(handle, where, &described.state, NULL, &error);
    loaded = NULL;
    if (code)
        print_error("%s\n", error.text);
    assert_int_equal(code, 0);
    assert_memory_equal(saved, room, ELEMENTS * sizeof *saved);
    free(saved);
    free(room);
}

/* One rank with one core. */
static void files_in_memory_are_read_in_steps_that_stay_in_the_cache(void **state)
{
    (void)state;
    char in_memory[] = "/dev/shm/ckptbench-unit-XXXXXX";
    const char *const words[] = {"folder=overwrite", NULL}, *const threads[] = {"folder=overwrite", "io.engine=psync",
                                                                                NULL};
    cpu_set_t allowed, one;
    CPU_ZERO(&one);
    assert_non_null(mkdtemp(in_memory));
    assert_int_equal(sched_getaffinity(0, sizeof allowed, &allowed), 0);
    for (size_t cpu = 0; CPU_COUNT(&one) == 0; cpu++)
        if (CPU_ISSET(cpu, &allowed))
            CPU_SET(cpu, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    run_ranks(1, words, save_and_load, in_memory);
    assert_in_range(longest_read, STEP_BYTES / 2, STEP_BYTES + 4096); /* and the item's header */
    assert_in_range(reads, ELEMENTS * 4 / STEP_BYTES, ELEMENTS * 4 / STEP_BYTES + 4);
    assert_int_equal(read_into_place, ELEMENTS * 4); /* nothing is copied again */
    run_ranks(1, threads, save_and_load, in_memory); /* threads that were asked for have longer requests */
    assert_true(longest_read > ELEMENTS * 4 && read_into_place == ELEMENTS * 4);
    assert_int_equal(sched_setaffinity(0, sizeof allowed, &allowed), 0);
    nftw(in_memory, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_state_that_is_the_same_needs_no_key_of_its_plan),
        cmocka_unit_test(files_in_memory_are_read_in_steps_that_stay_in_the_cache),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
