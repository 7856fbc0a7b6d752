/* The lease of an attempt on its folder in the store: acquired before anything is written, renewed by a thread, checked
 * before anything is removed or committed. For rank 0; not collective. */
#ifndef SETUP_FOLDER_LEASE_H
#define SETUP_FOLDER_LEASE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/buf.h"
#include "setup/folder/claim.h"

/* The attempt that claims a folder. Borrowed. */
struct lease_owner {
    const char *run, *run_folder;
    uint32_t attempt;
    bool one_machine;    /* all ranks run on this host, and end with this process */
    const char *uploads; /* a checkpoint's folder if it is not the claimed one: its uploads by the last owner end */
};

struct lease;

/* Claims the folder `suffix` of the store at `path`, and starts renewing the claim. Takes ownership of the store, also
 * on failure. CB_ERR_EXISTS if a running attempt uses the folder, if another run owns it and the experiment does not
 * allow a take-over, or if it holds a kept checkpoint that may not be replaced. If it is not known whether an earlier
 * attempt of the same run has ended, waits until its lease expires. */
int lease_take(struct store *store, const char *path, const char *suffix, const struct experiment *experiment,
               const struct lease_owner *owner, struct lease **lease, struct cb_err *err) CB_MUST_CHECK;

/* lease_rules.c: may the folder be claimed? `before` receives the text of its claim; *owned: whether it has one. Sets
 * mine->keeps if the folder holds a kept checkpoint. May wait, see lease_take. */
int lease_check_rules(struct store *store, const char *path, const char *suffix, const struct experiment *experiment,
                      struct claim *mine, struct buf *before, bool *owned, struct cb_err *err) CB_MUST_CHECK;

/* CB_ERR_EXISTS, with the name of the owner, if the folder is no longer ours. Success also means that no other run can
 * take it over for the length of a lease. Any thread may call it; NULL is always ours. */
int lease_check(struct lease *self, struct cb_err *err) CB_MUST_CHECK;

/* False if a simultaneous take-over by another run might go unnoticed: see store_swap. */
bool lease_is_guarded(const struct lease *self);

/* The attempt has ended well: the claim stays without a lease, or is removed while the lease lasts, so that nobody takes
 * the folder over in between. */
int lease_release(struct lease *self, bool claim_stays, struct cb_err *err) CB_MUST_CHECK;
/* Stops renewing and leaves the claim as it is, so that others wait until all ranks have surely ended. NULL is fine. */
void lease_free(struct lease *self);

#endif
