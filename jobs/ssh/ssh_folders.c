/* Fetches folders: file by file, or many in one stream. */
#include "core/alloc.h"
#include "core/path.h"
#include "jobs/ssh/ssh_files.h"

#ifdef HAVE_SSH2

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/clock.h"
#include "jobs/ssh/archive.h"

#define MAX_FOLDER_DEPTH 16
#define STREAM_MAX_BYTES (32u << 20) /* kept in memory; more data takes two streams */
#define STREAM_NS (900 * NS_PER_S)
#define STREAM_BREAKS_MAX 5

static int too_deep(const char *path, struct cb_err *err)
{
    return cb_fail(err, CB_ERR_USAGE, "%s is nested more than %d folders deep", path, MAX_FOLDER_DEPTH);
}

static int join(char path[PATH_MAX], const char *folder, const char *name, struct cb_err *err)
{
    if (path_format(path, PATH_MAX, err, "%s/%s", folder, name))
        return CB_ERR_USAGE;
    return 0;
}

static int make_local_folder(const char *path, struct cb_err *err)
{
    char own[PATH_MAX];
    if (path_format(own, sizeof own, err, "%s/", path))
        return CB_ERR_USAGE;
    for (char *slash = strchr(own + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (mkdir(own, 0755) < 0 && errno != EEXIST)
            return cb_fail_errno(err, errno, "creating the folder %s", own);
        *slash = '/';
    }
    return 0;
}

static int get_folder(struct ssh_link *link, const char *remote, const char *local, int depth, struct cb_err *err)
{
    char source[PATH_MAX], target[PATH_MAX];
    struct ssh_entries entries = {0};
    if (depth > MAX_FOLDER_DEPTH)
        return too_deep(remote, err);
    int rc = ssh_files_list(link, remote, &entries, err);
    if (rc == 0)
        rc = make_local_folder(local, err);
    for (size_t i = 0; rc == 0 && i < entries.count; i++) {
        const struct ssh_entry *entry = &entries.items[i];
        rc = join(source, remote, entry->name, err);
        if (rc == 0)
            rc = join(target, local, entry->name, err);
        if (rc == 0 && entry->is_folder)
            rc = get_folder(link, source, target, depth + 1, err);
        else if (rc == 0 && entry->is_file)
            rc = ssh_files_get(link, source, target, err);
    }
    ssh_entries_release(&entries);
    return rc;
}

struct folders {
    const char *parent, *local;
    const char *const *names;
    size_t count;
};

/* One command for all folders; it changes nothing, so we retry if the reply is lost. */
static int ask_for_stream(struct ssh_link *link, const struct folders *self, const char *const *words,
                          struct transport_answer *answer, struct cb_err *err)
{
    static const char *const environment[] = {"TAR_OPTIONS=", NULL};
    const struct transport_command command = {
        .argv = words, .environment = environment, .max_bytes = STREAM_MAX_BYTES, .timeout_ns = STREAM_NS};
    char line[256];
    int rc = ssh_link_run(link, &command, answer, err);
    for (int breaks = 0; rc == CB_ERR_SYSTEM && !link->session && breaks < STREAM_BREAKS_MAX; breaks++) {
        transport_answer_release(answer);
        transport_answer_init(answer);
        rc = ssh_link_run(link, &command, answer, err);
    }
    if (rc == 0 && answer->exit_status)
        rc = cb_fail(err, CB_ERR_UNSUPPORTED, "archiving folders of %s on %s: %s", self->parent, ssh_link_name(link),
                     transport_answer_last_line(answer, line, sizeof line));
    return rc;
}

/* Syncs all new files together: syncing each alone would wait for the disk once per file. */
static int make_durable(const char *folder, struct cb_err *err)
{
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return cb_fail_errno(err, errno, "opening %s", folder);
    int rc = syncfs(fd) < 0 ? cb_fail_errno(err, errno, "writing below %s", folder) : 0;
    close(fd);
    return rc;
}

static int check_all_came(const struct folders *self, struct cb_err *err)
{
    char path[PATH_MAX];
    for (size_t i = 0; i < self->count; i++) {
        struct stat facts;
        int rc = join(path, self->local, self->names[i], err);
        if (rc)
            return rc;
        if (lstat(path, &facts) < 0 || !S_ISDIR(facts.st_mode))
            return cb_fail(err, CB_ERR_FORMAT, "the archive of %s has no folder %s", self->parent, self->names[i]);
    }
    return 0;
}

static int get_stream(struct ssh_link *link, const struct folders *self, struct cb_err *err)
{
    static const char *const first[] = {"tar", "-cf", "-", "-C"};
    const size_t fixed = sizeof first / sizeof *first;
    struct transport_answer answer;
    const char **words = calloc(fixed + 2 + self->count + 1, sizeof *words);
    if (!words)
        return alloc_fail(err, "to copy %zu folders", self->count);
    memcpy(words, first, sizeof first);
    words[fixed] = self->parent;
    words[fixed + 1] = "--";
    memcpy(words + fixed + 2, self->names, self->count * sizeof *words);
    transport_answer_init(&answer);
    int rc = ask_for_stream(link, self, words, &answer, err);
    if (rc == 0)
        rc = make_local_folder(self->local, err);
    if (rc == 0)
        rc = archive_unpack(answer.out.data, answer.out.len, self->local, self->names, self->count, err);
    if (rc == 0)
        rc = check_all_came(self, err);
    if (rc == 0)
        rc = make_durable(self->local, err);
    transport_answer_release(&answer);
    free(words);
    return rc;
}

/* Failures of the stream itself, after which single files may still work. */
static bool is_of_the_stream(const struct ssh_link *link, int rc)
{
    return link->session && (rc == CB_ERR_MEMORY || rc == CB_ERR_UNSUPPORTED || rc == CB_ERR_FORMAT ||
                             rc == CB_ERR_NOT_FOUND); /* too long; tar failed; malformed; no tar */
}

/* Splits the list in halves on failure, down to one folder, which is then fetched file by file. */
static int get_folders(struct ssh_link *link, const struct folders *self, struct cb_err *err)
{
    char source[PATH_MAX], target[PATH_MAX];
    int rc = get_stream(link, self, err);
    if (rc == 0 || !is_of_the_stream(link, rc))
        return rc;
    if (self->count > 1) {
        struct folders half = *self;
        half.count = self->count / 2;
        rc = get_folders(link, &half, err);
        half.names += half.count;
        half.count = self->count - half.count;
        return rc ? rc : get_folders(link, &half, err);
    }
    rc = join(source, self->parent, self->names[0], err);
    if (rc == 0)
        rc = join(target, self->local, self->names[0], err);
    return rc ? rc : get_folder(link, source, target, 0, err);
}

int ssh_folders_get_many(struct ssh_link *link, const char *parent, const char *const *names, size_t count,
                         const char *local, struct cb_err *err)
{
    const struct folders folders = {.parent = parent, .local = local, .names = names, .count = count};
    return count ? get_folders(link, &folders, err) : 0;
}

#endif
