/* States in the memory of a device: saved, loaded, resharded and exchanged through pinned memory, with a
 * device that copies late and out of order and whose memory nobody else may touch. Copies that fail or go
 * wrong are found; memory stays bounded. Ranks are threads. */
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
#include "tests/unit/fake_comm.h"
#include "tests/unit/native_world.h"
#include "tests/unit/own_folder.h"
#include "worker/verify_state.h"

static struct device *make_fake(uint32_t rank)
{
    struct fake_device *fake = fake_device_new(rank * 17 + 3, rank % 2 ? 7 : 2);
    return fake ? &fake->base : NULL;
}

static struct fake_device *fake_of(struct world *world, uint32_t rank)
{
    return (struct fake_device *)world->ranks[rank].device;
}

static void open_on_device(struct world *world, const char *words, uint32_t shift)
{
    world_open_on(world, words, folder, shift, make_fake, true);
}

static void set_values(struct world *world, uint64_t seed)
{
    world->payload.seed = seed;
    for (uint32_t i = 0; i < world->size; i++)
        assert_int_equal(state_set_values(&world->ranks[i].state, &world->payload, NULL), 0);
}

static void check_loaded(struct world *world, uint64_t seed)
{
    world->payload.seed = seed;
    world_check_loaded(world);
}

static double total(const struct world *world, enum metric_id metric)
{
    double sum = 0;
    for (uint32_t i = 0; i < world->size; i++)
        sum += world->ranks[i].sample.values[metric];
    return sum;
}

static const char *const ways[] = {
    "model=gpt2-tiny",
    "model=gpt2-tiny io.direct=false io.fsync=false",
    "model=gpt2-tiny io.engine=psync io.direct=false checksum=none io.fsync=false",
    "model=gpt2-tiny dp=2 tp=2 io.block=64KiB io.fsync=false",
    "model=gpt2-tiny dp=2 tp=2 io.block=64KiB io.fsync=false save.staging_bytes=128KiB io.depth=2",
    "model=gpt2-tiny dp=3 zero=1 io.files=2 io.depth=1 io.fsync=false",
    "model=gpt2-tiny dp=2 pp=2 io.files=shared io.fsync=false",
    "model=gpt2-tiny tp=4 io.fsync=false format=raw io.block=12KiB",
    "model=gpt2-tiny tp=2 io.fsync=false format=dcp+safetensors",
    "model=gpt2-tiny sharding=full dp=3 save.dedup=lowest_rank io.files=item io.fsync=false",
    "model=gpt2-tiny dp=4 load.exchange=broadcast io.fsync=false io.block=64KiB",
    "model=gpt2-tiny dp=2 tp=2 load.exchange=split io.fsync=false io.block=64KiB",
    "model=gpt2-tiny dp=4 zero=1 load.exchange=auto io.fsync=false",
};

static void what_a_device_holds_is_saved_and_loaded(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct world world;
        clear();
        open_on_device(&world, ways[i], (uint32_t)i % 3);
        world_pass(&world, OP_SAVE, "a/0");
        set_values(&world, 7);
        world_pass(&world, OP_SAVE, "a/1");
        assert_true(total(&world, METRIC_BYTES_COPIED) == total(&world, METRIC_BYTES_NEEDED));
        for (int round = 0; round < 2; round++) {
            world_pass(&world, OP_LOAD, "a/1");
            check_loaded(&world, 7);
        }
        world_pass(&world, OP_LOAD, "a/0");
        check_loaded(&world, 42);
        world_close(&world);
    }
}

