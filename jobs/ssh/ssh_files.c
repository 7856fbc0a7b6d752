/* Single files by SFTP: complete or not at all, resumed after a broken connection. Folders are in
 * jobs/ssh/ssh_folders.c. */
#include "jobs/ssh/ssh_files.h"

#ifdef HAVE_SSH2

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "core/hash.h"
#include "core/path.h"
#include "jobs/ssh/ssh_sftp.h"

#define CHUNK_BYTES (256u << 10)
#define RENAME_BOUND_NS (60 * NS_PER_S)
#define ENTRIES_MAX 1000000

struct stat_work {
    const char *path;
    LIBSSH2_SFTP_ATTRIBUTES facts;
};

static int stat_work(struct ssh_link *link, void *argument, struct cb_err *err)
{
    struct stat_work *self = argument;
    return sftp_look(link, self->path, &self->facts, err);
}

int ssh_files_stat(struct ssh_link *link, const char *path, struct transport_stat *status, struct cb_err *err)
{
    struct stat_work work = {.path = path};
    int rc = sftp_persist(link, stat_work, &work, NULL, err);
    if (rc == 0)
        *status = (struct transport_stat){.is_folder = sftp_is_folder(&work.facts),
                                          .bytes = work.facts.filesize,
                                          .modified_wall_ns = (uint64_t)work.facts.mtime * NS_PER_S};
    return rc;
}

/* Creates one folder whose parent exists. */
static int make_one(struct ssh_link *link, const char *path, struct cb_err *err)
{
    LIBSSH2_SFTP_ATTRIBUTES facts;
    int rc, failed;
    SSH_AWAIT(link->session, sftp_deadline(link), rc,
              libssh2_sftp_mkdir_ex(link->sftp, path, (unsigned)strlen(path), 0755), failed, err);
    if (rc == 0)
        return 0;
    rc = sftp_fail(link, failed, "creating the folder", path, err);
    if (!link->session || rc == CB_ERR_NOT_FOUND)
        return rc;
    return sftp_look(link, path, &facts, NULL) == 0 && sftp_is_folder(&facts) ? 0 : rc; /* it exists already */
}

static int make_folder_work(struct ssh_link *link, void *argument, struct cb_err *err)
{
    char path[PATH_MAX];
    if (path_format(path, sizeof path, err, "%s", (const char *)argument))
        return CB_ERR_USAGE;
    size_t whole = strlen(path), len = whole;
    while (len > 1 && path[len - 1] == '/')
        path[--len] = '\0';
    whole = len;
    int rc;
    while ((rc = make_one(link, path, err)) == CB_ERR_NOT_FOUND) { /* up to the first existing folder */
        char *slash = strrchr(path, '/');
        if (!slash || slash == path)
            return rc;
        *slash = '\0';
    }
    for (len = strlen(path); rc == 0 && len < whole; len = strlen(path)) { /* and down again */
        path[len] = '/';
        rc = make_one(link, path, err);
    }
    return rc;
}

static int make_parents(struct ssh_link *link, const char *path, struct cb_err *err)
{
    char parent[PATH_MAX];
    const char *slash = strrchr(path, '/');
    if (!slash || slash == path)
        return 0;
    if (path_format(parent, sizeof parent, err, "%.*s", (int)(slash - path), path))
        return CB_ERR_USAGE;
    return make_folder_work(link, parent, err);
}

struct put_work {
    const char *local, *remote;
    char temporary[PATH_MAX];
    int fd;
    mode_t mode;
    uint64_t bytes, done;
    bool begun;    /* the temporary file exists */
    bool is_whole; /* and is complete: it only needs its name */
    char *chunk;
};

/* On a full file system OpenSSH reports just a failure; statvfs tells the reason. */
static int explain_failure(struct ssh_link *link, const char *path, int rc, struct cb_err *err)
{
    LIBSSH2_SFTP_STATVFS space;
    int answer, failed;
    if (!link->session || rc != CB_ERR_SYSTEM)
        return rc;
    SSH_AWAIT(link->session, sftp_deadline(link), answer, libssh2_sftp_statvfs(link->sftp, path, strlen(path), &space),
              failed, NULL);
    (void)failed;
    if (answer == 0 && space.f_bavail == 0)
        return cb_fail(err, CB_ERR_NO_SPACE, "writing %s on %s: the file system is full", path, ssh_link_name(link));
    return rc;
}

