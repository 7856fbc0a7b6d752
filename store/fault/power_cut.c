/* Cuts the power of a folder (power_cut.h). PATH.powercut contains
 *
 *   lock, users     locked while something here changes, and by everyone who has the folder open
 *   state           the number of changes so far, in memory that processes share
 *   folders/KEY/    what the folder with that key contained when it was last synced: hard links to files, and empty
 *                   folders; the key is a hash of its path
 *   data/INODE      what a file that a store created contained when it was last synced; a file without one is whole
 *   result/         becomes PATH at the cut
 *
 * The kernel may write anything at any time, in any order: so a sector, an entry or a length that has changed since the
 * last sync is the old or the new one, independently of all others. */
#include "store/fault/power_cut.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/hash.h"
#include "core/path.h"

#define SECTOR_BYTES 512
#define BLOCK_BYTES 4096
#define OPEN_FOLDERS 16

struct shared {
    _Atomic uint64_t changes;
    _Atomic uint32_t is_cut;
};

struct power_cut {
    struct disk_watch watch;
    uint64_t at, random;
    char root[PATH_MAX], beside[PATH_MAX]; /* PATH and PATH.powercut */
    int beside_fd, users_fd;
    struct shared *shared;
};

/* An open file description per thread, so that threads of one process also exclude each other. */
static int lock_file(int folder_fd, const char *name, int how)
{
    int fd = openat(folder_fd, name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    int rc = -1;
    while (fd >= 0 && (rc = flock(fd, how)) != 0 && errno == EINTR)
        ;
    if (fd >= 0 && rc != 0) {
        int failed = errno;
        close(fd);
        errno = failed;
        return -1;
    }
    return fd;
}

static void die(void)
{
    for (;;)
        kill(getpid(), SIGKILL);
}

/* If the disk is not followed exactly, its contents after a cut are unknown: better to abort. */
static void give_up(const struct power_cut *self, const char *doing)
{
    fprintf(stderr, "fault store: %s in %s: %s\n", doing, self->beside, strerror(errno));
    abort();
}

static int lock_changes(const struct power_cut *self)
{
    int lock = lock_file(self->beside_fd, "lock", LOCK_EX);
    if (self->shared && atomic_load(&self->shared->is_cut))
        die();
    if (lock < 0)
        give_up(self, "locking");
    return lock;
}

static uint64_t next_random(struct power_cut *self)
{
    uint64_t both[] = {self->random, self->random + 1};
    self->random += UINT64_C(0x9e3779b97f4a7c15);
    return hash_u64(both, sizeof both);
}

static bool toss(struct power_cut *self)
{
    return next_random(self) >> 63;
}

static int remove_entry(const char *path, const struct stat *status, int kind, struct FTW *walk)
{
    (void)status, (void)kind, (void)walk;
    return remove(path);
}

static void remove_tree(const char *path)
{
    (void)nftw(path, remove_entry, OPEN_FOLDERS, FTW_DEPTH | FTW_PHYS);
}

static bool is_dots(const char *name)
{
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

/* ---- what is durable ---- */

static void format_key(const char *folder, char key[32])
{
    snprintf(key, 32, "folders/%016" PRIx64, hash_u64(folder, strlen(folder)));
}

/* 0, or -1 and errno. Ignores an entry that was removed meanwhile. */
static int note_entry(const struct power_cut *self, int folder_fd, const char *name, const char *key)
{
    struct stat status;
    char copy[PATH_MAX];
    snprintf(copy, sizeof copy, "%s/%s", key, name);
    int rc = fstatat(folder_fd, name, &status, AT_SYMLINK_NOFOLLOW);
    if (!rc && S_ISDIR(status.st_mode))
        rc = mkdirat(self->beside_fd, copy, 0700);
    else if (!rc)
        rc = linkat(folder_fd, name, self->beside_fd, copy, 0);
    return rc && errno != ENOENT ? -1 : 0;
}

/* Records the folder's current entries as durable. `folder` is its path below the root. */
static int note_folder(const struct power_cut *self, int fd, const char *folder)
{
    char key[32], whole[PATH_MAX];
    format_key(folder, key);
    snprintf(whole, sizeof whole, "%.4000s/%s", self->beside, key);
    remove_tree(whole);
    int own = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *stream = own < 0 ? NULL : fdopendir(own);
    if (!stream || mkdirat(self->beside_fd, key, 0700) != 0)
        return -1;
    int rc = 0;
    for (struct dirent *entry; !rc && (entry = readdir(stream)) != NULL;)
        if (!is_dots(entry->d_name))
            rc = note_entry(self, fd, entry->d_name, key);
    closedir(stream);
    return rc;
}

static int copy_range(int from, int to, uint64_t begin, uint64_t end)
{
    char bytes[65536];
    while (begin < end) {
        size_t most = end - begin < sizeof bytes ? (size_t)(end - begin) : sizeof bytes;
        ssize_t got = pread(from, bytes, most, (off_t)begin);
        if (got < 0 || (got > 0 && pwrite(to, bytes, (size_t)got, (off_t)begin) != got))
            return -1;
        if (got == 0)
            return 0;
        begin += (uint64_t)got;
    }
    return 0;
}

/* Records a file's current contents as durable. */
static int note_file(const struct power_cut *self, int fd, const struct stat *status)
{
    char path[64], name[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd); /* the descriptor may be for writing alone, or unbuffered */
    snprintf(name, sizeof name, "data/%ju", (uintmax_t)status->st_ino);
    int from = open(path, O_RDONLY | O_CLOEXEC);
    int to = openat(self->beside_fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    int rc = from < 0 || to < 0 || ftruncate(to, status->st_size) != 0 ? -1 : 0;
    if (!rc)
        rc = copy_range(from, to, 0, (uint64_t)status->st_size);
    if (from >= 0)
        close(from);
    if (to >= 0)
        close(to);
    return rc;
}

static void watch_begins(struct disk_watch *watch)
{
    power_cut_count((struct power_cut *)watch);
}

static void watch_is_durable(struct disk_watch *watch, int fd)
{
    const struct power_cut *self = (struct power_cut *)watch;
    struct stat status;
    char link[64], path[PATH_MAX] = "";
    size_t root_len = strlen(self->root);
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    int lock = lock_changes(self);
    int rc = fstat(fd, &status);
    if (!rc && S_ISDIR(status.st_mode)) {
        rc = readlink(link, path, sizeof path - 1) < 0 ? -1 : 0;
        if (!rc && strncmp(path, self->root, root_len) == 0)
            rc = note_folder(self, fd, path + root_len + (path[root_len] == '/'));
    } else if (!rc) {
        rc = note_file(self, fd, &status);
    }
    if (rc)
        give_up(self, "following what is on the disk");
    close(lock);
}

/* ---- the cut ---- */

/* How many of the bytes written to a file since its last sync are on the disk. */
enum tear { TEAR_NOTHING_LOST, TEAR_ALL_LOST, TEAR_PREFIX_KEPT, TEAR_SECTORS, TEAR_BLOCKS, TEAR_WAYS };

static bool is_kept(struct power_cut *self, enum tear way, uint64_t end, uint64_t prefix)
{
    if (way == TEAR_PREFIX_KEPT)
        return end <= prefix;
    return way == TEAR_NOTHING_LOST || (way != TEAR_ALL_LOST && toss(self));
}

/* Writes to `out` what the disk may contain of a file: `old` is its state when it was synced (-1: nothing), `new` its
 * state now. */
static int tear_file(struct power_cut *self, int old, int new, int out)
{
    struct stat before = {0}, after;
    if ((old >= 0 && fstat(old, &before) != 0) || fstat(new, &after) != 0)
        return -1;
    enum tear way = (enum tear)(next_random(self) % TEAR_WAYS);
    uint64_t old_bytes = (uint64_t)before.st_size, new_bytes = (uint64_t)after.st_size;
    uint64_t bytes = old_bytes != new_bytes && way != TEAR_NOTHING_LOST && toss(self) ? old_bytes : new_bytes;
    uint64_t unit = way == TEAR_BLOCKS ? BLOCK_BYTES : SECTOR_BYTES, prefix = bytes ? next_random(self) % bytes : 0;
    if (ftruncate(out, (off_t)bytes) != 0)
        return -1;
    int rc = 0;
    for (uint64_t begin = 0; begin < bytes && !rc; begin += unit) {
        uint64_t end = begin + unit < bytes ? begin + unit : bytes;
        int from = is_kept(self, way, end, prefix) ? new : old;
        rc = from >= 0 ? copy_range(from, out, begin, end) : 0;
    }
    return rc;
}

/* Opens the file in one of the two states of an entry. */
static int make_file(struct power_cut *self, int new, int out_folder, const char *name)
{
    struct stat status;
    char data[64];
    if (fstat(new, &status) != 0)
        return -1;
    snprintf(data, sizeof data, "data/%ju", (uintmax_t)status.st_ino);
    int old = openat(self->beside_fd, data, O_RDONLY | O_CLOEXEC);
    bool is_whole = old < 0 && errno == ENOENT;
    int out = openat(out_folder, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, status.st_mode & 0777);
    int rc = out < 0 ? -1 : tear_file(self, is_whole ? new : old, new, out);
    const struct timespec times[] = {status.st_atim, status.st_mtim};
    if (!rc)
        rc = futimens(out, times);
    if (old >= 0)
        close(old);
    if (out >= 0)
        close(out);
    return rc;
}

static int make_folder(struct power_cut *self, const char *folder, int now, int out);

/* Selects the state of one entry of `folder` (its path below the root) after the cut: `was`, as synced, or `now`; -1:
 * not there. */
static int make_entry(struct power_cut *self, const char *folder, int was, int now, const char *name, int out)
{
    char path[PATH_MAX];
    struct stat old, new;
    bool had = was >= 0 && fstatat(was, name, &old, AT_SYMLINK_NOFOLLOW) == 0;
    bool has = now >= 0 && fstatat(now, name, &new, AT_SYMLINK_NOFOLLOW) == 0;
    bool are_same = had && has && S_ISDIR(old.st_mode) == S_ISDIR(new.st_mode) &&
                    (S_ISDIR(old.st_mode) || old.st_ino == new.st_ino);
    bool is_new = are_same || toss(self);
    if (!(is_new ? has : had))
        return 0;
    int from = openat(is_new ? now : was, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (from < 0)
        return errno == ENOENT ? 0 : -1;
    if (!S_ISDIR((is_new ? new : old).st_mode)) {
        int rc = make_file(self, from, out, name);
        close(from);
        return rc;
    }
    int len = snprintf(path, sizeof path, "%s%s%s", folder, *folder ? "/" : "", name);
    int rc = len < (int)sizeof path ? mkdirat(out, name, 0777) : -1;
    int below = rc ? -1 : openat(out, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    rc = below < 0 ? -1 : make_folder(self, path, is_new ? from : -1, below);
    if (below >= 0)
        close(below);
    close(from);
    return rc;
}

static struct dirent **list_names(int folder_fd, int *count)
{
    struct dirent **names = NULL;
    *count = folder_fd < 0 ? 0 : scandirat(folder_fd, ".", &names, NULL, alphasort);
    *count = *count < 0 ? 0 : *count;
    return names;
}

static void free_names(struct dirent **names, int count)
{
    for (int i = 0; i < count; i++)
        free(names[i]);
    free(names);
}

/* Makes `out` from the folder's contents when it was synced and its contents now (-1: it is gone). */
static int make_folder(struct power_cut *self, const char *folder, int now, int out)
{
    char key[32];
    int old_count, new_count, rc = 0;
    format_key(folder, key);
    int was = openat(self->beside_fd, key, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct dirent **old = list_names(was, &old_count), **new = list_names(now, &new_count);
    for (int i = 0, j = 0; (i < old_count || j < new_count) && !rc;) {
        int order = i == old_count ? 1 : j == new_count ? -1 : strcmp(old[i]->d_name, new[j]->d_name);
        const char *name = order <= 0 ? old[i]->d_name : new[j]->d_name;
        if (!is_dots(name))
            rc = make_entry(self, folder, was, now, name, out);
        i += order <= 0;
        j += order >= 0;
    }
    free_names(old, old_count);
    free_names(new, new_count);
    if (was >= 0)
        close(was);
    return rc;
}

/* A process that still works in the old folder changes nothing: the name belongs to the new one. */
static void cut_power(struct power_cut *self)
{
    char result[PATH_MAX], before[PATH_MAX];
    snprintf(result, sizeof result, "%.4000s/result", self->beside);
    snprintf(before, sizeof before, "%.4000s/before", self->beside);
    int now = open(self->root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int out = mkdir(result, 0777) == 0 ? open(result, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (now < 0 || out < 0 || make_folder(self, "", now, out) != 0 || rename(self->root, before) != 0 ||
        rename(result, self->root) != 0)
        give_up(self, "cutting the power");
    atomic_store(&self->shared->is_cut, 1);
    remove_tree(self->beside);
    die();
}

void power_cut_count(struct power_cut *self)
{
    int lock = lock_changes(self);
    if (atomic_fetch_add(&self->shared->changes, 1) + 1 == self->at)
        cut_power(self);
    close(lock);
}

/* ---- opening and closing ---- */

static int note_tree(const struct power_cut *self, const char *folder);

static int note_folders_below(const struct power_cut *self, const char *folder, DIR *stream)
{
    int rc = 0;
    for (struct dirent *entry; !rc && (entry = readdir(stream)) != NULL;) {
        struct stat status;
        char path[PATH_MAX];
        if (is_dots(entry->d_name) || fstatat(dirfd(stream), entry->d_name, &status, AT_SYMLINK_NOFOLLOW) != 0 ||
            !S_ISDIR(status.st_mode))
            continue;
        rc = path_format(path, sizeof path, NULL, "%s%s%s", folder, *folder ? "/" : "", entry->d_name);
        rc = rc ? -1 : note_tree(self, path);
    }
    return rc;
}

/* Records a folder and everything below it as durable. */
static int note_tree(const struct power_cut *self, const char *folder)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%.2000s/%.2000s", self->root, folder);
    DIR *stream = opendir(path);
    int rc = stream ? note_folder(self, dirfd(stream), folder) : -1;
    if (!rc)
        rc = note_folders_below(self, folder, stream);
    if (stream)
        closedir(stream);
    return rc;
}

/* For the first process to open the folder: removes what killed processes left, and records everything as durable. */
static int begin(struct power_cut *self)
{
    static const char *const parts[] = {"folders", "data", "result"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        char path[PATH_MAX];
        snprintf(path, sizeof path, "%.4000s/%s", self->beside, parts[i]);
        remove_tree(path);
        if (i < 2 && mkdir(path, 0700) != 0)
            return -1;
    }
    unlinkat(self->beside_fd, "state", 0);
    return note_tree(self, "");
}

static int map_state(struct power_cut *self)
{
    int fd = openat(self->beside_fd, "state", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    void *map = fd >= 0 && ftruncate(fd, sizeof(struct shared)) == 0
                    ? mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
                    : MAP_FAILED;
    if (fd >= 0)
        close(fd);
    self->shared = map == MAP_FAILED ? NULL : map;
    return self->shared ? 0 : -1;
}

/* Opens PATH.powercut and locks it; the last process to close it may have removed it. Returns the lock, or -1 and
 * errno. */
static int open_beside(struct power_cut *self)
{
    for (;;) {
        struct stat status;
        if (mkdir(self->beside, 0700) != 0 && errno != EEXIST)
            return -1;
        self->beside_fd = open(self->beside, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        int lock = self->beside_fd < 0 ? -1 : lock_file(self->beside_fd, "lock", LOCK_EX);
        if (lock >= 0 && fstat(lock, &status) == 0 && status.st_nlink > 0)
            return lock;
        int failed = errno;
        if (lock >= 0)
            close(lock);
        if (self->beside_fd >= 0)
            close(self->beside_fd);
        self->beside_fd = -1;
        if (lock < 0 && failed != ENOENT) {
            errno = failed;
            return -1;
        }
    }
}

static int join(struct power_cut *self)
{
    int alone = lock_file(self->beside_fd, "users", LOCK_EX | LOCK_NB);
    int rc = alone >= 0 ? begin(self) : errno == EWOULDBLOCK ? 0 : -1;
    if (alone >= 0)
        close(alone);
    if (!rc)
        self->users_fd = lock_file(self->beside_fd, "users", LOCK_SH);
    return rc || self->users_fd < 0 ? -1 : map_state(self);
}

int power_cut_open(const char *path, uint64_t at, uint64_t seed, struct power_cut **cut, struct cb_err *err)
{
    struct power_cut *self = calloc(1, sizeof *self);
    if (!self)
        return alloc_fail(err, "for a power cut");
    self->watch = (struct disk_watch){.begins = watch_begins, .is_durable = watch_is_durable};
    self->at = at;
    self->random = seed;
    self->beside_fd = self->users_fd = -1;
    int rc = realpath(path, self->root) ? 0 : cb_fail_errno(err, errno, "store '%s'", path);
    if (!rc)
        rc = path_format(self->beside, sizeof self->beside, err, "%s.powercut", self->root);
    int lock = rc ? -1 : open_beside(self);
    if (!rc && (lock < 0 || join(self) != 0))
        rc = cb_fail_errno(err, errno, "following what is on the disk of store '%s' in %s", path, self->beside);
    if (lock >= 0)
        close(lock);
    if (rc)
        power_cut_close(self);
    else
        *cut = self;
    return rc;
}

void power_cut_close(struct power_cut *self)
{
    if (!self)
        return;
    if (self->shared) {
        int lock = lock_changes(self);
        close(self->users_fd);
        int alone = lock_file(self->beside_fd, "users", LOCK_EX | LOCK_NB);
        if (alone >= 0) {
            remove_tree(self->beside);
            close(alone);
        }
        close(lock);
        munmap(self->shared, sizeof *self->shared);
    } else if (self->users_fd >= 0) {
        close(self->users_fd);
    }
    if (self->beside_fd >= 0)
        close(self->beside_fd);
    free(self);
}

struct disk_watch *power_cut_watch(struct power_cut *self)
{
    return &self->watch;
}
