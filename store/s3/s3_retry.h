/* When a request is worth repeating, how long to wait before, and how many may be under way. Pure. */
#ifndef STORE_S3_S3_RETRY_H
#define STORE_S3_S3_RETRY_H

#include <stdbool.h>
#include <stdint.h>

enum s3_failure {
    S3_FAILURE_NONE,
    S3_FAILURE_FATAL,      /* repeating changes nothing */
    S3_FAILURE_THROTTLED,  /* SlowDown, 429: fewer requests, later */
    S3_FAILURE_SERVER,     /* 5xx, 408, an answer that makes no sense */
    S3_FAILURE_CONNECTION, /* refused, reset, cut off, not resolved */
    S3_FAILURE_STALLED,    /* no byte moved for too long */
    S3_FAILURE_EXPIRED,    /* the credentials: repeated with new ones */
    S3_FAILURE_SKEWED,     /* our clock: repeated with the server's */
};

/* What an answer means. `code` is S3's own ("SlowDown"), "" where there is none: it counts more than the status, since
 * a 200 can carry an error. */
enum s3_failure s3_classify(long status, const char *code);

/* How long to wait before attempt `attempt` + 1 (the first is 1): anything up to a bound that doubles with every
 * attempt ("full jitter"), so that clients that failed together do not come back together. What fails once is repeated
 * almost at once; where the server is `pressed` (see s3_window_throttled) the bound of what it throttled is ten times
 * longer. `random` is any number. */
uint64_t s3_backoff_ns(uint32_t attempt, enum s3_failure failure, bool pressed, uint64_t random);

/* How many requests may be under way: halved when the server says SlowDown to more than a few of them (once for what
 * was under way together), one more for every window of successes. */
struct s3_window {
    double size;
    uint32_t most;
    uint64_t halved_ns; /* when last */
    double pressure;    /* the share of late answers that were SlowDown; each answer counts a sixteenth */
};

void s3_window_init(struct s3_window *self, uint32_t most);
/* True where the server is pressed: it refuses more than one request in eight. One that refuses a single request, as
 * every large service does now and then, does not ask for fewer. */
bool s3_window_throttled(struct s3_window *self, uint64_t started_ns, uint64_t now_ns);
void s3_window_success(struct s3_window *self);
uint32_t s3_window_size(const struct s3_window *self);

#endif
