/* Files by SFTP: complete or not at all, resumed after a broken connection. Folders are in jobs/ssh/ssh_folders.c. */
#ifdef HAVE_SSH2

#include "jobs/ssh/ssh_files.h"

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

#define BREAKS_MAX 5
#define CHUNK_BYTES (256u << 10)
#define RENAME_BOUND_NS (60 * NS_PER_S)
#define ENTRIES_MAX 1000000

/* The deadline for the other side's reply to a call. */
static uint64_t sftp_deadline(const struct ssh_link *link)
{
    return clock_monotonic_ns() + (link->session ? link->session->silence_ns : SSH_CONNECT_DEFAULT_NS * 10);
}

static int status_errno(unsigned long status)
{
    switch (status) {
    case LIBSSH2_FX_NO_SUCH_FILE:
    case LIBSSH2_FX_NO_SUCH_PATH:
        return ENOENT;
    case LIBSSH2_FX_PERMISSION_DENIED:
    case LIBSSH2_FX_WRITE_PROTECT:
        return EACCES;
    case LIBSSH2_FX_FILE_ALREADY_EXISTS:
        return EEXIST;
    case LIBSSH2_FX_NO_SPACE_ON_FILESYSTEM:
        return ENOSPC;
    case LIBSSH2_FX_QUOTA_EXCEEDED:
        return EDQUOT;
    case LIBSSH2_FX_NOT_A_DIRECTORY:
        return ENOTDIR;
    case LIBSSH2_FX_OP_UNSUPPORTED:
        return EOPNOTSUPP;
    default:
        return EIO;
    }
}

/* Call after a failure: `waiting_failed` is the result of SSH_AWAIT. If the server replied, the connection is kept and
 * the reply is the error. Otherwise the connection is closed; callers check that to distinguish the two. */
static int sftp_fail(struct ssh_link *link, int waiting_failed, const char *doing, const char *path, struct cb_err *err)
{
    LIBSSH2_SESSION *handle = ssh_session_handle(link->session);
    if (!waiting_failed && libssh2_session_last_errno(handle) == LIBSSH2_ERROR_SFTP_PROTOCOL && link->sftp) {
        unsigned long status = libssh2_sftp_last_error(link->sftp);
        if (status != LIBSSH2_FX_OK && status != LIBSSH2_FX_NO_CONNECTION && status != LIBSSH2_FX_CONNECTION_LOST)
            return cb_fail_errno(err, status_errno(status), "%s %s on %s (SFTP %lu)", doing, path, link->base.name,
                                 status);
    }
    struct cb_err own;
    if (!waiting_failed)
        waiting_failed = ssh_session_fail(link->session, &own, link->base.name);
    else
        own = err ? *err : (struct cb_err){.message = "no answer"};
    ssh_link_drop(link);
    return cb_fail(err, waiting_failed, "%s %s: %s", doing, path, own.message);
}

static int start_sftp(struct ssh_link *link, struct cb_err *err)
{
    int failed, rc = ssh_link_ready(link, sftp_deadline(link), err);
    if (rc || link->sftp)
        return rc;
    SSH_AWAIT_POINTER(link->session, sftp_deadline(link), link->sftp,
                      libssh2_sftp_init(ssh_session_handle(link->session)), failed, err);
    if (link->sftp)
        return 0;
    rc = failed ? failed : ssh_session_fail(link->session, err, "starting SFTP (does the server have it?)");
    ssh_link_drop(link);
    return err ? cb_context(err, "%s", link->base.name) : rc;
}

/* Counts how often the connection broke during a transfer. */
struct breaks {
    unsigned count;
    uint64_t done; /* progress at the last break; further progress restarts the count */
};

