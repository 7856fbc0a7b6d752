/* Calls of SFTP over the one connection of a transport: waited for in bounded time, their failures in words, and work that
 * is done again on a new connection where one broke. Private to the files of SSH. */
#ifndef JOBS_SSH_SSH_SFTP_H
#define JOBS_SSH_SSH_SFTP_H

#ifdef HAVE_SSH2

#include <libssh2.h>
#include <libssh2_sftp.h>

#include "jobs/ssh/ssh_link.h"

/* Until when the other side has to answer a call. */
uint64_t sftp_deadline(const struct ssh_link *link);

/* After a call that did not succeed: `waiting_failed` is what SSH_AWAIT gave. Where the server answered, the connection is
 * kept and the answer says what is wrong; else the connection is given up, which is how callers tell the two apart. */
int sftp_fail(struct ssh_link *link, int waiting_failed, const char *doing, const char *path, struct cb_err *err);

/* Does a piece of work, again on a new connection where one broke. `progress` starts the count of breaks anew when it
 * moved; NULL for work that has none. */
typedef int (*sftp_work)(struct ssh_link *link, void *argument, struct cb_err *err);
int sftp_persist(struct ssh_link *link, sftp_work work, void *argument, const uint64_t *progress,
                 struct cb_err *err) CB_MUST_CHECK;

int sftp_open(struct ssh_link *link, const char *path, unsigned long flags, long mode, int type,
              LIBSSH2_SFTP_HANDLE **handle, struct cb_err *err) CB_MUST_CHECK;
/* Only where the connection is still there: else the handle went with it. */
int sftp_close(struct ssh_link *link, LIBSSH2_SFTP_HANDLE *handle, const char *path, struct cb_err *err) CB_MUST_CHECK;

int sftp_look(struct ssh_link *link, const char *path, LIBSSH2_SFTP_ATTRIBUTES *facts,
              struct cb_err *err) CB_MUST_CHECK;
bool sftp_is_folder(const LIBSSH2_SFTP_ATTRIBUTES *facts);

#endif

#endif
