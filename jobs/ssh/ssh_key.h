/* What a key file reveals without its passphrase: the kind of the key, whether it has a passphrase, its public part.
 * Reads files of the user; keeps no secret. */
#ifndef JOBS_SSH_SSH_KEY_H
#define JOBS_SSH_SSH_KEY_H

#include <stdbool.h>
#include <stddef.h>

#include "core/err.h"
#include "jobs/ssh/ssh_known_hosts.h"

#define SSH_BLOB_MAX 4096

struct ssh_key {
    enum ssh_key_kind kind; /* UNKNOWN if the file does not show it (PKCS #8) */
    bool is_private, has_passphrase;
    bool readable_by_others; /* ssh_key_read only */
    size_t blob_bytes;       /* of the public part; 0 if the file does not show it */
    unsigned char blob[SSH_BLOB_MAX];
};

/* CB_ERR_FORMAT if it is not a key. */
int ssh_key_parse(struct ssh_key *self, const char *text, size_t len, const char *name,
                  struct cb_err *err) CB_MUST_CHECK;

/* Reads a private key's file; if it does not contain the public part, reads that from PATH.pub. */
int ssh_key_read(struct ssh_key *self, const char *path, struct cb_err *err) CB_MUST_CHECK;

#endif
