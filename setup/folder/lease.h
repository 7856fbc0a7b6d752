/* The lease of an attempt on its folder in the store: taken before anything is written, renewed by a thread, checked
 * before anything is removed or committed. For rank 0; not collective. */
#ifndef SETUP_FOLDER_LEASE_H
#define SETUP_FOLDER_LEASE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/buf.h"
#include "setup/folder/claim.h"

/* The attempt that wants a folder. Borrowed. */
struct lease_owner {
    const char *run, *run_folder;
    uint32_t attempt;
    bool one_machine; /* all ranks are on this one, and end with this process */
};

struct lease;

/* Claims the folder `suffix` of the store at `path`, and begins to renew the claim. Takes the store, also on failure.
 * CB_ERR_EXISTS if an attempt that lives uses the folder, if another run owns it and the experiment does not take it
 * over, or if it holds a kept checkpoint that may not be replaced. An earlier attempt of the same run that cannot be seen
 * to have ended is waited for until its lease has run out. */
int lease_take(struct store *store, const char *path, const char *suffix, const struct experiment *experiment,
               const struct lease_owner *owner, struct lease **lease, struct cb_err *err) CB_MUST_CHECK;

/* lease_rules.c: may the folder be claimed? `before` receives the text of its claim; *owned: it has one. Sets mine->keeps
 * if a kept checkpoint is there. May wait, see lease_take. */
int lease_check_rules(struct store *store, const char *path, const char *suffix, const struct experiment *experiment,
                      struct claim *mine, struct buf *before, bool *owned, struct cb_err *err) CB_MUST_CHECK;

/* CB_ERR_EXISTS, with the name of the owner, if the folder is no longer ours. If it is, nobody takes it over for as long
 * as a lease lasts. Any thread may ask; NULL is always ours. */
int lease_check(struct lease *self, struct cb_err *err) CB_MUST_CHECK;

/* False if a take-over at the same moment as ours might not have been noticed: see store_swap. */
bool lease_is_guarded(const struct lease *self);

/* The attempt has ended well: the claim stays without a lease. */
int lease_release(struct lease *self, struct cb_err *err) CB_MUST_CHECK;
/* Ends the renewals; the claim stays as it is, so that others wait until it is clear that all ranks have ended. NULL is
 * fine. */
void lease_free(struct lease *self);

#endif
