/* The ladder of the posix store and what the machine can refuse: each step down has a test, run in a
 * child process that has less than we do (rights, locked memory, system calls, space). */
#include "tests/unit/store_testing.h"

#include <fcntl.h>
#include <grp.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <math.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "store/posix/posix.h"

#define NOBODY 65534
#define SKIP 77
#define WHY 2048
#define BLOCK (UINT64_C(1) << 20)

static const struct store_options psync = {.depth = 8, .direct = STORE_DIRECT_AUTO, .durable = true};
static const struct store_options uring = {
    .use_io_uring = true, .depth = 8, .direct = STORE_DIRECT_AUTO, .durable = true};

/* ---- work in a child: returns 0, or says why not; cmocka's own assertions stay in the parent ---- */

typedef int (*child_function)(const char *folder, char why[WHY]);

static void run_in_child(child_function function, const char *folder)
{
    int out[2], status;
    char why[WHY] = "";
    assert_int_equal(pipe(out), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        alarm(60);
        int rc = function(folder, why);
        (void)!write(out[1], why, strlen(why) + 1);
        _exit(rc);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    close(out[1]);
    (void)!read(out[0], why, sizeof(why) - 1);
    close(out[0]);
    if (WIFEXITED(status) && WEXITSTATUS(status) == SKIP) {
        print_message("misses: %s\n", why);
        skip();
    }
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        fail_msg("child status %d: %s", status, why);
}

static int CB_PRINTF(4, 5) say_why(char why[WHY], int line, const char *condition, const char *format, ...)
{
    va_list arguments;
    int used = snprintf(why, WHY, "line %d: %s: ", line, condition);
    va_start(arguments, format);
    vsnprintf(why + used, (size_t)(WHY - used), format, arguments);
    va_end(arguments);
    return 1;
}

#define CHECK(condition, ...)                                                                                          \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            return say_why(why, __LINE__, #condition, __VA_ARGS__);                                                    \
    } while (0)

static int become_nobody(char why[WHY])
{
    if (geteuid() != 0)
        return 0; /* an ordinary user already */
    CHECK(setgroups(0, NULL) == 0 && setgid(NOBODY) == 0 && setuid(NOBODY) == 0, "%s", strerror(errno));
    return 0;
}

static bool write_text(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool ok = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0)
        close(fd);
    return ok;
}

/* In a new user namespace: makes us root there. */
static bool map_us_to_root(uid_t user, gid_t group)
{
    char users[64], groups[64];
    snprintf(users, sizeof(users), "0 %u 1", (unsigned)user);
    snprintf(groups, sizeof(groups), "0 %u 1", (unsigned)group);
    return write_text("/proc/self/uid_map", users) && write_text("/proc/self/setgroups", "deny") &&
           write_text("/proc/self/gid_map", groups);
}

/* A mount namespace of our own, as root or through a user namespace. */
static int own_mounts(char why[WHY])
{
    uid_t user = geteuid();
    gid_t group = getegid();
    if (unshare(user == 0 ? CLONE_NEWNS : CLONE_NEWNS | CLONE_NEWUSER) != 0 ||
        (user != 0 && !map_us_to_root(user, group))) {
        snprintf(why, WHY, "the right to make a mount namespace (%s)", strerror(errno));
        return SKIP;
    }
    mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL);
    return 0;
}

static int mount_tmpfs(const char *folder, const char *options, char why[WHY])
{
    int rc = own_mounts(why);
    if (!rc && mount("tmpfs", folder, "tmpfs", 0, options) != 0) {
        snprintf(why, WHY, "the right to mount a tmpfs (%s)", strerror(errno));
        return SKIP;
    }
    return rc;
}

