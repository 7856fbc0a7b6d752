/* Parses known_hosts; callers read the files. */
#include "jobs/ssh/ssh_known_hosts.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "core/hash.h"
#include "jobs/ssh/ssh_config.h"

#define SALT_MAX 64
#define BLOB_MAX 4096

static const struct {
    enum ssh_key_kind kind;
    const char *name, *title;
} kinds[] = {
    {SSH_KEY_ED25519, "ssh-ed25519", "ED25519"},
    {SSH_KEY_ECDSA_256, "ecdsa-sha2-nistp256", "ECDSA"},
    {SSH_KEY_ECDSA_384, "ecdsa-sha2-nistp384", "ECDSA"},
    {SSH_KEY_ECDSA_521, "ecdsa-sha2-nistp521", "ECDSA"},
    {SSH_KEY_RSA, "ssh-rsa", "RSA"},
};
#define KINDS (sizeof kinds / sizeof *kinds)

/* By its name in files and on the wire: "ssh-ed25519". */
static enum ssh_key_kind kind_of(const char *name, size_t len)
{
    for (size_t i = 0; i < KINDS; i++)
        if (strlen(kinds[i].name) == len && memcmp(kinds[i].name, name, len) == 0)
            return kinds[i].kind;
    return SSH_KEY_OTHER;
}

const char *ssh_key_kind_title(enum ssh_key_kind kind)
{
    for (size_t i = 0; i < KINDS; i++)
        if (kinds[i].kind == kind)
            return kinds[i].title;
    return "another kind";
}

bool ssh_take_string(const unsigned char **at, const unsigned char *end, const unsigned char **bytes, size_t *len)
{
    if (end - *at < 4)
        return false;
    size_t given = (size_t)(*at)[0] << 24 | (size_t)(*at)[1] << 16 | (size_t)(*at)[2] << 8 | (*at)[3];
    if (given > (size_t)(end - *at) - 4)
        return false;
    *bytes = *at + 4;
    *len = given;
    *at += 4 + given;
    return true;
}

enum ssh_key_kind ssh_key_kind_of_blob(const void *blob, size_t len)
{
    const unsigned char *at = blob, *name;
    size_t name_len;
    if (!ssh_take_string(&at, at + len, &name, &name_len) || name_len == 0)
        return SSH_KEY_UNKNOWN;
    return kind_of((const char *)name, name_len);
}

void ssh_fingerprint(const void *blob, size_t len, char text[SSH_FINGERPRINT_BYTES])
{
    unsigned char digest[HASH_SHA256_BYTES];
    char base64[48];
    hash_sha256(blob, len, digest);
    hash_base64(digest, sizeof digest, base64);
    base64[strcspn(base64, "=")] = '\0';
    snprintf(text, SSH_FINGERPRINT_BYTES, "SHA256:%s", base64);
}

struct word {
    const char *text;
    size_t len;
};

static struct word next_word(const char **at, const char *end)
{
    while (*at < end && (**at == ' ' || **at == '\t'))
        (*at)++;
    struct word word = {*at, 0};
    while (*at < end && **at != ' ' && **at != '\t' && **at != '\r')
        (*at)++;
    word.len = (size_t)(*at - word.text);
    return word;
}

static bool is_word(const struct word *word, const char *text)
{
    return word->len == strlen(text) && memcmp(word->text, text, word->len) == 0;
}

/* "|1|SALT|HASH", both in base64: HMAC-SHA1 of the name with the salt as its key. */
static bool hashed_matches(const struct word *word, const char *name)
{
    unsigned char salt[SALT_MAX], wanted[SALT_MAX], made[HASH_SHA1_BYTES];
    size_t salt_len, wanted_len;
    const char *from = word->text + 3, *end = word->text + word->len;
    const char *bar = memchr(from, '|', (size_t)(end - from));
    if (!bar || (size_t)(bar - from) / 4 * 3 > sizeof salt || (size_t)(end - bar - 1) / 4 * 3 > sizeof wanted)
        return false;
    return hash_base64_decode(from, (size_t)(bar - from), salt, &salt_len) &&
           hash_base64_decode(bar + 1, (size_t)(end - bar - 1), wanted, &wanted_len) && wanted_len == sizeof made &&
           hash_hmac_sha1(salt, salt_len, name, strlen(name), made) && memcmp(made, wanted, sizeof made) == 0;
}

static void scan_line(struct ssh_known *self, const char *line, const char *end, unsigned number, const char *name,
                      const void *blob, size_t blob_len)
{
    unsigned char key[BLOB_MAX];
    size_t key_len;
    struct word names = next_word(&line, end);
    bool revoked = is_word(&names, "@revoked");
    if (is_word(&names, "@cert-authority") || (names.len && *names.text == '#'))
        return;
    if (revoked)
        names = next_word(&line, end);
    bool hashed = names.len > 3 && memcmp(names.text, "|1|", 3) == 0;
    struct word kind_name = next_word(&line, end), encoded = next_word(&line, end);
    if (encoded.len == 0 || encoded.len / 4 * 3 > sizeof key ||
        !(hashed ? hashed_matches(&names, name) : ssh_pattern_list_matches(names.text, names.len, name)) ||
        !hash_base64_decode(encoded.text, encoded.len, key, &key_len))
        return;
    enum ssh_key_kind kind = kind_of(kind_name.text, kind_name.len);
    if (kind != ssh_key_kind_of_blob(key, key_len))
        return;
    bool same = blob && key_len == blob_len && memcmp(key, blob, key_len) == 0;
    if (revoked) {
        if (same) {
            self->revoked = true;
            self->revoked_line = number;
        }
        return;
    }
    self->kinds |= 1u << kind;
    if (same) {
        self->matches = true;
    } else if (blob && kind == ssh_key_kind_of_blob(blob, blob_len)) {
        self->differs = true;
        self->differs_line = number;
        ssh_fingerprint(key, key_len, self->known_fingerprint);
    }
}

void ssh_known_scan(struct ssh_known *self, const char *text, size_t len, const char *name, const void *blob,
                    size_t blob_len)
{
    unsigned number = 0;
    for (const char *at = text, *end = text + len; at < end;) {
        const char *line_end = memchr(at, '\n', (size_t)(end - at));
        if (!line_end)
            line_end = end;
        scan_line(self, at, line_end, ++number, name, blob, blob_len);
        at = line_end + 1;
    }
}
