/* Saves that go on behind: what was there at the call is what is saved, whatever happens to the state,
 * to staging memory and to loads meanwhile; failures are told by the next call, and commit nothing. */
#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "ckpt/format/format.h"
#include "engine/save/native_save.h"
#include "tests/unit/fake_device.h"
#include "tests/unit/native_world.h"
#include "tests/unit/own_folder.h"

static struct device *make_fake(uint32_t rank)
{
    struct fake_device *fake = fake_device_new(rank + 7, 5);
    return fake ? &fake->base : NULL;
}

static void fill_with(struct world *world, uint64_t seed)
{
    world->payload.seed = seed;
    for (uint32_t i = 0; i < world->size; i++)
        assert_int_equal(state_set_values(&world->ranks[i].state, &world->payload, NULL), 0);
}

static void poison(struct world *world)
{
    for (uint32_t i = 0; i < world->size; i++)
        assert_int_equal(state_set_poison(&world->ranks[i].state, NULL), 0);
}

static void load_and_check(struct world *world, const char *path, uint64_t seed)
{
    world_pass(world, OP_LOAD, path);
    world->payload.seed = seed;
    world_check_loaded(world);
}

static void wait_for_all(struct world *world)
{
    if (world_wait(world) != 0)
        fail_msg("%s", world->ranks[0].rc ? world->ranks[0].err.message : world->ranks[1].err.message);
}

/* Each save's state is gone the moment it returns. */
static void save_change_and_load(const char *words, struct device *(*make_device)(uint32_t rank))
{
    struct world world;
    char path[32];
    clear();
    world_open_with(&world, words, folder, 1, make_device);
    for (uint64_t i = 0; i < 3; i++) {
        fill_with(&world, 100 + i);
        snprintf(path, sizeof path, "a/%llu", (unsigned long long)i);
        world_pass(&world, OP_SAVE, path);
        poison(&world);
    }
    wait_for_all(&world);
    assert_int_equal(engine_native_ops.under_way(world.ranks[0].engine), 0);
    for (uint64_t i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "a/%llu", (unsigned long long)i);
        load_and_check(&world, path, 100 + i);
    }
    world_close(&world);
}

static const char *const ways[] = {
    "model=gpt2-tiny save.async=true",
    "model=gpt2-tiny save.async=true dp=2 tp=2 io.block=64KiB",
    "model=gpt2-tiny save.async=true io.fsync=false dp=2 tp=2 io.block=64KiB save.staging_bytes=128KiB io.depth=2",
    "model=gpt2-tiny save.async=true io.fsync=false dp=2 io.block=64KiB save.staging_bytes=1MiB save.inflight=2 "
    "io.direct=false",
    "model=gpt2-tiny save.async=true io.fsync=false dp=3 zero=1 save.inflight=3 io.files=2",
    "model=gpt2-tiny layers=1 save.async=true io.fsync=false tp=2 io.files=item io.block=12KiB "
    "save.staging_bytes=96KiB",
    "model=gpt2-tiny save.async=true io.fsync=false dp=2 pp=2 io.files=shared io.block=64KiB save.staging_bytes=256KiB",
    "model=gpt2-tiny save.async=true io.fsync=false sharding=full dp=3 format=raw io.engine=psync io.threads=2",
    "model=gpt2-tiny save.async=true io.fsync=false tp=4 checksum=none save.plan_cache=false save.inflight=2",
};

static void what_was_there_at_the_call_is_what_is_saved(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        save_change_and_load(ways[i], NULL);
}

static void a_device_that_copies_late_and_out_of_order_is_waited_for(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        save_change_and_load(ways[i], make_fake);
}

static void a_folder_that_is_used_again_holds_the_last_one(void **unused)
{
    (void)unused;
    struct world world;
    clear();
    world_open(&world, "model=gpt2-tiny dp=2 save.async=true save.inflight=2 folder=overwrite", folder, 1);
    for (uint64_t i = 0; i < 4; i++) {
        fill_with(&world, i);
        world_pass(&world, OP_SAVE, "a");
        poison(&world);
    }
    wait_for_all(&world);
    assert_true(world.ranks[0].saves[1].values[METRIC_DELETE_S] > 0);
    load_and_check(&world, "a", 3);
    world_close(&world);
}

