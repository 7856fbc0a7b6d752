/* The reader of load.dataset: it reads an object over and over, no faster than asked, and reports what failed. */
#include "tests/unit/store_testing.h"

#include "worker/paced_reader.h"

#define BLOCK 4096
#define BLOCKS 4
#define DEPTH 3

struct world {
    char folder[PATH_MAX];
    struct store *store;
    unsigned char *memory;
    struct paced_reader *reader;
};

static int set_up(void **state)
{
    struct world *world = calloc(1, sizeof *world);
    struct store_options options = {.direct = STORE_DIRECT_NO, .depth = 8, .threads = 2};
    struct store_object *object;
    struct cb_err err;
    testing_make_folder(world->folder);
    world->store = testing_open(world->folder, &options);
    world->memory = testing_pattern((size_t)BLOCK * BLOCKS, 1);
    assert_int_equal(store_create(world->store, "file", BLOCK * BLOCKS, &object, &err), 0);
    testing_submit(world->store, object, STORE_WRITE, world->memory, BLOCK * BLOCKS, 0, 0);
    assert_int_equal(testing_wait(world->store).code, 0);
    testing_submit(world->store, object, STORE_FINISH, NULL, 0, 0, 0);
    assert_int_equal(testing_wait(world->store).code, 0);
    store_close(world->store, object);
    *state = world;
    return 0;
}

static void make_reader(struct world *world, uint64_t bytes_per_s)
{
    const struct paced_reader_setup setup = {.store = world->store,
                                             .bytes_per_s = bytes_per_s,
                                             .block_bytes = BLOCK,
                                             .depth = DEPTH,
                                             .memory = world->memory};
    struct cb_err err;
    assert_int_equal(paced_reader_new(&setup, &world->reader, &err), 0);
}

static int tear_down(void **state)
{
    struct world *world = *state;
    paced_reader_free(world->reader);
    store_free(world->store);
    testing_remove_folder(world->folder);
    free(world->memory);
    free(world);
    return 0;
}

static uint64_t wait_for(const struct paced_reader *reader, uint64_t bytes)
{
    uint64_t give_up_ns = clock_monotonic_ns() + 60 * NS_PER_S, elapsed_ns, found;
    while ((found = paced_reader_progress(reader, &elapsed_ns)) < bytes && clock_monotonic_ns() < give_up_ns)
        clock_sleep_ns(NS_PER_MS);
    return found;
}

static void begins_anew_at_the_end_of_the_object(void **state)
{
    struct world *world = *state;
    struct cb_err err = {0};
    make_reader(world, GIB);
    for (int round = 0; round < 2; round++) {
        assert_int_equal(paced_reader_start(world->reader, "file", BLOCK * BLOCKS, &err), 0);
        assert_true(wait_for(world->reader, 5 * BLOCK * BLOCKS) >= 5 * BLOCK * BLOCKS);
        assert_int_equal(paced_reader_stop(world->reader, &err), 0);
        assert_false(paced_reader_is_stuck(world->reader));
    }
    assert_int_equal(store_in_flight(world->store), 0);
}

static void never_requests_more_than_is_due(void **state)
{
    struct world *world = *state;
    uint64_t elapsed_ns;
    struct cb_err err = {0};
    make_reader(world, 50 * BLOCK); /* a block each 20 ms */
    assert_int_equal(paced_reader_start(world->reader, "file", BLOCK * BLOCKS, &err), 0);
    assert_true(wait_for(world->reader, 6 * BLOCK) >= 6 * BLOCK);
    uint64_t bytes = paced_reader_progress(world->reader, &elapsed_ns);
    assert_true((double)bytes <= 50.0 * BLOCK * (double)elapsed_ns / NS_PER_S + BLOCK);
    assert_int_equal(paced_reader_stop(world->reader, &err), 0);
}

static void a_failed_read_is_reported_when_it_stops(void **state)
{
    struct world *world = *state;
    struct cb_err err = {0};
    make_reader(world, GIB);
    assert_int_equal(paced_reader_start(world->reader, "nothing", BLOCK, &err), CB_ERR_NOT_FOUND);
    uint64_t give_up_ns = clock_monotonic_ns() + 60 * NS_PER_S;
    int code = 0;
    while (code == 0 && clock_monotonic_ns() < give_up_ns) { /* until it has come to the block that the file lacks */
        assert_int_equal(paced_reader_start(world->reader, "file", BLOCK * (BLOCKS + 1), &err), 0);
        clock_sleep_ns(10 * NS_PER_MS);
        code = paced_reader_stop(world->reader, &err);
    }
    assert_int_equal(code, CB_ERR_CORRUPT);
    assert_non_null(strstr(err.message, "file"));
    assert_int_equal(paced_reader_start(world->reader, "file", BLOCK * BLOCKS, &err), 0); /* and can begin again */
    assert_true(wait_for(world->reader, BLOCK) >= BLOCK);
    assert_int_equal(paced_reader_stop(world->reader, &err), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(begins_anew_at_the_end_of_the_object, set_up, tear_down),
        cmocka_unit_test_setup_teardown(never_requests_more_than_is_due, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_failed_read_is_reported_when_it_stops, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