/* Each save's state is gone the moment it returns. */
static void a_save_behind_stalls_for_the_copies_alone(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct world world;
        char words[256], path[16];
        clear();
        snprintf(words, sizeof words, "%s save.async=true save.inflight=%zu", ways[i], i % 2 + 1);
        open_on_device(&world, words, 1);
        for (uint64_t k = 0; k < 3; k++) {
            set_values(&world, 100 + k);
            snprintf(path, sizeof path, "a/%llu", (unsigned long long)k);
            world_pass(&world, OP_SAVE, path);
            for (uint32_t rank = 0; rank < world.size; rank++)
                assert_int_equal(state_set_poison(&world.ranks[rank].state, NULL), 0);
        }
        if (world_wait(&world) != 0)
            fail_msg("%s: %s", words, world.ranks[0].err.message);
        for (uint64_t k = 0; k < 3; k++) {
            snprintf(path, sizeof path, "a/%llu", (unsigned long long)k);
            world_pass(&world, OP_LOAD, path);
            check_loaded(&world, 100 + k);
        }
        world_close(&world);
    }
}

/* From a device or this machine's memory to the other, or the same, in any layout. */
static void any_layout_loads_what_another_one_saved(void **unused)
{
    (void)unused;
    static const char *const layouts[] = {
        "",     "dp=2",     "tp=2", "dp=2 tp=2 zero=1", "dp=3 zero=3", "pp=2 tp=2", "dp=4 zero=1", "sharding=full dp=3",
        "tp=4", "dp=2 pp=2"};
    static const char *const loads[] = {
        "",           "load.exchange=broadcast", "load.exchange=split", "load.exchange=split load.gap=0",
        "load.gap=0", "save.staging_bytes=24KiB"};
    srand(11);
    for (int round = 0; round < 30; round++) {
        struct world saver, loader;
        char from[256], to[256];
        clear();
        snprintf(from, sizeof from, "model=gpt2-tiny layers=2 io.fsync=false io.block=12KiB io.direct=%s %s",
                 rand() % 2 ? "auto" : "false", layouts[(size_t)rand() % (sizeof layouts / sizeof *layouts)]);
        snprintf(to, sizeof to, "model=gpt2-tiny layers=2 io.block=12KiB io.depth=%d %s %s", 1 + rand() % 4,
                 layouts[(size_t)rand() % (sizeof layouts / sizeof *layouts)],
                 loads[(size_t)rand() % (sizeof loads / sizeof *loads)]);
        bool saver_on_device = rand() % 3 > 0;
        print_message("%s -> %s\n", from, to);
        world_open_on(&saver, from, folder, 0, make_fake, saver_on_device);
        uint32_t shift = (uint32_t)rand() % 3;
        bool on_device = !saver_on_device || rand() % 2;
        world_open_talking(&loader, to, folder, shift, make_fake, on_device, round % 2 ? &fake_comm_ops : NULL);
        world_pass(&saver, OP_SAVE, "c");
        world_pass(&loader, OP_LOAD, "c");
        world_check_loaded(&loader);
        world_close(&saver);
        world_close(&loader);
    }
}

/* The bytes of a file; the save ids of its items are left out. */
static void read_without_save_ids(const char *checkpoint, uint32_t rank, struct buf *bytes)
{
    static const char field[] = {'C', 'B', 8, 0};
    char path[512], block[65536];
    snprintf(path, sizeof path, "%s/%s/__%u_0.distcp", folder, checkpoint, rank);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    buf_init(bytes, 1 << 26);
    for (size_t got; (got = fread(block, 1, sizeof block, file)) > 0;)
        buf_append(bytes, block, got);
    fclose(file);
    char *end = bytes->data + bytes->len, *at = bytes->data;
    while ((at = memmem(at, (size_t)(end - at), field, sizeof field)) && end - at >= 12) {
        memset(at + sizeof field, 0, 8);
        at += sizeof field;
    }
}

static void the_files_are_those_of_a_state_in_memory(void **unused)
{
    (void)unused;
    struct world host, device;
    const char *words = "model=gpt2-tiny dp=2 tp=2 io.fsync=false io.block=64KiB";
    clear();
    world_open(&host, words, folder, 0);
    open_on_device(&device, words, 0);
    world_pass(&host, OP_SAVE, "host");
    world_pass(&device, OP_SAVE, "device");
    for (uint32_t rank = 0; rank < host.size; rank++) {
        struct buf one, other;
        read_without_save_ids("host", rank, &one);
        read_without_save_ids("device", rank, &other);
        assert_int_equal(one.len, other.len);
        assert_memory_equal(one.data, other.data, one.len);
        buf_release(&one);
        buf_release(&other);
    }
    world_close(&host);
    world_close(&device);
}

