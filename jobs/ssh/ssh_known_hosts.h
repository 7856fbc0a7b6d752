/* What known_hosts files say about a host's key: plain, hashed and patterned names, [host]:port, @revoked.
 * Lines of @cert-authority are about certificates, which nothing here takes. Pure. */
#ifndef JOBS_SSH_SSH_KNOWN_HOSTS_H
#define JOBS_SSH_SSH_KNOWN_HOSTS_H

#include <stdbool.h>
#include <stddef.h>

#define SSH_FINGERPRINT_BYTES 56

enum ssh_key_kind {
    SSH_KEY_UNKNOWN,
    SSH_KEY_ED25519,
    SSH_KEY_ECDSA_256,
    SSH_KEY_ECDSA_384,
    SSH_KEY_ECDSA_521,
    SSH_KEY_RSA,
    SSH_KEY_OTHER, /* one that ssh has and this does not use: DSA, security keys, certificates */
};

/* By the name in files and on the wire ("ssh-ed25519"), and back; for messages "ED25519". */
enum ssh_key_kind ssh_key_kind_of(const char *name, size_t len);
const char *ssh_key_kind_title(enum ssh_key_kind kind);
/* Of a public key as it is on the wire. */
enum ssh_key_kind ssh_key_kind_of_blob(const void *blob, size_t len);

/* "SHA256:…" as ssh prints it. */
void ssh_fingerprint(const void *blob, size_t len, char text[SSH_FINGERPRINT_BYTES]);

/* Of any number of files; start with all 0. */
struct ssh_known {
    bool matches;                                  /* the key is there for this name */
    bool revoked;                                  /* it is there as one that must not be trusted any more */
    bool differs;                                  /* another key of the same kind is there */
    unsigned kinds;                                /* 1 << kind for every kind that is there for this name */
    unsigned differs_line, revoked_line;           /* of the last text scanned that set it */
    char known_fingerprint[SSH_FINGERPRINT_BYTES]; /* of the one that differs */
};

/* `name` as ssh_host_known_name() makes it; `blob` NULL asks only for the kinds. Lines that cannot be read
 * are passed over, as ssh does. */
void ssh_known_scan(struct ssh_known *self, const char *text, size_t len, const char *name, const void *blob,
                    size_t blob_len);

#endif
