/* Verbs given --site: what this command line is on the site's. */
#ifndef CLI_SITES_SITE_VERB_H
#define CLI_SITES_SITE_VERB_H

#include "cli/cli.h"
#include "cli/jobs/job_list.h"
#include "cli/sites/site_command.h"
#include "core/err.h"

/* Runs the verb there as it is; its answer is the answer here, its exit code the exit code. */
int remote_pass(struct cli *cli, const char *site, struct cb_err *err) CB_MUST_CHECK;

/* submit --site: sends once, whatever happens to the connection, and takes the runs into the history here. */
int remote_submit(struct cli *cli, const char *site, struct cb_err *err) CB_MUST_CHECK;

/* Takes in what was asked of sites and whose answer nobody read, because this program ended before it came. */
int remote_take_unanswered(struct job_list *list, struct cb_err *err) CB_MUST_CHECK;

#endif
