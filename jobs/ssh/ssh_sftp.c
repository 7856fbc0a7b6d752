/* SFTP calls over the link: their error messages, and when a piece of work is retried. */
#include "jobs/ssh/ssh_sftp.h"

#ifdef HAVE_SSH2

#include <errno.h>
#include <string.h>

#include "core/clock.h"

#define BREAKS_MAX 5

uint64_t sftp_deadline(const struct ssh_link *link)
{
    return clock_monotonic_ns() + (link->session ? ssh_session_silence_ns(link->session) : SSH_CONNECT_DEFAULT_NS * 10);
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

int sftp_fail(struct ssh_link *link, int waiting_failed, const char *doing, const char *path, struct cb_err *err)
{
    LIBSSH2_SESSION *handle = ssh_session_handle(link->session);
    if (!waiting_failed && libssh2_session_last_errno(handle) == LIBSSH2_ERROR_SFTP_PROTOCOL && link->sftp) {
        unsigned long status = libssh2_sftp_last_error(link->sftp);
        if (status != LIBSSH2_FX_OK && status != LIBSSH2_FX_NO_CONNECTION && status != LIBSSH2_FX_CONNECTION_LOST)
            return cb_fail_errno(err, status_errno(status), "%s %s on %s (SFTP %lu)", doing, path, ssh_link_name(link),
                                 status);
    }
    struct cb_err own;
    if (!waiting_failed)
        waiting_failed = ssh_session_fail(link->session, &own, ssh_link_name(link));
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
    (void)cb_context(err, "%s", ssh_link_name(link));
    return rc;
}

int sftp_persist(struct ssh_link *link, sftp_work work, void *argument, const uint64_t *progress, struct cb_err *err)
{
    uint64_t before = progress ? *progress : 0;
    struct cb_err own;
    int rc = 0;
    for (int breaks = 0; breaks < BREAKS_MAX; breaks++) {
        rc = start_sftp(link, &own);
        if (rc == 0)
            rc = work(link, argument, &own);
        if (rc == 0 || link->session || (rc != CB_ERR_SYSTEM && rc != CB_ERR_TIMEOUT))
            break;
        if (progress && *progress != before)
            breaks = 0;
        before = progress ? *progress : 0;
    }
    if (rc && err)
        *err = own;
    return rc;
}

int sftp_open(struct ssh_link *link, const char *path, unsigned long flags, long mode, int type,
              LIBSSH2_SFTP_HANDLE **handle, struct cb_err *err)
{
    int failed;
    SSH_AWAIT_POINTER(link->session, sftp_deadline(link), *handle,
                      libssh2_sftp_open_ex(link->sftp, path, (unsigned)strlen(path), flags, mode, type), failed, err);
    if (*handle)
        return 0;
    return sftp_fail(link, failed, "opening", path, err);
}

int sftp_close(struct ssh_link *link, LIBSSH2_SFTP_HANDLE *handle, const char *path, struct cb_err *err)
{
    int rc, failed;
    if (!link->session)
        return 0;
    SSH_AWAIT(link->session, sftp_deadline(link), rc, libssh2_sftp_close_handle(handle), failed, err);
    return rc ? sftp_fail(link, failed, "closing", path, err) : 0;
}

int sftp_look(struct ssh_link *link, const char *path, LIBSSH2_SFTP_ATTRIBUTES *facts, struct cb_err *err)
{
    int rc, failed;
    SSH_AWAIT(link->session, sftp_deadline(link), rc,
              libssh2_sftp_stat_ex(link->sftp, path, (unsigned)strlen(path), LIBSSH2_SFTP_STAT, facts), failed, err);
    return rc ? sftp_fail(link, failed, "looking at", path, err) : 0;
}

bool sftp_is_folder(const LIBSSH2_SFTP_ATTRIBUTES *facts)
{
    return facts->flags & LIBSSH2_SFTP_ATTR_PERMISSIONS && LIBSSH2_SFTP_S_ISDIR(facts->permissions);
}

#endif
