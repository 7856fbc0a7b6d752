/* The end of every step that all ranks take together: either all continue, or none does. Collective. */
#ifndef COMM_AGREE_H
#define COMM_AGREE_H

#include "comm/comm.h"
#include "core/err.h"

/* `code` is this rank's result and `err` its reason. Returns 0 if all ranks passed. If not, a rank that failed gets its own
 * code back with `err` unchanged, even if the agreement fails too; the others get CB_ERR_ABORTED with the number of the
 * lowest failing rank and, except over MPI, its reason. */
int agree(struct comm *comm, int code, uint64_t deadline_ns, struct cb_err *err) CB_MUST_CHECK;

/* The same with a number from each rank; `agreement` receives their sum, minimum and maximum. */
int agree_number(struct comm *comm, int code, uint64_t number, uint64_t deadline_ns, struct agreement *agreement,
                 struct cb_err *err) CB_MUST_CHECK;

#endif
