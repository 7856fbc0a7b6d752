/* Fetches folders: file by file, or many in one stream. */
#ifdef HAVE_SSH2

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "core/path.h"
#include "jobs/ssh/archive.h"
#include "jobs/ssh/ssh_files.h"

#define MAX_FOLDER_DEPTH 16
#define STREAM_MAX_BYTES (32u << 20) /* kept in memory; more data takes two streams */
#define STREAM_NS (900 * NS_PER_S)
#define STREAM_BREAKS_MAX 5

static int join(char path[PATH_MAX], const char *folder, const char *name, struct cb_err *err)
{
    return path_format(path, PATH_MAX, err, "%s/%s", folder, name);
}

static int get_folder(struct ssh_link *link, const char *remote, const char *local, int depth, struct cb_err *err)
{
    char source[PATH_MAX], target[PATH_MAX];
    struct ssh_entries entries = {0};
    if (depth > MAX_FOLDER_DEPTH)
        return cb_fail(err, CB_ERR_USAGE, "%s is nested more than %d folders deep", remote, MAX_FOLDER_DEPTH);
    int rc = ssh_files_list(link, remote, &entries, err);
    if (rc == 0)
        rc = join(target, local, "", err);
    if (rc == 0)
        rc = path_make_folders(target, 0755, err);
    for (size_t i = 0; rc == 0 && i < entries.count; i++) {
        const struct ssh_entry *entry = &entries.items[i];
        rc = join(source, remote, entry->name, err);
        if (rc == 0)
            rc = join(target, local, entry->name, err);
        if (rc == 0 && entry->is_folder)
            rc = get_folder(link, source, target, depth + 1, err);
        else if (rc == 0 && entry->is_file)
            rc = ssh_files_get(&link->base, source, target, err);
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
    int rc = ssh_link_run(&link->base, &command, answer, err);
    for (int breaks = 0; rc == CB_ERR_SYSTEM && !link->session && breaks < STREAM_BREAKS_MAX; breaks++) {
        transport_answer_release(answer);
        transport_answer_init(answer);
        rc = ssh_link_run(&link->base, &command, answer, err);
    }
    if (rc == 0 && answer->exit_status)
        rc = cb_fail(err, CB_ERR_UNSUPPORTED, "archiving folders of %s on %s: %s", self->parent, link->base.name,
                     transport_answer_last_line(answer, line, sizeof line));
    return rc;
}

/* Checks that all folders came, and syncs all new files together: syncing each alone would wait for the disk once per
 * file. */
static int make_durable(const struct folders *self, struct cb_err *err)
{
    char path[PATH_MAX];
    struct stat facts;
    for (size_t i = 0; i < self->count; i++) {
        int rc = join(path, self->local, self->names[i], err);
        if (rc)
            return rc;
        if (lstat(path, &facts) < 0 || !S_ISDIR(facts.st_mode))
            return cb_fail(err, CB_ERR_FORMAT, "the archive of %s has no folder %s", self->parent, self->names[i]);
    }
    int fd = open(self->local, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return cb_fail_errno(err, errno, "opening %s", self->local);
    int rc = syncfs(fd) < 0 ? cb_fail_errno(err, errno, "writing below %s", self->local) : 0;
    close(fd);
    return rc;
}

static int get_stream(struct ssh_link *link, const struct folders *self, struct cb_err *err)
{
    static const char *const first[] = {"tar", "-cf", "-", "-C"};
    const size_t fixed = sizeof first / sizeof *first;
    struct transport_answer answer;
    char path[PATH_MAX];
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
        rc = join(path, self->local, "", err);
    if (rc == 0)
        rc = path_make_folders(path, 0755, err);
    if (rc == 0)
        rc = archive_unpack(answer.out.data, answer.out.len, self->local, self->names, self->count, err);
    if (rc == 0)
        rc = make_durable(self, err);
    transport_answer_release(&answer);
    free(words);
    return rc;
}

/* Splits the list in halves on failure, down to one folder, which is then fetched file by file. */
static int get_folders(struct ssh_link *link, const struct folders *self, struct cb_err *err)
{
    char source[PATH_MAX], target[PATH_MAX];
    int rc = get_stream(link, self, err);
    /* Too long; tar failed; malformed; no tar: single files may still work. */
    bool is_of_the_stream =
        rc == CB_ERR_MEMORY || rc == CB_ERR_UNSUPPORTED || rc == CB_ERR_FORMAT || rc == CB_ERR_NOT_FOUND;
    if (!is_of_the_stream || !link->session)
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

int ssh_folders_get_many(struct transport *transport, const char *parent, const char *const *names, size_t count,
                         const char *local, struct cb_err *err)
{
    const struct folders folders = {.parent = parent, .local = local, .names = names, .count = count};
    return count ? get_folders((struct ssh_link *)transport, &folders, err) : 0;
}

#endif
