/* What happens between a connection and its use: the host's key is checked, the user's is shown.
 * Knows libssh2; waits through the session. */
#ifndef JOBS_SSH_SSH_LOGIN_H
#define JOBS_SSH_SSH_LOGIN_H

#include <stdint.h>

#include "core/err.h"
#include "jobs/ssh/ssh_config.h"
#include "jobs/ssh/ssh_session.h"

/* Which kinds of host keys to ask for: those that known_hosts has of this host first, or a host whose
 * other key is known would look like a stranger. */
int ssh_login_prefer_known(struct _LIBSSH2_SESSION *handle, const struct ssh_host *host,
                           struct cb_err *err) CB_MUST_CHECK;

/* `direct`: nothing lies between us and the host, so ssh-keyscan reaches it. */
int ssh_login_check_host(struct _LIBSSH2_SESSION *handle, const struct ssh_host *host, bool direct,
                         struct cb_err *err) CB_MUST_CHECK;

/* With the keys of the agent, then with those in files. */
int ssh_login_authenticate(struct ssh_session *session, const struct ssh_host *host, uint64_t deadline_ns,
                           struct cb_err *err) CB_MUST_CHECK;

#endif
