/* Aborts unfinished multipart uploads. */
#include "agent/attempt/multipart_cleanup.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "core/clock.h"
#include "core/units.h"
#include "store/s3/s3.h"
#include "store/s3/s3_uri.h"

#define REQUEST_DEADLINE_NS (15 * NS_PER_S)
#define REQUEST_ATTEMPTS 4

static const char *find_bucket(const struct experiment *experiment)
{
    const char *store = experiment_text(experiment, OPT_STORE);
    while (strncmp(store, "fault:", 6) == 0) {
        const char *inner = strchr(store + 6, ':');
        if (!inner)
            return NULL;
        store = inner + 1;
    }
    return strncmp(store, S3_URI_SCHEME, strlen(S3_URI_SCHEME)) == 0 ? store : NULL;
}

static int abort_all(const struct attempt *attempt, const char *uri, uint64_t *count, struct cb_err *err)
{
    const char *suffix = experiment_text(attempt->experiment, OPT_SUFFIX);
    struct s3_options options;
    struct s3_client *client;
    int rc = s3_options_read(attempt->experiment, &options, err);
    if (rc)
        return rc;
    options.attempts = REQUEST_ATTEMPTS;
    if (options.deadline_ns > REQUEST_DEADLINE_NS)
        options.deadline_ns = REQUEST_DEADLINE_NS;
    rc = s3_client_open(uri, &options, 0, &client, err);
    if (rc)
        return rc;
    rc = s3_client_abort_uploads(client, *suffix ? suffix : attempt->run, count, err);
    s3_client_free(client);
    return rc;
}

void leftovers_abort(const struct attempt *attempt)
{
    const char *uri = attempt->experiment ? find_bucket(attempt->experiment) : NULL;
    char path[PATH_MAX];
    struct cb_err err = {0};
    uint64_t count = 0;
    if (!uri || attempt->verdict.outcome == OUTCOME_PASS || experiment_is(attempt->experiment, OPT_OPS, "load"))
        return;
    int rc = abort_all(attempt, uri, &count, &err);
    if (!rc && count == 0)
        return;
    snprintf(path, sizeof path, "%.4000s/logs/agent.log", attempt->path.data);
    FILE *log = fopen(path, "ae");
    if (!log)
        return;
    if (rc)
        fprintf(log, "uploads that the ranks left in %s may still be there: %s\n", uri, err.message);
    else
        fprintf(log, "aborted %" PRIu64 " upload%s that the ranks left in %s\n", count, units_plural(count), uri);
    fclose(log);
}
