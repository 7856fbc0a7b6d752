/* The protocol of ssh-agent, as far as signing requires it. */
#include "jobs/ssh/ssh_agent.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "jobs/ssh/ssh_known_hosts.h"

#define ANSWER_MAX_BYTES (256u << 10)

enum { REQUEST_IDENTITIES = 11, IDENTITIES_ANSWER = 12, SIGN_REQUEST = 13, SIGN_RESPONSE = 14 };

static uint32_t number_at(const unsigned char *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static void append_number(struct buf *into, uint32_t value)
{
    const unsigned char bytes[4] = {(unsigned char)(value >> 24), (unsigned char)(value >> 16),
                                    (unsigned char)(value >> 8), (unsigned char)value};
    buf_append(into, bytes, sizeof bytes);
}

static void append_string(struct buf *into, const void *bytes, size_t len)
{
    append_number(into, (uint32_t)len);
    buf_append(into, bytes, len);
}

static int bad_answer(struct cb_err *err)
{
    return cb_fail(err, CB_ERR_FORMAT, "the ssh-agent gave an answer that is none");
}

static int read_exactly(int fd, void *into, size_t len, struct cb_err *err)
{
    for (size_t done = 0; done < len;) {
        ssize_t got = recv(fd, (char *)into + done, len - done, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return cb_fail(err, CB_ERR_TIMEOUT, "the ssh-agent does not answer: is it asking you something?");
        if (got <= 0)
            return cb_fail_errno(err, got < 0 ? errno : EPIPE, "asking the ssh-agent");
        done += (size_t)got;
    }
    return 0;
}

/* Sends a message and reads the reply, whose first byte must be `wanted`. */
static int ask(const struct ssh_agent *self, const struct buf *message, int wanted, struct buf *answer,
               struct cb_err *err)
{
    unsigned char head[4];
    struct buf whole;
    buf_init(&whole, ANSWER_MAX_BYTES);
    append_string(&whole, message->data, message->len);
    int rc = buf_check(&whole, "a question to the ssh-agent", err);
    for (size_t done = 0; rc == 0 && done < whole.len;) {
        ssize_t sent = send(self->socket, whole.data + done, whole.len - done, MSG_NOSIGNAL);
        if (sent < 0 && errno != EINTR)
            rc = cb_fail_errno(err, errno, "asking the ssh-agent");
        done += sent > 0 ? (size_t)sent : 0;
    }
    buf_release(&whole);
    if (rc == 0)
        rc = read_exactly(self->socket, head, sizeof head, err);
    if (rc)
        return rc;
    uint32_t len = number_at(head);
    void *place = len && len <= ANSWER_MAX_BYTES ? buf_extend(answer, len) : NULL;
    if (!place)
        return bad_answer(err);
    rc = read_exactly(self->socket, place, len, err);
    if (rc == 0 && (unsigned char)answer->data[0] != wanted)
        rc = cb_fail(err, CB_ERR_SYSTEM, "the ssh-agent refused");
    return rc;
}

int ssh_agent_parse_keys(struct ssh_agent *self, const void *answer, size_t len, struct cb_err *err)
{
    const unsigned char *at = answer, *end = at + len, *blob, *comment;
    size_t blob_len, comment_len;
    if (len < 5 || *at != IDENTITIES_ANSWER)
        return bad_answer(err);
    uint32_t count = number_at(at + 1);
    at += 5;
    for (uint32_t i = 0; i < count && self->count < SSH_AGENT_KEYS_MAX; i++) {
        if (!ssh_take_string(&at, end, &blob, &blob_len) || !ssh_take_string(&at, end, &comment, &comment_len))
            return bad_answer(err);
        struct ssh_agent_key *key = &self->keys[self->count];
        key->blob = malloc(blob_len + 1);
        if (!key->blob)
            return alloc_fail(err, "for the keys of the ssh-agent");
        memcpy(key->blob, blob, blob_len);
        key->bytes = blob_len;
        snprintf(key->comment, sizeof key->comment, "%.*s", comment_len < 127 ? (int)comment_len : 127,
                 (const char *)comment);
        self->count++;
    }
    return 0;
}

int ssh_agent_open(struct ssh_agent *self, const char *path, uint64_t timeout_ns, struct cb_err *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const struct timeval bound = {.tv_sec = (time_t)(timeout_ns / NS_PER_S),
                                  .tv_usec = (suseconds_t)(timeout_ns % NS_PER_S / NS_PER_US)};
    struct buf question, answer;
    self->socket = -1;
    self->count = 0;
    if (snprintf(address.sun_path, sizeof address.sun_path, "%s", path) >= (int)sizeof address.sun_path)
        return cb_fail(err, CB_ERR_USAGE, "the path of the ssh-agent's socket is too long: %s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return cb_fail_errno(err, errno, "making a socket");
    if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &bound, sizeof bound) < 0 ||
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &bound, sizeof bound) < 0 ||
        connect(fd, (const struct sockaddr *)&address, sizeof address) < 0) {
        int failed = errno == ECONNREFUSED ? ENOENT : errno;
        close(fd);
        return cb_fail_errno(err, failed, "asking the ssh-agent at %s", path);
    }
    self->socket = fd;
    buf_init(&question, 64);
    buf_init(&answer, ANSWER_MAX_BYTES);
    buf_append_char(&question, REQUEST_IDENTITIES);
    int rc = ask(self, &question, IDENTITIES_ANSWER, &answer, err);
    if (rc == 0)
        rc = ssh_agent_parse_keys(self, answer.data, answer.len, err);
    buf_release(&question);
    buf_release(&answer);
    if (rc)
        ssh_agent_close(self);
    return rc;
}

