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

extern char **environ;

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

static size_t count_words(const char *const *words)
{
    size_t count = 0;
    while (words[count])
        count++;
    return count;
}

/* "env -u SLURM_JOB_ID -u … COMMAND WORD …": `names` owns the variables' names. */
static int scrubbed_words(const struct transport_command *command, const char ***words, char **names,
                          struct cb_err *err)
{
    size_t variables = 0, used = 0, bytes = 1;
    for (size_t i = 0; environ[i]; i++) {
        variables++;
        bytes += strlen(environ[i]) + 1;
    }
    const char **all = calloc(2 * variables + count_words(command->argv) + 2, sizeof *all);
    char *copy = malloc(bytes), *next = copy;
    if (!all || !copy) {
        free(all);
        free(copy);
        return alloc_fail(err, "to start %s", command->argv[0]);
    }
    all[used++] = "env";
    for (size_t i = 0; environ[i]; i++) {
        size_t len = strcspn(environ[i], "=");
        if (!is_slurm_variable(environ[i]))
            continue;
        all[used++] = "-u";
        all[used++] = next;
        memcpy(next, environ[i], len);
        next[len] = '\0';
        next += len + 1;
    }
    for (size_t i = 0; command->argv[i]; i++)
        all[used++] = command->argv[i];
    *words = all;
    *names = copy;
    return 0;
}

/* An unnamed file with the command's input, so that we need not feed a pipe while reading others. */
static int input_file(const struct transport_command *command, int *fd, struct cb_err *err)
{
    *fd = -1;
    if (!command->input)
        return 0;
    int file = memfd_create("input", MFD_CLOEXEC);
    if (file < 0)
        return cb_fail_errno(err, errno, "keeping the input of %s", command->argv[0]);
    for (size_t done = 0; done < command->input_bytes;) {
        ssize_t written = write(file, (const char *)command->input + done, command->input_bytes - done);
        if (written < 0 && errno != EINTR) {
            int failed = errno;
            close(file);
            return cb_fail_errno(err, failed, "keeping the input of %s", command->argv[0]);
        }
        done += written > 0 ? (size_t)written : 0;
    }
    lseek(file, 0, SEEK_SET);
    *fd = file;
    return 0;
}

/* Reads what a pipe has; false at its end. */
static bool drain(int fd, size_t max_bytes, struct buf *into, bool *too_much)
{
    char chunk[16384];
    ssize_t got = read(fd, chunk, sizeof chunk);
    if (got < 0)
        return errno == EINTR;
    if (into->len + (size_t)got > max_bytes)
        *too_much = true;
    else
        buf_append(into, chunk, (size_t)got);
    return got > 0 && !*too_much;
}

static int read_answer(const int fds[2], const struct transport_command *command, uint64_t deadline_ns,
                       struct transport_answer *answer, struct cb_err *err)
{
    struct pollfd polled[2] = {{.fd = fds[0], .events = POLLIN}, {.fd = fds[1], .events = POLLIN}};
    bool too_much = false;
    while (polled[0].fd >= 0 || polled[1].fd >= 0) {
        uint64_t now_ns = clock_monotonic_ns();
        if (now_ns >= deadline_ns)
            return cb_fail(err, CB_ERR_TIMEOUT, "%s has not answered within %.1f s", command->argv[0],
                           (double)command->timeout_ns / (double)NS_PER_S);
        uint64_t left_ms = (deadline_ns - now_ns) / NS_PER_MS + 1;
        if (poll(polled, 2, left_ms < 1000 ? (int)left_ms : 1000) < 0)
            continue; /* EINTR */
        for (int i = 0; i < 2; i++)
            if (polled[i].fd >= 0 && polled[i].revents &&
                !drain(polled[i].fd, command->max_bytes, i ? &answer->errors : &answer->out, &too_much))
                polled[i].fd = -1;
        if (too_much)
            return cb_fail(err, CB_ERR_MEMORY, "%s says more than %zu bytes", command->argv[0], command->max_bytes);
    }
    return 0;
}

static int run_child(const struct child_options *options, const struct transport_command *command, const int fds[2],
                     struct transport_answer *answer, struct cb_err *err)
{
    struct child child = {0};
    uint64_t deadline_ns = clock_monotonic_ns() + command->timeout_ns;
    int rc = child_start(&child, options, err);
    close(options->stdout_fd); /* the child has its copies: while we hold ours, the pipes cannot end */
    close(options->stderr_fd);
    if (rc == 0)
        rc = read_answer(fds, command, deadline_ns, answer, err);
    if (rc == 0 && child_wait(&child, deadline_ns, NULL))
        rc = cb_fail(err, CB_ERR_TIMEOUT, "%s has not ended within %.1f s", command->argv[0],
                     (double)command->timeout_ns / (double)NS_PER_S);
    child_end(&child, 0);
    if (rc == 0)
        answer->exit_status = WIFEXITED(child.status) ? WEXITSTATUS(child.status) : 128 + WTERMSIG(child.status);
    return rc;
}

