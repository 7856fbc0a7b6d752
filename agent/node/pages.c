/* Folders of status pages: created, cleaned up after a crash, removed. */
#include "agent/node/pages.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "agent/node/page_copy.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "core/hash.h"
#include "core/rank_placement.h"

#define FOLDER_PREFIX "ckptbench-"
#define LOCK_NAME "agent.lock"
#define NEW_LOCK_NAME "agent.lock.new"
#define UNLOCKED_GRACE_S 60 /* younger folders without a lock may still be in creation */
#define WALK_DEPTH 16

static int remove_entry(const char *path, const struct stat *facts, int kind, struct FTW *place)
{
    (void)facts;
    (void)kind;
    (void)place;
    (void)remove(path); /* whatever cannot be removed is left to the next start */
    return 0;
}

static void remove_folder(const char *path)
{
    (void)nftw(path, remove_entry, WALK_DEPTH, FTW_DEPTH | FTW_PHYS);
}

/* The file is locked before it gets its name: a lock file that is not locked belongs to a dead agent. */
static int take_lock(const char *folder, int *fd, struct cb_err *err)
{
    char path[256], name[256];
    snprintf(path, sizeof path, "%s/" NEW_LOCK_NAME, folder);
    snprintf(name, sizeof name, "%s/" LOCK_NAME, folder);
    int lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (lock < 0)
        return cb_fail_errno(err, errno, "creating %s", path);
    if (flock(lock, LOCK_EX | LOCK_NB) < 0 || rename(path, name) < 0) {
        int failure = errno;
        close(lock);
        return cb_fail_errno(err, failure, "locking %s", path);
    }
    *fd = lock;
    return 0;
}

/* Creates the pages of ranks [first, first + count): files for [own_first, own_end), memory for all others. */
static int create_pages(struct pages *self, uint32_t own_first, uint32_t own_end, uint32_t count, uint32_t ranks,
                        uint32_t sample_capacity, struct cb_err *err)
{
    self->page = calloc(count, sizeof *self->page);
    if (!self->page)
        return alloc_fail(err, "for %u status pages", count);
    int rc = 0;
    for (uint32_t i = 0; i < count && !rc; i++) {
        char path[256];
        uint32_t rank = self->first + i;
        if (rank < own_first || rank >= own_end) {
            rc = page_copy_new(rank, ranks, sample_capacity, &self->page[i], err);
        } else {
            rc = status_page_path(self->folder, rank, path, sizeof path, err);
            if (!rc)
                rc = status_page_create(path, rank, ranks, sample_capacity, &self->page[i], err);
        }
        if (!rc)
            self->count++;
    }
    return rc;
}

static int finish_creating(struct pages *self, int rc)
{
    if (rc)
        pages_release(self);
    else
        pages_beat(self, clock_monotonic_ns());
    return rc;
}

int pages_create(struct pages *self, const char *run, uint32_t attempt, uint32_t ranks, uint32_t sample_capacity,
                 struct cb_err *err)
{
    self->lock_fd = -1;
    snprintf(self->folder, sizeof self->folder, PAGES_PARENT "/" FOLDER_PREFIX "%s-%u-XXXXXX", run, attempt);
    if (!mkdtemp(self->folder)) {
        int failure = errno;
        self->folder[0] = '\0';
        return cb_fail_errno(err, failure, "making a folder for status pages in " PAGES_PARENT);
    }
    snprintf(self->base, sizeof self->base, "%s", self->folder);
    int rc = take_lock(self->folder, &self->lock_fd, err);
    if (!rc)
        rc = create_pages(self, 0, ranks, ranks, ranks, sample_capacity, err);
    return finish_creating(self, rc);
}

void pages_choose_base(const char *run, uint32_t attempt, char base[160])
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz234567";
    unsigned char bytes[8];
    char word[sizeof bytes + 1] = "";
    random_bytes(bytes, sizeof bytes);
    for (size_t i = 0; i < sizeof bytes; i++)
        word[i] = letters[bytes[i] % 32];
    snprintf(base, 160, PAGES_PARENT "/" FOLDER_PREFIX "%.48s-%u-%s", run, attempt, word);
}