void ssh_agent_close(struct ssh_agent *self)
{
    if (self->socket >= 0)
        close(self->socket);
    self->socket = -1;
    for (size_t i = 0; i < self->count; i++)
        free(self->keys[i].blob);
    self->count = 0;
}

/* "SIGN_RESPONSE", and a string that contains two: the algorithm's name and the signature. */
static bool find_signature(const struct buf *answer, const unsigned char **signature, size_t *len)
{
    const unsigned char *at = (const unsigned char *)answer->data + 1;
    const unsigned char *end = (const unsigned char *)answer->data + answer->len, *both, *algorithm;
    size_t both_len, algorithm_len;
    if (answer->len == 0 || !ssh_take_string(&at, end, &both, &both_len))
        return false;
    at = both;
    end = both + both_len;
    return ssh_take_string(&at, end, &algorithm, &algorithm_len) && ssh_take_string(&at, end, signature, len);
}

int ssh_agent_sign(struct ssh_agent *self, const void *blob, size_t blob_len, const void *data, size_t len,
                   unsigned char **signature, size_t *signature_len, struct cb_err *err)
{
    struct buf question, answer;
    const unsigned char *found = NULL;
    size_t found_len = 0;
    buf_init(&question, ANSWER_MAX_BYTES);
    buf_init(&answer, ANSWER_MAX_BYTES);
    buf_append_char(&question, SIGN_REQUEST);
    append_string(&question, blob, blob_len);
    append_string(&question, data, len);
    append_number(&question, 0);
    int rc = ask(self, &question, SIGN_RESPONSE, &answer, err);
    if (rc == 0 && !find_signature(&answer, &found, &found_len))
        rc = bad_answer(err);
    unsigned char *own = rc == 0 ? malloc(found_len + 1) : NULL;
    if (rc == 0 && !own)
        rc = alloc_fail(err, "for a signature");
    if (own) {
        memcpy(own, found, found_len);
        *signature = own;
        *signature_len = found_len;
    }
    buf_release(&question);
    buf_release(&answer);
    return rc;
}
