/* The values of the s3.* keys. */
#ifndef STORE_S3_S3_OPTIONS_H
#define STORE_S3_S3_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#define S3_MIN_PART_BYTES (UINT64_C(5) << 20)
#define S3_MAX_PART_BYTES (UINT64_C(5) << 30)
#define S3_MAX_PARTS UINT64_C(10000)

enum s3_checksum {
    S3_CHECKSUM_AUTO,   /* CRC-32C; if the server refuses that, SHA-256 */
    S3_CHECKSUM_SHA256, /* the signature covers the body */
    S3_CHECKSUM_CRC32C, /* the body is unsigned; servers that support the header check its CRC-32C */
    S3_CHECKSUM_NONE,   /* UNSIGNED-PAYLOAD */
};

struct s3_options {
    char endpoint[2048];           /* of a session: the one of its rank */
    char region[64], profile[128]; /* "": from environment and profile */
    char interface[256];           /* names joined by '+'; "": as routed */
    char tls_ca[1024], tls_cert[1024], tls_key[1024];
    int path_style; /* -1: automatic */
    enum s3_checksum checksum;
    uint64_t part_bytes;
    uint32_t loops;
    uint32_t attempts; /* 0: AWS_MAX_ATTEMPTS, else 10 */
    bool requester_pays;
    uint64_t stall_ns, deadline_ns;
};

/* Every key at its default (run/options.def). */
extern const struct s3_options s3_options_default;

#endif
