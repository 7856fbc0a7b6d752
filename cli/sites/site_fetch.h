/* Run folders of a site that are over there become folders here: fetched aside, many at a time, checked against
 * their manifests, put in the place of what was planned here, and ingested. Any of it again changes nothing. */
#ifndef CLI_SITES_SITE_FETCH_H
#define CLI_SITES_SITE_FETCH_H

#include <stdbool.h>
#include <stddef.h>

#include "cli/sites/site_command.h"
#include "core/err.h"
#include "db/history.h"

/* A run that has ended there. `rc` and `why` are the answer; the rest is for the one who fetches. */
struct remote_fetch {
    const char *run, *folder; /* its id, and its folder here; borrowed */
    int rc;
    struct cb_err why;
    int lock_fd;
    bool is_wanted;
};

/* Each item has its own answer: 0 is here and in the history, or in the hands of another of us. */
void remote_fetch(struct remote *remote, struct history *history, struct remote_fetch *items, size_t count);

#endif
