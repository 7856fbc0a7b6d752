/* Whether a site can run what it is asked to: its programs, its Slurm, a compute node, pairs of nodes. */
#ifndef CLI_SITES_SITE_CHECKS_H
#define CLI_SITES_SITE_CHECKS_H

#include <stdint.h>

#include "cli/cli.h"
#include "cli/sites/site_command.h"
#include "core/err.h"

/* Appends a table (with cli->json a document) of what was found, each failure with what to do. Runs a job on a
 * compute node, and with `nodes` > 1 one on so many. cli->exit_code is infrastructure where something fails;
 * fails itself only where nothing can be said. With `learns`, a site whose nodes do not share its home gets
 * sbcast= in remote->site where it has none. */
int site_checks(struct cli *cli, struct remote *remote, uint64_t nodes, bool learns, struct cb_err *err) CB_MUST_CHECK;

#endif
