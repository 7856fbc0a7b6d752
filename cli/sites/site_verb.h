/* Forwards verbs with --site to the ckptbench of that site. */
#ifndef CLI_SITES_SITE_VERB_H
#define CLI_SITES_SITE_VERB_H

#include "cli/cli.h"
#include "cli/jobs/job_list.h"
#include "cli/jobs/site_command.h"
#include "core/err.h"

/* Runs the verb there; prints its output and returns its exit code. `after` is the run of --after, or NULL. */
int remote_pass(struct cli *cli, const char *site, const char *after, struct cb_err *err) CB_MUST_CHECK;

/* submit --site: submits exactly once, even if the connection breaks, and adds the runs to the local history. */
int remote_submit(struct cli *cli, const char *site, struct cb_err *err) CB_MUST_CHECK;

/* Collects the replies of sites to submissions that an earlier ckptbench could not wait for. */
int remote_take_unanswered(struct job_list *list, struct cb_err *err) CB_MUST_CHECK;

#endif