static void pinned_memory_is_allocated_once_and_no_larger_than_asked(void **unused)
{
    (void)unused;
    struct world world;
    clear();
    open_on_device(&world, "model=gpt2-tiny io.block=64KiB io.fsync=false save.staging_bytes=256KiB", 0);
    struct fake_device *fake = fake_of(&world, 0);
    fake->most_pinned_bytes = 0;
    for (int i = 0; i < 3; i++) {
        world_pass(&world, OP_SAVE, (const char *const[]){"a", "b", "c"}[i]);
        assert_int_equal(fake->allocations, 3); /* two states and the slots */
        world_pass(&world, OP_LOAD, "a");
        check_loaded(&world, 42);
        assert_int_equal(fake->allocations, 3);
    }
    assert_true(fake->most_pinned_bytes > 0 && fake->most_pinned_bytes <= 256 * 1024);
    world_close(&world);
}

static void memory_for_fewer_than_two_requests_says_what_it_needs(void **unused)
{
    (void)unused;
    struct world world;
    clear();
    open_on_device(&world, "model=gpt2-tiny io.block=64KiB save.staging_bytes=100KiB", 0);
    assert_int_equal(world_run(&world, OP_SAVE, "a", WORLD_TIMEOUT_NS), CB_ERR_USAGE);
    assert_non_null(strstr(world.ranks[0].err.message, "two requests of io.block need 128"));
    world_close(&world);
}

static void only_what_is_needed_is_copied(void **unused)
{
    (void)unused;
    struct world world;
    clear();
    open_on_device(&world, "model=gpt2-tiny tp=2 dp=2 io.fsync=false load.exchange=split", 0);
    world_pass(&world, OP_SAVE, "a");
    double saved = total(&world, METRIC_BYTES_NEEDED);
    world_pass(&world, OP_LOAD, "a");
    double loaded = total(&world, METRIC_BYTES_NEEDED), to_host = 0, to_device = 0;
    for (uint32_t i = 0; i < world.size; i++) {
        to_host += (double)fake_of(&world, i)->bytes_to_host;
        to_device += (double)fake_of(&world, i)->bytes_to_device;
    }
    assert_true(to_host == saved && to_device == loaded);
    world_close(&world);
}

/* One bit of one copy, in either direction: verification on the device finds it. */
static void a_copy_that_goes_wrong_is_found(void **unused)
{
    (void)unused;
    for (int op = OP_SAVE; op <= OP_LOAD; op++) {
        struct world world;
        struct sample sample = {.op = OP_VERIFY};
        struct cb_err err;
        clear();
        open_on_device(&world, "model=gpt2-tiny dp=2 zero=1 io.fsync=false io.block=64KiB", 0);
        struct fake_device *fake = fake_of(&world, 1);
        for (int i = OP_SAVE; i <= OP_LOAD; i++) {
            fake->corrupt_at = i == op ? fake->copied + 9 : 0;
            world_pass(&world, (enum operation)i, "a");
        }
        struct verify_job job = {.mode = VERIFY_FULL, .payload = world.payload, .path = "a"};
        int wrong = 0;
        for (uint32_t i = 0; i < world.size; i++)
            wrong += verify_state(&job, &world.ranks[i].loaded, world.ranks[i].page, &sample, &err) == CB_ERR_CORRUPT;
        assert_true(wrong >= 1);
        assert_non_null(strstr(err.message, "elements of what was looked at"));
        world_close(&world);
    }
}

