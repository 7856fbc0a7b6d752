/* Classes of failures, backoff, and the window of requests. */
#include "store/s3/s3_retry.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

#include "core/clock.h"

#define AT_ONCE_NS (10 * NS_PER_MS) /* first failure */
#define FIRST_BACKOFF_NS (50 * NS_PER_MS)
#define FIRST_THROTTLED_NS (500 * NS_PER_MS) /* initial value of the S3 connector and the AWS clients */
#define LONGEST_BACKOFF_NS (20 * NS_PER_S)
#define SILENCES 3
#define PRESSURE_WEIGHT (1.0 / 16)
#define PRESSED (1.0 / 8)

enum s3_failure s3_classify(long status, const char *code)
{
    static const struct {
        const char *code;
        enum s3_failure failure;
    } known[] = {
        {"SlowDown", S3_FAILURE_THROTTLED},           {"RequestLimitExceeded", S3_FAILURE_THROTTLED},
        {"Throttling", S3_FAILURE_THROTTLED},         {"ThrottlingException", S3_FAILURE_THROTTLED},
        {"TooManyRequests", S3_FAILURE_THROTTLED},    {"InternalError", S3_FAILURE_SERVER},
        {"ServiceUnavailable", S3_FAILURE_THROTTLED}, {"RequestTimeout", S3_FAILURE_SERVER},
        {"ExpiredToken", S3_FAILURE_EXPIRED},         {"ExpiredTokenException", S3_FAILURE_EXPIRED},
        {"TokenRefreshRequired", S3_FAILURE_EXPIRED}, {"RequestTimeTooSkewed", S3_FAILURE_SKEWED},
        {"RequestExpired", S3_FAILURE_SKEWED},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(known[i].code, code) == 0)
            return known[i].failure;
    }
    if (status >= 200 && status < 300)
        return *code ? S3_FAILURE_FATAL : S3_FAILURE_NONE;
    if (status == 429 || status == 503)
        return S3_FAILURE_THROTTLED;
    if (status == 408 || (status >= 500 && status != 501))
        return S3_FAILURE_SERVER;
    return S3_FAILURE_FATAL;
}

uint32_t s3_most_silences(uint32_t addresses)
{
    return addresses > SILENCES ? addresses : SILENCES;
}

uint64_t s3_backoff_ns(uint32_t attempt, enum s3_failure failure, bool pressed, uint64_t random)
{
    bool slow = pressed && failure == S3_FAILURE_THROTTLED;
    uint64_t bound_ns = slow ? FIRST_THROTTLED_NS : attempt == 1 ? AT_ONCE_NS : FIRST_BACKOFF_NS;
    for (uint32_t i = 1; i < attempt && bound_ns < LONGEST_BACKOFF_NS; i++)
        bound_ns *= 2;
    if (bound_ns > LONGEST_BACKOFF_NS)
        bound_ns = LONGEST_BACKOFF_NS;
    return random % (bound_ns + 1);
}

void s3_window_init(struct s3_window *self, uint32_t most)
{
    assert(most > 0);
    *self = (struct s3_window){.size = most, .most = most};
}

bool s3_window_throttled(struct s3_window *self, uint64_t started_ns, uint64_t now_ns)
{
    self->pressure += (1 - self->pressure) * PRESSURE_WEIGHT;
    if (self->pressure <= PRESSED)
        return false;
    if (started_ns < self->halved_ns)
        return true; /* it was already in flight when the window was last halved */
    self->size = self->size > 2 ? self->size / 2 : 1;
    self->halved_ns = now_ns;
    return true;
}

void s3_window_success(struct s3_window *self)
{
    self->pressure -= self->pressure * PRESSURE_WEIGHT;
    self->size += 1 / self->size;
    if (self->size > self->most)
        self->size = self->most;
}

uint32_t s3_window_size(const struct s3_window *self)
{
    return (uint32_t)self->size;
}
