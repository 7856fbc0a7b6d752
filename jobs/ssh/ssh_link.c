/* Reconnects after a break, and runs commands, one channel each. jobs/ssh/ssh_command.c encodes them. */
#ifdef HAVE_SSH2

#include "jobs/ssh/ssh_link.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "jobs/ssh/ssh_command.h"

#define SCRIPT_MAX_BYTES (8u << 20)
#define CHUNK_BYTES (64u << 10)
#define END_BOUND_NS (10 * NS_PER_S)
#define UNSENT_TRIES 3
#define TRIES 6
#define FIRST_PAUSE_NS (200 * NS_PER_MS)

int ssh_link_ready(struct ssh_link *self, uint64_t deadline_ns, struct cb_err *err)
{
    uint64_t pause_ns = FIRST_PAUSE_NS;
    int rc = 0;
    if (self->session)
        return 0;
    for (int tries = 0; tries < TRIES; tries++, pause_ns *= 2) {
        rc = ssh_session_open(&self->session, &self->route, self->connect_timeout_ns, err);
        if (rc == 0)
            self->base.connections++;
        if (rc == 0 || (rc != CB_ERR_SYSTEM && rc != CB_ERR_TIMEOUT) || clock_monotonic_ns() + pause_ns >= deadline_ns)
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

struct run {
    struct ssh_link *link;
    const struct transport_command *command;
    uint64_t deadline_ns;
    LIBSSH2_CHANNEL *channel;
    char mark[SSH_MARK_BYTES];
    struct buf script;
    size_t sent; /* bytes sent of the script, then of the input */
    bool eof_sent;
    struct ssh_stream out, errors;
};

/* The remote shell has the complete script only now. A truncated script runs nothing, so before this point the
 * command has not run. */
static bool may_have_run(const struct run *self)
{
    return self->sent >= self->script.len;
}

/* Finished channels are freed when the other side has confirmed, which avoids waiting for a round trip. */
static void forget_closed(struct ssh_link *link)
{
    size_t kept = 0;
    for (size_t i = 0; i < link->closing_count; i++)
        if (libssh2_channel_free(link->closing[i]) == LIBSSH2_ERROR_EAGAIN)
            link->closing[kept++] = link->closing[i];
    link->closing_count = kept;
}

static void close_channel(struct run *self)
{
    struct ssh_link *link = self->link;
    if (!self->channel || !link->session)
        return; /* freed with its session */
    link->closing[link->closing_count++] = self->channel;
    self->channel = NULL;
    if (!ssh_is_sending(ssh_session_handle(link->session)))
        forget_closed(link);
    if (link->closing_count == SSH_CLOSING_MAX || ssh_is_sending(ssh_session_handle(link->session)))
        ssh_link_drop(link); /* a misbehaving channel: the next command gets a new connection */
}

static int broke(struct run *self, int rc, struct cb_err *err)
{
    ssh_link_drop(self->link);
    if (!may_have_run(self))
        return rc;
    return cb_fail(
        err, CB_ERR_SYSTEM,
        "the connection to %s broke while %s ran there: nobody knows whether it ended and how; it is not run "
        "again",
        self->link->base.name, self->command->argv[0]);
}

static int open_channel(struct run *self, const char *line, struct cb_err *err)
{
    struct ssh_session *session = self->link->session;
    uint64_t bound_ns = clock_monotonic_ns() + session->silence_ns;
    uint64_t deadline_ns = bound_ns < self->deadline_ns ? bound_ns : self->deadline_ns;
    int rc, failed;
    SSH_AWAIT_POINTER(session, deadline_ns, self->channel, libssh2_channel_open_session(ssh_session_handle(session)),
                      failed, err);
    if (!self->channel) {
        rc = failed ? failed : ssh_session_fail(session, err, "opening a channel");
        (void)cb_context(err, "%s", self->link->base.name);
        return broke(self, rc, err);
    }
    SSH_AWAIT(session, deadline_ns, rc, libssh2_channel_exec(self->channel, line), failed, err);
    if (failed || rc) {
        rc = failed ? failed : ssh_session_fail(session, err, "starting a command");
        (void)cb_context(err, "%s", self->link->base.name);
        return broke(self, rc, err);
    }
    return 0;
}

/* The next part of script or input. */
static size_t next_piece(const struct run *self, const char **bytes)
{
    size_t script_left = self->sent < self->script.len ? self->script.len - self->sent : 0;
    if (script_left) {
        *bytes = self->script.data + self->sent;
        return script_left < CHUNK_BYTES ? script_left : CHUNK_BYTES;
    }
    size_t done = self->sent - self->script.len, left = self->command->input ? self->command->input_bytes - done : 0;
    *bytes = (const char *)self->command->input + (left ? done : 0);
    return left < CHUNK_BYTES ? left : CHUNK_BYTES;
}

/* 1: bytes were sent; 0: would block; negative: an error of libssh2. */
static int feed(struct run *self)
{
    const char *bytes;
    size_t len = next_piece(self, &bytes);
    if (self->eof_sent)
        return 0;
    if (len == 0) {
        int rc = libssh2_channel_send_eof(self->channel);
        self->eof_sent = rc != LIBSSH2_ERROR_EAGAIN;
        return rc == LIBSSH2_ERROR_EAGAIN ? 0 : rc < 0 ? rc : 1;
    }
    ssize_t sent = libssh2_channel_write(self->channel, bytes, len);
    if (sent == LIBSSH2_ERROR_EAGAIN || sent == 0)
        return 0;
    if (sent == LIBSSH2_ERROR_CHANNEL_CLOSED || sent == LIBSSH2_ERROR_CHANNEL_EOF_SENT) {
        self->eof_sent = true; /* the command reads no more, but its output still counts */
        return 1;
    }
    self->sent += sent > 0 ? (size_t)sent : 0;
    return sent < 0 ? (int)sent : 1;
}

static int drain(struct run *self, int which, struct ssh_stream *into)
{
    char chunk[16384];
    bool moved = false;
    for (;;) {
        ssize_t got = libssh2_channel_read_ex(self->channel, which, chunk, sizeof chunk);
        if (got == LIBSSH2_ERROR_EAGAIN || got == 0)
            return moved;
        if (got < 0)
            return (int)got;
        ssh_stream_take(into, chunk, (size_t)got);
        moved = true;
        if (into->too_much)
            return 1;
    }
}

static bool is_too_much(const struct run *self)
{
    return self->out.too_much || self->errors.too_much ||
           self->out.text.len > self->command->max_bytes + SSH_NOISE_MAX_BYTES;
}

/* Sends and receives until both outputs, or the channel, have ended. */
static int exchange(struct run *self, struct cb_err *err)
{
    struct ssh_session *session = self->link->session;
    for (;;) {
        int moved = feed(self);
        bool has_ended = false;
        if (moved >= 0 && !ssh_is_sending(ssh_session_handle(session))) {
            has_ended = libssh2_channel_eof(self->channel);
            int out = drain(self, 0, &self->out);
            int errors = out < 0 ? out : drain(self, SSH_EXTENDED_DATA_STDERR, &self->errors);
            moved = errors < 0 ? errors : moved || out || errors;
        }
        if (moved < 0) {
            (void)ssh_session_fail(session, err, self->link->base.name);
            return broke(self, CB_ERR_SYSTEM, err);
        }
        if (is_too_much(self) || (self->out.ended && self->errors.ended) || (has_ended && !moved))
            return 0;
        if (moved && clock_monotonic_ns() < self->deadline_ns)
            continue;
        int rc = ssh_session_wait(session, self->deadline_ns, err);
        if (rc == CB_ERR_TIMEOUT)
            return rc;
        if (rc)
            return broke(self, rc, err);
    }
}

/* Kills the remaining processes of the remote command: its process group, with another command. */
static bool end_group(struct run *self)
{
    char line[128];
    struct run killer = {
        .link = self->link, .command = self->command, .deadline_ns = clock_monotonic_ns() + END_BOUND_NS};
    struct cb_err err;
    unsigned long group = self->out.begun ? strtoul(self->out.first, NULL, 10) : 0;
    int failed = 0;
    if (group < 2 || !self->link->session || ssh_is_sending(ssh_session_handle(self->link->session)))
        return false;
    snprintf(line, sizeof line, "exec /bin/sh -c 'exec >/dev/null 2>&1; kill -TERM -%lu; kill -KILL -%lu'", group,
             group);
    if (open_channel(&killer, line, &err))
        return false;
    ssize_t got = 1; /* it prints nothing: reading only waits for its end */
    while (!failed && got != 0) {
        char chunk[256];
        got = libssh2_channel_read(killer.channel, chunk, sizeof chunk);
        failed =
            got == LIBSSH2_ERROR_EAGAIN ? ssh_session_wait(self->link->session, killer.deadline_ns, &err) : got < 0;
    }
    close_channel(&killer);
    return !failed;
}

static int stop(struct run *self, int rc, struct cb_err *err)
{
    const struct transport_command *command = self->command;
    const char *name = self->link->base.name, *program = command->argv[0];
    bool has_begun = self->out.begun;
    bool ended = end_group(self);
    const char *rest = ended || !has_begun ? "" : " (and it could not be ended there)";
    if (rc == CB_ERR_TIMEOUT)
        return cb_fail(err, rc, "%s on %s has not %s within %.1f s%s", program, name, has_begun ? "ended" : "begun",
                       (double)command->timeout_ns / (double)NS_PER_S, rest);
    return cb_fail(err, CB_ERR_MEMORY, "%s on %s says more than %zu bytes%s", program, name, command->max_bytes, rest);
}

/* The remote shell did not reply in the expected form: report what it printed instead. */
static int no_answer(struct run *self, struct cb_err *err)
{
    struct transport_answer said;
    char line[256];
    transport_answer_init(&said);
    buf_append(&said.out, self->out.text.data, self->out.text.len);
    buf_append(&said.errors, self->errors.text.data, self->errors.text.len);
    transport_answer_last_line(&said, line, sizeof line);
    transport_answer_release(&said);
    if (self->out.begun)
        return cb_fail(err, CB_ERR_SYSTEM,
                       "%s on %s: the shell that ran it was ended, so nobody knows how it ended%s%s",
                       self->command->argv[0], self->link->base.name, *line ? "; the last it said: " : "", line);
    return cb_fail(err, CB_ERR_SYSTEM, "%s runs no commands for us (%s): status %d%s%s", self->link->base.name,
                   self->command->argv[0], libssh2_channel_get_exit_status(self->channel), *line ? ": " : "", line);
}

static int take_answer(struct run *self, struct transport_answer *answer, struct cb_err *err)
{
    char *end;
    if (is_too_much(self))
        return stop(self, CB_ERR_MEMORY, err);
    if (!self->out.ended)
        return no_answer(self, err);
    if (self->out.text.len > self->command->max_bytes || self->errors.text.len > self->command->max_bytes)
        return cb_fail(err, CB_ERR_MEMORY, "%s on %s says more than %zu bytes", self->command->argv[0],
                       self->link->base.name, self->command->max_bytes);
    if (strcmp(self->out.last, "missing") == 0)
        return cb_fail(err, CB_ERR_NOT_FOUND, "%s is not to be found on %s (its PATH is not that of a login)",
                       self->command->argv[0], self->link->base.name);
    unsigned long status = strtoul(self->out.last, &end, 10);
    if (end == self->out.last || *end || status > 255)
        return no_answer(self, err);
    buf_append(&answer->out, self->out.text.data, self->out.text.len);
    buf_append(&answer->errors, self->errors.text.data, self->errors.text.len);
    answer->exit_status = (int)status;
    int rc = buf_check(&answer->out, self->command->argv[0], err);
    return rc ? rc : buf_check(&answer->errors, self->command->argv[0], err);
}

static int run_once(struct run *self, struct transport_answer *answer, struct cb_err *err)
{
    char line[SSH_LOADER_BYTES];
    int rc = ssh_link_ready(self->link, self->deadline_ns, err);
    if (rc)
        return rc;
    forget_closed(self->link);
    self->sent = 0;
    self->eof_sent = false;
    ssh_stream_init(&self->out, self->mark, self->command->max_bytes);
    ssh_stream_init(&self->errors, self->mark, self->command->max_bytes);
    ssh_loader_format(self->script.len, line);
    rc = open_channel(self, line, err);
    if (rc == 0)
        rc = exchange(self, err);
    if (rc == CB_ERR_TIMEOUT && self->link->session)
        rc = stop(self, rc, err);
    else if (rc == 0)
        rc = take_answer(self, answer, err);
    close_channel(self);
    ssh_stream_release(&self->out);
    ssh_stream_release(&self->errors);
    return rc;
}

int ssh_link_run(struct transport *transport, const struct transport_command *command, struct transport_answer *answer,
                 struct cb_err *err)
{
    struct ssh_link *self = (struct ssh_link *)transport;
    struct run run = {.link = self, .command = command, .deadline_ns = clock_monotonic_ns() + command->timeout_ns};
    ssh_mark_make(run.mark);
    buf_init(&run.script, SCRIPT_MAX_BYTES);
    int rc = ssh_script_append(&run.script, command, run.mark, self->path, self->login_path, err);
    for (int tries = 0; rc == 0; tries++) {
        bool had_session = self->session != NULL;
        rc = run_once(&run, answer, err);
        /* If the connection was found dead before the command was sent, reconnecting loses nothing. */
        if (rc == 0 || self->session || !had_session || may_have_run(&run) || tries == UNSENT_TRIES ||
            clock_monotonic_ns() >= run.deadline_ns)
            break;
        rc = 0;
    }
    buf_release(&run.script);
    return rc;
}

#endif
