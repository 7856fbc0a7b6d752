/* Waits on a session, and sends keepalives meanwhile. */
#ifdef HAVE_SSH2

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include "core/clock.h"
#include "jobs/ssh/ssh_session.h"

#define LONGEST_POLL_NS (500 * NS_PER_MS)

LIBSSH2_SESSION *ssh_session_handle(struct ssh_session *self)
{
    return self->hops[self->count - 1].handle;
}

int ssh_session_fail(struct ssh_session *self, struct cb_err *err, const char *what)
{
    char *text = NULL;
    int len = 0;
    int code = libssh2_session_last_error(ssh_session_handle(self), &text, &len, 0);
    return cb_fail(err, CB_ERR_SYSTEM, "%s: %.*s (libssh2 %d)", what, len, text ? text : "", code);
}

bool ssh_is_sending(LIBSSH2_SESSION *handle)
{
    return libssh2_session_block_directions(handle) & LIBSSH2_SESSION_BLOCK_OUTBOUND;
}

static void keep_alive(struct ssh_session *self, uint64_t now_ns)
{
    int next_s = 0;
    if (!self->in_use || self->alive_ns == 0 || now_ns < self->next_alive_ns)
        return;
    for (size_t i = 0; i < self->count; i++)
        if (ssh_is_sending(self->hops[i].handle))
            return;
    (void)libssh2_keepalive_send(ssh_session_handle(self), &next_s);
    self->next_alive_ns = now_ns + self->alive_ns;
}

/* Keepalives request a reply: a peer that sends nothing at all is gone. If we have not checked for a while, its data
 * may still be in the socket. */
static bool is_silent(struct ssh_session *self, uint64_t now_ns)
{
    if (now_ns - self->waited_ns > 2 * LONGEST_POLL_NS)
        self->heard_ns = now_ns;
    self->waited_ns = now_ns;
    return self->in_use && self->alive_ns && now_ns - self->heard_ns > self->silence_ns + self->alive_ns;
}

int ssh_session_wait(struct ssh_session *self, uint64_t deadline_ns, struct cb_err *err)
{
    uint64_t now_ns = clock_monotonic_ns();
    const char *name = self->route->hops[self->route->count - 1].alias;
    if (now_ns >= deadline_ns)
        return cb_fail(err, CB_ERR_TIMEOUT, "%s does not answer in time", name);
    if (is_silent(self, now_ns))
        return cb_fail(err, CB_ERR_SYSTEM, "%s has been silent for %.0f s", name,
                       (double)(now_ns - self->heard_ns) / (double)NS_PER_S);
    keep_alive(self, now_ns);
    struct pollfd polled = {.fd = self->socket, .events = POLLIN};
    if (self->count && ssh_is_sending(self->hops[0].handle))
        polled.events |= POLLOUT;
    uint64_t left_ns = deadline_ns - now_ns < LONGEST_POLL_NS ? deadline_ns - now_ns : LONGEST_POLL_NS;
    int ready = poll(&polled, 1, (int)(left_ns / NS_PER_MS + 1));
    if (ready < 0 && errno != EINTR)
        return cb_fail_errno(err, errno, "waiting for %s", name);
    if (ready > 0 && polled.revents & POLLIN)
        self->heard_ns = clock_monotonic_ns();
    if (ready > 0 && !(polled.revents & (POLLIN | POLLOUT))) {
        int failed = 0;
        socklen_t len = sizeof failed;
        if (getsockopt(self->socket, SOL_SOCKET, SO_ERROR, &failed, &len) < 0 || failed == 0)
            failed = ECONNRESET;
        return cb_fail(err, CB_ERR_SYSTEM, "the connection to %s broke: %s", name, strerror(failed));
    }
    return 0;
}

#endif