static void times_fit_together(void **unused)
{
    (void)unused;
    struct world world;
    clear();
    world_open(&world, "model=gpt2-tiny dp=2 tp=2 save.async=true io.block=64KiB save.staging_bytes=512KiB", folder, 1);
    for (int i = 0; i < 3; i++)
        world_pass(&world, OP_SAVE, (const char *const[]){"a", "b", "c"}[i]);
    wait_for_all(&world);
    for (uint32_t i = 0; i < world.size; i++) {
        for (int k = 0; k < 3; k++) {
            const double *values = world.ranks[i].saves[k].values;
            double sum = 0;
            for (int state = 0; state < STATE_COUNT; state++)
                sum += values[metric_of_state((enum rank_state)state)];
            assert_true(fabs(sum - values[METRIC_OP_S]) < 1e-6);
            assert_true(fabs(values[METRIC_STALL_S] + values[METRIC_PERSIST_S] - values[METRIC_OP_S]) < 1e-6);
            assert_true(values[METRIC_STALL_WAIT_S] <= values[METRIC_STALL_S]);
            assert_true(values[METRIC_DURABLE_S] == values[METRIC_OP_S]);
            assert_true(values[METRIC_BYTES_COPIED] == values[METRIC_BYTES_NEEDED] && values[METRIC_ERRORS] == 0);
            assert_true(values[METRIC_PLAN_CACHE_HIT] == (k > 0));
            assert_true(values[METRIC_RSS_BYTES] > 0 && values[METRIC_CPU_S] >= 0);
        }
        const struct status_page *page = world.ranks[i].page;
        assert_true(page->behind_op == OP_NONE && page->behind_bytes_done >= page->behind_bytes_total);
    }
    world_close(&world);
}

/* Writes to `folder` end when the gate is open: it is a file. */
static char gate[128];

static void open_gate(void)
{
    FILE *file = fopen(gate, "w");
    assert_non_null(file);
    fclose(file);
}

static void shut_gate(void)
{
    assert_int_equal(unlink(gate), 0);
}

static void world_open_behind_gate(struct world *world, const char *words)
{
    char uri[256];
    clear();
    snprintf(gate, sizeof gate, "%s-gate", folder);
    snprintf(uri, sizeof uri, "fault:until=%s+ops=write:%s", gate, folder);
    open_gate();
    world_open(world, words, uri, 1);
}

static void world_close_gate(struct world *world)
{
    world_close(world);
    shut_gate();
}

static void a_load_goes_on_beside_a_save(void **unused)
{
    (void)unused;
    struct world world;
    world_open_behind_gate(&world, "model=gpt2-tiny dp=2 save.async=true io.block=256KiB io.depth=1");
    fill_with(&world, 1);
    world_pass(&world, OP_SAVE, "a");
    wait_for_all(&world);
    fill_with(&world, 2);
    shut_gate();
    world_pass(&world, OP_SAVE, "b");
    load_and_check(&world, "a", 1);
    assert_int_equal(engine_native_ops.under_way(world.ranks[0].engine), 1);
    assert_false(exists("b/" STORED_MARKER));
    open_gate();
    wait_for_all(&world);
    load_and_check(&world, "b", 2);
    world_close_gate(&world);
}

static void a_load_goes_on_between_two_saves_that_are_under_way(void **unused)
{
    (void)unused;
    struct world world;
    world_open_behind_gate(&world, "model=gpt2-tiny dp=2 save.async=true io.depth=1 io.block=1MiB save.inflight=2");
    world_pass(&world, OP_SAVE, "a/0");
    wait_for_all(&world);
    shut_gate();
    for (uint64_t i = 1; i < 3; i++) {
        fill_with(&world, 100 + i);
        world_pass(&world, OP_SAVE, i == 1 ? "a/1" : "a/2");
        poison(&world);
    }
    load_and_check(&world, "a/0", 42);
    assert_int_equal(engine_native_ops.under_way(world.ranks[0].engine), 2);
    open_gate();
    wait_for_all(&world);
    load_and_check(&world, "a/1", 101);
    load_and_check(&world, "a/2", 102);
    world_close_gate(&world);
}

static void as_many_saves_as_wanted_are_under_way(void **unused)
{
    (void)unused;
    for (uint32_t inflight = 1; inflight <= 3; inflight++) {
        struct world world;
        char words[256], path[16];
        snprintf(words, sizeof words, "model=gpt2-tiny dp=2 save.async=true io.depth=1 io.block=1MiB save.inflight=%u",
                 inflight);
        world_open_behind_gate(&world, words);
        shut_gate(); /* none ends: a save that waited for one before it would never return */
        for (uint32_t i = 0; i < 4; i++) {
            if (i == inflight)
                open_gate();
            snprintf(path, sizeof path, "a/%u", i);
            world_pass(&world, OP_SAVE, path);
            uint32_t under_way = engine_native_ops.under_way(world.ranks[0].engine);
            assert_true(i < inflight ? under_way == i + 1 : under_way <= inflight);
        }
        wait_for_all(&world);
        world_close_gate(&world);
    }
}