/* Writes an object of `length` and reads it back, in blocks, from memory that is registered first. */
static int round_trip(struct store *store, const char *name, uint64_t length, char why[WHY])
{
    struct cb_err err = {0};
    struct store_object *object = NULL;
    unsigned char *bytes = testing_pattern(2 * BLOCK, 1);
    for (int pass = 0; pass < 2; pass++) {
        int rc = pass == 0 ? store_create(store, name, length, &object, &err)
                           : store_open_read(store, name, &object, NULL, &err);
        CHECK(rc == 0, "%s", err.message);
        for (uint64_t at = 0; at < length; at += BLOCK) {
            uint64_t part = length - at < BLOCK ? length - at : BLOCK;
            struct store_completion done = testing_run(store, object, pass == 0 ? STORE_WRITE : STORE_READ,
                                                       pass == 0 ? bytes : bytes + BLOCK, part, at);
            CHECK(done.code == 0 || store_completion_error(store, &done, &err) == 0, "%s", err.message);
            CHECK(pass == 0 || memcmp(bytes, bytes + BLOCK, part) == 0, "other bytes came back");
        }
        store_close(store, object);
    }
    free(bytes);
    return 0;
}

static int describes(const struct store *store, const char *text, char why[WHY])
{
    CHECK(strstr(store_describe(store), text), "'%s' lacks '%s'", store_describe(store), text);
    return 0;
}

/* ---- fixture ---- */

struct fixture {
    char folder[PATH_MAX]; /* beside the programs, most likely on a disk */
    char open_folder[64];  /* under /tmp: anybody can reach it */
};

static int set_up(void **state)
{
    struct fixture *self = calloc(1, sizeof(*self));
    testing_make_folder(self->folder);
    strcpy(self->open_folder, "/tmp/store-test-XXXXXX");
    assert_non_null(mkdtemp(self->open_folder));
    assert_int_equal(chmod(self->open_folder, 0777), 0);
    *state = self;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *self = *state;
    testing_remove_folder(self->folder);
    testing_remove_folder(self->open_folder);
    free(self);
    return 0;
}

static void expect_refusal(const char *uri, const struct store_options *options, const char *says)
{
    struct store *store = NULL;
    struct cb_err err = {0};
    assert_int_not_equal(store_open(uri, options, &store, &err), 0);
    if (!strstr(err.message, says))
        fail_msg("'%s' lacks '%s'", err.message, says);
}

