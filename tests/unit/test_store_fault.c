/* Each fault of "fault:SPEC:STORE" does what docs/fault-store.md says, and only that. */
#include "tests/unit/store_testing.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "store/backend.h"
#include "store/fault/fault_bucket.h"

#define BLOCK 65536

static const struct store_options plain = {.depth = 8, .direct = STORE_DIRECT_NO};

struct fixture {
    char folder[PATH_MAX];
    unsigned char *bytes;
    struct store *store;
};

static int set_up(void **state)
{
    struct fixture *self = calloc(1, sizeof(*self));
    testing_make_folder(self->folder);
    self->bytes = testing_pattern(4 * BLOCK, 1);
    *state = self;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *self = *state;
    store_free(self->store);
    testing_remove_folder(self->folder);
    free(self->bytes);
    free(self);
    return 0;
}

static struct store *open_with(struct fixture *self, const char *spec, const struct store_options *options)
{
    char uri[PATH_MAX + 256];
    snprintf(uri, sizeof(uri), "fault:%s:%s", spec, self->folder);
    store_free(self->store);
    self->store = testing_open(uri, options);
    return self->store;
}

/* The code of the n-th write of a block. */
static struct store_completion write_block(struct store *store, struct store_object *object, unsigned char *bytes,
                                           uint64_t n)
{
    return testing_run(store, object, STORE_WRITE, bytes, BLOCK, n * BLOCK);
}

static void error_hits_the_nth_request_alone(void **state)
{
    struct fixture *self = *state;
    struct store *store = open_with(self, "error_at=2/ESTALE", &plain);
    struct store_object *object = testing_create(store, "o", 4 * BLOCK);
    testing_ok(store, write_block(store, object, self->bytes, 0));
    struct store_completion done = write_block(store, object, self->bytes, 1);
    struct cb_err err;
    assert_int_equal(done.code, CB_ERR_SYSTEM);
    assert_int_equal(done.sys_errno, ESTALE);
    assert_int_equal(done.bytes, 0);
    assert_int_equal(store_completion_error(store, &done, &err), CB_ERR_SYSTEM);
    assert_non_null(strstr(err.message, "writing o at offset 65536"));
    assert_non_null(strstr(err.message, strerror(ESTALE)));
    testing_ok(store, write_block(store, object, self->bytes, 2));
    store_close(store, object);
}

static void errors_at_a_rate_hit_every_nth_request(void **state)
{
    struct fixture *self = *state;
    struct store *store = open_with(self, "error_every=2/ESTALE", &plain);
    struct store_object *object = testing_create(store, "o", 4 * BLOCK);
    for (uint64_t i = 0; i < 4; i++)
        assert_int_equal(write_block(store, object, self->bytes, i).sys_errno, i % 2 ? ESTALE : 0);
    store_close(store, object);
}

static void operations_that_are_not_named_are_not_counted(void **state)
{
    struct fixture *self = *state;
    struct store *store = open_with(self, "error_at=2+ops=finish|publish", &plain);
    struct store_object *object = testing_create(store, "o", 4 * BLOCK);
    for (uint64_t i = 0; i < 4; i++)
        testing_ok(store, write_block(store, object, self->bytes, i));
    testing_ok(store, testing_run(store, object, STORE_FINISH, NULL, 0, 0));
    struct cb_err err;
    assert_int_equal(store_publish(store, "marker", "x", 1, &err), CB_ERR_SYSTEM);
    assert_int_equal(err.sys_errno, EIO);
    assert_int_equal(store_publish(store, "marker", "x", 1, &err), 0);
    store_close(store, object);
}

static void a_rank_that_is_not_named_is_left_alone(void **state)
{
    struct fixture *self = *state;
    struct store_options options = plain;
    options.rank = 3;
    struct store *store = open_with(self, "error_at=1+fail=create+enospc_after=0+short_write=1+rank=2", &options);
    testing_write_object(store, "o", self->bytes, BLOCK);
    options.rank = 2;
    store = open_with(self, "error_at=1+rank=2", &options);
    struct store_object *object = testing_create(store, "p", 4 * BLOCK);
    assert_int_equal(write_block(store, object, self->bytes, 0).code, CB_ERR_SYSTEM);
    store_close(store, object);
}

