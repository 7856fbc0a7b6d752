/* The user's ssh-agent: lists its keys and requests signatures. Every wait is bounded. The agent only reveals public
 * keys; no secret passes through here. */
#ifndef JOBS_SSH_SSH_AGENT_H
#define JOBS_SSH_SSH_AGENT_H

#include <stddef.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/err.h"

#define SSH_AGENT_KEYS_MAX 64

struct ssh_agent_key {
    unsigned char *blob; /* owned */
    size_t bytes;
    char comment[128];
};

struct ssh_agent {
    int socket; /* -1: not connected */
    struct ssh_agent_key keys[SSH_AGENT_KEYS_MAX];
    size_t count;
};

/* `path` is its socket. CB_ERR_NOT_FOUND if no process listens on it. */
int ssh_agent_open(struct ssh_agent *self, const char *path, uint64_t timeout_ns, struct cb_err *err) CB_MUST_CHECK;
void ssh_agent_close(struct ssh_agent *self);

/* Signs `data` with a key; the signature excludes the algorithm's name and is malloc'ed, owned by the caller. */
int ssh_agent_sign(struct ssh_agent *self, const void *blob, size_t blob_len, const void *data, size_t len,
                   unsigned char **signature, size_t *signature_len, struct cb_err *err) CB_MUST_CHECK;

/* Parses the keys in an agent's reply of `len` bytes. */
int ssh_agent_parse_keys(struct ssh_agent *self, const void *answer, size_t len, struct cb_err *err) CB_MUST_CHECK;

#endif
