/* What a disk may hold after a power cut (fault:powercut_at=N): what was synced, and any part of the rest. Each cut
 * happens in a process of its own, which it kills; many seeds show what can be lost. */
#include <signal.h>
#include <sys/wait.h>

#include "tests/unit/store_testing.h"

#define BYTES 16384
#define SEEDS 40
#define IN_MEMORY "/dev/shm" /* what is synced there takes no time, and is followed all the same */

static char folder[PATH_MAX];
static unsigned char *old_bytes, *new_bytes;

static int set_up(void **unused)
{
    (void)unused;
    snprintf(folder, sizeof folder, IN_MEMORY "/ckptbench-unit-XXXXXX");
    if (!mkdtemp(folder))
        testing_make_folder(folder);
    old_bytes = testing_pattern(BYTES, 1);
    new_bytes = testing_pattern(BYTES, 2);
    return 0;
}

static int tear_down(void **unused)
{
    (void)unused;
    testing_remove_folder(folder);
    free(old_bytes);
    free(new_bytes);
    return 0;
}

/* Does `work` in an empty store of a new process until its `at`-th change; true if that cut the power. */
static bool cut_at(void (*work)(struct store *store), unsigned at, unsigned seed)
{
    char uri[PATH_MAX + 64];
    testing_remove_folder(folder);
    assert_int_equal(mkdir(folder, 0700), 0);
    snprintf(uri, sizeof uri, "fault:powercut_at=%u+seed=%u:%s", at, seed, folder);
    pid_t child = fork();
    if (child == 0) {
        struct store_options options = {.depth = 8, .direct = STORE_DIRECT_NO, .durable = true};
        struct store *store = testing_open(uri, &options);
        work(store);
        store_free(store);
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    if (!WIFSIGNALED(status))
        assert_int_equal(status, 0);
    else
        assert_int_equal(WTERMSIG(status), SIGKILL);
    char beside[PATH_MAX + 16];
    snprintf(beside, sizeof beside, "%s.powercut", folder);
    assert_int_equal(access(beside, F_OK), -1);
    return WIFSIGNALED(status);
}

/* The bytes of a file in the store; -1 if it is not there. */
static ssize_t read_back(const char *name, unsigned char bytes[BYTES])
{
    char path[PATH_MAX + 64];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, O_RDONLY);
    if (fd < 0)
        return -1;
    ssize_t got = read(fd, bytes, BYTES);
    close(fd);
    return got;
}

static bool has(const char *name)
{
    unsigned char bytes[BYTES];
    return read_back(name, bytes) >= 0;
}

static bool is_whole(const char *name, const unsigned char *expected)
{
    unsigned char bytes[BYTES];
    return read_back(name, bytes) == BYTES && memcmp(bytes, expected, BYTES) == 0;
}

static struct store_object *write_bytes(struct store *store, const char *name)
{
    struct store_object *object = testing_create(store, name, BYTES);
    testing_ok(store, testing_run(store, object, STORE_WRITE, new_bytes, BYTES, 0));
    return object;
}

static void write_durably(struct store *store, const char *name)
{
    struct store_object *object = write_bytes(store, name);
    testing_ok(store, testing_run(store, object, STORE_FINISH, NULL, 0, 0));
    store_close(store, object);
    assert_int_equal(store_sync_folder(store, "", NULL), 0);
}

/* Any later change will do to cut the power. */
static void touch(struct store *store)
{
    (void)!store_make_folder(store, "later", NULL);
}

static void write_without_sync(struct store *store)
{
    struct store_object *object = write_bytes(store, "file");
    assert_int_equal(store_sync_folder(store, "", NULL), 0);
    touch(store);
    store_close(store, object);
}

static void what_was_not_synced_is_kept_lost_or_torn(void **unused)
{
    (void)unused;
    unsigned kept = 0, lost = 0, torn = 0;
    for (unsigned seed = 0; seed < SEEDS; seed++) {
        unsigned char bytes[BYTES] = {0}, zeros[BYTES] = {0};
        assert_true(cut_at(write_without_sync, 5, seed));
        ssize_t got = read_back("file", bytes);
        assert_true(got >= 0); /* its entry was synced */
        bool is_new = got == BYTES && memcmp(bytes, new_bytes, BYTES) == 0;
        bool is_empty = memcmp(bytes, zeros, (size_t)got) == 0;
        kept += is_new;
        lost += is_empty;
        torn += !is_new && !is_empty;
    }
    assert_true(kept > 0 && lost > 0 && torn > 0);
}

static void write_with_syncs(struct store *store)
{
    write_durably(store, "file");
    touch(store);
}

static void what_was_synced_stays(void **unused)
{
    (void)unused;
    for (unsigned seed = 0; seed < SEEDS; seed++) {
        assert_true(cut_at(write_with_syncs, 6, seed));
        assert_true(is_whole("file", new_bytes));
    }
}

