/* What every step of a rank's life ends with: all ranks bring their result, all go on or none does.
 * Collective. */
#ifndef COMM_AGREE_H
#define COMM_AGREE_H

#include "comm/comm.h"
#include "core/err.h"

/* `code` is this rank's result and `err` its reason. Returns 0 where all passed; the own code, with
 * its reason untouched, on a rank that failed; CB_ERR_ABORTED with the failing rank's number on the
 * others. What a failing agreement says replaces nothing that is already known. */
int agree(struct comm *comm, int code, uint64_t deadline_ns, struct cb_err *err) CB_MUST_CHECK;

/* The same, and brings a number of which all learn sum, smallest and largest. */
int agree_number(struct comm *comm, int code, uint64_t number, uint64_t deadline_ns, struct agreement *agreement,
                 struct cb_err *err) CB_MUST_CHECK;

#endif