static void a_copy_that_fails_commits_nothing_and_the_next_save_is_right(void **unused)
{
    (void)unused;
    struct world world;
    clear();
    open_on_device(&world, "model=gpt2-tiny dp=2 io.block=64KiB io.fsync=false io.depth=2", 0);
    fake_of(&world, 1)->fail_at = 4;
    assert_int_not_equal(world_run(&world, OP_SAVE, "a", WORLD_TIMEOUT_NS), 0);
    assert_int_equal(world.ranks[1].rc, CB_ERR_SYSTEM);
    assert_non_null(strstr(world.ranks[1].err.message, "the fake device lost a copy"));
    assert_int_equal(world.ranks[0].rc, CB_ERR_ABORTED);
    assert_false(exists("a/" STORED_MARKER));
    fake_of(&world, 1)->fail_at = 0;
    world_pass(&world, OP_SAVE, "b");
    fake_of(&world, 0)->fail_at = (unsigned)fake_of(&world, 0)->recorded + 3;
    assert_int_not_equal(world_run(&world, OP_LOAD, "b", WORLD_TIMEOUT_NS), 0);
    assert_int_equal(world.ranks[0].rc, CB_ERR_SYSTEM);
    assert_non_null(strstr(world.ranks[0].err.message, "loading b, rank 0"));
    fake_of(&world, 0)->fail_at = 0;
    world_pass(&world, OP_LOAD, "b");
    world_check_loaded(&world);
    world.leaves_memory = true; /* what a device may still write to stays */
    world_close(&world);
}

static void a_copy_that_fails_in_an_exchange_ends_it(void **unused)
{
    (void)unused;
    struct world world;
    clear();
    open_on_device(&world, "model=gpt2-tiny dp=3 io.block=64KiB io.fsync=false load.exchange=split", 0);
    world_pass(&world, OP_SAVE, "a");
    world.leaves_memory = true;
    fake_of(&world, 2)->fail_at = (unsigned)fake_of(&world, 2)->recorded + 5;
    assert_int_not_equal(world_run(&world, OP_LOAD, "a", 2 * NS_PER_S), 0);
    assert_int_equal(world.ranks[2].rc, CB_ERR_SYSTEM);
    world_close(&world);
}

static void a_store_that_fails_leaves_no_copy_under_way(void **unused)
{
    (void)unused;
    static const char *const faults[] = {"error_at=3/ENOSPC+ops=write+rank=0", "error_at=3/EIO+ops=read+rank=0"};
    for (int i = 0; i < 2; i++) {
        struct world world;
        char uri[256];
        clear();
        snprintf(uri, sizeof uri, "fault:%s:%s", faults[i], folder);
        world_open_on(&world, "model=gpt2-tiny dp=2 io.block=64KiB io.fsync=false", uri, 0, make_fake, true);
        if (i == 1)
            world_pass(&world, OP_SAVE, "a");
        assert_int_not_equal(world_run(&world, i ? OP_LOAD : OP_SAVE, "a", WORLD_TIMEOUT_NS), 0);
        assert_int_equal(fake_of(&world, 0)->count, 0);
        assert_int_equal(fake_of(&world, 1)->count, 0);
        world_pass(&world, OP_SAVE, "b"); /* the fault is past */
        world_pass(&world, OP_LOAD, "b");
        world_check_loaded(&world);
        world_close(&world);
    }
}

/* --- from device to device --- */

static void open_talking(struct world *world, const char *words, uint32_t shift)
{
    world_open_talking(world, words, folder, shift, make_fake, true, &fake_comm_ops);
}

/* Messages of this machine's memory that have more than an introduction. */
static uint32_t count_messages(const struct world *world)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < world->meeting.message_count; i++)
        count += world->meeting.messages[i].len > 256;
    return count;
}

static bool says(const struct world *world, const char *fact)
{
    return strstr(world->ranks[0].page->facts, fact);
}

