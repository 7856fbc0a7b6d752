/* Agreements at the end of a step: either all ranks continue, or none does. */
#include "comm/agree.h"

int agree_number(struct comm *comm, int code, uint64_t number, uint64_t deadline_ns, struct agreement *agreement,
                 struct cb_err *err)
{
    struct cb_err unused;
    char reason[COMM_REASON_BYTES] = "";
    int rc = comm_agree(comm, code, number, deadline_ns, agreement, code ? &unused : err);
    if (!rc && agreement->code)
        comm_share_reason(comm, agreement, code && err ? err->message : "", deadline_ns, reason);
    if (code)
        return code;
    if (rc)
        return rc;
    if (agreement->code)
        return cb_fail(err, CB_ERR_ABORTED, "stopped because rank %u failed (%s)%s%s", agreement->failed_rank,
                       cb_code_name(agreement->code), *reason ? ": " : "", reason);
    return 0;
}

int agree(struct comm *comm, int code, uint64_t deadline_ns, struct cb_err *err)
{
    struct agreement unused;
    return agree_number(comm, code, 0, deadline_ns, &unused, err);
}