/* Whether to try again after result `rc`: only if the connection broke, and not too often without progress. */
static bool try_again(const struct ssh_link *link, int rc, struct breaks *breaks, uint64_t done)
{
    if (rc == 0 || link->session || (rc != CB_ERR_SYSTEM && rc != CB_ERR_TIMEOUT))
        return false;
    breaks->count = done != breaks->done ? 1 : breaks->count + 1;
    breaks->done = done;
    return breaks->count < BREAKS_MAX;
}

/* Connects if necessary. */
static int sftp_open(struct ssh_link *link, const char *path, unsigned long flags, long mode, int type,
                     LIBSSH2_SFTP_HANDLE **handle, struct cb_err *err)
{
    int failed, rc = start_sftp(link, err);
    if (rc)
        return rc;
    SSH_AWAIT_POINTER(link->session, sftp_deadline(link), *handle,
                      libssh2_sftp_open_ex(link->sftp, path, (unsigned)strlen(path), flags, mode, type), failed, err);
    if (*handle)
        return 0;
    return sftp_fail(link, failed, "opening", path, err);
}

/* Returns `rc` or, if that is 0, the result of closing. If the connection is closed, the handle is already freed. */
static int sftp_close(struct ssh_link *link, LIBSSH2_SFTP_HANDLE *handle, const char *path, int rc, struct cb_err *err)
{
    int answer, failed;
    if (!link->session)
        return rc;
    SSH_AWAIT(link->session, sftp_deadline(link), answer, libssh2_sftp_close_handle(handle), failed, rc ? NULL : err);
    if (answer == 0)
        return rc;
    answer = sftp_fail(link, failed, "closing", path, rc ? NULL : err);
    return rc ? rc : answer;
}

static int sftp_look(struct ssh_link *link, const char *path, LIBSSH2_SFTP_ATTRIBUTES *facts, struct cb_err *err)
{
    int rc, failed;
    SSH_AWAIT(link->session, sftp_deadline(link), rc,
              libssh2_sftp_stat_ex(link->sftp, path, (unsigned)strlen(path), LIBSSH2_SFTP_STAT, facts), failed, err);
    return rc ? sftp_fail(link, failed, "looking at", path, err) : 0;
}

static bool sftp_is_folder(const LIBSSH2_SFTP_ATTRIBUTES *facts)
{
    return facts->flags & LIBSSH2_SFTP_ATTR_PERMISSIONS && LIBSSH2_SFTP_S_ISDIR(facts->permissions);
}

