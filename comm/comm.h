/* Communication between ranks, over MPI (comm_new) or TCP (comm/comm_tcp.h).
 *
 * No wait is unbounded: a collective is polled until it is done, the deadline has passed, or the check of comm_watch
 * fails. After a time-out, an abort, or a collective that could not start, the communicator is unusable and the process
 * should exit. Calls are collective unless noted, and made from one thread; another thread uses a twin. */
#ifndef COMM_COMM_H
#define COMM_COMM_H

#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"

struct comm;

/* Starts MPI. Without a launcher there is one rank. With several `nodes`, core/rank_placement.h spreads the ranks over
 * them, and each node counts as a machine even if nodes share one; with 0, MPI finds out which ranks share a
 * machine. */
int comm_new(uint32_t nodes, struct comm **comm, struct cb_err *err) CB_MUST_CHECK;
/* A second communicator of the same ranks, for one other thread. Messages of the two never mix. A twin polls less often
 * while it waits, and does not support comm_agree_local. Free it before the first. CB_ERR_UNSUPPORTED if MPI allows only
 * one thread. Collective. */
int comm_twin(struct comm *comm, struct comm **twin, struct cb_err *err) CB_MUST_CHECK;
/* A twin for the ranks that pass the same `color`, in the order of their ranks; its comm_rank and comm_size count only
 * these. Collective. */
int comm_part(struct comm *comm, uint32_t color, struct comm **part, struct cb_err *err) CB_MUST_CHECK;
/* Frees the communicator; for the first one, ends MPI. Over MPI it does nothing if comm_can_end is false; over TCP it
 * closes all connections then. Accepts NULL. */
void comm_free(struct comm *comm);
/* False after a collective that did not start or end: exit with _exit then. Not collective. */
bool comm_can_end(const struct comm *comm);
/* Marks the communicator as unusable, after an operation outside of this interface did not end. Not collective. */
void comm_give_up(struct comm *comm);
uint32_t comm_rank(const struct comm *comm);
uint32_t comm_size(const struct comm *comm);
/* This rank's number among the ranks on its machine, and the number of these. */
uint32_t comm_local_rank(const struct comm *comm);
uint32_t comm_local_size(const struct comm *comm);
/* The number of ranks on the node with the most ranks; comm_size if there is one node. */
uint32_t comm_fullest_node(const struct comm *comm);
const char *comm_library(const struct comm *comm); /* "Open MPI v4.1.4" */
/* Calls `check` while waiting; it returns 0 to continue, or CB_ERR_ABORTED with the reason to stop. Borrows the context.
 * Not collective. */
typedef int (*comm_check_fn)(const void *context, struct cb_err *err);
void comm_watch(struct comm *comm, comm_check_fn check, const void *context);
/* The result of comm_watch's `check`, or CB_ERR_ABORTED after comm_interrupt. For loops that wait for something other than
 * ranks. Does not wait. Not collective. */
int comm_check(const struct comm *comm, struct cb_err *err) CB_MUST_CHECK;

/* From now on comm_check and every wait of this communicator return CB_ERR_ABORTED. From any thread; not collective. */
void comm_interrupt(struct comm *comm);

int comm_barrier(struct comm *comm, uint64_t deadline_ns, struct cb_err *err) CB_MUST_CHECK;

/* Every rank passes its own result (0 or a cb_code) and a number. All receive the lowest failing rank and its code, and the
 * sum, minimum and maximum of the numbers. Returns 0 if the agreement itself worked, even if ranks failed. */
struct agreement {
    int code;             /* of the lowest failing rank; 0 if all passed */
    uint32_t failed_rank; /* meaningful when code != 0 */
    uint32_t failed_count;
    uint64_t sum, min, max;
};
int comm_agree(struct comm *comm, int code, uint64_t number, uint64_t deadline_ns, struct agreement *agreement,
               struct cb_err *err) CB_MUST_CHECK;

/* comm_agree; also sets *word to rank 0's, in the same reduction. */
int comm_agree_and_share(struct comm *comm, int code, uint64_t number, uint64_t *word, uint64_t deadline_ns,
                         struct agreement *agreement, struct cb_err *err) CB_MUST_CHECK;

/* comm_agree among the ranks on this machine; failed_rank is a world rank. */
int comm_agree_local(struct comm *comm, int code, uint64_t number, uint64_t deadline_ns, struct agreement *agreement,
                     struct cb_err *err) CB_MUST_CHECK;

/* After an agreement in which a rank failed: all ranks call it and receive what agreement->failed_rank passes as `mine`;
 * what others pass is ignored. `reason` is "" if it does not arrive until the deadline or within 10 s, whichever is
 * later, and always over MPI, whose ranks report their reasons on status pages. */
#define COMM_REASON_BYTES 512
void comm_share_reason(struct comm *comm, const struct agreement *agreement, const char *mine, uint64_t deadline_ns,
                       char reason[COMM_REASON_BYTES]);

/* Copies rank 0's bytes to all ranks. */
int comm_broadcast(struct comm *comm, void *bytes, uint64_t len, uint64_t deadline_ns,
                   struct cb_err *err) CB_MUST_CHECK;

/* Non-blocking messages from rank to rank. Messages with the same tag match receives in the order in which both were
 * started. The memory must stay valid until comm_message_test reports the message as done, or until the process exits
 * after comm_abandon_messages. Not collective. */
struct comm_message {
    uint64_t handle; /* the library's */
};
#define COMM_MESSAGE_MAX_BYTES (UINT64_C(1) << 30)
#define COMM_TAGS 32768 /* tags are smaller */
int comm_send(struct comm *comm, const void *bytes, uint64_t len, uint32_t to, uint32_t tag,
              struct comm_message *message, struct cb_err *err) CB_MUST_CHECK;
int comm_receive(struct comm *comm, void *bytes, uint64_t len, uint32_t from, uint32_t tag,
                 struct comm_message *message, struct cb_err *err) CB_MUST_CHECK;
int comm_message_test(struct comm *comm, struct comm_message *message, bool *done, struct cb_err *err) CB_MUST_CHECK;

/* Non-blocking collectives. All ranks start them in the same order; comm_message_test reports when one is done, and the
 * memory must stay valid as for messages. `values` (at most COMM_MOST_VALUES) have 4 bytes each. Sums are of floats, and
 * have the same bits on every rank. */
#define COMM_MOST_VALUES UINT64_C(0x7FFFFFFF)
/* Gathers `values` of every rank on all ranks, in the order of the ranks. */
int comm_start_all_gather(struct comm *comm, const void *mine, void *all, uint64_t values, struct comm_message *message,
                          struct cb_err *err) CB_MUST_CHECK;
/* `all` has comm_size times `values`; rank r receives the sum of all ranks' r-th part. */
int comm_start_reduce_scatter(struct comm *comm, const float *all, float *mine, uint64_t values,
                              struct comm_message *message, struct cb_err *err) CB_MUST_CHECK;
/* `sum` may be equal to `mine`. */
int comm_start_all_reduce(struct comm *comm, const float *mine, float *sum, uint64_t values,
                          struct comm_message *message, struct cb_err *err) CB_MUST_CHECK;
/* Replaces each of at most COMM_MOST_SUMS numbers by its sum over the ranks, added in the order of the ranks. */
#define COMM_MOST_SUMS 8
int comm_sum(struct comm *comm, double *numbers, uint32_t count, uint64_t deadline_ns,
             struct cb_err *err) CB_MUST_CHECK;

/* Abandons messages in flight. Agreements still work, but the process must exit with _exit (comm_can_end is false). Not
 * collective. */
void comm_abandon_messages(struct comm *comm);

#endif