static void a_failure_behind_is_told_once_by_the_next_save(void **unused)
{
    (void)unused;
    static const char *const faults[] = {"error_at=2/ENOSPC+rank=1", "fail=finish/ENOSPC+rank=1",
                                         "fail=create/ENOSPC+rank=1"};
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        struct world world;
        char uri[256];
        clear();
        snprintf(uri, sizeof uri, "fault:%s:%s", faults[i], folder);
        world_open(&world, "model=gpt2-tiny dp=3 save.async=true io.block=64KiB save.staging_bytes=256KiB", uri, 0);
        world_pass(&world, OP_SAVE, "a"); /* training goes on: it does not know yet */
        assert_int_not_equal(world_run(&world, OP_SAVE, "b", WORLD_TIMEOUT_NS), 0);
        assert_int_equal(world.ranks[1].rc, CB_ERR_NO_SPACE);
        assert_non_null(strstr(world.ranks[1].err.message, "saving a behind, rank 1"));
        assert_non_null(strstr(world.ranks[1].err.message, "No space left"));
        assert_int_equal(world.ranks[0].rc, CB_ERR_ABORTED);
        assert_non_null(strstr(world.ranks[0].err.message, "rank 1 failed (no_space)"));
        assert_true(world.ranks[0].saves[0].flags & SAMPLE_FAILED && world.ranks[1].saves[0].flags & SAMPLE_FAILED);
        assert_false(exists("a/" STORED_MARKER) || exists("b"));
        assert_int_equal(world_wait(&world), 0); /* told, and past */
        world_close(&world);
    }
}

static void a_failure_behind_is_told_by_waiting_and_the_next_save_is_right(void **unused)
{
    (void)unused;
    struct world world;
    char uri[256];
    clear();
    snprintf(uri, sizeof uri, "fault:error_at=3/EIO+ops=write+rank=0:%s", folder);
    world_open(&world, "model=gpt2-tiny dp=2 save.async=true io.block=64KiB save.inflight=2", uri, 1);
    world_pass(&world, OP_SAVE, "a");
    int second = world_run(&world, OP_SAVE, "b", WORLD_TIMEOUT_NS);
    int waited = world_wait(&world);
    assert_true((second == 0) != (waited == 0)); /* told once, by whichever came first */
    assert_false(exists("a/" STORED_MARKER) || exists("b/" STORED_MARKER));
    fill_with(&world, 9);
    world_pass(&world, OP_SAVE, "c");
    poison(&world);
    wait_for_all(&world);
    load_and_check(&world, "c", 9);
    world_close(&world);
}

static void a_failing_commit_leaves_the_checkpoint_before(void **unused)
{
    (void)unused;
    static const char *const steps[] = {"sync_folder", "publish"};
    for (size_t i = 0; i < 2; i++) {
        struct world saver, world;
        char uri[256];
        clear();
        world_open(&saver, "model=gpt2-tiny dp=2 save.async=true", folder, 1);
        world_pass(&saver, OP_SAVE, "a");
        wait_for_all(&saver);
        snprintf(uri, sizeof uri, "fault:fail=%s+rank=0:%s", steps[i], folder);
        world_open(&world, "model=gpt2-tiny dp=2 save.async=true", uri, 1);
        world_pass(&world, OP_SAVE, "b");
        assert_int_not_equal(world_wait(&world), 0);
        assert_false(exists("b/" STORED_MARKER));
        load_and_check(&saver, "a", 42);
        world_close(&world);
        world_close(&saver);
    }
}

static void a_copy_that_fails_commits_nothing_on_any_rank(void **unused)
{
    (void)unused;
    static const unsigned events[] = {1, 5};
    for (size_t i = 0; i < 2; i++) {
        struct world world;
        clear();
        world_open_with(&world,
                        "model=gpt2-tiny dp=2 save.async=true io.block=64KiB save.staging_bytes=256KiB io.depth=2",
                        folder, 0, make_fake);
        ((struct fake_device *)world.ranks[1].device)->fail_at = events[i];
        world_pass(&world, OP_SAVE, "a");
        assert_int_not_equal(world_wait(&world), 0);
        assert_int_equal(world.ranks[1].rc, CB_ERR_SYSTEM);
        assert_non_null(strstr(world.ranks[1].err.message, "the fake device lost a copy"));
        assert_int_equal(world.ranks[0].rc, CB_ERR_ABORTED);
        assert_false(exists("a/" STORED_MARKER));
        world_close(&world);
    }
}

