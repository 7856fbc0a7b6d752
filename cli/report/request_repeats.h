/* Which requests of saves or loads were repeated, why, and how long that took. */
#ifndef CLI_REPORT_REQUEST_REPEATS_H
#define CLI_REPORT_REQUEST_REPEATS_H

#include "core/buf.h"
#include "db/history.h"

/* Sums over the measured iterations of runs, all ranks together. */
struct request_repeats {
    enum operation op; /* OP_SAVE or OP_LOAD */
    double iterations, requests, repeated, throttled, server, connection, stalled;
    double op_s;         /* of the slowest rank of each iteration */
    double in_backoff_s; /* mean over ranks of the time when all requests in flight were in backoff */
    double throttled_s;  /* of the rank with the longest */
};

void request_repeats_add(struct request_repeats *self, const struct run_info *info);
/* Repeated requests as a share of all requests; 0 for a run without requests. */
double request_repeats_share(const struct request_repeats *self);
/* "412 of 2,060 requests in 10 saves (20 %): 400 throttled, 12 server; 1.90 s of 2.50 s waiting to try again". */
void request_repeats_describe(const struct request_repeats *self, struct buf *out);

/* The line of a report; nothing if no request was repeated. */
void request_repeats_write(const struct run_info *info, enum operation op, struct buf *out);

#endif
