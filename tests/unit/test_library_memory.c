/* libckptbench where one allocation of one rank fails, each in turn: no rank waits for another, or takes what it sends for
 * something else. */
#include "library_grid.h"

/* How many allocations of this thread pass before one fails; negative: all pass. */
static _Thread_local int passing = -1;

static bool fails(void)
{
    return passing >= 0 && passing-- == 0;
}

void *__real_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes)
{
    return fails() ? NULL : __real_malloc(bytes);
}

void *__real_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes)
{
    return fails() ? NULL : __real_calloc(count, bytes);
}

struct shortage {
    int passing;
    bool is_async;
    bool had; /* rank 1 allocated more often than that */
};

/* A save that fails does so on both ranks, and the next one passes if the handle is still of use. What fails behind, the
 * next one returns. */
static void save_twice(ckptbench *handle, uint32_t rank, uint32_t ranks, void *context)
{
    struct shortage *shortage = context;
    struct described_state described;
    struct ckptbench_error error = {0};
    float bias[BIAS] = {0};
    char where[160];
    int expected = rank == 1 ? CKPTBENCH_MEMORY : CKPTBENCH_ABORTED;
    (void)ranks;
    describe_nothing(&described);
    add_tensor(&described, "bias", "float32", 1, (uint64_t[]){BIAS});
    add_region(&described, bias, NULL, NULL);
    snprintf(where, sizeof where, "%s/first", folder);
    passing = rank == 1 ? shortage->passing : -1;
    int code = shortage->is_async ? ckptbench_save_async(handle, where, &described.state, NULL, &error)
                                  : ckptbench_save(handle, where, &described.state, NULL, &error);
    if (rank == 1)
        shortage->had = passing < 0;
    passing = -1;
    if (code && code != expected)
        fail_msg("shortage %d, rank %u: %s", shortage->passing, rank, error.text);
    if (strstr(error.text, CKPTBENCH_USELESS))
        return;
    snprintf(where, sizeof where, "%s/second", folder);
    int second = ckptbench_save(handle, where, &described.state, NULL, &error);
    if (second && (code || second != expected))
        fail_msg("shortage %d, rank %u, then: %s", shortage->passing, rank, error.text);
}

static void save_with_shortages(bool is_async)
{
    static const char *const words[] = {"timeout.op=100s", NULL};
    struct shortage shortage = {.is_async = is_async, .had = true};
    for (; shortage.had; shortage.passing++) {
        clear();
        run_ranks(2, words, save_twice, &shortage);
    }
    assert_true(shortage.passing > 20);
}

static void a_save_fails_on_both_ranks(void **state)
{
    (void)state;
    save_with_shortages(false);
}

static void an_asynchronous_save_fails_on_both_ranks(void **state)
{
    (void)state;
    save_with_shortages(true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_save_fails_on_both_ranks),
        cmocka_unit_test(an_asynchronous_save_fails_on_both_ranks),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