static void the_store_is_full_after_so_many_bytes(void **state)
{
    struct fixture *self = *state;
    struct store *store = open_with(self, "enospc_after=130KiB", &plain);
    struct store_object *object = testing_create(store, "o", 4 * BLOCK);
    testing_ok(store, write_block(store, object, self->bytes, 0));
    testing_ok(store, write_block(store, object, self->bytes, 1));
    struct store_completion done = write_block(store, object, self->bytes, 2);
    assert_int_equal(done.code, CB_ERR_NO_SPACE);
    assert_int_equal(done.sys_errno, ENOSPC);
    assert_int_equal(store_publish(store, "small", self->bytes, 2048, NULL), 0);
    assert_int_equal(store_publish(store, "small", self->bytes, 1, NULL), CB_ERR_NO_SPACE);
    store_close(store, object);
}

static bool fsync_fails;

/* Instead of the C library's. */
int fsync(int fd)
{
    if (!fsync_fails)
        return fdatasync(fd);
    errno = EIO;
    return -1;
}

static void check_marker(struct store *store, const unsigned char *bytes)
{
    struct buf found;
    uint64_t length;
    buf_init(&found, 8 * BLOCK);
    assert_int_equal(store_read_small(store, "run/marker", &found, NULL), 0);
    assert_int_equal(found.len, 4 * BLOCK);
    assert_memory_equal(found.data, bytes, 4 * BLOCK);
    assert_int_equal(store_stat(store, "run/marker.tmp", &length, NULL), CB_ERR_NOT_FOUND);
    buf_release(&found);
}

static void a_publish_that_fails_between_pieces_leaves_the_object_before_it(void **state)
{
    struct fixture *self = *state;
    struct store_options durable = plain;
    durable.durable = true;
    struct cb_err err = {0};
    unsigned char *other = testing_pattern(4 * BLOCK, 2);
    struct testing_pieces old = {.bytes = self->bytes, .len = 4 * BLOCK, .piece = BLOCK};
    struct testing_pieces new = {.bytes = other, .len = 4 * BLOCK, .piece = BLOCK};
    static const char *const specs[] = {"enospc_after=450KiB", "error_at=2+ops=publish", "enospc_after=1GiB"};
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        struct store *store = open_with(self, specs[i], &durable);
        assert_int_equal(store_publish_pieces(store, "run/marker", testing_pass, &old, &err), 0);
        fsync_fails = i == 2;
        int rc = store_publish_pieces(store, "run/marker", testing_pass, &new, &err);
        fsync_fails = false;
        assert_int_equal(rc, i == 0 ? CB_ERR_NO_SPACE : CB_ERR_SYSTEM);
        assert_non_null(strstr(err.message, "run/marker"));
        check_marker(store, self->bytes);
    }
    free(other);
}

static void a_short_write_says_how_much_and_leaves_the_rest(void **state)
{
    struct fixture *self = *state;
    struct store *store = open_with(self, "short_write=1", &plain);
    struct store_object *object = testing_create(store, "o", 4 * BLOCK);
    struct iovec segments[] = {{self->bytes, 1000}, {self->bytes + 1000, BLOCK - 1000}};
    struct store_request request = {.kind = STORE_WRITE, .object = object, .segments = segments, .segment_count = 2};
    assert_int_equal(store_submit(store, &request, 1, NULL), 0);
    struct store_completion done = testing_wait(store);
    assert_int_equal(done.code, CB_ERR_SYSTEM);
    assert_int_equal(done.bytes, BLOCK / 2);
    store_close(store, object);
    unsigned char *read_back = testing_pattern(BLOCK, 2);
    object = testing_open_read(store, "o", 4 * BLOCK);
    testing_ok(store, testing_run(store, object, STORE_READ, read_back, BLOCK, 0));
    assert_memory_equal(read_back, self->bytes, BLOCK / 2);
    for (size_t i = BLOCK / 2; i < BLOCK; i++)
        assert_int_equal(read_back[i], 0);
    store_close(store, object);
    free(read_back);
}

