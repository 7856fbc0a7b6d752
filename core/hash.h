/* Hashes and checksums. Thread-safe. */
#ifndef CORE_HASH_H
#define CORE_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#define HASH_SHA256_BYTES 32
#define HASH_MD5_BYTES 16

/* SHA-256, lower-case hex, 64 digits and a NUL. */
void hash_sha256_hex(const void *bytes, size_t len, char hex[65]);
void hash_sha256(const void *bytes, size_t len, unsigned char digest[HASH_SHA256_BYTES]);
/* Of the segments in a row. */
void hash_sha256_segments(const struct iovec *segments, size_t count, unsigned char digest[HASH_SHA256_BYTES]);
void hash_hmac_sha256(const void *key, size_t key_len, const void *bytes, size_t len,
                      unsigned char digest[HASH_SHA256_BYTES]);
/* For protocols that ask for it. False where OpenSSL refuses it (FIPS). */
bool hash_md5(const void *bytes, size_t len, unsigned char digest[HASH_MD5_BYTES]);

/* Lower-case hex: 2 * len digits and a NUL. Base64 with padding: 4 * ((len + 2) / 3) characters and a NUL. */
void hash_hex(const void *bytes, size_t len, char *hex);
void hash_base64(const void *bytes, size_t len, char *text);

/* CRC-32 as zip and gzip use it (polynomial 0xEDB88320). `crc` is 0 at the start or the result so far. */
uint32_t crc32_zip(uint32_t crc, const void *bytes, size_t len);
/* CRC-32C (Castagnoli), for records and status pages. */
uint32_t crc32c(uint32_t crc, const void *bytes, size_t len);
/* The same without isa-l: what a build without it uses, and what tests hold the fast ones against. */
uint32_t crc32_zip_portable(uint32_t crc, const void *bytes, size_t len);
uint32_t crc32c_portable(uint32_t crc, const void *bytes, size_t len);
/* Checksum of A followed by B from those of A and B and B's length. */
uint32_t crc32_zip_combine(uint32_t crc_a, uint32_t crc_b, uint64_t len_b);

/* 64-bit mix for tables and ids (not for security): FNV-1a, then Stafford's variant 13. */
uint64_t hash_u64(const void *bytes, size_t len);

/* Cryptographically random bytes. */
void random_bytes(void *bytes, size_t len);

#endif
