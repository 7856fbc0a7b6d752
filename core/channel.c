/* Channels: TCP, TLS and frames, with OpenSSL.
 *
 * A frame is its length (u32, little-endian) followed by its bytes. TLS 1.3 only, with the key as an external PSK and
 * an ephemeral exchange: a key that leaks later does not decrypt recorded traffic. */
#include "core/channel.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include "core/alloc.h"
#include "core/buf.h"
#include "core/fork_socket.h"
#include "core/hash.h"

#define FRAME_HEAD_BYTES 4
#define READ_BYTES 16384            /* a TLS record */
#define KEPT_BUFFER_BYTES (1 << 16) /* a larger buffer is freed once it is empty */
#define LISTEN_BACKLOG 1024
#define IDENTITY "ckptbench"
#define KEY_DIGITS ((size_t)2 * CHANNEL_KEY_BYTES)

struct channel_context {
    SSL_CTX *tls;
    struct channel_key key;
};

struct channel {
    struct fork_socket socket;
    SSL *tls;
    bool connecting, open, failed, wants_write;
    struct buf in, out;
    size_t in_taken, out_sent; /* bytes at the front already consumed */
};

void channel_key_new(struct channel_key *key)
{
    random_bytes(key->bytes, sizeof key->bytes);
}

int channel_key_write(const struct channel_key *key, const char *path, struct cb_err *err)
{
    char text[KEY_DIGITS + 2];
    for (size_t i = 0; i < CHANNEL_KEY_BYTES; i++)
        snprintf(text + 2 * i, 3, "%02x", key->bytes[i]);
    text[KEY_DIGITS] = '\n';
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return cb_fail_errno(err, errno, "creating the key %s", path);
    ssize_t written = write(fd, text, KEY_DIGITS + 1);
    int failure = written < 0 ? errno : (size_t)written < KEY_DIGITS + 1 ? ENOSPC : 0;
    close(fd);
    OPENSSL_cleanse(text, sizeof text);
    if (failure)
        unlink(path);
    return failure ? cb_fail_errno(err, failure, "writing the key %s", path) : 0;
}