static void write_without_folder(struct store *store)
{
    struct store_object *object = write_bytes(store, "file");
    testing_ok(store, testing_run(store, object, STORE_FINISH, NULL, 0, 0));
    store_close(store, object);
    touch(store);
}

static void an_entry_needs_a_sync_of_its_folder(void **unused)
{
    (void)unused;
    unsigned kept = 0;
    for (unsigned seed = 0; seed < SEEDS; seed++) {
        assert_true(cut_at(write_without_folder, 4, seed));
        kept += has("file");
        assert_true(!has("file") || is_whole("file", new_bytes));
    }
    assert_true(kept > 0 && kept < SEEDS);
}

static void remove_without_sync(struct store *store)
{
    write_durably(store, "file");
    assert_int_equal(store_remove(store, "file", NULL), 0);
    touch(store);
}

static void what_was_removed_may_come_back_whole(void **unused)
{
    (void)unused;
    unsigned back = 0;
    for (unsigned seed = 0; seed < SEEDS; seed++) {
        assert_true(cut_at(remove_without_sync, 7, seed));
        back += has("file");
        assert_true(!has("file") || is_whole("file", new_bytes));
    }
    assert_true(back > 0 && back < SEEDS);
}

static void remove_with_sync(struct store *store)
{
    write_durably(store, "file");
    assert_int_equal(store_remove(store, "file", NULL), 0);
    assert_int_equal(store_sync_folder(store, "", NULL), 0);
    touch(store);
}

static void what_was_removed_durably_is_gone(void **unused)
{
    (void)unused;
    for (unsigned seed = 0; seed < SEEDS; seed++) {
        assert_true(cut_at(remove_with_sync, 9, seed));
        assert_false(has("file"));
    }
}

static void publish_twice(struct store *store)
{
    assert_int_equal(store_publish(store, "deep/marker", old_bytes, BYTES, NULL), 0);
    assert_int_equal(store_publish(store, "deep/marker", new_bytes, BYTES, NULL), 0);
}

static void publish_pieces_twice(struct store *store)
{
    unsigned char *bytes[] = {old_bytes, new_bytes};
    for (size_t i = 0; i < 2; i++) {
        struct testing_pieces pieces = {.bytes = bytes[i], .len = BYTES, .piece = BYTES / 3};
        assert_int_equal(store_publish_pieces(store, "deep/marker", testing_pass, &pieces, NULL), 0);
    }
}

/* Returns the number of places where it was cut. */
static unsigned cut_everywhere(void (*work)(struct store *store))
{
    unsigned none = 0, old = 0, new = 0, places = 0;
    for (unsigned at = 1, was_cut = 1; was_cut; at++)
        for (unsigned seed = 0; seed < SEEDS; seed++) {
            was_cut = cut_at(work, at, seed);
            places += was_cut && seed == 0;
            bool is_old = is_whole("deep/marker", old_bytes), is_new = is_whole("deep/marker", new_bytes);
            none += !has("deep/marker");
            old += is_old;
            new += is_new &&was_cut;
            assert_true(is_old || is_new || !has("deep/marker"));
            assert_true(is_new || was_cut);
        }
    assert_true(none > 0 && old > 0 && new > 0);
    return places;
}

static void a_publish_is_all_or_nothing_wherever_the_power_is_cut(void **unused)
{
    (void)unused;
    unsigned whole = cut_everywhere(publish_twice);
    assert_int_equal(cut_everywhere(publish_pieces_twice), whole + 2 * 3); /* before each further piece, too */
}

static void a_seed_repeats_a_cut(void **unused)
{
    (void)unused;
    for (unsigned seed = 0; seed < SEEDS; seed++) {
        unsigned char first[BYTES] = {0}, second[BYTES] = {0};
        assert_true(cut_at(write_without_sync, 5, seed));
        ssize_t got = read_back("file", first);
        assert_true(cut_at(write_without_sync, 5, seed));
        assert_int_equal(read_back("file", second), got);
        assert_memory_equal(first, second, BYTES);
    }
}

static void a_bucket_has_no_power_to_cut(void **unused)
{
    (void)unused;
    struct store_options options = {.depth = 1};
    struct store *store;
    struct cb_err err = {0};
    assert_int_equal(store_open("fault:powercut_at=1:null:", &options, &store, &err), CB_ERR_USAGE);
    assert_non_null(strstr(err.message, "is no folder of a file system"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_not_synced_is_kept_lost_or_torn),
        cmocka_unit_test(what_was_synced_stays),
        cmocka_unit_test(an_entry_needs_a_sync_of_its_folder),
        cmocka_unit_test(what_was_removed_may_come_back_whole),
        cmocka_unit_test(what_was_removed_durably_is_gone),
        cmocka_unit_test(a_publish_is_all_or_nothing_wherever_the_power_is_cut),
        cmocka_unit_test(a_seed_repeats_a_cut),
        cmocka_unit_test(a_bucket_has_no_power_to_cut),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
