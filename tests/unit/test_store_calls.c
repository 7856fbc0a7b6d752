/* What the posix store asks of the kernel where files behave in other ways than here: pages of 64 KiB, and a close that
 * tells what could not be written. This program's own sysconf, pwritev and close. */
#include <dirent.h>
#include <sys/syscall.h>

#include "tests/unit/store_testing.h"

#define PAGE 65536
#define TAIL 100

static char folder[PATH_MAX];
static long page_bytes = 4096;
static int close_error;  /* of the next close of a file that is written */
static off_t last_write; /* the offset of the last one */

/* The linker puts it before sysconf of the code under test, not of a sanitizer's. */
long __wrap_sysconf(int name);
long __wrap_sysconf(int name)
{
    assert_int_equal(name, _SC_PAGESIZE);
    return page_bytes;
}

static bool is_written(int fd)
{
    struct stat status;
    int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && (flags & O_ACCMODE) == O_WRONLY && fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
}

int close(int fd)
{
    int failed = close_error && is_written(fd) ? close_error : 0;
    int rc = (int)syscall(SYS_close, fd);
    if (!failed)
        return rc;
    close_error = 0;
    errno = failed;
    return -1;
}

ssize_t pwritev(int fd, const struct iovec *segments, int count, off_t offset)
{
    last_write = offset;
    return syscall(SYS_pwritev, fd, segments, count, (long)offset, 0L);
}

static int set_up(void **unused)
{
    (void)unused;
    testing_make_folder(folder);
    page_bytes = 4096;
    close_error = 0;
    return 0;
}

static int tear_down(void **unused)
{
    (void)unused;
    testing_remove_folder(folder);
    return 0;
}

static void the_buffered_tail_shares_no_page_with_a_direct_write(void **unused)
{
    (void)unused;
    struct store_options options = {.depth = 4, .threads = 1, .direct = STORE_DIRECT_YES};
    page_bytes = PAGE;
    struct store *store;
    if (store_open(folder, &options, &store, NULL) != 0)
        skip(); /* no O_DIRECT here */
    assert_int_equal(store_capabilities(store)->offset_alignment, PAGE);
    unsigned char *bytes = testing_pattern(2 * PAGE + 4096 + TAIL, 1);
    struct store_object *object = testing_create(store, "file", 2 * PAGE + 4096 + TAIL);
    testing_ok(store, testing_run(store, object, STORE_WRITE, bytes, 2 * PAGE + 4096 + TAIL, 0));
    assert_int_equal(last_write, 2 * PAGE);
    store_close(store, object);
    store_free(store);
    free(bytes);
}

static size_t open_descriptors(void)
{
    size_t count = 0;
    DIR *list = opendir("/proc/self/fd");
    assert_non_null(list);
    while (readdir(list))
        count++;
    closedir(list);
    return count;
}

static const struct store_options ways[] = {
    {.depth = 4, .threads = 1, .direct = STORE_DIRECT_NO},
    {.depth = 4, .in_caller = true, .direct = STORE_DIRECT_NO},
    {.depth = 4, .use_io_uring = true, .direct = STORE_DIRECT_NO},
};

static void what_could_not_be_written_fails_the_finish_even_without_a_sync(void **unused)
{
    (void)unused;
    unsigned char *bytes = testing_pattern(TAIL, 1);
    for (size_t i = 0; i < 2; i++) { /* io_uring closes in the kernel */
        struct store *store = testing_open(folder, &ways[i]);
        struct store_object *object = testing_create(store, i ? "b" : "a", TAIL);
        testing_ok(store, testing_run(store, object, STORE_WRITE, bytes, TAIL, 0));
        close_error = EDQUOT;
        struct store_completion done = testing_run(store, object, STORE_FINISH, NULL, 0, 0);
        assert_int_equal(done.code, CB_ERR_NO_SPACE);
        assert_int_equal(done.sys_errno, EDQUOT);
        store_close(store, object);
        store_free(store);
    }
    free(bytes);
}

static void a_finish_leaves_no_descriptor_and_may_be_repeated(void **unused)
{
    (void)unused;
    unsigned char *bytes = testing_pattern(TAIL, 1);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        char name[8];
        snprintf(name, sizeof name, "%zu", i);
        struct store *store = testing_open(folder, &ways[i]);
        struct store_object *object = testing_create(store, name, TAIL);
        size_t before = open_descriptors();
        testing_ok(store, testing_run(store, object, STORE_FINISH, NULL, 0, 0));
        testing_ok(store, testing_run(store, object, STORE_WRITE, bytes, TAIL, 0));
        testing_ok(store, testing_run(store, object, STORE_FINISH, NULL, 0, 0));
        assert_int_equal(open_descriptors(), before);
        store_close(store, object);
        store_free(store);
    }
    free(bytes);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(the_buffered_tail_shares_no_page_with_a_direct_write),
        TEST(what_could_not_be_written_fails_the_finish_even_without_a_sync),
        TEST(a_finish_leaves_no_descriptor_and_may_be_repeated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
