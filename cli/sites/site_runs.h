/* Runs of sites in the history here: taken in when they are known there, looked after there while they last,
 * fetched and ingested once when they have ended. Doing any of it again changes nothing. */
#ifndef CLI_SITES_SITE_RUNS_H
#define CLI_SITES_SITE_RUNS_H

#include <stddef.h>

#include "cli/jobs/job_list.h"
#include "cli/sites/site_command.h"
#include "core/err.h"
#include "db/history.h"

/* The sites of a list, opened when first needed, and again after a connection was lost. */
struct remote_sites {
    struct remote *items;
    size_t count;
};
/* Borrowed until the next call or the release. */
int remote_sites_get(struct remote_sites *self, const char *name, struct remote **remote,
                     struct cb_err *err) CB_MUST_CHECK;
/* The site answers no more: the next get opens it anew. */
void remote_sites_drop(struct remote_sites *self, const char *name);
void remote_sites_release(struct remote_sites *self);

/* Takes into the history what the site knows of the runs, sweeps and filters in `words` (0: what is not
 * finished there, and what ended within a day), as runs of that site. What is known already, or is a run of
 * another place, stays as it is. CB_ERR_USAGE where the site knows none by that name. */
int remote_runs_take(struct remote *remote, struct history *history, const char *const *words, size_t count,
                     struct cb_err *err) CB_MUST_CHECK;

/* The same for a run or sweep that was just made there. */
int remote_runs_take_named(struct remote *remote, struct history *history, const char *name,
                           struct cb_err *err) CB_MUST_CHECK;

/* Asks the site for those entries of a list that are runs of it and not final: their lines become what it says,
 * and those that have ended are fetched, checked against their manifests, and ingested. */
int remote_runs_sync(struct remote *remote, struct job_list *list, struct cb_err *err) CB_MUST_CHECK;

/* Has the site cancel those entries of a list that are runs of it and not final; their lines become what it says. */
int remote_runs_cancel(struct remote *remote, struct job_list *list, struct cb_err *err) CB_MUST_CHECK;

#endif