static int digit_value(char digit)
{
    if (digit >= '0' && digit <= '9')
        return digit - '0';
    return digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

int channel_key_read(int fd, struct channel_key *key, struct cb_err *err)
{
    char text[KEY_DIGITS];
    unsigned char bytes[CHANNEL_KEY_BYTES];
    size_t len = 0;
    while (len < sizeof text) {
        ssize_t got = read(fd, text + len, sizeof text - len);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return cb_fail_errno(err, errno, "reading the run's key");
        if (got == 0)
            return cb_fail(err, CB_ERR_FORMAT, "the run's key ends after %zu of %zu digits", len, sizeof text);
        len += (size_t)got;
    }
    int rc = 0;
    for (size_t i = 0; i < CHANNEL_KEY_BYTES && !rc; i++) {
        int high = digit_value(text[2 * i]), low = digit_value(text[2 * i + 1]);
        if (high < 0 || low < 0)
            rc = cb_fail(err, CB_ERR_FORMAT, "the run's key has something else than hex digits");
        else
            bytes[i] = (unsigned char)(high << 4 | low);
    }
    if (!rc)
        memcpy(key->bytes, bytes, sizeof bytes);
    OPENSSL_cleanse(text, sizeof text);
    OPENSSL_cleanse(bytes, sizeof bytes);
    return rc;
}

static unsigned copy_key(const SSL *tls, unsigned char *psk, unsigned max)
{
    const struct channel_context *context = SSL_CTX_get_app_data(SSL_get_SSL_CTX(tls));
    if (max < CHANNEL_KEY_BYTES)
        return 0;
    memcpy(psk, context->key.bytes, CHANNEL_KEY_BYTES);
    return CHANNEL_KEY_BYTES;
}

static unsigned find_key(SSL *tls, const char *identity, unsigned char *psk, unsigned max)
{
    return identity && strcmp(identity, IDENTITY) == 0 ? copy_key(tls, psk, max) : 0;
}

static unsigned offer_key(SSL *tls, const char *hint, char *identity, unsigned identity_max, unsigned char *psk,
                          unsigned max)
{
    (void)hint;
    if (identity_max < sizeof IDENTITY)
        return 0;
    memcpy(identity, IDENTITY, sizeof IDENTITY);
    return copy_key(tls, psk, max);
}

/* The latest OpenSSL error; clears the error queue for the next call. */
static int fail_tls(const char *what, struct cb_err *err)
{
    unsigned long number = ERR_peek_last_error();
    const char *reason = number ? ERR_reason_error_string(number) : NULL;
    int rc = cb_fail(err, CB_ERR_SYSTEM, "%s: TLS: %s", what, reason ? reason : "no reason given");
    ERR_clear_error();
    return rc;
}

static bool set_up(SSL_CTX *tls, enum channel_end end)
{
    SSL_CTX_set_mode(tls,
                     SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_session_cache_mode(tls, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_options(tls, SSL_OP_NO_TICKET);
    if (end == CHANNEL_SERVER)
        SSL_CTX_set_psk_server_callback(tls, find_key);
    else
        SSL_CTX_set_psk_client_callback(tls, offer_key);
    return SSL_CTX_set_min_proto_version(tls, TLS1_3_VERSION) && SSL_CTX_set_num_tickets(tls, 0) &&
           SSL_CTX_set_ciphersuites(tls, "TLS_AES_128_GCM_SHA256") && SSL_CTX_set1_groups_list(tls, "X25519:P-256");
}

int channel_context_new(const struct channel_key *key, enum channel_end end, struct channel_context **context,
                        struct cb_err *err)
{
    struct channel_context *self = calloc(1, sizeof *self);
    if (!self)
        return alloc_fail(err, "for TLS");
    self->key = *key;
    self->tls = SSL_CTX_new(end == CHANNEL_SERVER ? TLS_server_method() : TLS_client_method());
    if (!self->tls || !set_up(self->tls, end)) {
        int rc = fail_tls("setting up", err);
        channel_context_free(self);
        return rc;
    }
    SSL_CTX_set_app_data(self->tls, self);
    *context = self;
    return 0;
}

void channel_context_free(struct channel_context *self)
{
    if (!self)
        return;
    SSL_CTX_free(self->tls);
    OPENSSL_cleanse(&self->key, sizeof self->key);
    free(self);
}

/* 0, or an errno. */
static int bind_any(int family, uint16_t port, int *fd, uint16_t *bound)
{
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } place = {0};
    socklen_t len = family == AF_INET6 ? sizeof place.v6 : sizeof place.v4;
    int yes = 1, no = 0;
    place.any.sa_family = (sa_family_t)family;
    if (family == AF_INET6)
        place.v6.sin6_port = htons(port); /* all zeros: any address */
    else
        place.v4.sin_port = htons(port);
    int made = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (made < 0)
        return errno;
    setsockopt(made, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (family == AF_INET6)
        setsockopt(made, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
    if (bind(made, &place.any, len) || listen(made, LISTEN_BACKLOG) || getsockname(made, &place.any, &len)) {
        int failure = errno;
        close(made);
        return failure;
    }
    *fd = made;
    *bound = ntohs(family == AF_INET6 ? place.v6.sin6_port : place.v4.sin_port);
    return 0;
}

int channel_listen(uint16_t port, int *fd, uint16_t *bound, struct cb_err *err)
{
    int failure = bind_any(AF_INET6, port, fd, bound);
    if (failure && failure != EADDRINUSE)
        failure = bind_any(AF_INET, port, fd, bound);
    if (failure == EADDRINUSE)
        return cb_fail(err, CB_ERR_EXISTS, "TCP port %u is in use: choose another rendezvous.port, or 0", port);
    return failure ? cb_fail_errno(err, failure, "listening on TCP port %u", port) : 0;
}

/* Takes over the socket, also on failure. */
static int channel_new(struct channel_context *context, struct fork_socket *socket, bool server,
                       struct channel **channel, struct cb_err *err)
{
    int yes = 1, fd = socket->fd;
    struct channel *self = calloc(1, sizeof *self);
    if (!self) {
        fork_socket_close(socket);
        return alloc_fail(err, "for a connection");
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
    fork_socket_move(&self->socket, socket);
    buf_init(&self->in, FRAME_HEAD_BYTES + CHANNEL_MAX_MESSAGE_BYTES + READ_BYTES);
    buf_init(&self->out, FRAME_HEAD_BYTES + CHANNEL_MAX_UNSENT_BYTES);
    self->tls = SSL_new(context->tls);
    if (!self->tls || !SSL_set_fd(self->tls, fd)) {
        channel_free(self);
        return fail_tls("a new connection", err);
    }
    if (server)
        SSL_set_accept_state(self->tls);
    else
        SSL_set_connect_state(self->tls);
    *channel = self;
    return 0;
}

int channel_accept(struct channel_context *context, int listening_fd, struct channel **channel, struct cb_err *err)
{
    struct fork_socket socket = {0};
    fork_socket_hold();
    int fd = accept4(listening_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK), failure = errno;
    fork_socket_add(&socket, fd);
    fork_socket_release();
    if (fd >= 0)
        return channel_new(context, &socket, true, channel, err);
    *channel = NULL;
    if (failure == EAGAIN || failure == EINTR || failure == ECONNABORTED || failure == EPROTO)
        return 0;
    return cb_fail_errno(err, failure, "letting a connection in");
}

static bool parse_address(const char *address, uint16_t port, struct sockaddr_storage *place, socklen_t *len)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    memset(place, 0, sizeof *place);
    if (inet_pton(AF_INET, address, &v4.sin_addr) == 1) {
        memcpy(place, &v4, *len = sizeof v4);
        return true;
    }
    if (inet_pton(AF_INET6, address, &v6.sin6_addr) == 1) {
        memcpy(place, &v6, *len = sizeof v6);
        return true;
    }
    return false;
}

int channel_connect(struct channel_context *context, const char *address, uint16_t port, struct channel **channel,
                    struct cb_err *err)
{
    struct sockaddr_storage place;
    socklen_t len = 0;
    if (!parse_address(address, port, &place, &len))
        return cb_fail(err, CB_ERR_USAGE, "%s is no IP address", address);
    struct fork_socket made = {0};
    fork_socket_hold();
    int fd = socket(place.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), failure = errno;
    fork_socket_add(&made, fd);
    fork_socket_release();
    if (fd < 0)
        return cb_fail_errno(err, failure, "connecting to %s", address);
    bool waits = connect(fd, (const struct sockaddr *)&place, len) < 0;
    failure = errno;
    if (waits && failure != EINPROGRESS) {
        fork_socket_close(&made);
        return cb_fail_errno(err, failure, "connecting to %s, port %u", address, port);
    }
    int rc = channel_new(context, &made, false, channel, err);
    if (!rc)
        (*channel)->connecting = waits;
    return rc;
}

void channel_free(struct channel *self)
{
    if (!self)
        return;
    if (self->tls && self->open && !self->failed)
        SSL_shutdown(self->tls);
    SSL_free(self->tls);
    fork_socket_close(&self->socket);
    buf_release(&self->in);
    buf_release(&self->out);
    free(self);
    ERR_clear_error();
}

int channel_fd(const struct channel *self)
{
    return self->socket.fd;
}

short channel_events(const struct channel *self)
{
    if (self->connecting)
        return POLLOUT;
    bool sends = self->wants_write || (self->open && channel_unsent(self) > 0);
    return (short)(POLLIN | (sends ? POLLOUT : 0));
}

bool channel_is_open(const struct channel *self)
{
    return self->open;
}

static int fail(struct channel *self, int code)
{
    self->failed = true;
    return code;
}

/* After a TLS call that did not succeed: returns 0 if it only has to wait. */
static int judge(struct channel *self, int result, const char *what, struct cb_err *err)
{
    int failure = errno;
    switch (SSL_get_error(self->tls, result)) {
    case SSL_ERROR_WANT_READ:
        return 0;
    case SSL_ERROR_WANT_WRITE:
        self->wants_write = true;
        return 0;
    case SSL_ERROR_ZERO_RETURN:
        return fail(self, cb_fail(err, CB_ERR_ABORTED, "the other end closed the connection"));
    case SSL_ERROR_SYSCALL:
        ERR_clear_error();
        if (failure == 0 || failure == ECONNRESET || failure == EPIPE)
            return fail(self, cb_fail(err, CB_ERR_ABORTED, "the other end is gone"));
        return fail(self, cb_fail_errno(err, failure, "%s", what));
    default:
        if (ERR_GET_REASON(ERR_peek_last_error()) == SSL_R_UNEXPECTED_EOF_WHILE_READING) {
            ERR_clear_error();
            return fail(self, cb_fail(err, CB_ERR_ABORTED, "the other end is gone"));
        }
        return fail(self, fail_tls(what, err));
    }
}

static int finish_connecting(struct channel *self, struct cb_err *err)
{
    struct pollfd ready = {.fd = self->socket.fd, .events = POLLOUT};
    int failure = 0;
    socklen_t len = sizeof failure;
    if (poll(&ready, 1, 0) < 1)
        return 0;
    if (getsockopt(self->socket.fd, SOL_SOCKET, SO_ERROR, &failure, &len) < 0)
        failure = errno;
    if (failure)
        return fail(self, cb_fail_errno(err, failure, "connecting"));
    self->connecting = false;
    return 0;
}

static int shake_hands(struct channel *self, struct cb_err *err)
{
    errno = 0;
    ERR_clear_error();
    int result = SSL_do_handshake(self->tls);
    self->open = result == 1;
    return self->open ? 0 : judge(self, result, "shaking hands", err);
}

/* Drops consumed bytes at the front, and frees a buffer that had grown large. */
static void drop_front(struct buf *buf, size_t *done)
{
    if (*done == 0)
        return;
    size_t left = buf->len - *done;
    if (left == 0 && buf->capacity > KEPT_BUFFER_BYTES) {
        size_t max = buf->max;
        buf_release(buf);
        buf_init(buf, max);
    } else {
        memmove(buf->data, buf->data + *done, left + 1);
        buf->len = left;
    }
    *done = 0;
}

static int send_out(struct channel *self, struct cb_err *err)
{
    while (self->out_sent < self->out.len) {
        size_t sent = 0;
        errno = 0;
        ERR_clear_error();
        int result = SSL_write_ex(self->tls, self->out.data + self->out_sent, self->out.len - self->out_sent, &sent);
        if (result != 1)
            return judge(self, result, "sending", err);
        self->out_sent += sent;
    }
    drop_front(&self->out, &self->out_sent);
    return 0;
}

static uint32_t frame_length(const struct channel *self)
{
    const unsigned char *head = (const unsigned char *)self->in.data + self->in_taken;
    return (uint32_t)head[0] | (uint32_t)head[1] << 8 | (uint32_t)head[2] << 16 | (uint32_t)head[3] << 24;
}

static bool has_head(const struct channel *self)
{
    return self->in.len - self->in_taken >= FRAME_HEAD_BYTES;
}

static bool has_message(const struct channel *self)
{
    return has_head(self) && self->in.len - self->in_taken - FRAME_HEAD_BYTES >= frame_length(self);
}

static int take_in(struct channel *self, struct cb_err *err)
{
    drop_front(&self->in, &self->in_taken);
    while (!has_message(self) || self->in.len < KEPT_BUFFER_BYTES) {
        char bytes[READ_BYTES];
        size_t got = 0;
        errno = 0;
        ERR_clear_error();
        int result = SSL_read_ex(self->tls, bytes, sizeof bytes, &got);
        if (result != 1)
            return judge(self, result, "receiving", err);
        buf_append(&self->in, bytes, got);
        int rc = buf_check(&self->in, "a message", err);
        if (!rc && has_head(self) && frame_length(self) > CHANNEL_MAX_MESSAGE_BYTES)
            rc = cb_fail(err, CB_ERR_FORMAT, "a message of %u bytes: at most %u are allowed", frame_length(self),
                         CHANNEL_MAX_MESSAGE_BYTES);
        if (rc)
            return fail(self, rc);
    }
    return 0;
}

int channel_work(struct channel *self, struct cb_err *err)
{
    int rc = self->failed ? cb_fail(err, CB_ERR_ABORTED, "the connection is closed") : 0;
    self->wants_write = false;
    if (!rc && self->connecting)
        rc = finish_connecting(self, err);
    if (!rc && !self->connecting && !self->open)
        rc = shake_hands(self, err);
    if (!rc && self->open)
        rc = take_in(self, err);
    if (!rc && self->open)
        rc = send_out(self, err);
    return rc;
}

bool channel_next(struct channel *self, const void **bytes, size_t *len)
{
    if (!has_message(self) || frame_length(self) > CHANNEL_MAX_MESSAGE_BYTES)
        return false;
    *len = frame_length(self);
    *bytes = self->in.data + self->in_taken + FRAME_HEAD_BYTES;
    self->in_taken += FRAME_HEAD_BYTES + *len;
    return true;
}

int channel_send(struct channel *self, const void *bytes, size_t len, struct cb_err *err)
{
    unsigned char head[FRAME_HEAD_BYTES];
    if (len > CHANNEL_MAX_MESSAGE_BYTES)
        return cb_fail(err, CB_ERR_INTERNAL, "a message of %zu bytes: at most %u are allowed", len,
                       CHANNEL_MAX_MESSAGE_BYTES);
    if (channel_unsent(self) + len > CHANNEL_MAX_UNSENT_BYTES)
        return cb_fail(err, CB_ERR_MEMORY, "the other end does not read: %zu bytes wait", channel_unsent(self));
    for (int i = 0; i < FRAME_HEAD_BYTES; i++)
        head[i] = (unsigned char)(len >> (8 * i));
    drop_front(&self->out, &self->out_sent);
    buf_append(&self->out, head, sizeof head);
    buf_append(&self->out, bytes, len);
    return buf_check(&self->out, "messages to be sent", err);
}

size_t channel_unsent(const struct channel *self)
{
    return self->out.len - self->out_sent;
}
