/* Cleans up after killed ranks in an object store: multipart uploads that nobody will complete, and that cost money. */
#ifndef AGENT_ATTEMPT_MULTIPART_CLEANUP_H
#define AGENT_ATTEMPT_MULTIPART_CLEANUP_H

#include "agent/attempt/attempt.h"

/* Call after the seal if the attempt did not pass: aborts the uploads under the run's own prefix and logs that to
 * agent.log. Takes a bounded time. A failure costs only money, and `ckptbench s3 clean` finds the uploads later. */
void multipart_cleanup(const struct attempt *attempt);

#endif