int ssh_files_stat(struct transport *transport, const char *path, struct transport_stat *status, struct cb_err *err)
{
    struct ssh_link *link = (struct ssh_link *)transport;
    struct breaks breaks = {0};
    LIBSSH2_SFTP_ATTRIBUTES facts;
    int rc;
    do {
        rc = start_sftp(link, err);
        if (rc == 0)
            rc = sftp_look(link, path, &facts, err);
    } while (try_again(link, rc, &breaks, 0));
    if (rc == 0)
        *status = (struct transport_stat){.is_folder = sftp_is_folder(&facts),
                                          .bytes = facts.filesize,
                                          .modified_wall_ns = (uint64_t)facts.mtime * NS_PER_S};
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

static int make_parents(struct ssh_link *link, const char *path, struct cb_err *err)
{
    char parent[PATH_MAX];
    const char *slash = strrchr(path, '/');
    size_t whole = slash ? (size_t)(slash - path) : 0;
    while (whole > 1 && path[whole - 1] == '/')
        whole--;
    if (whole == 0)
        return 0;
    if (path_format(parent, sizeof parent, err, "%.*s", (int)whole, path))
        return CB_ERR_USAGE;
    int rc;
    while ((rc = make_one(link, parent, err)) == CB_ERR_NOT_FOUND) { /* up to the first folder that exists */
        char *cut = strrchr(parent, '/');
        if (!cut || cut == parent)
            return rc;
        *cut = '\0';
    }
    for (size_t len = strlen(parent); rc == 0 && len < whole; len = strlen(parent)) { /* and down again */
        parent[len] = '/';
        rc = make_one(link, parent, err);
    }
    return rc;
}

/* One file in transfer, which a new connection resumes. */
struct transfer {
    const char *remote, *local;
    char temporary[PATH_MAX]; /* temporary name next to the target */
    int fd;                   /* of the local file */
    char *chunk;
    uint64_t bytes, done;
    unsigned long modified_s; /* of a remote file that is read */
    mode_t mode;
    bool begun;    /* the remote file has been opened */
    bool is_whole; /* complete except for renaming the temporary file */
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
        return cb_fail(err, CB_ERR_NO_SPACE, "writing %s on %s: the file system is full", path, link->base.name);
    return rc;
}

static int write_rest(struct ssh_link *link, struct transfer *self, LIBSSH2_SFTP_HANDLE *handle, struct cb_err *err)
{
    int answer, failed;
    libssh2_sftp_seek64(handle, self->done);
    while (self->done < self->bytes) {
        uint64_t left = self->bytes - self->done;
        ssize_t got = pread(self->fd, self->chunk, left < CHUNK_BYTES ? left : CHUNK_BYTES, (off_t)self->done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return cb_fail_errno(err, errno, "reading %s", self->local);
        if (got == 0)
            return cb_fail(err, CB_ERR_CORRUPT, "%s became shorter while it was sent", self->local);
        for (ssize_t sent = 0, more; sent < got; sent += more) {
            SSH_AWAIT(link->session, sftp_deadline(link), more,
                      libssh2_sftp_write(handle, self->chunk + sent, (size_t)(got - sent)), failed, err);
            if (more < 0)
                return explain_failure(link, self->temporary, sftp_fail(link, failed, "writing", self->temporary, err),
                                       err);
            self->done += (uint64_t)more;
        }
    }
    SSH_AWAIT(link->session, sftp_deadline(link), answer, libssh2_sftp_fsync(handle), failed, err);
    (void)answer; /* a server without fsync cannot do more */
    return failed ? sftp_fail(link, failed, "writing", self->temporary, err) : 0;
}

/* This version of SFTP does not rename over an existing file; mv does. */
static int rename_over(struct ssh_link *link, const struct transfer *self, struct cb_err *err)
{
    static const char script[] = "if [ -d \"$2\" ]; then echo 'there is a folder of that name' >&2; exit 1; fi\n"
                                 "mv -f -- \"$1\" \"$2\"";
    const char *const argv[] = {"sh", "-c", script, "sh", self->temporary, self->remote, NULL};
    const struct transport_command command = {.argv = argv, .max_bytes = 65536, .timeout_ns = RENAME_BOUND_NS};
    struct transport_answer answer;
    char line[256];
    transport_answer_init(&answer);
    int rc = ssh_link_run(&link->base, &command, &answer, err);
    if (rc == 0 && answer.exit_status != 0)
        rc = cb_fail(err, CB_ERR_USAGE, "naming %s on %s: %s", self->remote, link->base.name,
                     transport_answer_last_line(&answer, line, sizeof line));
    transport_answer_release(&answer);
    return rc;
}

static int name_file(struct ssh_link *link, const struct transfer *self, struct cb_err *err)
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

static int put_once(struct ssh_link *link, struct transfer *self, struct cb_err *err)
{
    LIBSSH2_SFTP_HANDLE *handle;
    unsigned long flags = LIBSSH2_FXF_WRITE | (self->begun ? 0 : LIBSSH2_FXF_CREAT | LIBSSH2_FXF_TRUNC);
    int rc = start_sftp(link, err);
    if (rc == 0 && !self->is_whole) {
        rc = sftp_open(link, self->temporary, flags, (long)self->mode, LIBSSH2_SFTP_OPENFILE, &handle, err);
        if (rc == CB_ERR_NOT_FOUND && !self->begun) {
            rc = make_parents(link, self->remote, err);
            if (rc == 0)
                rc = sftp_open(link, self->temporary, flags, (long)self->mode, LIBSSH2_SFTP_OPENFILE, &handle, err);
        }
        if (rc)
            return rc;
        self->begun = true;
        rc = sftp_close(link, handle, self->temporary, write_rest(link, self, handle, err), err);
        self->is_whole = rc == 0;
    }
    return rc ? rc : name_file(link, self, err);
}

int ssh_files_put(struct transport *transport, const char *local, const char *remote, struct cb_err *err)
{
    struct ssh_link *link = (struct ssh_link *)transport;
    struct transfer work = {.local = local, .remote = remote, .fd = -1};
    struct breaks breaks = {0};
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
    if (rc == 0) {
        do
            rc = put_once(link, &work, err);
        while (try_again(link, rc, &breaks, work.done));
    }
    if (rc && work.begun && link->session && link->sftp) { /* files that cannot be removed are left */
        int answer, failed;
        SSH_AWAIT(link->session, sftp_deadline(link), answer,
                  libssh2_sftp_unlink_ex(link->sftp, work.temporary, (unsigned)strlen(work.temporary)), failed, NULL);
        (void)answer;
        (void)failed;
    }
    free(work.chunk);
    close(work.fd);
    return rc;
}

/* A transfer is resumed only if the file is the same: if it has changed, we read it again from the start. */
static int look_again(struct ssh_link *link, struct transfer *self, LIBSSH2_SFTP_HANDLE *handle, struct cb_err *err)
{
    LIBSSH2_SFTP_ATTRIBUTES facts;
    int rc, failed;
    SSH_AWAIT(link->session, sftp_deadline(link), rc, libssh2_sftp_fstat_ex(handle, &facts, 0), failed, err);
    if (rc)
        return sftp_fail(link, failed, "looking at", self->remote, err);
    if (sftp_is_folder(&facts))
        return cb_fail(err, CB_ERR_USAGE, "%s on %s is a folder", self->remote, link->base.name);
    if (self->begun && (facts.filesize != self->bytes || facts.mtime != self->modified_s)) {
        self->done = 0;
        if (ftruncate(self->fd, 0) < 0 || lseek(self->fd, 0, SEEK_SET) < 0)
            return cb_fail_errno(err, errno, "writing %s", self->temporary);
    }
    self->begun = true;
    self->bytes = facts.filesize;
    self->modified_s = facts.mtime;
    self->mode = facts.flags & LIBSSH2_SFTP_ATTR_PERMISSIONS ? (mode_t)(facts.permissions & 0777) : 0644;
    libssh2_sftp_seek64(handle, self->done);
    return 0;
}

static int get_once(struct ssh_link *link, struct transfer *self, struct cb_err *err)
{
    LIBSSH2_SFTP_HANDLE *handle;
    int failed, rc = sftp_open(link, self->remote, LIBSSH2_FXF_READ, 0, LIBSSH2_SFTP_OPENFILE, &handle, err);
    if (rc)
        return rc;
    rc = look_again(link, self, handle, err);
    for (ssize_t got = 1; rc == 0 && got != 0;) {
        SSH_AWAIT(link->session, sftp_deadline(link), got, libssh2_sftp_read(handle, self->chunk, CHUNK_BYTES), failed,
                  err);
        if (got < 0)
            rc = sftp_fail(link, failed, "reading", self->remote, err);
        else if (!fd_write_all(self->fd, self->chunk, (size_t)got))
            rc = cb_fail_errno(err, errno, "writing %s", self->temporary);
        else
            self->done += (uint64_t)got;
    }
    if (rc == 0 && self->done < self->bytes)
        rc = cb_fail(err, CB_ERR_CORRUPT, "%s on %s became shorter while it was read", self->remote, link->base.name);
    return sftp_close(link, handle, self->remote, rc, err);
}

int ssh_files_get(struct transport *transport, const char *remote, const char *local, struct cb_err *err)
{
    struct ssh_link *link = (struct ssh_link *)transport;
    struct transfer work = {.remote = remote, .local = local, .fd = -1};
    struct breaks breaks = {0};
    if (path_format(work.temporary, sizeof work.temporary, err, "%s.part-%d", local, (int)getpid()))
        return CB_ERR_USAGE;
    int rc = path_make_folders(local, 0755, err);
    if (rc)
        return rc;
    work.chunk = malloc(CHUNK_BYTES);
    if (!work.chunk)
        return alloc_fail(err, "to copy %s", remote);
    work.fd = open(work.temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (work.fd < 0) {
        rc = cb_fail_errno(err, errno, "creating %s", work.temporary);
    } else {
        do
            rc = get_once(link, &work, err);
        while (try_again(link, rc, &breaks, work.done));
    }
    if (rc == 0 && (fchmod(work.fd, work.mode) < 0 || fsync(work.fd) < 0))
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

static int read_once(struct ssh_link *link, const char *path, uint64_t offset, size_t max_bytes, struct buf *out,
                     struct cb_err *err)
{
    LIBSSH2_SFTP_HANDLE *handle;
    size_t before = out->len;
    int failed, rc = sftp_open(link, path, LIBSSH2_FXF_READ, 0, LIBSSH2_SFTP_OPENFILE, &handle, err);
    if (rc)
        return rc;
    libssh2_sftp_seek64(handle, offset);
    ssize_t got = 1;
    while (rc == 0 && got != 0 && out->len - before < max_bytes) {
        char chunk[32768];
        size_t left = max_bytes - (out->len - before);
        SSH_AWAIT(link->session, sftp_deadline(link), got,
                  libssh2_sftp_read(handle, chunk, left < sizeof chunk ? left : sizeof chunk), failed, err);
        if (got < 0)
            rc = sftp_fail(link, failed, "reading", path, err);
        else
            buf_append(out, chunk, (size_t)got);
        if (rc == 0)
            rc = buf_check(out, path, err);
    }
    if (rc && !out->code) { /* a retry starts over */
        out->len = before;
        out->data[before] = '\0';
    }
    return sftp_close(link, handle, path, rc, err);
}

int ssh_files_read(struct transport *transport, const char *path, uint64_t offset, size_t max_bytes, struct buf *out,
                   struct cb_err *err)
{
    struct ssh_link *link = (struct ssh_link *)transport;
    struct breaks breaks = {0};
    int rc;
    do
        rc = read_once(link, path, offset, max_bytes, out, err);
    while (try_again(link, rc, &breaks, 0));
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

static int list_once(struct ssh_link *link, const char *path, struct ssh_entries *entries, struct cb_err *err)
{
    LIBSSH2_SFTP_ATTRIBUTES facts;
    LIBSSH2_SFTP_HANDLE *handle;
    char name[NAME_MAX + 1];
    int got = 1, failed, rc = sftp_open(link, path, 0, 0, LIBSSH2_SFTP_OPENDIR, &handle, err);
    if (rc)
        return rc;
    ssh_entries_release(entries); /* a retry starts over */
    while (rc == 0 && got != 0) {
        SSH_AWAIT(link->session, sftp_deadline(link), got,
                  libssh2_sftp_readdir_ex(handle, name, sizeof name, NULL, 0, &facts), failed, err);
        if (got < 0)
            rc = sftp_fail(link, failed, "reading the folder", path, err);
        else if (got > 0)
            rc = add_entry(entries, name, (size_t)got, &facts, path, err);
    }
    return sftp_close(link, handle, path, rc, err);
}

int ssh_files_list(struct ssh_link *link, const char *path, struct ssh_entries *entries, struct cb_err *err)
{
    struct breaks breaks = {0};
    int rc;
    do
        rc = list_once(link, path, entries, err);
    while (try_again(link, rc, &breaks, 0));
    return rc;
}

#endif
