/* Monotonic and wall-clock time. */
#include "core/clock.h"

#include <time.h>

static uint64_t clock_ns(clockid_t id)
{
    struct timespec now;
    clock_gettime(id, &now);
    return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

uint64_t clock_monotonic_ns(void)
{
    return clock_ns(CLOCK_MONOTONIC);
}

uint64_t clock_wall_ns(void)
{
    return clock_ns(CLOCK_REALTIME);
}

void clock_sleep_ns(uint64_t duration_ns)
{
    struct timespec duration = {.tv_sec = (time_t)(duration_ns / NS_PER_S), .tv_nsec = (long)(duration_ns % NS_PER_S)};
    nanosleep(&duration, NULL);
}

void clock_format_utc(uint64_t wall_ns, char text[21])
{
    time_t seconds = (time_t)(wall_ns / NS_PER_S);
    struct tm utc;
    gmtime_r(&seconds, &utc);
    strftime(text, 21, "%Y-%m-%dT%H:%M:%SZ", &utc);
}
