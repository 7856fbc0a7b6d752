/* libckptbench through its header: what a save leaves out if an earlier one had the same state. */
#include "library_grid.h"

#include "ckpt/plan.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_state_that_is_the_same_needs_no_key_of_its_plan),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