static void exactly_one_bit_of_the_nth_read_is_wrong(void **state)
{
    struct fixture *self = *state;
    struct store *store = open_with(self, "bit_flip=2", &plain);
    unsigned char *read_back = testing_pattern(4 * BLOCK, 2);
    testing_write_object(store, "o", self->bytes, 4 * BLOCK);
    struct store_object *object = testing_open_read(store, "o", 4 * BLOCK);
    for (int i = 1; i <= 3; i++) {
        testing_ok(store, testing_run(store, object, STORE_READ, read_back, 4 * BLOCK, 0));
        int wrong_bits = 0;
        for (size_t at = 0; at < 4 * BLOCK; at++)
            wrong_bits += __builtin_popcount((unsigned)(read_back[at] ^ self->bytes[at]));
        assert_int_equal(wrong_bits, i == 2 ? 1 : 0);
    }
    store_close(store, object);
    free(read_back);
}

static void a_stalled_request_completes_only_when_cancelled(void **state)
{
    struct fixture *self = *state;
    struct store *store = open_with(self, "stall_at=2", &plain);
    struct store_object *object = testing_create(store, "o", 4 * BLOCK);
    struct store_completion completion;
    size_t count = 0;
    for (uint64_t i = 0; i < 3; i++)
        testing_submit(store, object, STORE_WRITE, self->bytes, BLOCK, i * BLOCK, i);
    for (int i = 0; i < 2; i++)
        assert_int_not_equal(testing_wait(store).user, 1);
    assert_int_equal(store_poll(store, &completion, 1, clock_monotonic_ns() + 20 * NS_PER_MS, &count, NULL), 0);
    assert_int_equal(count, 0);
    assert_int_equal(store_in_flight(store), 1);
    store_cancel(store);
    completion = testing_wait(store);
    assert_int_equal(completion.user, 1);
    assert_int_equal(completion.code, CB_ERR_ABORTED);
    store_close(store, object);
}

static void a_stalled_request_does_not_keep_a_store_from_being_freed(void **state)
{
    struct fixture *self = *state;
    struct store *store = open_with(self, "stall_at=1", &plain);
    struct store_object *object = testing_create(store, "o", 4 * BLOCK);
    testing_submit(store, object, STORE_WRITE, self->bytes, BLOCK, 0, 0);
    store_free(store);
    self->store = NULL;
}

static void blocking_never_comes_back_but_kill_ends_it(void **state)
{
    struct fixture *self = *state;
    int ready[2];
    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    if (child == 0) {
        struct store *store = open_with(self, "block_at=1", &plain);
        struct store_object *object = testing_create(store, "o", BLOCK);
        (void)!write(ready[1], "x", 1);
        testing_submit(store, object, STORE_WRITE, self->bytes, BLOCK, 0, 0);
        _exit(0);
    }
    char byte;
    assert_int_equal(read(ready[0], &byte, 1), 1);
    usleep(50000);
    kill(child, SIGTERM); /* default action: ends it, as pause() can be interrupted by a fatal signal */
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    close(ready[0]);
    close(ready[1]);
}

static void a_delayed_request_completes_no_sooner(void **state)
{
    struct fixture *self = *state;
    struct store *store = open_with(self, "delay=20ms", &plain);
    struct store_object *object = testing_create(store, "o", 4 * BLOCK);
    uint64_t before_ns = clock_monotonic_ns();
    struct store_completion done = write_block(store, object, self->bytes, 0);
    assert_true(clock_monotonic_ns() - before_ns >= 20 * NS_PER_MS);
    assert_true(done.completed_ns - done.submitted_ns >= 20 * NS_PER_MS);
    store_close(store, object);
}

