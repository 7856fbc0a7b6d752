/* Hashes and checksums. Thread-safe. */
#ifndef CORE_HASH_H
#define CORE_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#define HASH_SHA256_BYTES 32
#define HASH_MD5_BYTES 16
#define HASH_SHA1_BYTES 20

/* SHA-256, lower-case hex, 64 digits and a NUL. */
void hash_sha256_hex(const void *bytes, size_t len, char hex[65]);
void hash_sha256(const void *bytes, size_t len, unsigned char digest[HASH_SHA256_BYTES]);
/* Hash of the concatenated segments. */
void hash_sha256_segments(const struct iovec *segments, size_t count, unsigned char digest[HASH_SHA256_BYTES]);
void hash_hmac_sha256(const void *key, size_t key_len, const void *bytes, size_t len,
                      unsigned char digest[HASH_SHA256_BYTES]);
/* For protocols and files that require them. False if OpenSSL disallows them (FIPS). */
bool hash_hmac_sha1(const void *key, size_t key_len, const void *bytes, size_t len,
                    unsigned char digest[HASH_SHA1_BYTES]);
bool hash_md5(const void *bytes, size_t len, unsigned char digest[HASH_MD5_BYTES]);

/* Lower-case hex: 2 * len digits and a NUL. Base64 with padding: 4 * ((len + 2) / 3) characters and a NUL. */
void hash_hex(const void *bytes, size_t len, char *hex);
void hash_base64(const void *bytes, size_t len, char *text);
/* Decodes base64 with padding and without blanks; `bytes` holds 3 * (len / 4). False if the text is malformed. */
bool hash_base64_decode(const char *text, size_t len, unsigned char *bytes, size_t *byte_count);

/* CRC-32 as in zip and gzip (polynomial 0xEDB88320). `crc` is 0 at the start, or the result so far. */
uint32_t crc32_zip(uint32_t crc, const void *bytes, size_t len);
/* CRC-32C (Castagnoli), for records and status pages. */
uint32_t crc32c(uint32_t crc, const void *bytes, size_t len);
/* The versions without isa-l: used by builds that lack it, and as a reference in tests. */
uint32_t crc32_zip_portable(uint32_t crc, const void *bytes, size_t len);
uint32_t crc32c_portable(uint32_t crc, const void *bytes, size_t len);
/* Checksum of A followed by B, from their checksums and the length of B. */
uint32_t crc32_zip_combine(uint32_t crc_a, uint32_t crc_b, uint64_t len_b);

/* 64-bit mix for tables and ids (not for security): FNV-1a, then Stafford's variant 13. */
uint64_t hash_u64(const void *bytes, size_t len);

/* Cryptographically random bytes. */
void random_bytes(void *bytes, size_t len);

#endif
