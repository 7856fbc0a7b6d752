/* Connects over one or several machines, and closes the connection. */
#ifdef HAVE_SSH2

#include "jobs/ssh/ssh_session.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "jobs/ssh/ssh_login.h"

#define GOODBYE_NS (200 * NS_PER_MS)
#define LAST_TRIES 1000

static ssize_t tunnel_send(libssh2_socket_t socket, const void *bytes, size_t len, int flags, void **abstract)
{
    const struct ssh_hop *hop = *abstract;
    (void)socket;
    (void)flags;
    if (hop->whole->is_shut)
        return -EPIPE;
    ssize_t sent = libssh2_channel_write(hop->tunnel, bytes, len);
    if (sent == LIBSSH2_ERROR_EAGAIN || sent == 0)
        return -EAGAIN;
    return sent < 0 ? -EPIPE : sent;
}

static ssize_t tunnel_receive(libssh2_socket_t socket, void *bytes, size_t len, int flags, void **abstract)
{
    const struct ssh_hop *hop = *abstract;
    (void)socket;
    (void)flags;
    if (hop->whole->is_shut)
        return 0;
    if (ssh_is_sending(hop->carrier))
        return -EAGAIN; /* a read may have to send */
    ssize_t got = libssh2_channel_read(hop->tunnel, bytes, len);
    if (got == LIBSSH2_ERROR_EAGAIN || (got == 0 && !libssh2_channel_eof(hop->tunnel)))
        return -EAGAIN;
    return got < 0 ? -ECONNRESET : got;
}

static int await_connect(int fd, uint64_t deadline_ns)
{
    for (;;) {
        uint64_t now_ns = clock_monotonic_ns();
        struct pollfd polled = {.fd = fd, .events = POLLOUT};
        if (now_ns >= deadline_ns)
            return ETIMEDOUT;
        int ready = poll(&polled, 1, (int)((deadline_ns - now_ns) / NS_PER_MS + 1));
        if (ready < 0 && errno != EINTR)
            return errno;
        if (ready > 0) {
            int failed = 0;
            socklen_t len = sizeof failed;
            return getsockopt(fd, SOL_SOCKET, SO_ERROR, &failed, &len) < 0 ? errno : failed;
        }
    }
}

static int connect_address(const struct addrinfo *address, uint64_t deadline_ns, int *fd)
{
    int made = socket(address->ai_family, address->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, address->ai_protocol);
    if (made < 0)
        return errno;
    int failed = connect(made, address->ai_addr, address->ai_addrlen) < 0 ? errno : 0;
    if (failed == EINPROGRESS)
        failed = await_connect(made, deadline_ns);
    if (failed) {
        close(made);
        return failed;
    }
    *fd = made;
    return 0;
}