static void a_path_that_is_no_folder_is_refused_with_what_to_do(void **state)
{
    struct fixture *self = *state;
    char path[PATH_MAX + 16];
    snprintf(path, sizeof(path), "%s/missing", self->folder);
    expect_refusal(path, &psync, "mkdir -p");
    snprintf(path, sizeof(path), "%s/file", self->folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fclose(file);
    expect_refusal(path, &psync, "is not a folder");
}

static int as_user_without_rights(const char *folder, char why[WHY])
{
    int rc = become_nobody(why);
    struct store *store = NULL;
    struct cb_err err = {0};
    CHECK(store_open(folder, &uring, &store, &err) == CB_ERR_SYSTEM, "opened");
    CHECK(strstr(err.message, "not writable for this user"), "%s", err.message);
    struct store_options reading = uring;
    reading.read_only = true;
    CHECK(store_open(folder, &reading, &store, &err) == 0, "%s", err.message);
    store_free(store);
    return rc;
}

static void a_folder_without_rights_is_refused_with_what_to_do(void **state)
{
    struct fixture *self = *state;
    assert_int_equal(chmod(self->open_folder, 0555), 0);
    run_in_child(as_user_without_rights, self->open_folder);
    assert_int_equal(chmod(self->open_folder, 0777), 0);
}

static int on_read_only_mount(const char *folder, char why[WHY])
{
    struct store *store = NULL;
    struct cb_err err = {0};
    int rc = mount_tmpfs(folder, "size=4m", why);
    if (rc)
        return rc;
    CHECK(store_open(folder, &psync, &store, &err) == 0, "%s", err.message);
    rc = round_trip(store, "there", BLOCK, why);
    store_free(store);
    CHECK(mount(NULL, folder, NULL, MS_REMOUNT | MS_RDONLY, NULL) == 0, "%s", strerror(errno));
    CHECK(store_open(folder, &psync, &store, &err) == CB_ERR_SYSTEM, "opened");
    CHECK(strstr(err.message, "mounted read-only") && err.sys_errno == EROFS, "%s", err.message);
    struct store_options reading = psync;
    reading.read_only = true;
    CHECK(store_open(folder, &reading, &store, &err) == 0, "%s", err.message);
    uint64_t length = 0;
    CHECK(store_stat(store, "there", &length, &err) == 0 && length == BLOCK, "%s", err.message);
    store_free(store);
    return rc;
}

static void a_read_only_file_system_is_refused_but_for_reading(void **state)
{
    struct fixture *self = *state;
    run_in_child(on_read_only_mount, self->folder);
}

/* ---- O_DIRECT ---- */

static int on_tmpfs(const char *folder, char why[WHY])
{
    struct store *store = NULL;
    struct cb_err err = {0};
    int rc = mount_tmpfs(folder, "size=16m", why);
    if (rc)
        return rc;
    struct store_options direct = uring;
    direct.direct = STORE_DIRECT_YES;
    CHECK(store_open(folder, &direct, &store, &err) == CB_ERR_UNSUPPORTED, "opened");
    CHECK(strstr(err.message, "cannot do O_DIRECT") && strstr(err.message, "io.direct=auto"), "%s", err.message);
    CHECK(store_open(folder, &uring, &store, &err) == 0, "%s", err.message);
    rc = describes(store, "no O_DIRECT: the files are in memory", why);
    if (!rc)
        rc = describes(store, " buffered (", why);
    CHECK(rc || store_capabilities(store)->page_cache, "says that it has no page cache");
    if (!rc)
        rc = round_trip(store, "a", 3 * BLOCK + 5, why);
    double resident = 0;
    CHECK(store_drop_cache(store, "a", &resident, &err) == 0 && resident > 0.99, "memory cannot be cold");
    store_free(store);
    return rc;
}

static void without_direct_io_auto_is_buffered_and_true_is_refused(void **state)
{
    struct fixture *self = *state;
    run_in_child(on_tmpfs, self->folder);
}

/* ---- files in memory ---- */

static int on_tmpfs_with_one_core(const char *folder, char why[WHY])
{
    cpu_set_t allowed, one;
    struct cb_err err = {0};
    struct store *store = NULL;
    int rc = mount_tmpfs(folder, "size=16m", why);
    if (rc)
        return rc;
    CHECK(sched_getaffinity(0, sizeof(allowed), &allowed) == 0, "%s", strerror(errno));
    CPU_ZERO(&one);
    for (size_t cpu = 0; CPU_COUNT(&one) == 0; cpu++)
        if (CPU_ISSET(cpu, &allowed))
            CPU_SET(cpu, &one);
    CHECK(sched_setaffinity(0, sizeof(one), &one) == 0, "%s", strerror(errno));
    CHECK(store_open(folder, &uring, &store, &err) == 0, "%s", err.message);
    CHECK(!strstr(store_describe(store), "in the caller"), "'%s' with one core", store_describe(store));
#ifdef HAVE_LIBURING
    CHECK(strstr(store_describe(store), "io_uring buffered") || strstr(store_describe(store), "(no io_uring: "),
          "'%s' says neither io_uring nor why not", store_describe(store));
#endif
    rc = round_trip(store, "a", 3 * BLOCK + 5, why);
    store_free(store);
    return rc;
}

static void files_in_memory_and_one_core_take_the_engine_that_was_asked_for(void **state)
{
    struct fixture *self = *state;
    run_in_child(on_tmpfs_with_one_core, self->folder);
}

static void a_read_only_store_reads_past_the_page_cache(void **state)
{
    struct fixture *self = *state;
    struct store_options reading = psync;
    char why[WHY] = "";
    struct store *store = testing_open(self->folder, &psync);
    if (round_trip(store, "a", 3 * BLOCK + 77, why))
        fail_msg("%s", why);
    bool direct = store_capabilities(store)->direct;
    store_free(store);
    reading.read_only = true;
    store = testing_open(self->folder, &reading);
    assert_int_equal(store_capabilities(store)->direct, direct);
    unsigned char *bytes = testing_pattern(4 * BLOCK, 2), *expected = testing_pattern(2 * BLOCK, 1);
    struct store_object *object = testing_open_read(store, "a", 3 * BLOCK + 77);
    testing_ok(store, testing_run(store, object, STORE_READ, bytes, 3 * BLOCK + 77, 0));
    assert_memory_equal(bytes, expected, BLOCK);
    assert_memory_equal(bytes + 3 * BLOCK, expected, 77);
    store_close(store, object);
    store_free(store);
    free(bytes);
    free(expected);
}

/* ---- space ---- */

/* Writes 4 MiB where 1 MiB fits, in one request: it is continued until the store is really full. */
static int fill(const char *folder, const struct store_options *options, char why[WHY])
{
    struct cb_err err = {0};
    struct store *store = NULL;
    struct store_object *object = NULL;
    unsigned char *bytes = testing_pattern(4 * BLOCK, 1);
    CHECK(store_open(folder, options, &store, &err) == 0, "%s", err.message);
    CHECK(store_create(store, "big", 4 * BLOCK, &object, &err) == 0, "%s", err.message);
    struct store_completion done = testing_run(store, object, STORE_WRITE, bytes, 4 * BLOCK, 0);
    CHECK(done.code == CB_ERR_NO_SPACE && done.sys_errno == ENOSPC, "code %d errno %d", done.code, done.sys_errno);
    CHECK(done.bytes > 0 && done.bytes < 4 * BLOCK, "%llu bytes", (unsigned long long)done.bytes);
    CHECK(store_completion_error(store, &done, &err) == CB_ERR_NO_SPACE, "other code");
    CHECK(strstr(err.message, "writing big at offset 0") && strstr(err.message, "No space left"), "%s", err.message);
    CHECK(store_publish(store, "marker", bytes, BLOCK, &err) == CB_ERR_NO_SPACE, "published");
    uint64_t length;
    CHECK(store_stat(store, "marker", &length, &err) == CB_ERR_NOT_FOUND, "half a marker is visible");
    CHECK(store_stat(store, "marker.tmp", &length, &err) == CB_ERR_NOT_FOUND, "the temporary file is left");
    store_close(store, object);
    CHECK(store_remove(store, "big", &err) == 0, "%s", err.message);
    struct testing_pieces pieces = {.bytes = bytes, .len = 4 * BLOCK, .piece = 4096};
    CHECK(store_publish_pieces(store, "marker", testing_pass, &pieces, &err) == CB_ERR_NO_SPACE, "published pieces");
    CHECK(strstr(err.message, "writing marker.tmp"), "%s", err.message);
    CHECK(store_stat(store, "marker", &length, &err) == CB_ERR_NOT_FOUND, "some pieces are visible");
    CHECK(store_stat(store, "marker.tmp", &length, &err) == CB_ERR_NOT_FOUND, "pieces are left");
    store_free(store);
    free(bytes);
    return 0;
}

static int fill_tmpfs(const char *folder, char why[WHY])
{
    int rc = mount_tmpfs(folder, "size=1m", why);
    if (!rc)
        rc = fill(folder, &psync, why);
    return rc ? rc : fill(folder, &uring, why);
}

static void a_full_file_system_ends_a_write_with_what_fitted(void **state)
{
    struct fixture *self = *state;
    run_in_child(fill_tmpfs, self->folder);
}

static int fill_disk(const char *folder, char why[WHY])
{
    char command[3 * PATH_MAX];
    if (geteuid() != 0 || own_mounts(why)) {
        snprintf(why, WHY, "root, to mount a small file system");
        return SKIP;
    }
    snprintf(command, sizeof(command),
             "cd '%s' && truncate -s 3M image && mkfs.ext4 -q -O ^has_journal image && mkdir full && "
             "mount -o loop image full",
             folder);
    if (system(command) != 0) {
        snprintf(why, WHY, "a loop device and mkfs.ext4");
        return SKIP;
    }
    snprintf(command, sizeof(command), "%s/full", folder);
    struct store *store = NULL;
    struct cb_err err = {0};
    CHECK(store_open(command, &uring, &store, &err) == 0, "%s", err.message);
    unsigned char *bytes = testing_pattern(BLOCK, 1);
    struct store_object *object = NULL;
    int no_space = 0;
    CHECK(store_create(store, "big", 8 * BLOCK, &object, &err) == 0, "%s", err.message);
    for (uint64_t i = 0; i < 8; i++)
        testing_submit(store, object, STORE_WRITE, bytes, BLOCK, i * BLOCK, i);
    for (uint64_t i = 0; i < 8; i++)
        no_space += testing_wait(store).code == CB_ERR_NO_SPACE;
    CHECK(no_space >= 5, "only %d of 8 MiB did not fit into 3 MiB", no_space);
    store_close(store, object);
    store_free(store);
    free(bytes);
    umount(command);
    return 0;
}

static void a_full_disk_ends_direct_writes_in_flight(void **state)
{
    struct fixture *self = *state;
    run_in_child(fill_disk, self->folder);
}

/* ---- the engine ---- */

#ifdef HAVE_LIBURING
/* Lets one system call fail with `error` from now on. */
static int forbid(long number, int error, char why[WHY])
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof(filter) / sizeof(filter[0]), .filter = filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
        snprintf(why, WHY, "seccomp filters (%s)", strerror(errno));
        return SKIP;
    }
    return 0;
}

