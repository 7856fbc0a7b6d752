/* Inspects key files. */
#include "jobs/ssh/ssh_key.h"

#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/buf.h"
#include "core/hash.h"

#define KEY_MAX_BYTES (64u << 10)

static int no_key(const char *name, struct cb_err *err)
{
    return cb_fail(err, CB_ERR_FORMAT, "%s is no key of ssh", name);
}

static bool set_blob(struct ssh_key *self, const unsigned char *blob, size_t len)
{
    if (len > sizeof self->blob)
        return false;
    memcpy(self->blob, blob, len);
    self->blob_bytes = len;
    self->kind = ssh_key_kind_of_blob(blob, len);
    return self->kind != SSH_KEY_UNKNOWN;
}

/* "openssh-key-v1\0", cipher, derivation, its options, number of keys, public key; the rest is secret. */
static bool parse_openssh(struct ssh_key *self, const unsigned char *bytes, size_t len)
{
    static const char magic[] = "openssh-key-v1";
    const unsigned char *cipher, *skipped, *blob, *at = bytes + sizeof magic, *end = bytes + len;
    size_t cipher_len, skipped_len, blob_len;
    if (len < sizeof magic || memcmp(bytes, magic, sizeof magic) != 0)
        return false;
    if (!ssh_take_string(&at, end, &cipher, &cipher_len) || !ssh_take_string(&at, end, &skipped, &skipped_len) ||
        !ssh_take_string(&at, end, &skipped, &skipped_len) || end - at < 4)
        return false;
    at += 4;
    self->has_passphrase = cipher_len != 4 || memcmp(cipher, "none", 4) != 0;
    return ssh_take_string(&at, end, &blob, &blob_len) && set_blob(self, blob, blob_len);
}

/* The base64 between the markers of a PEM file, without its line feeds. */
static bool decode_pem(const char *from, const char *end, unsigned char *bytes, size_t *len)
{
    char *packed = malloc((size_t)(end - from) + 1);
    size_t used = 0;
    if (!packed)
        return false;
    for (const char *at = from; at < end && *at != '-'; at++)
        if (*at != '\n' && *at != '\r' && *at != ' ')
            packed[used++] = *at;
    bool good = hash_base64_decode(packed, used, bytes, len);
    explicit_bzero(packed, used);
    free(packed);
    return good;
}

static bool parse_private(struct ssh_key *self, const char *kind, size_t kind_len, const char *body, const char *end)
{
    self->is_private = true;
    if (kind_len == 8 && memcmp(kind, "OPENSSH ", 8) == 0) {
        unsigned char *bytes = malloc((size_t)(end - body) + 3);
        size_t len = 0;
        bool good = bytes && decode_pem(body, end, bytes, &len) && parse_openssh(self, bytes, len);
        if (bytes)
            explicit_bzero(bytes, len);
        free(bytes);
        return good;
    }
    self->has_passphrase = memmem(body, (size_t)(end - body), "ENCRYPTED", 9) != NULL;
    if (kind_len == 4 && memcmp(kind, "RSA ", 4) == 0)
        self->kind = SSH_KEY_RSA;
    else if (kind_len == 3 && memcmp(kind, "EC ", 3) == 0)
        self->kind = SSH_KEY_ECDSA_256; /* or a longer marker; we treat all alike */
    else if (kind_len == 4 && memcmp(kind, "DSA ", 4) == 0)
        self->kind = SSH_KEY_OTHER;
    else if (kind_len == 10 && memcmp(kind, "ENCRYPTED ", 10) == 0)
        self->has_passphrase = true;
    else
        return kind_len == 0;
    return true;
}

/* "ssh-ed25519 AAAA… comment" */
static bool parse_public(struct ssh_key *self, const char *text, size_t len)
{
    const char *end = memchr(text, '\n', len);
    end = end ? end : text + len;
    const char *blank = memchr(text, ' ', (size_t)(end - text));
    if (!blank)
        return false;
    const char *from = blank + 1;
    const char *to = memchr(from, ' ', (size_t)(end - from));
    to = to ? to : end;
    while (to > from && to[-1] == '\r')
        to--;
    unsigned char blob[SSH_BLOB_MAX];
    size_t blob_len;
    return (size_t)(to - from) / 4 * 3 <= sizeof blob &&
           hash_base64_decode(from, (size_t)(to - from), blob, &blob_len) && set_blob(self, blob, blob_len);
}

int ssh_key_parse(struct ssh_key *self, const char *text, size_t len, const char *name, struct cb_err *err)
{
    static const char begin[] = "-----BEGIN ", rest[] = "PRIVATE KEY-----";
    struct ssh_key key = {.kind = SSH_KEY_UNKNOWN};
    const char *end = text + len, *start = memmem(text, len, begin, sizeof begin - 1);
    if (!start) {
        if (!parse_public(&key, text, len))
            return no_key(name, err);
    } else {
        const char *kind = start + sizeof begin - 1;
        const char *found = memmem(kind, (size_t)(end - kind), rest, sizeof rest - 1);
        if (!found || found - kind > 16 ||
            !parse_private(&key, kind, (size_t)(found - kind), found + sizeof rest - 1, end))
            return no_key(name, err);
    }
    *self = key;
    return 0;
}

static int read_and_parse(struct ssh_key *self, const char *path, struct cb_err *err)
{
    struct buf text;
    buf_init(&text, KEY_MAX_BYTES);
    int rc = buf_read_file(&text, path, err);
    if (rc == 0)
        rc = ssh_key_parse(self, text.data, text.len, path, err);
    explicit_bzero(text.data, text.len);
    buf_release(&text);
    return rc;
}

int ssh_key_read(struct ssh_key *self, const char *path, struct cb_err *err)
{
    char public_path[PATH_MAX];
    struct ssh_key half;
    struct stat facts;
    int rc = read_and_parse(self, path, err);
    if (rc)
        return rc;
    self->readable_by_others =
        self->is_private && stat(path, &facts) == 0 && facts.st_uid == geteuid() && (facts.st_mode & 077);
    if (self->blob_bytes == 0 && snprintf(public_path, sizeof public_path, "%s.pub", path) < (int)sizeof public_path &&
        read_and_parse(&half, public_path, NULL) == 0 && half.blob_bytes) {
        memcpy(self->blob, half.blob, half.blob_bytes);
        self->blob_bytes = half.blob_bytes;
        self->kind = half.kind;
    }
    return 0;
}
