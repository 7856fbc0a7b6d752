/* What a file system can refuse while a name changes: system calls of this program fail on request. */
#include "tests/unit/store_testing.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/syscall.h>

#define AT_ONCE 8
#define ROUNDS 50

static int folder_syncs_until_failure = -1; /* -1: none fails */
static int link_errno, lock_errno;
static atomic_int locked, unlocked; /* threads swap at once */
static bool link_answer_is_lost;

int fsync(int fd)
{
    struct stat status;
    if (fstat(fd, &status) == 0 && S_ISDIR(status.st_mode) && folder_syncs_until_failure >= 0 &&
        folder_syncs_until_failure-- == 0) {
        errno = EIO;
        return -1;
    }
    return (int)syscall(SYS_fsync, fd);
}

int linkat(int from_fd, const char *from, int to_fd, const char *to, int flags)
{
    int rc = link_errno ? -1 : (int)syscall(SYS_linkat, from_fd, from, to_fd, to, flags);
    if (link_errno)
        errno = link_errno;
    if (rc == 0 && link_answer_is_lost) {
        errno = EEXIST;
        return -1;
    }
    return rc;
}

int fcntl(int fd, int command, ...)
{
    va_list arguments;
    va_start(arguments, command);
    void *argument = va_arg(arguments, void *);
    va_end(arguments);
    if (command == F_OFD_SETLK && lock_errno) {
        errno = lock_errno;
        return -1;
    }
    int rc = (int)syscall(SYS_fcntl, fd, command, argument);
    if (command == F_OFD_SETLK && rc == 0)
        ++*(((struct flock *)argument)->l_type == F_UNLCK ? &unlocked : &locked);
    return rc;
}

struct fixture {
    char folder[PATH_MAX];
    struct store *store;
};

static const struct store_options options = {.depth = 1, .in_caller = true, .direct = STORE_DIRECT_NO, .durable = true};

static int set_up(void **state)
{
    struct fixture *self = calloc(1, sizeof *self);
    testing_make_folder(self->folder);
    self->store = testing_open(self->folder, &options);
    folder_syncs_until_failure = -1;
    link_errno = lock_errno = 0;
    locked = 0;
    unlocked = 0;
    link_answer_is_lost = false;
    *state = self;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *self = *state;
    store_free(self->store);
    testing_remove_folder(self->folder);
    free(self);
    return 0;
}

static int count_one(void *context, const char *name, uint64_t length, struct cb_err *err)
{
    (void)name, (void)length, (void)err;
    ++*(int *)context;
    return 0;
}

static void holds(struct store *store, const char *text, int files)
{
    struct buf found;
    int count = 0;
    buf_init(&found, 100);
    assert_int_equal(store_read_small(store, "a/claim", &found, NULL), 0);
    assert_string_equal(found.data, text);
    assert_int_equal(store_list(store, "", count_one, &count, NULL), 0);
    assert_int_equal(count, files);
    buf_release(&found);
}

static void a_publish_whose_name_cannot_be_made_durable_leaves_nothing(void **state)
{
    struct fixture *self = *state;
    uint64_t length;
    for (int failing = 0; failing < 3; failing++) { /* a/b, a, the store */
        folder_syncs_until_failure = failing;
        assert_int_equal(store_publish(self->store, "a/b/.metadata", "x", 1, NULL), CB_ERR_SYSTEM);
        assert_int_equal(store_stat(self->store, "a/b/.metadata", &length, NULL), CB_ERR_NOT_FOUND);
    }
    assert_int_equal(store_publish(self->store, "a/b/.metadata", "x", 1, NULL), 0);
}

static void without_hard_links_one_still_makes_it(void **state)
{
    struct fixture *self = *state;
    bool guarded;
    link_errno = EPERM;
    assert_int_equal(store_swap(self->store, "a/claim", NULL, "one", &guarded, NULL), 0);
    assert_int_equal(store_swap(self->store, "a/claim", NULL, "two", &guarded, NULL), CB_ERR_EXISTS);
    holds(self->store, "one", 1);
}

static void a_link_whose_answer_was_lost_is_ours(void **state)
{
    struct fixture *self = *state;
    bool guarded;
    link_answer_is_lost = true;
    assert_int_equal(store_swap(self->store, "a/claim", NULL, "one", &guarded, NULL), 0);
    holds(self->store, "one", 1);
}

