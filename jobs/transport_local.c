/* The transport of this machine: child processes and plain files. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/child.h"
#include "core/clock.h"
#include "core/path.h"
#include "jobs/transport.h"

#define COPY_BYTES (1u << 20)
#define MAX_FOLDER_DEPTH 16

/* These variables set options of Slurm's programs; variables that locate the cluster stay. */
static bool is_slurm_variable(const char *variable)
{
    size_t len = strcspn(variable, "=");
    for (size_t i = 0; transport_slurm_kept[i]; i++)
        if (strlen(transport_slurm_kept[i]) == len && strncmp(variable, transport_slurm_kept[i], len) == 0)
            return false;
    for (size_t i = 0; transport_slurm_prefixes[i]; i++)
        if (strncmp(variable, transport_slurm_prefixes[i], strlen(transport_slurm_prefixes[i])) == 0)
            return true;
    return false;
}

/* An unnamed file with the command's input, which avoids feeding a pipe while reading others. */
static int input_file(const struct transport_command *command, int *fd, struct cb_err *err)
{
    int file = memfd_create("input", MFD_CLOEXEC);
    if (file >= 0 && fd_write_all(file, command->input, command->input_bytes) && lseek(file, 0, SEEK_SET) == 0) {
        *fd = file;
        return 0;
    }
    int rc = cb_fail_errno(err, errno, "keeping the input of %s", command->argv[0]);
    if (file >= 0)
        close(file);
    return rc;
}

static int local_run(struct transport *self, const struct transport_command *command, struct transport_answer *answer,
                     struct cb_err *err)
{
    struct child_options options = {.argv = command->argv,
                                    .environment = command->environment,
                                    .leaves_out = command->without_slurm ? is_slurm_variable : NULL,
                                    .stdin_fd = -1};
    struct child child = {0};
    int pipes[2], rc = command->input ? input_file(command, &options.stdin_fd, err) : 0;
    (void)self;
    uint64_t deadline_ns = clock_monotonic_ns() + command->timeout_ns;
    if (rc == 0)
        rc = child_start_piped(&child, &options, pipes, err);
    if (options.stdin_fd >= 0)
        close(options.stdin_fd);
    if (rc)
        return rc;
    answer->out.max = answer->errors.max = command->max_bytes;
    rc = child_read_pipes(pipes, deadline_ns, &answer->out, &answer->errors, false);
    const char *what = rc ? "answered" : "ended";
    if (rc == CB_ERR_MEMORY)
        rc = cb_fail(err, rc, "%s says more than %zu bytes", command->argv[0], command->max_bytes);
    else if (rc || child_wait(&child, deadline_ns, NULL))
        rc = cb_fail(err, CB_ERR_TIMEOUT, "%s has not %s within %.1f s", command->argv[0], what,
                     (double)command->timeout_ns / (double)NS_PER_S);
    child_end(&child, 0);
    if (rc == 0)
        answer->exit_status = WIFEXITED(child.status) ? WEXITSTATUS(child.status) : 128 + WTERMSIG(child.status);
    return rc;
}

static bool is_same_file(const char *a, const char *b)
{
    struct stat one, other;
    return stat(a, &one) == 0 && stat(b, &other) == 0 && one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

static int copy_bytes(int from, int to, const char *path, struct cb_err *err)
{
    char *chunk = malloc(COPY_BYTES);
    int rc = chunk ? 0 : alloc_fail(err, "to copy %s", path);
    for (ssize_t got = 1; rc == 0 && chunk && got != 0;) {
        got = read(from, chunk, COPY_BYTES);
        if (got < 0 && errno != EINTR)
            rc = cb_fail_errno(err, errno, "reading %s", path);
        else if (got > 0 && !fd_write_all(to, chunk, (size_t)got))
            rc = cb_fail_errno(err, errno, "copying %s", path);
    }
    if (rc == 0 && fsync(to) < 0)
        rc = cb_fail_errno(err, errno, "copying %s", path);
    free(chunk);
    return rc;
}

static int local_copy_file(struct transport *self, const char *from, const char *to, struct cb_err *err)
{
    char temporary[PATH_MAX];
    struct stat facts;
    (void)self;
    if (is_same_file(from, to))
        return 0;
    if (path_format(temporary, sizeof temporary, err, "%s.part", to))
        return CB_ERR_USAGE;
    int rc = path_make_folders(to, 0755, err);
    if (rc)
        return rc;
    int source = open(from, O_RDONLY | O_CLOEXEC);
    if (source < 0 || fstat(source, &facts) < 0) {
        int failed = errno;
        if (source >= 0)
            close(source);
        return cb_fail_errno(err, failed, "opening %s", from);
    }
    int target = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, facts.st_mode & 0777);
    rc = target < 0 ? cb_fail_errno(err, errno, "creating %s", temporary) : copy_bytes(source, target, from, err);
    close(source);
    if (target >= 0)
        close(target);
    if (rc == 0 && rename(temporary, to) < 0)
        rc = cb_fail_errno(err, errno, "naming %s", to);
    if (rc && target >= 0)
        unlink(temporary);
    return rc;
}