static int run_words(const char *const *words, const struct transport_command *command, int input_fd,
                     struct transport_answer *answer, struct cb_err *err)
{
    int out_pipe[2], err_pipe[2];
    if (pipe2(out_pipe, O_CLOEXEC) < 0)
        return cb_fail_errno(err, errno, "making a pipe");
    if (pipe2(err_pipe, O_CLOEXEC) < 0) {
        int failed = errno;
        close(out_pipe[0]);
        close(out_pipe[1]);
        return cb_fail_errno(err, failed, "making a pipe");
    }
    const struct child_options options = {.argv = words,
                                          .environment = command->environment,
                                          .stdin_fd = input_fd,
                                          .stdout_fd = out_pipe[1],
                                          .stderr_fd = err_pipe[1]};
    const int fds[2] = {out_pipe[0], err_pipe[0]};
    int rc = run_child(&options, command, fds, answer, err);
    close(out_pipe[0]);
    close(err_pipe[0]);
    return rc;
}

static int local_run(struct transport *self, const struct transport_command *command, struct transport_answer *answer,
                     struct cb_err *err)
{
    const char **words = NULL;
    char *names = NULL;
    int input_fd;
    (void)self;
    int rc = input_file(command, &input_fd, err);
    if (rc == 0 && command->without_slurm)
        rc = scrubbed_words(command, &words, &names, err);
    if (rc == 0)
        rc = run_words(words ? words : command->argv, command, input_fd, answer, err);
    if (rc == 0)
        rc = buf_check(&answer->out, command->argv[0], err);
    if (rc == 0)
        rc = buf_check(&answer->errors, command->argv[0], err);
    if (input_fd >= 0)
        close(input_fd);
    free(words);
    free(names);
    return rc;
}

static bool is_same_file(const char *a, const char *b)
{
    struct stat one, other;
    return stat(a, &one) == 0 && stat(b, &other) == 0 && one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

static int make_parents(const char *path, struct cb_err *err)
{
    char own[PATH_MAX];
    if (path_format(own, sizeof own, err, "%s", path))
        return CB_ERR_USAGE;
    for (char *slash = strchr(own + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (mkdir(own, 0755) < 0 && errno != EEXIST)
            return cb_fail_errno(err, errno, "creating the folder %s", own);
        *slash = '/';
    }
    return 0;
}

static int copy_bytes(int from, int to, const char *path, struct cb_err *err)
{
    char *chunk = malloc(COPY_BYTES);
    int rc = chunk ? 0 : alloc_fail(err, "to copy %s", path);
    ssize_t got = 1;
    while (rc == 0 && chunk && got != 0) {
        got = read(from, chunk, COPY_BYTES);
        if (got < 0 && errno != EINTR)
            rc = cb_fail_errno(err, errno, "reading %s", path);
        for (ssize_t done = 0; rc == 0 && done < got;) {
            ssize_t written = write(to, chunk + done, (size_t)(got - done));
            if (written < 0 && errno != EINTR)
                rc = cb_fail_errno(err, errno, "copying %s", path);
            done += written > 0 ? written : 0;
        }
    }
    if (rc == 0 && fsync(to) < 0)
        rc = cb_fail_errno(err, errno, "copying %s", path);
    free(chunk);
    return rc;
}

static int copy_file(const char *from, const char *to, struct cb_err *err)
{
    char temporary[PATH_MAX];
    struct stat facts;
    if (is_same_file(from, to))
        return 0;
    if (path_format(temporary, sizeof temporary, err, "%s.part", to))
        return CB_ERR_USAGE;
    int rc = make_parents(to, err);
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
static int copy_folder(const char *from, const char *to, int depth, struct cb_err *err)
{
    char source[PATH_MAX], target[PATH_MAX];
    if (is_same_file(from, to))
        return 0;
    if (depth > MAX_FOLDER_DEPTH)
        return cb_fail(err, CB_ERR_USAGE, "%s is nested more than %d folders deep", from, MAX_FOLDER_DEPTH);
    DIR *entries = opendir(from);
    if (!entries)
        return cb_fail_errno(err, errno, "reading %s", from);
    int rc = make_parents(to, err);
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
            rc = copy_folder(source, target, depth + 1, err);
        else if (S_ISREG(facts.st_mode))
            rc = copy_file(source, target, err);
    }
    closedir(entries);
    return rc;
}

static int local_copy_file(struct transport *self, const char *from, const char *to, struct cb_err *err)
{
    (void)self;
    return copy_file(from, to, err);
}

static int local_copy_folders(struct transport *self, const char *parent, const char *const *names, size_t count,
                              const char *local, struct cb_err *err)
{
    char from[PATH_MAX], to[PATH_MAX];
    int rc = 0;
    (void)self;
    for (size_t i = 0; rc == 0 && i < count; i++) {
        if (snprintf(from, sizeof from, "%s/%s", parent, names[i]) >= (int)sizeof from ||
            snprintf(to, sizeof to, "%s/%s", local, names[i]) >= (int)sizeof to)
            rc = cb_fail(err, CB_ERR_USAGE, "the path %s/%s is too long", local, names[i]);
        else
            rc = copy_folder(from, to, 0, err);
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
    static const struct transport_ops ops = {.name = "this machine",
                                             .run = local_run,
                                             .put_file = local_copy_file,
                                             .get_file = local_copy_file,
                                             .get_folders = local_copy_folders,
                                             .stat = local_stat,
                                             .read = local_read,
                                             .close = local_close};
    struct transport *opened = malloc(sizeof *opened);
    if (!opened)
        return alloc_fail(err, "for a transport");
    opened->ops = &ops;
    *self = opened;
    return 0;
}
