/* Logging in: checks the host's key, then presents the user's keys. */
#ifndef JOBS_SSH_SSH_LOGIN_H
#define JOBS_SSH_SSH_LOGIN_H

#include <stdint.h>

#include "core/err.h"
#include "jobs/ssh/ssh_config.h"
#include "jobs/ssh/ssh_session.h"

/* Which kinds of host keys to request: those listed in known_hosts for this host first, otherwise a host with another
 * listed key would look unknown. */
int ssh_login_prefer_known(LIBSSH2_SESSION *handle, const struct ssh_host *host, struct cb_err *err) CB_MUST_CHECK;

/* `direct`: there is no jump host, so ssh-keyscan reaches the host. */
int ssh_login_check_host(LIBSSH2_SESSION *handle, const struct ssh_host *host, bool direct,
                         struct cb_err *err) CB_MUST_CHECK;

/* With the keys of the agent, then with those in files. */
int ssh_login_authenticate(struct ssh_session *session, const struct ssh_host *host, uint64_t deadline_ns,
                           struct cb_err *err) CB_MUST_CHECK;

#endif
