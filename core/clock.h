/* Time. Durations come from the monotonic clock, dates from the wall clock; both in nanoseconds. */
#ifndef CORE_CLOCK_H
#define CORE_CLOCK_H

#include <stddef.h>
#include <stdint.h>

#define NS_PER_S UINT64_C(1000000000)
#define NS_PER_MS UINT64_C(1000000)
#define NS_PER_US UINT64_C(1000)

uint64_t clock_monotonic_ns(void);         /* CLOCK_MONOTONIC: the same base in all processes of a machine */
uint64_t clock_wall_ns(void);              /* since 1970-01-01 UTC */
void clock_sleep_ns(uint64_t duration_ns); /* returns early on a signal */

/* "2026-11-21T12:00:00Z" in UTC. `text` holds at least 21 bytes. */
void clock_format_utc(uint64_t wall_ns, char text[21]);

#endif
