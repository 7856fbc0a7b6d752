/* Runs the Python process of engine=torch-dcp or torch-native. A request is a line of JSON to its stdin, an answer a line
 * of JSON from its stdout; share/adapters/torch_dcp.py documents them. One thread at a time; not collective. */
#ifndef ENGINE_EXTERNAL_TORCH_ADAPTER_H
#define ENGINE_EXTERNAL_TORCH_ADAPTER_H

#include <stddef.h>
#include <stdint.h>

#include "comm/comm.h"
#include "core/buf.h"
#include "core/child.h"
#include "core/err.h"
#include "core/json.h"
#include "engine/external/child_activity.h"

struct torch_adapter {
    const char *engine;       /* "torch-dcp" or "torch-native"; borrowed */
    struct comm *comm;        /* borrowed; comm_check is called while waiting */
    struct status_page *page; /* borrowed; shows the process's activity during waits */
    struct child child;
    struct child_activity activity;
    int to_child, from_child, stderr_fd;
    struct buf request, received; /* the request being built; received bytes of an incomplete line */
};

/* The answer to a request. A number that is missing or malformed is NAN. */
struct torch_answer {
    char version[64]; /* of torch; "unknown" */
    double plan_s, io_s, commit_s, wait_s, cpu_s;
    double save_cpu_s; /* of a finished asynchronous save */
    double ended_s;    /* when it finished, on the monotonic clock */
    double bytes, rss_bytes;
};

void torch_adapter_init(struct torch_adapter *self, const char *engine, struct comm *comm, struct status_page *page);
/* Starts CKPTBENCH_PYTHON, else the Python environment next to this program, else python3, with the engine's adapter. */
int torch_adapter_start(struct torch_adapter *self, struct cb_err *err) CB_MUST_CHECK;
/* Closes the process's input and kills it after a grace period. Does nothing if it was not started. */
void torch_adapter_end(struct torch_adapter *self);

/* Begins a request. The caller writes keys and values; torch_adapter_ask completes it. */
void torch_adapter_begin(struct torch_adapter *self, struct json_writer *writer, const char *command);
/* Sends the request and waits for the answer; `answer` may be NULL. CB_ERR_CORRUPT with PyTorch's message if it failed. */
int torch_adapter_ask(struct torch_adapter *self, struct json_writer *writer, uint64_t deadline_ns,
                      struct torch_answer *answer, struct cb_err *err) CB_MUST_CHECK;

/* Parses an answer: one line without its line feed. */
int torch_answer_parse(const char *line, size_t len, struct torch_answer *answer, struct cb_err *err) CB_MUST_CHECK;

#endif