static void a_request_completes_when_the_file_it_waits_for_is_there(void **state)
{
    struct fixture *self = *state;
    char gate[] = "/tmp/fault-gate-XXXXXX", spec[64];
    struct store_completion done;
    size_t got = 1;
    close(mkstemp(gate));
    snprintf(spec, sizeof spec, "until=%s+ops=write", gate);
    struct store *store = open_with(self, spec, &plain);
    struct store_object *object = testing_create(store, "o", 4 * BLOCK);
    testing_ok(store, write_block(store, object, self->bytes, 0));
    unlink(gate);
    testing_submit(store, object, STORE_WRITE, self->bytes, BLOCK, BLOCK, 1);
    assert_int_equal(store_poll(store, &done, 1, clock_monotonic_ns() + 20 * NS_PER_MS, &got, NULL), 0);
    assert_int_equal(got, 0);
    close(open(gate, O_CREAT | O_WRONLY, 0600));
    testing_ok(store, testing_wait(store));
    unlink(gate);
    testing_submit(store, object, STORE_WRITE, self->bytes, BLOCK, 2 * BLOCK, 2);
    store_cancel(store);
    assert_int_equal(testing_wait(store).user, 2);
    store_close(store, object);
}

static void a_reservation_waits_for_all_before_it(void **state)
{
    (void)state;
    struct fault_bucket *first = NULL, *second = NULL, *alone = NULL;
    char folder[] = "/tmp/fault-bucket-XXXXXX", file[64];
    assert_non_null(mkdtemp(folder));
    assert_int_equal(fault_bucket_new(folder, 1000, &first, NULL), 0);
    assert_int_equal(fault_bucket_new(folder, 1000, &second, NULL), 0);
    assert_int_equal(fault_bucket_new(NULL, 1000, &alone, NULL), 0);
    assert_int_equal(fault_bucket_reserve(first, 500, NS_PER_S), NS_PER_S + NS_PER_S / 2);
    assert_int_equal(fault_bucket_reserve(second, 500, NS_PER_S), 2 * NS_PER_S);
    assert_int_equal(fault_bucket_reserve(first, 100, 10 * NS_PER_S), 10 * NS_PER_S + NS_PER_S / 10);
    assert_int_equal(fault_bucket_reserve(alone, 500, NS_PER_S), NS_PER_S + NS_PER_S / 2);
    fault_bucket_free(first);
    fault_bucket_free(alone);
    fault_bucket_free(second);
    snprintf(file, sizeof(file), "%s/fault-bandwidth", folder);
    assert_int_equal(unlink(file), 0);
    assert_int_equal(rmdir(folder), 0);
}

static void bandwidth_bounds_what_completes(void **state)
{
    struct fixture *self = *state;
    struct store *store = open_with(self, "bandwidth=2MiB/s", &plain); /* a block takes 31.25 ms */
    struct store_object *object = testing_create(store, "o", 4 * BLOCK);
    uint64_t last_ns = 0, first_ns = 0;
    for (uint64_t i = 0; i < 3; i++)
        testing_submit(store, object, STORE_WRITE, self->bytes, BLOCK, i * BLOCK, i);
    for (int i = 0; i < 3; i++) {
        struct store_completion done = testing_wait(store);
        testing_ok(store, done);
        first_ns = done.submitted_ns;
        last_ns = done.completed_ns > last_ns ? done.completed_ns : last_ns;
    }
    assert_true(last_ns - first_ns >= 90 * NS_PER_MS);
    store_close(store, object);
}