static int without_uring(const char *folder, int error, const char *says, char why[WHY])
{
    struct store *store = NULL;
    struct cb_err err = {0};
    int rc = forbid(SYS_io_uring_setup, error, why);
    if (rc)
        return rc;
    CHECK(store_open(folder, &uring, &store, &err) == 0, "%s", err.message);
    rc = describes(store, "psync 8 threads", why); /* as many as the depth asked for */
    if (!rc)
        rc = describes(store, says, why);
    if (!rc)
        rc = round_trip(store, "a", 3 * BLOCK + 5, why);
    store_free(store);
    return rc;
}

static int uring_not_permitted(const char *folder, char why[WHY])
{
    return without_uring(folder, EPERM, "no io_uring: not permitted here", why);
}

static int uring_not_there(const char *folder, char why[WHY])
{
    return without_uring(folder, ENOSYS, "no io_uring: the kernel or a seccomp filter does not offer it", why);
}

static void without_io_uring_threads_keep_the_depth(void **state)
{
    struct fixture *self = *state;
    run_in_child(uring_not_permitted, self->folder);
    testing_remove_folder(self->folder);
    assert_int_equal(mkdir(self->folder, 0777), 0);
    run_in_child(uring_not_there, self->folder);
}

static int with_little_locked_memory(const char *folder, char why[WHY])
{
    struct rlimit limit = {.rlim_cur = 65536, .rlim_max = 65536};
    struct store *store = NULL;
    struct cb_err err = {0};
    CHECK(setrlimit(RLIMIT_MEMLOCK, &limit) == 0, "%s", strerror(errno));
    int rc = become_nobody(why);
    if (rc)
        return rc;
    CHECK(store_open(folder, &uring, &store, &err) == 0, "%s", err.message);
    unsigned char *bytes = testing_pattern(BLOCK, 1);
    store_register(store, &(struct iovec){bytes, BLOCK}, 1);
    rc = describes(store, "io_uring ", why);
    if (!rc)
        rc = describes(store, "no registered buffers: the limit on locked memory is 64 KiB; raise it with ulimit -l",
                       why);
    if (!rc)
        rc = round_trip(store, "a", 3 * BLOCK + 5, why);
    store_free(store);
    free(bytes);
    return rc;
}