static void without_record_locks_it_is_replaced_and_said(void **state)
{
    static const int refusals[] = {ENOLCK, ENOSYS, EOPNOTSUPP, EINVAL};
    struct fixture *self = *state;
    bool guarded = false;
    assert_int_equal(store_swap(self->store, "a/claim", NULL, "one", &guarded, NULL), 0);
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        lock_errno = refusals[i];
        assert_int_equal(
            store_swap(self->store, "a/claim", i % 2 ? "two" : "one", i % 2 ? "one" : "two", &guarded, NULL), 0);
        assert_false(guarded);
    }
    holds(self->store, "one", 1);
}

/* A file system in user space may free the lock of a closed file late, and then the next holder's. */
static void each_lock_is_freed_before_its_file_is_closed(void **state)
{
    struct store *store = ((struct fixture *)*state)->store;
    struct cb_err err;
    bool guarded;
    assert_int_equal(store_swap(store, "object", NULL, "first", &guarded, &err), 0);
    assert_int_equal(store_swap(store, "object", "first", "second", &guarded, &err), 0);
    assert_int_equal(store_swap(store, "object", "second", "second", &guarded, &err), 0);
    assert_int_equal(store_swap(store, "object", "first", "third", &guarded, &err), CB_ERR_EXISTS);
    assert_int_equal(locked, 3);
    assert_int_equal(unlocked, 3);
}

static void a_lock_that_fails_otherwise_is_an_error(void **state)
{
    struct fixture *self = *state;
    bool guarded;
    assert_int_equal(store_swap(self->store, "a/claim", NULL, "one", &guarded, NULL), 0);
    lock_errno = EIO;
    assert_int_equal(store_swap(self->store, "a/claim", "one", "two", &guarded, NULL), CB_ERR_SYSTEM);
    holds(self->store, "one", 1);
}

struct contender {
    pthread_t thread;
    const char *folder;
    char before[32], after[32];
    pthread_barrier_t *start;
    int rc;
};

static void *contend(void *context)
{
    struct contender *self = context;
    struct store *store = NULL;
    bool guarded;
    self->rc = store_open(self->folder, &options, &store, NULL);
    pthread_barrier_wait(self->start);
    if (self->rc)
        return NULL;
    self->rc = store_swap(store, "a/claim", *self->before ? self->before : NULL, self->after, &guarded, NULL);
    store_free(store);
    return NULL;
}

static void of_many_at_the_same_time_one_succeeds(void **state)
{
    struct fixture *self = *state;
    char text[32] = "";
    pthread_barrier_t start;
    for (int round = 0; round < ROUNDS; round++) {
        struct contender contenders[AT_ONCE] = {0};
        int winners = 0;
        pthread_barrier_init(&start, NULL, AT_ONCE);
        for (int i = 0; i < AT_ONCE; i++) {
            contenders[i].folder = self->folder;
            contenders[i].start = &start;
            memcpy(contenders[i].before, text, sizeof text);
            snprintf(contenders[i].after, sizeof contenders[i].after, "%d of round %d", i, round);
            assert_int_equal(pthread_create(&contenders[i].thread, NULL, contend, &contenders[i]), 0);
        }
        for (int i = 0; i < AT_ONCE; i++) {
            pthread_join(contenders[i].thread, NULL);
            assert_true(contenders[i].rc == 0 || contenders[i].rc == CB_ERR_EXISTS);
            winners += contenders[i].rc == 0;
            if (contenders[i].rc == 0)
                memcpy(text, contenders[i].after, sizeof text);
        }
        pthread_barrier_destroy(&start);
        assert_int_equal(winners, 1);
        holds(self->store, text, 1);
    }
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_publish_whose_name_cannot_be_made_durable_leaves_nothing),
        TEST(without_hard_links_one_still_makes_it),
        TEST(a_link_whose_answer_was_lost_is_ours),
        TEST(without_record_locks_it_is_replaced_and_said),
        TEST(each_lock_is_freed_before_its_file_is_closed),
        TEST(a_lock_that_fails_otherwise_is_an_error),
        TEST(of_many_at_the_same_time_one_succeeds),
    };
    return cmocka_run_group_tests_name("store names", tests, NULL, NULL);
}
