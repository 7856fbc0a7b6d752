/* Ranks talking to each other, over MPI (comm_new) or TCP (comm/comm_tcp.h).
 *
 * Waiting is never unbounded: collectives are non-blocking inside and are tested until they are done, the deadline has
 * passed, or comm_watch's check says to stop; after a timeout or abort the communicator is unusable and the process is
 * expected to leave. All calls are collective but where noted, from one thread; another one talks over a twin. */
#ifndef COMM_COMM_H
#define COMM_COMM_H

#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"

struct comm;

/* Starts MPI. Without a launcher there is one rank. With several `nodes` the ranks are spread over them by
 * core/rank_placement.h, and a node is a machine, whatever else they share; with 0 MPI finds out who shares a
 * machine. */
int comm_new(uint32_t nodes, struct comm **comm, struct cb_err *err) CB_MUST_CHECK;
/* A second voice of the same ranks, for one other thread: what is said over it does not mix with what
 * is said over the first. Looks around less often while it waits. Collective; CB_ERR_UNSUPPORTED where
 * MPI lets one thread alone talk. Freed before the first. comm_agree_local is not for it. */
int comm_twin(struct comm *comm, struct comm **twin, struct cb_err *err) CB_MUST_CHECK;
/* The ranks that give the same `color`, in the order of their ranks, as a twin of their own: comm_rank and comm_size of
 * it are those within the part. Collective. */
int comm_part(struct comm *comm, uint32_t color, struct comm **part, struct cb_err *err) CB_MUST_CHECK;
/* Ends MPI; where a collective is still stuck it does not try to. */
void comm_free(struct comm *comm);
/* False after a collective that did not end: leave with _exit then. Not collective. */
bool comm_can_end(const struct comm *comm);
/* Something of MPI does not end: from now on nothing works, and comm_can_end says so. Not collective. */
void comm_give_up(struct comm *comm);
uint32_t comm_rank(const struct comm *comm);
uint32_t comm_size(const struct comm *comm);
/* Among the ranks on this machine. */
uint32_t comm_local_rank(const struct comm *comm);
uint32_t comm_local_size(const struct comm *comm);
/* Ranks on the node that has most of them; comm_size where there is one node. */
uint32_t comm_fullest_node(const struct comm *comm);
const char *comm_library(const struct comm *comm); /* "Open MPI v4.1.4" */
/* While it waits, comm asks `check` whether to go on: 0, or CB_ERR_ABORTED with the reason. Borrows the context. Not
 * collective. */
typedef int (*comm_check_fn)(const void *context, struct cb_err *err);
void comm_watch(struct comm *comm, comm_check_fn check, const void *context);
/* Whether to go on: what `check` of comm_watch says, or CB_ERR_ABORTED after comm_interrupt. For loops that wait for
 * something else than ranks. Does not wait. Not collective. */
int comm_check(const struct comm *comm, struct cb_err *err) CB_MUST_CHECK;

/* Any thread: from now on comm_check of this comm says CB_ERR_ABORTED, and so does all waiting. */
void comm_interrupt(struct comm *comm);

int comm_barrier(struct comm *comm, uint64_t deadline_ns, struct cb_err *err) CB_MUST_CHECK;

/* Agreement: every rank brings its own result (0 or a cb_code) and a number; all learn the lowest
 * failing rank and its code, the sum, the smallest and the largest of the numbers. Returns 0 when the
 * agreement itself worked, whatever it says. */
struct agreement {
    int code;             /* of the lowest failing rank; 0 where all passed */
    uint32_t failed_rank; /* meaningful when code != 0 */
    uint32_t failed_count;
    uint64_t sum, min, max;
};
int comm_agree(struct comm *comm, int code, uint64_t number, uint64_t deadline_ns, struct agreement *agreement,
               struct cb_err *err) CB_MUST_CHECK;

/* The same among the ranks on this machine; failed_rank is a rank of the world. */
int comm_agree_local(struct comm *comm, int code, uint64_t number, uint64_t deadline_ns, struct agreement *agreement,
                     struct cb_err *err) CB_MUST_CHECK;

/* Rank 0's bytes to all. */
int comm_broadcast(struct comm *comm, void *bytes, uint64_t len, uint64_t deadline_ns,
                   struct cb_err *err) CB_MUST_CHECK;

/* Messages from rank to rank, non-blocking: what is sent with one tag arrives in the order in which it was
 * sent and receives were started. Not collective. The memory must stay until comm_message_test says that it
 * is done, and after comm_abandon_messages until the process has left. */
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

/* Collectives that go on while the caller computes: started here, in one order on all ranks, done when
 * comm_message_test says so; their memory must stay as that of messages. `values` have 4 bytes each, at most
 * COMM_MOST_VALUES; sums are of floats and the same bits on every rank that gets them. */
#define COMM_MOST_VALUES UINT64_C(0x7FFFFFFF)
/* `values` of every rank to all, in order of rank. */
int comm_start_all_gather(struct comm *comm, const void *mine, void *all, uint64_t values, struct comm_message *message,
                          struct cb_err *err) CB_MUST_CHECK;
/* `all` is comm_size times `values`: rank r gets the sum of everybody's r-th part. */
int comm_start_reduce_scatter(struct comm *comm, const float *all, float *mine, uint64_t values,
                              struct comm_message *message, struct cb_err *err) CB_MUST_CHECK;
/* `sum` may be `mine`. */
int comm_start_all_reduce(struct comm *comm, const float *mine, float *sum, uint64_t values,
                          struct comm_message *message, struct cb_err *err) CB_MUST_CHECK;
/* Each of at most COMM_MOST_SUMS numbers becomes its sum over the ranks, added in their order. Collective. */
#define COMM_MOST_SUMS 8
int comm_sum(struct comm *comm, double *numbers, uint32_t count, uint64_t deadline_ns,
             struct cb_err *err) CB_MUST_CHECK;

/* Messages under way will not be waited for: agreements still work, but the process must leave with _exit
 * (comm_can_end is false). */
void comm_abandon_messages(struct comm *comm);

#endif
