/* Which requests to retry, with which backoff, and how many may be in flight. Pure. */
#ifndef STORE_S3_S3_RETRY_H
#define STORE_S3_S3_RETRY_H

#include <stdbool.h>
#include <stdint.h>

enum s3_failure {
    S3_FAILURE_NONE,
    S3_FAILURE_FATAL,      /* a retry would fail, too */
    S3_FAILURE_THROTTLED,  /* SlowDown, 429: fewer requests, later */
    S3_FAILURE_SERVER,     /* 5xx, 408, a malformed reply */
    S3_FAILURE_CONNECTION, /* refused, reset, truncated, not resolved */
    S3_FAILURE_STALLED,    /* no byte moved for too long */
    S3_FAILURE_EXPIRED,    /* credentials expired: retry with new ones */
    S3_FAILURE_SKEWED,     /* our clock: retry with the server's */
    S3_FAILURE_UNSIGNED,   /* an unsigned body or its CRC-32C may be the reason: retry with a signed one */
};

/* The class of a reply. `code` is S3's own ("SlowDown"), "" if there is none: it takes precedence over the status,
 * since a 200 can contain an error. */
enum s3_failure s3_classify(long status, const char *code);

/* How many attempts in a row may stall without a byte of a reply before the request fails, whatever s3.attempts is: a
 * server that is full may accept requests for ever and answer none. Three, as many attempts as AWS's SDKs make in their
 * standard mode; or one for each of the endpoint's addresses, since a retry goes to the next. */
uint32_t s3_most_silences(uint32_t addresses);

/* Backoff before attempt `attempt` + 1 (the first is 1): a random time up to a limit that doubles with every attempt
 * ("full jitter"), so that clients that failed together do not retry together. The first retry is almost immediate;
 * while the server is `pressed` (see s3_window_throttled) the limit for throttled requests is ten times longer.
 * `random` is any number. */
uint64_t s3_backoff_ns(uint32_t attempt, enum s3_failure failure, bool pressed, uint64_t random);

/* How many requests may be in flight: halved when the server sends SlowDown to more than a few of them (once for all
 * that were in flight together), and increased by one for every window of successes. */
struct s3_window {
    double size;
    uint32_t most;
    uint64_t halved_ns; /* when last halved */
    double pressure;    /* moving share of SlowDown among replies; each reply counts a sixteenth */
};

void s3_window_init(struct s3_window *self, uint32_t most);
/* True if the server is pressed: it rejects more than one request in eight. A single rejection, as every large
 * service sends now and then, does not ask for fewer requests. */
bool s3_window_throttled(struct s3_window *self, uint64_t started_ns, uint64_t now_ns);
void s3_window_success(struct s3_window *self);
uint32_t s3_window_size(const struct s3_window *self);

#endif
