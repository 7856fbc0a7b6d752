/* The connection of a transport, made again after it broke. jobs/ssh/ssh_run.c and jobs/ssh/ssh_files.c use it. */
#include "jobs/ssh/ssh_link.h"

#ifdef HAVE_SSH2

#include <libssh2.h>

#include "core/clock.h"

#define TRIES 6
#define FIRST_PAUSE_NS (200 * NS_PER_MS)

const char *ssh_link_name(const struct ssh_link *self)
{
    return self->route.hops[self->route.count - 1].alias;
}

static bool may_pass(int code)
{
    return code == CB_ERR_SYSTEM || code == CB_ERR_TIMEOUT;
}

int ssh_link_ready(struct ssh_link *self, uint64_t deadline_ns, struct cb_err *err)
{
    uint64_t pause_ns = FIRST_PAUSE_NS;
    int rc = 0;
    if (self->session)
        return 0;
    for (int tries = 0; tries < TRIES; tries++, pause_ns *= 2) {
        rc = ssh_session_open(&self->session, &self->route, self->connect_timeout_ns, err);
        if (rc == 0)
            self->connections++;
        if (rc == 0 || !may_pass(rc) || clock_monotonic_ns() + pause_ns >= deadline_ns)
            return rc;
        if (tries + 1 < TRIES)
            clock_sleep_ns(pause_ns);
    }
    return rc;
}

void ssh_link_drop(struct ssh_link *self)
{
    ssh_session_close(self->session); /* also frees its channels */
    self->session = NULL;
    self->sftp = NULL;
    self->closing_count = 0;
}

#endif
