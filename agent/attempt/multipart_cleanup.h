/* What ranks that were killed leave behind in an object store: uploads that nobody will complete, and that cost money. */
#ifndef AGENT_ATTEMPT_MULTIPART_CLEANUP_H
#define AGENT_ATTEMPT_MULTIPART_CLEANUP_H

#include "agent/attempt/attempt.h"

/* After the seal, where the attempt did not pass: aborts the uploads under the run's own prefix and says so in
 * agent.log. Takes a bounded time; that it fails spoils nothing but money, and `ckptbench s3 clean` finds them later. */
void leftovers_abort(const struct attempt *attempt);

#endif
