/* The SPEC of "fault:SPEC:STORE": KEY=VALUE joined by '+' (docs/fault-store.md). Private to store/fault/fault*.c. */
#ifndef STORE_FAULT_FAULT_SPEC_H
#define STORE_FAULT_FAULT_SPEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/err.h"

enum fault_operation {
    FAULT_WRITE = 1,
    FAULT_READ = 2,
    FAULT_FINISH = 4,
    FAULT_PUBLISH = 8,
    FAULT_CREATE = 16,
    FAULT_SYNC_FOLDER = 32,
};

/* Counts start at 1; 0 is off. */
struct fault_spec {
    uint64_t delay_ns;
    uint64_t bandwidth_bytes_per_s;
    uint64_t error_at, error_every;
    int error_errno;
    uint64_t enospc_after_bytes; /* UINT64_MAX is off */
    uint64_t short_write_at, bit_flip_at, stall_at, block_at, powercut_at;
    uint64_t seed;   /* for the power cut */
    char until[128]; /* a file: requests of `ops` complete only once it exists; "" is off */
    unsigned ops;    /* the operations that delay, until, bandwidth, errors, stall_at and block_at count and affect */
    unsigned fail;   /* operations that always fail */
    int fail_errno;
    bool has_rank;
    uint32_t rank;
};

int fault_spec_parse(const char *text, size_t len, struct fault_spec *spec, struct cb_err *err) CB_MUST_CHECK;

#endif