static void with_little_locked_memory_io_uring_goes_on_without_registered_buffers(void **state)
{
    struct fixture *self = *state;
    run_in_child(with_little_locked_memory, self->open_folder);
}

static void registered_memory_is_used_and_may_be_replaced(void **state)
{
    struct fixture *self = *state;
    struct store *store = testing_open(self->folder, &uring);
    unsigned char *bytes = testing_pattern(4 * BLOCK, 1), *other = testing_pattern(BLOCK, 2);
    struct iovec regions[] = {{bytes + 2 * BLOCK, BLOCK}, {bytes, BLOCK}};
    store_register(store, regions, 2);
    assert_non_null(strstr(store_describe(store), "io_uring registered-buffers"));
    struct store_object *object = testing_create(store, "a", 5 * BLOCK);
    /* inside a region, across its end, outside, inside the other, in no region at all */
    const unsigned char *const sources[] = {bytes, bytes + BLOCK / 2, bytes + BLOCK, bytes + 2 * BLOCK, other};
    for (uint64_t i = 0; i < 5; i++)
        testing_ok(store, testing_run(store, object, STORE_WRITE, (void *)(uintptr_t)sources[i], BLOCK, i * BLOCK));
    store_close(store, object);
    unsigned char *target = testing_pattern(5 * BLOCK, 3);
    store_register(store, &(struct iovec){target, 5 * BLOCK}, 1);
    object = testing_open_read(store, "a", 5 * BLOCK);
    testing_ok(store, testing_run(store, object, STORE_READ, target, 5 * BLOCK, 0));
    for (uint64_t i = 0; i < 5; i++)
        assert_memory_equal(target + i * BLOCK, sources[i], BLOCK);
    store_close(store, object);
    store_free(store);
    free(bytes);
    free(other);
    free(target);
}
#else
static void without_liburing_threads_keep_the_depth(void **state)
{
    struct fixture *self = *state;
    struct store *store = testing_open(self->folder, &uring);
    char why[WHY] = "";
    if (describes(store, "psync 8 threads", why) ||
        describes(store, "no io_uring: this program was built without", why))
        fail_msg("%s", why);
    store_free(store);
}
#endif

