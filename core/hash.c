/* Hashes for names, ids and tamper checks, and random bytes. Checksums of data are in core/crc.c. */
#include "core/hash.h"

#include <assert.h>
#include <errno.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/sha.h>
#include <sys/random.h>

void hash_hex(const void *bytes, size_t len, char *hex)
{
    static const char digits[] = "0123456789abcdef";
    const unsigned char *byte = bytes;
    for (size_t i = 0; i < len; i++) {
        hex[2 * i] = digits[byte[i] >> 4];
        hex[2 * i + 1] = digits[byte[i] & 15];
    }
    hex[2 * len] = '\0';
}

void hash_base64(const void *bytes, size_t len, char *text)
{
    assert(len <= INT32_MAX);
    text[EVP_EncodeBlock((unsigned char *)text, bytes, (int)len)] = '\0';
}

void hash_sha256(const void *bytes, size_t len, unsigned char digest[HASH_SHA256_BYTES])
{
    SHA256(bytes, len, digest);
}

void hash_sha256_hex(const void *bytes, size_t len, char hex[65])
{
    unsigned char digest[HASH_SHA256_BYTES];
    hash_sha256(bytes, len, digest);
    hash_hex(digest, sizeof digest, hex);
}

void hash_sha256_segments(const struct iovec *segments, size_t count, unsigned char digest[HASH_SHA256_BYTES])
{
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    int good = context && EVP_DigestInit_ex(context, EVP_sha256(), NULL);
    for (size_t i = 0; i < count && good; i++)
        good = EVP_DigestUpdate(context, segments[i].iov_base, segments[i].iov_len);
    good = good && EVP_DigestFinal_ex(context, digest, NULL);
    assert(good); /* every OpenSSL has SHA-256, so only an allocation of 64 bytes can fail */
    EVP_MD_CTX_free(context);
}

void hash_hmac_sha256(const void *key, size_t key_len, const void *bytes, size_t len,
                      unsigned char digest[HASH_SHA256_BYTES])
{
    const unsigned char *made = HMAC(EVP_sha256(), key, (int)key_len, bytes, len, digest, NULL);
    assert(made);
    (void)made;
}

bool hash_hmac_sha1(const void *key, size_t key_len, const void *bytes, size_t len,
                    unsigned char digest[HASH_SHA1_BYTES])
{
    return HMAC(EVP_sha1(), key, (int)key_len, bytes, len, digest, NULL) != NULL;
}

static int base64_value(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

bool hash_base64_decode(const char *text, size_t len, unsigned char *bytes, size_t *byte_count)
{
    size_t used = 0, padding = 0;
    while (padding < 2 && padding < len && text[len - 1 - padding] == '=')
        padding++;
    if (len % 4)
        return false;
    for (size_t i = 0; i < len; i += 4) {
        uint32_t group = 0;
        size_t given = i + 4 == len ? 4 - padding : 4;
        for (size_t k = 0; k < 4; k++) {
            int value = k < given ? base64_value(text[i + k]) : 0;
            if (value < 0)
                return false;
            group = group << 6 | (uint32_t)value;
        }
        for (size_t k = 0; k + 1 < given; k++)
            bytes[used++] = (unsigned char)(group >> (16 - 8 * k));
    }
    *byte_count = used;
    return true;
}

bool hash_md5(const void *bytes, size_t len, unsigned char digest[HASH_MD5_BYTES])
{
    return EVP_Digest(bytes, len, digest, NULL, EVP_md5(), NULL) == 1;
}

uint64_t hash_u64(const void *bytes, size_t len)
{
    const unsigned char *byte = bytes;
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < len; i++)
        hash = (hash ^ byte[i]) * UINT64_C(0x100000001b3);
    hash = (hash ^ hash >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    hash = (hash ^ hash >> 27) * UINT64_C(0x94d049bb133111eb);
    return hash ^ hash >> 31;
}

void random_bytes(void *bytes, size_t len)
{
    unsigned char *place = bytes;
    while (len > 0) {
        ssize_t got = getrandom(place, len, 0);
        if (got < 0) {
            assert(errno == EINTR); /* with valid memory and no flags, only this error is possible */
            continue;
        }
        place += got;
        len -= (size_t)got;
    }
}
