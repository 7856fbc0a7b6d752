/* The transport over SSH: its one connection, which is reopened after a break, and the commands that run over it. */
#ifndef JOBS_SSH_SSH_LINK_H
#define JOBS_SSH_SSH_LINK_H

#include <libssh2.h>
#include <libssh2_sftp.h>
#include <stdint.h>

#include "core/err.h"
#include "jobs/ssh/ssh_config.h"
#include "jobs/ssh/ssh_session.h"
#include "jobs/transport.h"

#define SSH_CLOSING_MAX 8

struct ssh_link {
    struct transport base; /* first: a pointer to it is a pointer to this struct */
    struct ssh_route route;
    struct ssh_session *session;               /* NULL while disconnected */
    LIBSSH2_SFTP *sftp;                        /* of this session; NULL until needed */
    LIBSSH2_CHANNEL *closing[SSH_CLOSING_MAX]; /* finished channels that the other side has not confirmed */
    size_t closing_count;
    uint64_t connect_timeout_ns;
    char *path, *login_path; /* owned; prepended to PATH for commands; may be NULL */
    char note[SSH_PLACE_BYTES + 128];
};

/* Connects if disconnected, with retries and backoff until the deadline; does not retry errors that would repeat (a
 * rejected key). */
int ssh_link_ready(struct ssh_link *self, uint64_t deadline_ns, struct cb_err *err) CB_MUST_CHECK;

/* Closes the connection and everything open in it. */
void ssh_link_drop(struct ssh_link *self);

/* Runs a command as documented in jobs/transport.h. */
int ssh_link_run(struct transport *transport, const struct transport_command *command, struct transport_answer *answer,
                 struct cb_err *err) CB_MUST_CHECK;

#endif