/* ---- an ordinary user ---- */

static int as_ordinary_user(const char *folder, char why[WHY])
{
    struct store *store = NULL;
    struct cb_err err = {0};
    int rc = become_nobody(why);
    if (rc)
        return rc;
    CHECK(store_open(folder, &uring, &store, &err) == 0, "%s", err.message);
    rc = round_trip(store, "run/a", 3 * BLOCK + 5, why);
    CHECK(rc || store_publish(store, "run/.metadata", "x", 1, &err) == 0, "%s", err.message);
    double resident = -1;
    CHECK(rc || store_drop_cache(store, "run/a", &resident, &err) == 0, "%s", err.message);
    CHECK(rc || !isnan(resident), "the residency of our own file is known");
    store_free(store);
    return rc;
}

static void an_ordinary_user_can_do_all_of_it(void **state)
{
    struct fixture *self = *state;
    run_in_child(as_ordinary_user, self->open_folder);
}

static int looks_at_the_cache_of_another(const char *folder, char why[WHY])
{
    (void)folder;
    struct store *store = NULL;
    struct cb_err err = {0};
    struct store_options reading = psync;
    reading.read_only = true;
    double resident = -1;
    int rc = become_nobody(why);
    if (rc)
        return rc;
    CHECK(store_open("/etc", &reading, &store, &err) == 0, "%s", err.message);
    CHECK(store_drop_cache(store, "passwd", &resident, &err) == 0, "%s", err.message);
    CHECK(isnan(resident), "%f", resident);
    store_free(store);
    return 0;
}

static void the_residency_of_a_file_of_another_user_is_unknown(void **state)
{
    struct fixture *self = *state;
    run_in_child(looks_at_the_cache_of_another, self->open_folder);
}

static int removes_through_a_link(const char *folder, char why[WHY])
{
    struct store *store = NULL;
    struct cb_err err = {0};
    char link[PATH_MAX], theirs[PATH_MAX];
    uint64_t length;
    CHECK(store_open(folder, &psync, &store, &err) == 0, "%s", err.message);
    CHECK(store_publish(store, "theirs/deep/file", "x", 1, &err) == 0, "%s", err.message);
    snprintf(link, sizeof link, "%s/link", folder);
    snprintf(theirs, sizeof theirs, "%s/theirs", folder);
    CHECK(symlink(theirs, link) == 0, "%s", strerror(errno));
    CHECK(store_remove(store, "link/deep/file", &err) != 0, "went through the link");
    CHECK(store_remove_folder(store, "link/deep", &err) != 0, "went through the link");
    CHECK(store_stat(store, "theirs/deep/file", &length, &err) == 0, "%s", err.message);
    CHECK(store_remove(store, "link", &err) == 0, "%s", err.message);
    CHECK(store_stat(store, "theirs/deep/file", &length, &err) == 0, "%s", err.message);
    store_free(store);
    return 0;
}

static void nothing_behind_a_link_is_removed(void **state)
{
    struct fixture *self = *state;
    run_in_child(removes_through_a_link, self->open_folder);
}