/* Folders and regular files; other types (links, sockets) are not copied. */
static int copy_folder(struct transport *self, const char *from, const char *to, int depth, struct cb_err *err)
{
    char source[PATH_MAX], target[PATH_MAX];
    if (is_same_file(from, to))
        return 0;
    if (depth > MAX_FOLDER_DEPTH)
        return cb_fail(err, CB_ERR_USAGE, "%s is nested more than %d folders deep", from, MAX_FOLDER_DEPTH);
    DIR *entries = opendir(from);
    if (!entries)
        return cb_fail_errno(err, errno, "reading %s", from);
    int rc = path_make_folders(to, 0755, err);
    if (rc == 0 && mkdir(to, 0755) < 0 && errno != EEXIST)
        rc = cb_fail_errno(err, errno, "creating the folder %s", to);
    for (struct dirent *entry; rc == 0 && (entry = readdir(entries));) {
        struct stat facts;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        if (snprintf(source, sizeof source, "%s/%s", from, entry->d_name) >= (int)sizeof source ||
            snprintf(target, sizeof target, "%s/%s", to, entry->d_name) >= (int)sizeof target)
            rc = cb_fail(err, CB_ERR_USAGE, "the path %s/%s is too long", to, entry->d_name);
        else if (lstat(source, &facts) < 0)
            rc = cb_fail_errno(err, errno, "looking at %s", source);
        else if (S_ISDIR(facts.st_mode))
            rc = copy_folder(self, source, target, depth + 1, err);
        else if (S_ISREG(facts.st_mode))
            rc = local_copy_file(self, source, target, err);
    }
    closedir(entries);
    return rc;
}

static int local_copy_folders(struct transport *self, const char *parent, const char *const *names, size_t count,
                              const char *local, struct cb_err *err)
{
    char from[PATH_MAX], to[PATH_MAX];
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < count; i++) {
        if (snprintf(from, sizeof from, "%s/%s", parent, names[i]) >= (int)sizeof from ||
            snprintf(to, sizeof to, "%s/%s", local, names[i]) >= (int)sizeof to)
            rc = cb_fail(err, CB_ERR_USAGE, "the path %s/%s is too long", local, names[i]);
        else
            rc = copy_folder(self, from, to, 0, err);
    }
    return rc;
}

static int local_stat(struct transport *self, const char *path, struct transport_stat *status, struct cb_err *err)
{
    struct stat facts;
    (void)self;
    if (stat(path, &facts) < 0)
        return cb_fail_errno(err, errno, "looking at %s", path);
    *status = (struct transport_stat){.is_folder = S_ISDIR(facts.st_mode),
                                      .bytes = (uint64_t)facts.st_size,
                                      .modified_wall_ns =
                                          (uint64_t)facts.st_mtim.tv_sec * NS_PER_S + (uint64_t)facts.st_mtim.tv_nsec};
    return 0;
}

static int local_read(struct transport *self, const char *path, uint64_t offset, size_t max_bytes, struct buf *out,
                      struct cb_err *err)
{
    (void)self;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return cb_fail_errno(err, errno, "opening %s", path);
    int rc = 0;
    size_t before = out->len;
    char *place = max_bytes ? buf_extend(out, max_bytes) : NULL;
    ssize_t got = place ? pread(fd, place, max_bytes, (off_t)offset) : 0;
    if (got < 0)
        rc = cb_fail_errno(err, errno, "reading %s", path);
    close(fd);
    if (rc == 0)
        rc = buf_check(out, path, err);
    if (place) {
        out->len = before + (got > 0 ? (size_t)got : 0);
        out->data[out->len] = '\0';
    }
    return rc;
}

static void local_close(struct transport *self)
{
    free(self);
}

int transport_local_open(struct transport **self, struct cb_err *err)
{
    struct transport *opened = malloc(sizeof *opened);
    if (!opened)
        return alloc_fail(err, "for a transport");
    *opened = (struct transport){.name = "this machine",
                                 .note = "",
                                 .run = local_run,
                                 .put_file = local_copy_file,
                                 .get_file = local_copy_file,
                                 .get_folders = local_copy_folders,
                                 .stat = local_stat,
                                 .read = local_read,
                                 .close = local_close};
    *self = opened;
    return 0;
}