static const char *const talking_ways[] = {
    "model=gpt2-tiny dp=4 load.exchange=broadcast io.block=64KiB",
    "model=gpt2-tiny dp=4 load.exchange=broadcast",
    "model=gpt2-tiny dp=2 tp=2 load.exchange=split io.block=64KiB",
    "model=gpt2-tiny dp=2 tp=2 load.exchange=broadcast io.block=64KiB save.staging_bytes=128KiB io.depth=2",
    "model=gpt2-tiny dp=3 load.exchange=split io.block=12KiB load.gap=0",
    "model=gpt2-tiny dp=4 zero=1 load.exchange=split checksum=none",
    "model=gpt2-tiny dp=2 pp=2 load.exchange=split io.files=shared",
    "model=gpt2-tiny tp=4 load.exchange=split io.block=64KiB",
};

static void what_one_rank_reads_goes_from_its_device_to_those_of_others(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < sizeof talking_ways / sizeof *talking_ways; i++) {
        struct world world;
        char words[256];
        clear();
        snprintf(words, sizeof words, "%s io.fsync=false", talking_ways[i]);
        print_message("%s\n", words);
        open_talking(&world, words, (uint32_t)i % 3);
        world_pass(&world, OP_SAVE, "a/0");
        set_values(&world, 7);
        world_pass(&world, OP_SAVE, "a/1");
        fake_rooms.received = 0;
        world_pass(&world, OP_LOAD, "a/1");
        check_loaded(&world, 7);
        uint64_t rooms = fake_rooms.made;
        assert_true(fake_rooms.received > 0);
        for (int round = 0; round < 2; round++) {
            world_pass(&world, OP_LOAD, round ? "a/1" : "a/0");
            check_loaded(&world, round ? 7 : 42);
        }
        assert_int_equal(fake_rooms.made, rooms); /* they joined once */
        assert_int_equal(count_messages(&world), 0);
        assert_true(says(&world, "load.path=from device to device\n"));
        world_close(&world);
        assert_int_equal(fake_rooms.open, 0);
    }
}

/* What all have the same of is read once and received by each other rank once. */
static void a_broadcast_reads_once_and_sends_once(void **unused)
{
    (void)unused;
    struct world world;
    clear();
    open_talking(&world, "model=gpt2-tiny dp=4 load.exchange=broadcast io.block=64KiB io.fsync=false", 0);
    world_pass(&world, OP_SAVE, "a");
    world_pass(&world, OP_LOAD, "a"); /* with the groups' greetings */
    fake_rooms.received = 0;
    double needed = total(&world, METRIC_BYTES_NEEDED);
    uint64_t to_device = fake_of(&world, 0)->bytes_to_device;
    world_pass(&world, OP_LOAD, "a");
    check_loaded(&world, 42);
    assert_true((double)fake_rooms.received == needed); /* the reader's own is counted, too */
    assert_true((double)(fake_of(&world, 0)->bytes_to_device - to_device) == needed / 4);
    for (uint32_t i = 1; i < world.size; i++)
        assert_int_equal(fake_of(&world, i)->bytes_to_device, 0);
    world_close(&world);
}

static void ranks_that_have_one_device_exchange_through_memory(void **unused)
{
    (void)unused;
    struct world world;
    clear();
    open_talking(&world, "model=gpt2-tiny dp=2 tp=2 load.exchange=split io.block=64KiB io.fsync=false", 1);
    world_pass(&world, OP_SAVE, "a");
    fake_rooms.same_device = true;
    for (int round = 0; round < 2; round++) {
        uint64_t rooms = fake_rooms.made;
        world_pass(&world, OP_LOAD, "a");
        check_loaded(&world, 42);
        assert_true(round == 0 ? fake_rooms.made > rooms : fake_rooms.made == rooms); /* not tried again */
    }
    fake_rooms.same_device = false;
    assert_true(count_messages(&world) > 0);
    assert_true(says(&world, "load.path=through memory of this machine: two ranks have one"));
    world_close(&world);
    assert_int_equal(fake_rooms.open, 0);
}