/* io_uring gives up requests on a file that is open with O_NONBLOCK when they would have to wait. */
static void a_file_that_existed_is_open_for_requests_that_wait(void **state)
{
    struct fixture *self = *state;
    struct backend *backend = NULL;
    struct backend_object *object = NULL;
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/file", self->open_folder);
    FILE *file = fopen(path, "w");
    assert_true(file && fputs("content", file) >= 0 && fclose(file) == 0);
    assert_int_equal(posix_open(self->open_folder, &uring, &backend, NULL), 0);
    assert_int_equal(backend->ops->open_read(backend, "file", &object, NULL), 0);
    const struct posix_object *opened = (const struct posix_object *)object;
    int flags = fcntl(opened->fd, F_GETFL);
    assert_int_equal(flags & O_NONBLOCK, 0);
    assert_int_equal((flags & O_DIRECT) != 0, opened->block > 1);
    assert_int_equal(object->length, 7);
    backend->ops->close(backend, object);
    assert_int_equal(backend->ops->open_shared(backend, "file", 7, &object, NULL), 0);
    opened = (const struct posix_object *)object;
    flags = fcntl(opened->fd, F_GETFL);
    assert_int_equal(flags & (O_NONBLOCK | O_ACCMODE), O_WRONLY);
    assert_int_equal((flags & O_DIRECT) != 0, opened->block > 1);
    backend->ops->close(backend, object);
    backend->ops->free(backend);
}

static int writes_a_part_of_a_fifo(const char *folder, char why[WHY])
{
    struct store *store = NULL;
    struct store_object *object;
    struct cb_err err = {0};
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/fifo", folder);
    CHECK(mkfifo(path, 0600) == 0 && store_open(folder, &psync, &store, &err) == 0, "%s", err.message);
    for (int readers = 0; readers < 2; readers++) {
        CHECK(readers == 0 || open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC) >= 0, "no reader");
        CHECK(store_open_shared(store, "fifo", 7, &object, &err) != 0, "%d readers", readers);
        CHECK(strstr(err.message, "fifo in store") && strstr(err.message, "is not a regular file"), "%s", err.message);
    }
    store_free(store);
    return 0;
}

static void nobody_waits_for_the_reader_of_a_fifo_that_has_a_files_name(void **state)
{
    struct fixture *self = *state;
    run_in_child(writes_a_part_of_a_fifo, self->open_folder);
}

/* ---- another run that takes the folder over while this one stands still ---- */

static void expect_content(const char *folder, const char *name, const char *content)
{
    char path[PATH_MAX], text[64] = "";
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    size_t len = fread(text, 1, sizeof text, file);
    fclose(file);
    assert_int_equal(len, strlen(content)); /* so there are no bytes after it */
    assert_memory_equal(text, content, len);
}

/* Replaces the file by one of another run as soon as it has been created. */
struct replacer {
    struct disk_watch watch;
    const char *folder;
    int replaced;
};

static void nothing_begins(struct disk_watch *watch)
{
    (void)watch;
}

static void replace_created(struct disk_watch *watch, int fd)
{
    struct replacer *self = (struct replacer *)watch;
    char path[PATH_MAX];
    (void)fd;
    if (self->replaced++)
        return;
    snprintf(path, sizeof path, "%s/data", self->folder);
    assert_int_equal(unlink(path), 0);
    FILE *theirs = fopen(path, "w");
    assert_true(theirs && fputs("theirs", theirs) >= 0 && fclose(theirs) == 0);
}

static void the_last_bytes_go_to_the_file_that_was_created_even_if_its_name_is_anothers(void **state)
{
    struct fixture *self = *state;
    struct replacer replacer = {.watch = {.begins = nothing_begins, .is_durable = replace_created},
                                .folder = self->open_folder};
    struct store_options options = psync;
    options.watch = &replacer.watch;
    struct store *store = testing_open(self->open_folder, &options);
    unsigned char *bytes = testing_pattern(BLOCK + 5, 1);
    testing_write_object(store, "data", bytes, BLOCK + 5);
    assert_int_equal(replacer.replaced > 0, 1);
    expect_content(self->open_folder, "data", "theirs");
    free(bytes);
    store_free(store);
}

