/* The slowest requests of a store, with what a person needs to find the reason: file, offset, rank and time.
 *
 * A plain value of fixed size, so that a status page can hold it. Most requests cost one comparison; a request that
 * belongs to the slowest is copied into its place. Nothing is allocated. */
#ifndef CORE_SLOW_REQUESTS_H
#define CORE_SLOW_REQUESTS_H

#include <stdbool.h>
#include <stdint.h>

#define SLOW_REQUESTS 10
#define SLOW_REQUEST_FILE_BYTES 128

enum request_kind { REQUEST_WRITE, REQUEST_READ, REQUEST_FINISH, REQUEST_KINDS };

struct slow_request {
    uint64_t latency_ns, offset, bytes;
    uint64_t started_wall_ns; /* since 1970, by the clock of the rank's machine */
    uint32_t kind;            /* enum request_kind */
    uint32_t rank, iteration;
    uint32_t reserved;
    char file[SLOW_REQUEST_FILE_BYTES]; /* the end of a longer name */
};

struct slow_requests {
    uint64_t count;
    struct slow_request items[SLOW_REQUESTS]; /* the slowest first */
};

/* Whether a request of this latency belongs to the slowest. */
static inline bool slow_requests_wants(const struct slow_requests *self, uint64_t latency_ns)
{
    return self->count < SLOW_REQUESTS || latency_ns > self->items[SLOW_REQUESTS - 1].latency_ns;
}

/* Adds the request if it belongs to the slowest. */
void slow_requests_add(struct slow_requests *self, const struct slow_request *request);
/* For memory that another process may have damaged. */
bool slow_requests_are_valid(const struct slow_requests *self);
/* Copies a name, or its end if it is longer. */
void slow_request_set_file(struct slow_request *self, const char *name);
const char *slow_request_kind_name(uint32_t kind); /* "write", "read", "finish" */

#endif