static int make_node_folder(struct pages *self, const char *base, uint32_t node, struct cb_err *err)
{
    self->lock_fd = -1;
    snprintf(self->base, sizeof self->base, "%s", base);
    if (strncmp(base, PAGES_PARENT "/" FOLDER_PREFIX, strlen(PAGES_PARENT "/" FOLDER_PREFIX)) != 0 ||
        strchr(base + strlen(PAGES_PARENT) + 1, '/') ||
        rank_placement_node_folder(base, node, self->folder, sizeof self->folder) != 0) {
        self->folder[0] = '\0';
        return cb_fail(err, CB_ERR_FORMAT, "%s is no place for status pages", base);
    }
    if (mkdir(self->folder, 0700) < 0) {
        int failure = errno;
        int rc = cb_fail_errno(err, failure, "making the folder for status pages %s", self->folder);
        self->folder[0] = '\0'; /* not ours, so not removed */
        return rc;
    }
    return take_lock(self->folder, &self->lock_fd, err);
}

int pages_create_node(struct pages *self, const char *base, uint32_t node, uint32_t nodes, uint32_t ranks,
                      uint32_t sample_capacity, struct cb_err *err)
{
    uint32_t first = rank_placement_first_rank(ranks, nodes, node),
             end = rank_placement_first_rank(ranks, nodes, node + 1);
    int rc = make_node_folder(self, base, node, err);
    self->first = first;
    if (!rc)
        rc = create_pages(self, first, end, end - first, ranks, sample_capacity, err);
    return finish_creating(self, rc);
}

int pages_create_head(struct pages *self, const char *base, int64_t own, uint32_t nodes, uint32_t ranks,
                      uint32_t sample_capacity, struct cb_err *err)
{
    uint32_t first = 0, end = 0;
    int rc = 0;
    self->lock_fd = -1;
    snprintf(self->base, sizeof self->base, "%s", base);
    if (own >= 0) {
        first = rank_placement_first_rank(ranks, nodes, (uint32_t)own);
        end = rank_placement_first_rank(ranks, nodes, (uint32_t)own + 1);
        rc = make_node_folder(self, base, (uint32_t)own, err);
    }
    if (!rc)
        rc = create_pages(self, first, end, ranks, ranks, sample_capacity, err);
    return finish_creating(self, rc);
}

void pages_remove(struct pages *self)
{
    if (self->folder[0])
        remove_folder(self->folder);
    self->folder[0] = '\0';
}

void pages_release(struct pages *self)
{
    for (uint32_t rank = 0; rank < self->count; rank++)
        status_page_close(self->page[rank]);
    free(self->page);
    pages_remove(self);
    if (self->lock_fd >= 0)
        close(self->lock_fd);
    *self = (struct pages){.lock_fd = -1};
}

void pages_beat(const struct pages *self, uint64_t now_ns)
{
    for (uint32_t rank = 0; rank < self->count; rank++)
        atomic_store_explicit(&self->page[rank]->agent_heartbeat_ns, now_ns, memory_order_relaxed);
}

void pages_request_stop(const struct pages *self, enum stop_request stop)
{
    for (uint32_t rank = 0; rank < self->count; rank++)
        atomic_store(&self->page[rank]->stop, stop);
}

void pages_set_origin(const struct pages *self, uint64_t origin_ns)
{
    for (uint32_t rank = 0; rank < self->count; rank++)
        self->page[rank]->time_origin_ns = origin_ns;
}

static bool is_stale(const char *folder)
{
    struct stat facts;
    char path[512], unnamed[512];
    if (lstat(folder, &facts) < 0 || !S_ISDIR(facts.st_mode) || facts.st_uid != geteuid())
        return false;
    snprintf(path, sizeof path, "%s/" LOCK_NAME, folder);
    snprintf(unnamed, sizeof unnamed, "%s/" NEW_LOCK_NAME, folder);
    int lock = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (lock < 0) {
        /* A folder without our lock file may belong to another program. Remove it only if it is empty: an agent may
         * have died while creating it. */
        if (errno == ENOENT && time(NULL) - facts.st_mtime > UNLOCKED_GRACE_S) {
            unlink(unnamed);
            rmdir(folder);
        }
        return false;
    }
    bool stale = flock(lock, LOCK_EX | LOCK_NB) == 0;
    close(lock);
    return stale;
}

void pages_remove_stale(void)
{
    DIR *entries = opendir(PAGES_PARENT);
    if (!entries)
        return;
    for (struct dirent *entry; (entry = readdir(entries));) {
        char path[sizeof PAGES_PARENT + sizeof entry->d_name];
        if (strncmp(entry->d_name, FOLDER_PREFIX, strlen(FOLDER_PREFIX)) != 0)
            continue;
        snprintf(path, sizeof path, PAGES_PARENT "/%s", entry->d_name);
        if (is_stale(path))
            remove_folder(path);
    }
    closedir(entries);
}