/* Between two pieces of an object, another run publishes one of the same name. */
struct rival {
    struct store *store;
    int code;
};

static int pass_with_rival(void *context, store_put_fn put, void *to, struct cb_err *err)
{
    struct rival *self = context;
    int rc = put(to, "our first half, ", 16, err);
    self->code = store_publish(self->store, "marker", "theirs", 6, NULL);
    return rc ? rc : put(to, "our second half", 15, err);
}

static void of_two_that_publish_one_name_at_once_the_later_one_stays_whole(void **state)
{
    struct fixture *self = *state;
    struct cb_err err = {0};
    struct store *store = testing_open(self->open_folder, &psync);
    struct rival rival = {.store = testing_open(self->open_folder, &psync), .code = -1};
    assert_int_equal(store_publish_pieces(store, "marker", pass_with_rival, &rival, &err), CB_ERR_EXISTS);
    assert_non_null(strstr(err.message, "another program"));
    assert_int_equal(rival.code, 0);
    expect_content(self->open_folder, "marker", "theirs");
    store_free(rival.store);
    store_free(store);
}

/* Another run replaces the object while its folder is synced, and then the folder above cannot be opened. */
static void replace_published(struct disk_watch *watch)
{
    struct replacer *self = (struct replacer *)watch;
    char path[PATH_MAX];
    if (self->replaced++ != 1) /* the first sync is the object's own */
        return;
    snprintf(path, sizeof path, "%s/sub/marker", self->folder);
    assert_int_equal(unlink(path), 0);
    FILE *theirs = fopen(path, "w");
    assert_true(theirs && fputs("theirs", theirs) >= 0 && fclose(theirs) == 0);
    struct rlimit none;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &none), 0);
    none.rlim_cur = 0;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
}

static void nothing_is_durable(struct disk_watch *watch, int fd)
{
    (void)watch, (void)fd;
}

static void a_publication_that_fails_late_leaves_the_object_of_another(void **state)
{
    struct fixture *self = *state;
    struct replacer replacer = {.watch = {.begins = replace_published, .is_durable = nothing_is_durable},
                                .folder = self->open_folder};
    struct store_options options = psync;
    struct rlimit limit;
    options.watch = &replacer.watch;
    struct store *store = testing_open(self->open_folder, &options);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_int_not_equal(store_publish(store, "sub/marker", "ours", 4, NULL), 0);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_int_equal(replacer.replaced, 2);
    expect_content(self->open_folder, "sub/marker", "theirs");
    store_free(store);
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_path_that_is_no_folder_is_refused_with_what_to_do),
        TEST(a_folder_without_rights_is_refused_with_what_to_do),
        TEST(a_read_only_file_system_is_refused_but_for_reading),
        TEST(without_direct_io_auto_is_buffered_and_true_is_refused),
        TEST(files_in_memory_and_one_core_take_the_engine_that_was_asked_for),
        TEST(a_read_only_store_reads_past_the_page_cache),
        TEST(a_full_file_system_ends_a_write_with_what_fitted),
        TEST(a_full_disk_ends_direct_writes_in_flight),
#ifdef HAVE_LIBURING
        TEST(without_io_uring_threads_keep_the_depth),
        TEST(with_little_locked_memory_io_uring_goes_on_without_registered_buffers),
        TEST(registered_memory_is_used_and_may_be_replaced),
#else
        TEST(without_liburing_threads_keep_the_depth),
#endif
        TEST(an_ordinary_user_can_do_all_of_it),
        TEST(the_residency_of_a_file_of_another_user_is_unknown),
        TEST(nothing_behind_a_link_is_removed),
        TEST(a_file_that_existed_is_open_for_requests_that_wait),
        TEST(nobody_waits_for_the_reader_of_a_fifo_that_has_a_files_name),
        TEST(the_last_bytes_go_to_the_file_that_was_created_even_if_its_name_is_anothers),
        TEST(a_publication_that_fails_late_leaves_the_object_of_another),
        TEST(of_two_that_publish_one_name_at_once_the_later_one_stays_whole),
    };
    return cmocka_run_group_tests_name("posix store", tests, NULL, NULL);
}