static void what_goes_wrong_between_devices_is_found(void **unused)
{
    (void)unused;
    struct world world;
    struct sample sample = {.op = OP_VERIFY};
    struct cb_err err;
    clear();
    open_talking(&world, "model=gpt2-tiny dp=3 load.exchange=broadcast io.block=64KiB io.fsync=false", 0);
    world_pass(&world, OP_SAVE, "a");
    world_pass(&world, OP_LOAD, "a");
    fake_of(&world, 2)->corrupt_at = fake_of(&world, 2)->copied + 3;
    world_pass(&world, OP_LOAD, "a");
    struct verify_job job = {.mode = VERIFY_FULL, .payload = world.payload, .path = "a"};
    for (uint32_t i = 0; i < world.size; i++)
        assert_int_equal(verify_state(&job, &world.ranks[i].loaded, world.ranks[i].page, &sample, &err),
                         i == 2 ? CB_ERR_CORRUPT : 0);
    world_close(&world);
}

static void a_device_that_fails_between_devices_ends_the_load_and_the_next_is_right(void **unused)
{
    (void)unused;
    struct world world;
    clear();
    open_talking(&world, "model=gpt2-tiny dp=3 io.block=64KiB io.fsync=false load.exchange=split", 0);
    world_pass(&world, OP_SAVE, "a");
    world_pass(&world, OP_LOAD, "a");
    fake_of(&world, 2)->fail_talk_at = fake_of(&world, 2)->talk->recorded + 3;
    assert_int_not_equal(world_run(&world, OP_LOAD, "a", 2 * NS_PER_S), 0);
    assert_int_equal(world.ranks[2].rc, CB_ERR_SYSTEM);
    assert_non_null(strstr(world.ranks[2].err.message, "lost what another sent"));
    assert_int_equal(fake_rooms.open, 0); /* all of them have hung up */
    fake_of(&world, 2)->fail_talk_at = 0;
    world_pass(&world, OP_LOAD, "a");
    check_loaded(&world, 42);
    world_close(&world);
}

static void a_device_without_memory_of_its_own_is_refused(void **unused)
{
    (void)unused;
    struct device *device;
    struct words words;
    struct state state;
    struct cb_err err;
    assert_int_equal(words_make(&words, "model=gpt2-tiny", &err), 0);
    assert_int_equal(device_host_open(1, &device, &err), 0);
    assert_int_equal(state_init(&state, words.layout, 0, &err), 0);
    assert_int_equal(state_allocate_on(&state, device, 0, &err), CB_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "the host device has no memory of its own"));
    state_release(&state);
    device_close(device);
    words_release(&words);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_a_device_holds_is_saved_and_loaded),
        cmocka_unit_test(a_save_behind_stalls_for_the_copies_alone),
        cmocka_unit_test(any_layout_loads_what_another_one_saved),
        cmocka_unit_test(the_files_are_those_of_a_state_in_memory),
        cmocka_unit_test(pinned_memory_is_allocated_once_and_no_larger_than_asked),
        cmocka_unit_test(memory_for_fewer_than_two_requests_says_what_it_needs),
        cmocka_unit_test(only_what_is_needed_is_copied),
        cmocka_unit_test(a_copy_that_goes_wrong_is_found),
        cmocka_unit_test(a_copy_that_fails_commits_nothing_and_the_next_save_is_right),
        cmocka_unit_test(a_copy_that_fails_in_an_exchange_ends_it),
        cmocka_unit_test(a_store_that_fails_leaves_no_copy_under_way),
        cmocka_unit_test(a_device_without_memory_of_its_own_is_refused),
        cmocka_unit_test(what_one_rank_reads_goes_from_its_device_to_those_of_others),
        cmocka_unit_test(a_broadcast_reads_once_and_sends_once),
        cmocka_unit_test(ranks_that_have_one_device_exchange_through_memory),
        cmocka_unit_test(what_goes_wrong_between_devices_is_found),
        cmocka_unit_test(a_device_that_fails_between_devices_ends_the_load_and_the_next_is_right),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
