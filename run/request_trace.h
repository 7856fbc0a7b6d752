/* Traces of requests (trace=full): attempts/N/traces/rank-R.requests, with a record of fixed size for each request.
 *
 * The file is a header and the records, little-endian; docs/run-folder.md has the layout. The writer has a buffer that
 * it writes when it is full, or at a moment of the caller's choice: recording allocates nothing. A record that cannot
 * be written is counted as lost. One thread at a time. */
#ifndef RUN_REQUEST_TRACE_H
#define RUN_REQUEST_TRACE_H

#include <stddef.h>
#include <stdint.h>

#include "core/err.h"
#include "run/metrics.h"

#define REQUEST_TRACE_ENDING ".requests"
#define REQUEST_TRACE_FILE_BYTES 40

/* As in the file. */
struct traced_request {
    uint64_t start_ns; /* since the attempt began, by the head's clock */
    uint64_t latency_ns;
    uint64_t offset, bytes; /* bytes moved */
    uint32_t iteration;
    uint16_t op;                         /* enum operation */
    uint8_t kind;                        /* enum request_kind */
    uint8_t failed;                      /* 1 or 0 */
    char file[REQUEST_TRACE_FILE_BYTES]; /* the end of a longer name, not always NUL-terminated */
};

struct request_trace;
/* Creates the file and its folder. */
int request_trace_open(const char *path, uint32_t rank, struct request_trace **trace, struct cb_err *err) CB_MUST_CHECK;
void request_trace_add(struct request_trace *self, const struct traced_request *request);
void request_trace_flush(struct request_trace *self);
/* Writes what is left, and returns how many requests were written and lost. */
void request_trace_close(struct request_trace *self, uint64_t *written, uint64_t *lost);

/* A trace that was read. A file that ends within a record, because its rank was killed, is read up to there. */
struct request_trace_file {
    uint32_t rank;
    struct traced_request *requests; /* count of them, as they completed; numbers of operations are this release's */
    size_t count;
};
int request_trace_read(const char *path, struct request_trace_file *file, struct cb_err *err) CB_MUST_CHECK;
void request_trace_release(struct request_trace_file *file);

#endif
