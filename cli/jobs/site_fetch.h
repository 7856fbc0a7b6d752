/* Fetches finished run folders from a site: copies many at a time to a temporary place, checks them against their
 * manifests, moves them into place and ingests them. Repeating it changes nothing. */
#ifndef CLI_JOBS_SITE_FETCH_H
#define CLI_JOBS_SITE_FETCH_H

#include <stdbool.h>
#include <stddef.h>

#include "cli/jobs/job_list.h"
#include "cli/jobs/site_command.h"
#include "core/err.h"
#include "db/history.h"

/* A run that has ended on the site, and the site's line about it. `rc` and `why` are its result; lock_fd and is_wanted
 * are private to site_fetch.c. */
struct remote_fetch {
    struct job_entry *entry;
    const struct json_value *line;
    int rc;
    struct cb_err why;
    int lock_fd;
    bool is_wanted;
};

/* Each item has its own result: 0 if the run is in the history, or another ckptbench is fetching it. */
void remote_fetch(struct remote *remote, struct history *history, struct remote_fetch *items, size_t count);

#endif
