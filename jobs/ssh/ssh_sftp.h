/* SFTP calls over the one connection of a transport: bounded waits, errors as messages, and retries on a new
 * connection after a break. Private to the files of SSH. */
#ifndef JOBS_SSH_SSH_SFTP_H
#define JOBS_SSH_SSH_SFTP_H

#ifdef HAVE_SSH2

#include <libssh2.h>
#include <libssh2_sftp.h>

#include "jobs/ssh/ssh_link.h"

/* The deadline for the other side's reply to a call. */
uint64_t sftp_deadline(const struct ssh_link *link);

/* Call after a failure: `waiting_failed` is the result of SSH_AWAIT. If the server replied, the connection is kept
 * and the reply is the error. Otherwise the connection is closed, which is how callers distinguish the two. */
int sftp_fail(struct ssh_link *link, int waiting_failed, const char *doing, const char *path, struct cb_err *err);

/* Runs a piece of work, again on a new connection if one breaks. Retries are counted from zero whenever `progress`
 * has moved; NULL for work without progress. */
typedef int (*sftp_work)(struct ssh_link *link, void *argument, struct cb_err *err);
int sftp_persist(struct ssh_link *link, sftp_work work, void *argument, const uint64_t *progress,
                 struct cb_err *err) CB_MUST_CHECK;

int sftp_open(struct ssh_link *link, const char *path, unsigned long flags, long mode, int type,
              LIBSSH2_SFTP_HANDLE **handle, struct cb_err *err) CB_MUST_CHECK;
/* Closes the handle only if the connection is still open; otherwise the handle is already freed. */
int sftp_close(struct ssh_link *link, LIBSSH2_SFTP_HANDLE *handle, const char *path, struct cb_err *err) CB_MUST_CHECK;

int sftp_look(struct ssh_link *link, const char *path, LIBSSH2_SFTP_ATTRIBUTES *facts,
              struct cb_err *err) CB_MUST_CHECK;
bool sftp_is_folder(const LIBSSH2_SFTP_ATTRIBUTES *facts);

#endif

#endif
