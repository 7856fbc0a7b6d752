/* Checks that a site can run experiments: its programs, Slurm, a compute node, pairs of nodes. */
#ifndef CLI_SITES_SITE_CHECKS_H
#define CLI_SITES_SITE_CHECKS_H

#include <stdint.h>

#include "cli/cli.h"
#include "cli/jobs/site_command.h"
#include "core/err.h"

/* Appends a table of results, or a document with cli->json; each failure with advice. Runs a job on a compute node,
 * and with `nodes` > 1 one on that many nodes. Sets cli->exit_code to infrastructure if a check fails; returns an
 * error only if nothing could be checked. With `learns`, sets sbcast= in remote->site if the site's nodes do not
 * share its home and it is unset. */
int site_checks(struct cli *cli, struct remote *remote, uint64_t nodes, bool learns, struct cb_err *err) CB_MUST_CHECK;

#endif
