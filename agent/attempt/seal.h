/* Seals an attempt: outcome and reason, records, and the manifest last. */
#ifndef AGENT_ATTEMPT_SEAL_H
#define AGENT_ATTEMPT_SEAL_H

#include "agent/attempt/attempt.h"

/* Decides from the ranks' pages and files and from how their launcher ended, unless the attempt is decided already. */
void seal_decide(struct attempt *attempt);

/* CB_ERR_EXISTS if another process has sealed the attempt. */
int seal_write(struct attempt *attempt, struct cb_err *err) CB_MUST_CHECK;

/* Finds the launcher's line about a rank killed by a signal, in the text of ranks.log. MPICH does not say which rank. */
#define SEAL_RANK_UNKNOWN UINT32_MAX
bool seal_find_killed(const char *log, uint32_t *rank, int *signal_number);

#endif