static void named_operations_always_fail(void **state)
{
    struct fixture *self = *state;
    struct store *store = open_with(self, "fail=publish|sync_folder|finish/EROFS", &plain);
    struct cb_err err;
    struct store_object *object = testing_create(store, "o", 4 * BLOCK), *none = NULL;
    testing_ok(store, write_block(store, object, self->bytes, 0));
    for (int i = 0; i < 2; i++) {
        assert_int_equal(store_publish(store, "m", "x", 1, &err), CB_ERR_SYSTEM);
        assert_int_equal(err.sys_errno, EROFS);
        assert_int_equal(store_sync_folder(store, "", &err), CB_ERR_SYSTEM);
        assert_int_equal(testing_run(store, object, STORE_FINISH, NULL, 0, 0).sys_errno, EROFS);
    }
    store_close(store, object);
    store = open_with(self, "fail=create", &plain);
    assert_int_equal(store_create(store, "n", 1, &none, &err), CB_ERR_SYSTEM);
    assert_int_equal(store_publish(store, "m", "x", 1, &err), 0);
}

static void a_wrong_spec_is_refused_with_what_is_wrong(void **state)
{
    struct fixture *self = *state;
    static const struct {
        const char *uri, *says;
    } cases[] = {
        {"fault:delay=5ms", "no store follows"},
        {"fault::null:", "needs faults"},
        {"fault:delay:null:", "has no value"},
        {"fault:dely=5ms:null:", "known are delay"},
        {"fault:delay=soon:null:", "delay=soon"},
        {"fault:until=gate:null:", "whole path"},
        {"fault:error_at=0:null:", "start at 1"},
        {"fault:error_at=1/EVIL:null:", "EVIL"},
        {"fault:ops=write|create:null:", "'create' cannot stand here"},
        {"fault:fail=write:null:", "'write' cannot stand here"},
        {"fault:fail=:null:", "empty"},
        {"fault:bandwidth=0:null:", "nothing would ever move"},
        {"fault:rank=99999999999:null:", "no such rank"},
        {"fault:delay=5ms:/does/not/exist", "mkdir -p"},
        {"gs://bucket", "no such kind of store"},
        {"null:x", "nothing may follow"},
        {"", "empty"},
    };
    (void)self;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct store *store = NULL;
        struct cb_err err = {0};
        assert_int_not_equal(store_open(cases[i].uri, &plain, &store, &err), 0);
        assert_null(store);
        if (!strstr(err.message, cases[i].says))
            fail_msg("%s: '%s' lacks '%s'", cases[i].uri, err.message, cases[i].says);
    }
}

static void an_incomplete_backend_is_refused_by_name(void **state)
{
    (void)state;
    struct cb_err err;
    struct backend_ops ops = null_backend;
    assert_int_equal(backend_check("null", &ops, &err), 0);
    ops.drop_cache = NULL;
    assert_int_equal(backend_check("null", &ops, &err), CB_ERR_INTERNAL);
    assert_non_null(strstr(err.message, "drop_cache"));
    ops = null_backend;
    ops.version++;
    assert_int_equal(backend_check("null", &ops, &err), CB_ERR_INTERNAL);
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(error_hits_the_nth_request_alone),
        TEST(errors_at_a_rate_hit_every_nth_request),
        TEST(operations_that_are_not_named_are_not_counted),
        TEST(a_rank_that_is_not_named_is_left_alone),
        TEST(the_store_is_full_after_so_many_bytes),
        TEST(a_publish_that_fails_between_pieces_leaves_the_object_before_it),
        TEST(a_short_write_says_how_much_and_leaves_the_rest),
        TEST(exactly_one_bit_of_the_nth_read_is_wrong),
        TEST(a_stalled_request_completes_only_when_cancelled),
        TEST(a_stalled_request_does_not_keep_a_store_from_being_freed),
        TEST(blocking_never_comes_back_but_kill_ends_it),
        TEST(a_delayed_request_completes_no_sooner),
        TEST(a_request_completes_when_the_file_it_waits_for_is_there),
        TEST(a_reservation_waits_for_all_before_it),
        TEST(bandwidth_bounds_what_completes),
        TEST(named_operations_always_fail),
        TEST(a_wrong_spec_is_refused_with_what_is_wrong),
        TEST(an_incomplete_backend_is_refused_by_name),
    };
    return cmocka_run_group_tests_name("fault store", tests, NULL, NULL);
}
