/* Keeps runs of sites in the local history: adds a site's runs, follows unfinished ones, and fetches and ingests those
 * that have ended. Repeating any of it changes nothing. */
#ifndef CLI_JOBS_SITE_RUNS_H
#define CLI_JOBS_SITE_RUNS_H

#include <stddef.h>

#include "cli/jobs/job_list.h"
#include "cli/jobs/site_command.h"
#include "core/err.h"
#include "db/history.h"

/* Connections to the sites of a list, opened when first needed, and again after a connection was lost. */
struct remote_sites {
    struct remote *items;
    size_t count;
};
/* Borrowed until the next call or the release. */
int remote_sites_get(struct remote_sites *self, const char *name, struct remote **remote,
                     struct cb_err *err) CB_MUST_CHECK;
/* Closes the connection to a site that does not reply; the next get opens it again. */
void remote_sites_drop(struct remote_sites *self, const char *name);
void remote_sites_release(struct remote_sites *self);

/* Adds runs of the site to the local history: those that match the runs, sweeps and filters in `words`, or with
 * count 0 those that are unfinished or ended within a day. Runs that are already known, or belong to another place,
 * stay unchanged. CB_ERR_USAGE if the site knows no run of that name. */
int remote_runs_take(struct remote *remote, struct history *history, const char *const *words, size_t count,
                     struct cb_err *err) CB_MUST_CHECK;

/* Adds the runs that `list` prints on the site for these words: a run or sweep that was just created. */
int remote_runs_take_listed(struct remote *remote, struct history *history, const char *const *words, size_t count,
                            struct cb_err *err) CB_MUST_CHECK;

/* Updates entries of a list that are unfinished runs of the site with the site's reply; fetches, checks and ingests
 * those that have ended. */
int remote_runs_sync(struct remote *remote, struct job_list *list, struct cb_err *err) CB_MUST_CHECK;

/* Makes the site cancel its unfinished runs in a list, and updates their entries with the reply. */
int remote_runs_cancel(struct remote *remote, struct job_list *list, struct cb_err *err) CB_MUST_CHECK;

#endif
