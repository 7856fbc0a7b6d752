/* Seals an attempt: its outcome with the reason, its records, its manifest last. */
#ifndef AGENT_ATTEMPT_SEAL_H
#define AGENT_ATTEMPT_SEAL_H

#include "agent/attempt/attempt.h"

/* From what the ranks left and how their launcher ended, unless it is decided already. */
void seal_decide(struct attempt *attempt);

/* CB_ERR_EXISTS where someone else has sealed the attempt. */
int seal_write(struct attempt *attempt, struct cb_err *err) CB_MUST_CHECK;

/* Open MPI's or srun's line about a rank that a signal ended, in the text of ranks.log. */
bool seal_find_killed(const char *log, uint32_t *rank, int *signal_number);

#endif
