/* Hashes for names, ids and tamper checks, and random bytes. Checksums of data are in crc.c. */
#include "core/hash.h"

#include <assert.h>
#include <errno.h>
#include <openssl/sha.h>
#include <sys/random.h>

void hash_sha256_hex(const void *bytes, size_t len, char hex[65])
{
    static const char digits[] = "0123456789abcdef";
    unsigned char digest[SHA256_DIGEST_LENGTH];
    SHA256(bytes, len, digest);
    for (size_t i = 0; i < sizeof digest; i++) {
        hex[2 * i] = digits[digest[i] >> 4];
        hex[2 * i + 1] = digits[digest[i] & 15];
    }
    hex[64] = '\0';
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
            assert(errno == EINTR); /* the only way it can fail with valid memory and no flags */
            continue;
        }
        place += got;
        len -= (size_t)got;
    }
}