static void a_stuck_store_ends_at_the_deadline(void **unused)
{
    (void)unused;
    struct world world;
    char uri[256];
    clear();
    snprintf(uri, sizeof uri, "fault:stall_at=2+rank=1:%s", folder);
    world_open(&world, "model=gpt2-tiny dp=2 save.async=true io.block=64KiB save.staging_bytes=256KiB", uri, 0);
    assert_int_equal(world_run(&world, OP_SAVE, "a", NS_PER_S / 2), 0);
    assert_int_not_equal(world_wait(&world), 0);
    assert_int_equal(world.ranks[1].rc, CB_ERR_TIMEOUT);
    assert_non_null(strstr(world.ranks[0].err.message, "rank 1 failed (timeout)"));
    world_close(&world);
}

static void staging_that_is_too_small_says_what_it_needs(void **unused)
{
    (void)unused;
    struct world world;
    clear();
    world_open(&world, "model=gpt2-tiny save.async=true io.block=64KiB save.staging_bytes=100KiB", folder, 0);
    world_pass(&world, OP_SAVE, "a");
    assert_int_equal(world_wait(&world), CB_ERR_USAGE);
    assert_non_null(strstr(world.ranks[0].err.message, "two requests of io.block need 128"));
    world_close(&world);
}

static void staging_memory_is_allocated_once_and_no_larger_than_asked(void **unused)
{
    (void)unused;
    struct world world;
    char path[16];
    clear();
    world_open_with(&world, "model=gpt2-tiny save.async=true io.block=64KiB save.staging_bytes=256KiB save.inflight=2",
                    folder, 0, make_fake);
    const struct fake_device *fake = (const struct fake_device *)world.ranks[0].device;
    for (int i = 0; i < 4; i++) {
        snprintf(path, sizeof path, "a/%d", i);
        world_pass(&world, OP_SAVE, path);
        assert_int_equal(fake->allocations, 2);
    }
    wait_for_all(&world);
    const struct staging *staging = &((struct native_engine *)world.ranks[0].engine)->save->staging;
    assert_true(staging->mapped_bytes <= 256 * 1024 && staging->round_count > 40);
    world_close(&world);
}

static void a_stop_ends_what_goes_on_behind(void **unused)
{
    (void)unused;
    struct world world;
    char uri[256];
    clear();
    snprintf(uri, sizeof uri, "fault:stall_at=2:%s", folder);
    world_open(&world, "model=gpt2-tiny dp=2 save.async=true io.block=64KiB", uri, 0);
    world_pass(&world, OP_SAVE, "a");
    uint64_t start_ns = clock_monotonic_ns();
    world_close(&world); /* asks it to stop, and that it did */
    assert_true(clock_monotonic_ns() - start_ns < 15 * NS_PER_S);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_there_at_the_call_is_what_is_saved),
        cmocka_unit_test(a_device_that_copies_late_and_out_of_order_is_waited_for),
        cmocka_unit_test(a_folder_that_is_used_again_holds_the_last_one),
        cmocka_unit_test(times_fit_together),
        cmocka_unit_test(a_load_goes_on_beside_a_save),
        cmocka_unit_test(a_load_goes_on_between_two_saves_that_are_under_way),
        cmocka_unit_test(as_many_saves_as_wanted_are_under_way),
        cmocka_unit_test(a_failure_behind_is_told_once_by_the_next_save),
        cmocka_unit_test(a_failure_behind_is_told_by_waiting_and_the_next_save_is_right),
        cmocka_unit_test(a_failing_commit_leaves_the_checkpoint_before),
        cmocka_unit_test(a_copy_that_fails_commits_nothing_on_any_rank),
        cmocka_unit_test(a_stuck_store_ends_at_the_deadline),
        cmocka_unit_test(staging_that_is_too_small_says_what_it_needs),
        cmocka_unit_test(staging_memory_is_allocated_once_and_no_larger_than_asked),
        cmocka_unit_test(a_stop_ends_what_goes_on_behind),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
