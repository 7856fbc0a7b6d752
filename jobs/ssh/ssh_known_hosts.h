/* Looks up a host's key in known_hosts files: plain, hashed and patterned names, [host]:port, @revoked. Lines with
 * @cert-authority are ignored, since we do not accept certificates. Pure. */
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
    SSH_KEY_OTHER, /* supported by ssh but not by us: DSA, security keys, certificates */
};

/* For messages: "ED25519". */
const char *ssh_key_kind_title(enum ssh_key_kind kind);
/* Kind of a public key in wire format. */
enum ssh_key_kind ssh_key_kind_of_blob(const void *blob, size_t len);

/* A length and that many bytes, as in all of ssh's formats; false if there are fewer before `end`. */
bool ssh_take_string(const unsigned char **at, const unsigned char *end, const unsigned char **bytes, size_t *len);

/* "SHA256:…" as ssh prints it. */
void ssh_fingerprint(const void *blob, size_t len, char text[SSH_FINGERPRINT_BYTES]);

/* Results over any number of files; start with all 0. */
struct ssh_known {
    bool matches;                                  /* the key is there for this name */
    bool revoked;                                  /* listed as revoked */
    bool differs;                                  /* another key of the same kind is listed */
    unsigned kinds;                                /* 1 << kind for every kind that is listed for this name */
    unsigned differs_line, revoked_line;           /* in the last scanned text that set the flag */
    char known_fingerprint[SSH_FINGERPRINT_BYTES]; /* of the key that differs */
};

/* `name` as returned by ssh_host_known_name(); with `blob` NULL only the kinds are collected. Malformed lines are
 * skipped, as in ssh. */
void ssh_known_scan(struct ssh_known *self, const char *text, size_t len, const char *name, const void *blob,
                    size_t blob_len);

#endif