static int connect_socket(struct ssh_session *self, const struct ssh_host *host, uint64_t deadline_ns,
                          struct cb_err *err)
{
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *addresses = NULL;
    char port[8];
    int failed = 0;
    snprintf(port, sizeof port, "%u", host->port);
    int found = getaddrinfo(host->host_name, port, &hints, &addresses);
    if (found)
        return cb_fail(err, found == EAI_AGAIN ? CB_ERR_SYSTEM : CB_ERR_NOT_FOUND, "looking up %s: %s", host->host_name,
                       gai_strerror(found));
    for (const struct addrinfo *at = addresses; at; at = at->ai_next) {
        failed = connect_address(at, deadline_ns, &self->socket);
        if (failed == 0)
            break;
    }
    freeaddrinfo(addresses);
    if (failed)
        return cb_fail_errno(err, failed, "connecting to %s port %u", host->host_name, host->port);
    int on = 1, idle_s = (int)(self->alive_ns / NS_PER_S);
    unsigned silence_ms = (unsigned)(self->silence_ns / NS_PER_MS);
    /* Between operations only the kernel can send keepalives. If one of these options fails, the connection works all
     * the same. */
    (void)setsockopt(self->socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)setsockopt(self->socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    if (idle_s > 0) {
        (void)setsockopt(self->socket, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
        (void)setsockopt(self->socket, IPPROTO_TCP, TCP_KEEPINTVL, &idle_s, sizeof idle_s);
    }
    (void)setsockopt(self->socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &silence_ms, sizeof silence_ms);
    return 0;
}

static int open_tunnel(struct ssh_session *self, const struct ssh_host *host, uint64_t deadline_ns,
                       LIBSSH2_CHANNEL **tunnel, struct cb_err *err)
{
    int failed;
    const struct ssh_host *before = &self->route->hops[self->count - 1];
    SSH_AWAIT_POINTER(
        self, deadline_ns, *tunnel,
        libssh2_channel_direct_tcpip_ex(ssh_session_handle(self), host->host_name, host->port, "127.0.0.1", 22), failed,
        err);
    if (*tunnel)
        return 0;
    if (!failed)
        failed = ssh_session_fail(self, err, "opening the way");
    (void)cb_context(err, "from %s to %s port %u (does %s allow TCP forwarding?)", before->alias, host->host_name,
                     host->port, before->alias);
    return failed;
}

static int shake_hands(struct ssh_session *self, const struct ssh_host *host, uint64_t deadline_ns, struct cb_err *err)
{
    LIBSSH2_SESSION *handle = ssh_session_handle(self);
    int rc, failed;
    SSH_AWAIT(self, deadline_ns, rc, libssh2_session_handshake(handle, self->socket), failed, err);
    if (failed)
        return cb_context(err, "speaking SSH with %s port %u", host->host_name, host->port);
    if (rc == LIBSSH2_ERROR_KEX_FAILURE || rc == LIBSSH2_ERROR_KEY_EXCHANGE_FAILURE)
        return cb_fail(err, CB_ERR_UNSUPPORTED,
                       "%s and libssh2 %s have no way of encryption or kind of host key in common; the server needs "
                       "an Ed25519 or ECDSA host key",
                       host->alias, libssh2_version(0));
    if (rc) {
        (void)ssh_session_fail(self, err, "what answers does not go on with SSH");
        return cb_context(err, "speaking SSH with %s port %u", host->host_name, host->port);
    }
    return 0;
}

static int open_hop(struct ssh_session *self, const struct ssh_host *host, uint64_t timeout_ns, struct cb_err *err)
{
    uint64_t deadline_ns = clock_monotonic_ns() + timeout_ns;
    size_t index = self->count;
    struct ssh_hop *hop = &self->hops[index];
    int rc = index == 0 ? connect_socket(self, host, deadline_ns, err)
                        : open_tunnel(self, host, deadline_ns, &hop->tunnel, err);
    if (rc)
        return rc;
    hop->whole = self;
    hop->carrier = index ? self->hops[index - 1].handle : NULL;
    hop->handle = libssh2_session_init_ex(NULL, NULL, NULL, hop);
    if (!hop->handle)
        return alloc_fail(err, "for a session");
    self->count++;
    libssh2_session_set_blocking(hop->handle, 0);
    if (hop->tunnel) {
        /* libssh2 declares its callbacks as void *. */
        ssize_t (*send_bytes)(libssh2_socket_t, const void *, size_t, int, void **) = tunnel_send;
        ssize_t (*receive_bytes)(libssh2_socket_t, void *, size_t, int, void **) = tunnel_receive;
        void *pointer;
        memcpy(&pointer, &send_bytes, sizeof pointer);
        (void)libssh2_session_callback_set(hop->handle, LIBSSH2_CALLBACK_SEND, pointer);
        memcpy(&pointer, &receive_bytes, sizeof pointer);
        (void)libssh2_session_callback_set(hop->handle, LIBSSH2_CALLBACK_RECV, pointer);
    }
    rc = ssh_login_prefer_known(hop->handle, host, err);
    if (rc == 0)
        rc = shake_hands(self, host, deadline_ns, err);
    if (rc == 0)
        rc = ssh_login_check_host(hop->handle, host, index == 0, err);
    return rc ? rc : ssh_login_authenticate(self, host, deadline_ns, err);
}

int ssh_session_open(struct ssh_session **self, const struct ssh_route *route, uint64_t timeout_ns, struct cb_err *err)
{
    struct ssh_session *made = calloc(1, sizeof *made);
    if (!made)
        return alloc_fail(err, "for a session");
    if (libssh2_init(0)) {
        free(made);
        return cb_fail(err, CB_ERR_SYSTEM, "libssh2 does not start");
    }
    made->route = route;
    made->socket = -1;
    const struct ssh_host *last = &route->hops[route->count - 1];
    int64_t interval_s = last->alive_interval_s >= 0 ? last->alive_interval_s : SSH_ALIVE_DEFAULT_S;
    int64_t count = last->alive_count > 0 ? last->alive_count : 3;
    made->alive_ns = (uint64_t)interval_s * NS_PER_S;
    made->silence_ns = (uint64_t)(interval_s > 0 ? interval_s * count : SSH_ALIVE_DEFAULT_S * 3) * NS_PER_S;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < route->count; i++) {
        const struct ssh_host *host = &route->hops[i];
        uint64_t bound_ns = timeout_ns                    ? timeout_ns
                            : host->connect_timeout_s > 0 ? (uint64_t)host->connect_timeout_s * NS_PER_S
                                                          : SSH_CONNECT_DEFAULT_NS;
        rc = open_hop(made, host, bound_ns, err);
    }
    if (rc) {
        ssh_session_close(made);
        return rc;
    }
    if (made->alive_ns)
        libssh2_keepalive_config(ssh_session_handle(made), 1, (unsigned)(made->alive_ns / NS_PER_S));
    made->next_alive_ns = clock_monotonic_ns() + made->alive_ns;
    made->in_use = true;
    *self = made;
    return 0;
}

void ssh_session_close(struct ssh_session *self)
{
    if (!self)
        return;
    if (self->in_use) {
        uint64_t deadline_ns = clock_monotonic_ns() + GOODBYE_NS;
        int rc, failed;
        SSH_AWAIT(self, deadline_ns, rc, libssh2_session_disconnect(ssh_session_handle(self), "done"), failed, NULL);
        (void)failed;
    }
    self->is_shut = true;
    if (self->socket >= 0)
        shutdown(self->socket, SHUT_RDWR); /* makes anything that libssh2 still wants to send fail at once */
    for (size_t i = self->count; i > 0; i--)
        for (int tries = 0;
             tries < LAST_TRIES && libssh2_session_free(self->hops[i - 1].handle) == LIBSSH2_ERROR_EAGAIN;)
            tries++;
    if (self->socket >= 0)
        close(self->socket);
    libssh2_exit();
    free(self);
}

#endif