static int write_chunk(struct ssh_link *link, struct put_work *self, LIBSSH2_SFTP_HANDLE *handle, size_t len,
                       struct cb_err *err)
{
    for (size_t sent = 0; sent < len;) {
        ssize_t rc;
        int failed;
        SSH_AWAIT(link->session, sftp_deadline(link), rc, libssh2_sftp_write(handle, self->chunk + sent, len - sent),
                  failed, err);
        if (rc < 0)
            return explain_failure(link, self->temporary, sftp_fail(link, failed, "writing", self->temporary, err),
                                   err);
        sent += (size_t)rc;
        self->done += (uint64_t)rc;
    }
    return 0;
}

static int write_rest(struct ssh_link *link, struct put_work *self, LIBSSH2_SFTP_HANDLE *handle, struct cb_err *err)
{
    int rc = 0, answer, failed;
    libssh2_sftp_seek64(handle, self->done);
    while (rc == 0 && self->done < self->bytes) {
        uint64_t left = self->bytes - self->done;
        ssize_t got = pread(self->fd, self->chunk, left < CHUNK_BYTES ? left : CHUNK_BYTES, (off_t)self->done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return cb_fail_errno(err, errno, "reading %s", self->local);
        if (got == 0)
            return cb_fail(err, CB_ERR_CORRUPT, "%s became shorter while it was sent", self->local);
        rc = write_chunk(link, self, handle, (size_t)got, err);
    }
    if (rc)
        return rc;
    SSH_AWAIT(link->session, sftp_deadline(link), answer, libssh2_sftp_fsync(handle), failed, err);
    if (failed)
        return sftp_fail(link, failed, "writing", self->temporary, err);
    (void)answer; /* a server without fsync has done what it can */
    return 0;
}

static int remove_temporary(struct ssh_link *link, const char *path)
{
    int rc = -1, failed;
    if (link->session && link->sftp)
        SSH_AWAIT(link->session, sftp_deadline(link), rc,
                  libssh2_sftp_unlink_ex(link->sftp, path, (unsigned)strlen(path)), failed, NULL);
    return rc;
}

/* This version of SFTP does not rename over an existing file; mv does. */
static int rename_over(struct ssh_link *link, const struct put_work *self, struct cb_err *err)
{
    static const char script[] = "if [ -d \"$2\" ]; then echo 'there is a folder of that name' >&2; exit 1; fi\n"
                                 "mv -f -- \"$1\" \"$2\"";
    const char *const argv[] = {"sh", "-c", script, "sh", self->temporary, self->remote, NULL};
    const struct transport_command command = {.argv = argv, .max_bytes = 65536, .timeout_ns = RENAME_BOUND_NS};
    struct transport_answer answer;
    char line[256];
    transport_answer_init(&answer);
    int rc = ssh_link_run(link, &command, &answer, err);
    if (rc == 0 && answer.exit_status != 0)
        rc = cb_fail(err, CB_ERR_USAGE, "naming %s on %s: %s", self->remote, ssh_link_name(link),
                     transport_answer_last_line(&answer, line, sizeof line));
    transport_answer_release(&answer);
    return rc;
}

static int name_file(struct ssh_link *link, struct put_work *self, struct cb_err *err)
{
    int rc, failed;
    SSH_AWAIT(link->session, sftp_deadline(link), rc,
              libssh2_sftp_rename_ex(link->sftp, self->temporary, (unsigned)strlen(self->temporary), self->remote,
                                     (unsigned)strlen(self->remote), LIBSSH2_SFTP_RENAME_OVERWRITE),
              failed, err);
    if (rc == 0)
        return 0;
    rc = sftp_fail(link, failed, "naming", self->remote, err);
    if (!link->session)
        return rc;
    LIBSSH2_SFTP_ATTRIBUTES there;
    if (rc == CB_ERR_NOT_FOUND) /* renamed, but the reply was lost with a connection */
        return sftp_look(link, self->remote, &there, NULL) == 0 && there.filesize == self->bytes ? 0 : rc;
    return rename_over(link, self, err);
}

static int put_work(struct ssh_link *link, void *argument, struct cb_err *err)
{
    struct put_work *self = argument;
    LIBSSH2_SFTP_HANDLE *handle;
    if (!self->is_whole) {
        unsigned long flags = LIBSSH2_FXF_WRITE | (self->begun ? 0 : LIBSSH2_FXF_CREAT | LIBSSH2_FXF_TRUNC);
        int rc = sftp_open(link, self->temporary, flags, (long)self->mode, LIBSSH2_SFTP_OPENFILE, &handle, err);
        if (rc == CB_ERR_NOT_FOUND && !self->begun) {
            rc = make_parents(link, self->remote, err);
            if (rc == 0)
                rc = sftp_open(link, self->temporary, flags, (long)self->mode, LIBSSH2_SFTP_OPENFILE, &handle, err);
        }
        if (rc)
            return rc;
        self->begun = true;
        rc = write_rest(link, self, handle, err);
        int closed = sftp_close(link, handle, self->temporary, rc ? NULL : err);
        if (rc || closed)
            return rc ? rc : closed;
        self->is_whole = true;
    }
    return name_file(link, self, err);
}

int ssh_files_put(struct ssh_link *link, const char *local, const char *remote, struct cb_err *err)
{
    struct put_work work = {.local = local, .remote = remote, .fd = -1};
    struct stat facts;
    unsigned char random[4];
    char suffix[9];
    random_bytes(random, sizeof random);
    hash_hex(random, sizeof random, suffix);
    if (path_format(work.temporary, sizeof work.temporary, err, "%s.part-%s", remote, suffix))
        return CB_ERR_USAGE;
    work.fd = open(local, O_RDONLY | O_CLOEXEC);
    if (work.fd < 0 || fstat(work.fd, &facts) < 0) {
        int failed = errno;
        if (work.fd >= 0)
            close(work.fd);
        return cb_fail_errno(err, failed, "opening %s", local);
    }
    work.mode = facts.st_mode & 0777;
    work.bytes = (uint64_t)facts.st_size;
    work.chunk = malloc(CHUNK_BYTES);
    int rc = S_ISREG(facts.st_mode) ? 0 : cb_fail(err, CB_ERR_USAGE, "%s is no file", local);
    if (rc == 0 && !work.chunk)
        rc = alloc_fail(err, "to copy %s", local);
    if (rc == 0)
        rc = sftp_persist(link, put_work, &work, &work.done, err);
    if (rc && work.begun)
        (void)remove_temporary(link, work.temporary);
    free(work.chunk);
    close(work.fd);
    return rc;
}

struct get_work {
    const char *remote, *local;
    char temporary[PATH_MAX];
    int fd;
    bool begun;
    uint64_t bytes, done;
    unsigned long modified_s, mode;
    char *chunk;
};

/* A transfer is resumed only if the file is the same: if it has changed, we read it again from the start. */
static int look_again(struct ssh_link *link, struct get_work *self, LIBSSH2_SFTP_HANDLE *handle, struct cb_err *err)
{
    LIBSSH2_SFTP_ATTRIBUTES facts;
    int rc, failed;
    SSH_AWAIT(link->session, sftp_deadline(link), rc, libssh2_sftp_fstat_ex(handle, &facts, 0), failed, err);
    if (rc)
        return sftp_fail(link, failed, "looking at", self->remote, err);
    if (sftp_is_folder(&facts))
        return cb_fail(err, CB_ERR_USAGE, "%s on %s is a folder", self->remote, ssh_link_name(link));
    if (self->begun && (facts.filesize != self->bytes || facts.mtime != self->modified_s)) {
        self->done = 0;
        if (ftruncate(self->fd, 0) < 0)
            return cb_fail_errno(err, errno, "writing %s", self->temporary);
    }
    self->begun = true;
    self->bytes = facts.filesize;
    self->modified_s = facts.mtime;
    self->mode = facts.flags & LIBSSH2_SFTP_ATTR_PERMISSIONS ? facts.permissions & 0777 : 0644;
    libssh2_sftp_seek64(handle, self->done);
    return 0;
}

static int keep_bytes(struct get_work *self, size_t len, struct cb_err *err)
{
    for (size_t kept = 0; kept < len;) {
        ssize_t written = pwrite(self->fd, self->chunk + kept, len - kept, (off_t)self->done);
        if (written < 0 && errno != EINTR)
            return cb_fail_errno(err, errno, "writing %s", self->temporary);
        kept += written > 0 ? (size_t)written : 0;
        self->done += written > 0 ? (uint64_t)written : 0;
    }
    return 0;
}

static int read_rest(struct ssh_link *link, struct get_work *self, LIBSSH2_SFTP_HANDLE *handle, struct cb_err *err)
{
    ssize_t got = 1;
    int rc = 0, failed;
    while (rc == 0 && got != 0) {
        SSH_AWAIT(link->session, sftp_deadline(link), got, libssh2_sftp_read(handle, self->chunk, CHUNK_BYTES), failed,
                  err);
        if (got < 0)
            return sftp_fail(link, failed, "reading", self->remote, err);
        rc = keep_bytes(self, (size_t)got, err);
    }
    if (rc == 0 && self->done < self->bytes)
        return cb_fail(err, CB_ERR_CORRUPT, "%s on %s became shorter while it was read", self->remote,
                       ssh_link_name(link));
    return rc;
}

static int get_work(struct ssh_link *link, void *argument, struct cb_err *err)
{
    struct get_work *self = argument;
    LIBSSH2_SFTP_HANDLE *handle;
    int rc = sftp_open(link, self->remote, LIBSSH2_FXF_READ, 0, LIBSSH2_SFTP_OPENFILE, &handle, err);
    if (rc)
        return rc;
    rc = look_again(link, self, handle, err);
    if (rc == 0)
        rc = read_rest(link, self, handle, err);
    int closed = sftp_close(link, handle, self->remote, rc ? NULL : err);
    return rc ? rc : closed;
}

static int make_local_parents(const char *path, struct cb_err *err)
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

int ssh_files_get(struct ssh_link *link, const char *remote, const char *local, struct cb_err *err)
{
    struct get_work work = {.remote = remote, .local = local, .fd = -1};
    if (path_format(work.temporary, sizeof work.temporary, err, "%s.part-%d", local, (int)getpid()))
        return CB_ERR_USAGE;
    int rc = make_local_parents(local, err);
    if (rc)
        return rc;
    work.chunk = malloc(CHUNK_BYTES);
    if (!work.chunk)
        return alloc_fail(err, "to copy %s", remote);
    work.fd = open(work.temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    rc = work.fd < 0 ? cb_fail_errno(err, errno, "creating %s", work.temporary)
                     : sftp_persist(link, get_work, &work, &work.done, err);
    if (rc == 0 && (fchmod(work.fd, (mode_t)work.mode) < 0 || fsync(work.fd) < 0))
        rc = cb_fail_errno(err, errno, "writing %s", work.temporary);
    if (work.fd >= 0)
        close(work.fd);
    if (rc == 0 && rename(work.temporary, local) < 0)
        rc = cb_fail_errno(err, errno, "naming %s", local);
    if (rc && work.fd >= 0)
        unlink(work.temporary);
    free(work.chunk);
    return rc;
}

struct read_work {
    const char *path;
    uint64_t offset;
    size_t max_bytes;
    struct buf *out;
    size_t before; /* of `out` */
};

static int read_work(struct ssh_link *link, void *argument, struct cb_err *err)
{
    struct read_work *self = argument;
    LIBSSH2_SFTP_HANDLE *handle;
    int failed, rc = sftp_open(link, self->path, LIBSSH2_FXF_READ, 0, LIBSSH2_SFTP_OPENFILE, &handle, err);
    if (rc)
        return rc;
    self->out->len = self->before; /* a retry starts over */
    libssh2_sftp_seek64(handle, self->offset);
    ssize_t got = 1;
    while (rc == 0 && got != 0 && self->out->len - self->before < self->max_bytes) {
        char chunk[32768];
        size_t left = self->max_bytes - (self->out->len - self->before);
        SSH_AWAIT(link->session, sftp_deadline(link), got,
                  libssh2_sftp_read(handle, chunk, left < sizeof chunk ? left : sizeof chunk), failed, err);
        if (got < 0)
            rc = sftp_fail(link, failed, "reading", self->path, err);
        else
            buf_append(self->out, chunk, (size_t)got);
        if (rc == 0)
            rc = buf_check(self->out, self->path, err);
    }
    int closed = sftp_close(link, handle, self->path, rc ? NULL : err);
    return rc ? rc : closed;
}

int ssh_files_read(struct ssh_link *link, const char *path, uint64_t offset, size_t max_bytes, struct buf *out,
                   struct cb_err *err)
{
    struct read_work work = {.path = path, .offset = offset, .max_bytes = max_bytes, .out = out, .before = out->len};
    int rc = sftp_persist(link, read_work, &work, NULL, err);
    if (rc && !out->code) {
        out->len = work.before;
        out->data[out->len] = '\0';
    }
    return rc;
}

void ssh_entries_release(struct ssh_entries *self)
{
    for (size_t i = 0; i < self->count; i++)
        free(self->items[i].name);
    free(self->items);
    *self = (struct ssh_entries){0};
}

/* Remote names become local paths, so a name that contains a path is an attack. */
static int add_entry(struct ssh_entries *self, const char *name, size_t len, const LIBSSH2_SFTP_ATTRIBUTES *facts,
                     const char *path, struct cb_err *err)
{
    if ((len == 1 && *name == '.') || (len == 2 && memcmp(name, "..", 2) == 0))
        return 0;
    if (len == 0 || memchr(name, '/', len) || memchr(name, '\0', len))
        return cb_fail(err, CB_ERR_CORRUPT, "%s holds a name that is none", path);
    if (self->count == ENTRIES_MAX)
        return cb_fail(err, CB_ERR_MEMORY, "%s holds more than %d files", path, ENTRIES_MAX);
    if (alloc_grow(&self->items, self->count, sizeof *self->items, err))
        return CB_ERR_MEMORY;
    char *copy = strndup(name, len);
    if (!copy)
        return alloc_fail(err, "to list %s", path);
    self->items[self->count++] = (struct ssh_entry){
        .name = copy, .is_folder = sftp_is_folder(facts), .is_file = LIBSSH2_SFTP_S_ISREG(facts->permissions)};
    return 0;
}

struct list_work {
    const char *path;
    struct ssh_entries *entries;
};

static int list_work(struct ssh_link *link, void *argument, struct cb_err *err)
{
    struct list_work *self = argument;
    LIBSSH2_SFTP_ATTRIBUTES facts;
    LIBSSH2_SFTP_HANDLE *handle;
    char name[NAME_MAX + 1];
    int got = 1, failed, rc = sftp_open(link, self->path, 0, 0, LIBSSH2_SFTP_OPENDIR, &handle, err);
    if (rc)
        return rc;
    ssh_entries_release(self->entries); /* a retry starts over */
    while (rc == 0 && got != 0) {
        SSH_AWAIT(link->session, sftp_deadline(link), got,
                  libssh2_sftp_readdir_ex(handle, name, sizeof name, NULL, 0, &facts), failed, err);
        if (got < 0)
            rc = sftp_fail(link, failed, "reading the folder", self->path, err);
        else if (got > 0)
            rc = add_entry(self->entries, name, (size_t)got, &facts, self->path, err);
    }
    int closed = sftp_close(link, handle, self->path, rc ? NULL : err);
    return rc ? rc : closed;
}

int ssh_files_list(struct ssh_link *link, const char *path, struct ssh_entries *entries, struct cb_err *err)
{
    struct list_work work = {.path = path, .entries = entries};
    return sftp_persist(link, list_work, &work, NULL, err);
}

#endif
