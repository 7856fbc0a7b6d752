/* The Python process behind engine=torch-dcp: found, started, spoken to, ended. A request is a line of JSON
 * to its stdin, an answer a line from its stdout; share/adapters/torch_dcp.py describes them. One thread
 * at a time; not collective. */
#ifndef ENGINE_EXTERNAL_TORCH_ADAPTER_H
#define ENGINE_EXTERNAL_TORCH_ADAPTER_H

#include <stddef.h>
#include <stdint.h>

#include "comm/comm.h"
#include "core/buf.h"
#include "core/child.h"
#include "core/err.h"
#include "core/json.h"

struct torch_adapter {
    struct comm *comm; /* borrowed: looked at while waiting */
    struct child child;
    int to_child, from_child, stderr_fd;
    struct buf request, received; /* what is sent; what has come and is not yet a whole line */
};

/* What Python says of what it did. A number that it does not tell, or that is none, is NAN. */
struct torch_answer {
    char version[64]; /* of torch; "unknown" */
    double plan_s, io_s, commit_s, cpu_s;
    double save_cpu_s; /* of the asynchronous save that has ended */
    double ended_s;    /* when that was, on the monotonic clock */
    double bytes, rss_bytes;
};

void torch_adapter_init(struct torch_adapter *self, struct comm *comm);
/* CKPTBENCH_PYTHON, the environment beside this program, or python3. */
int torch_adapter_start(struct torch_adapter *self, struct cb_err *err) CB_MUST_CHECK;
/* The end of its input ends it; after a grace time it is ended. Fine where nothing was started. */
void torch_adapter_end(struct torch_adapter *self);

/* A request: torch_adapter_begin, then keys and values, then torch_adapter_ask, which closes the object. */
void torch_adapter_begin(struct torch_adapter *self, struct json_writer *writer, const char *command);
/* Sends it and waits for the answer; `answer` may be NULL. CB_ERR_CORRUPT with PyTorch's own words where it
 * failed. */
int torch_adapter_ask(struct torch_adapter *self, struct json_writer *writer, uint64_t deadline_ns,
                      struct torch_answer *answer, struct cb_err *err) CB_MUST_CHECK;

/* One line, without its line feed. */
int torch_answer_parse(const char *line, size_t len, struct torch_answer *answer, struct cb_err *err) CB_MUST_CHECK;

#endif
