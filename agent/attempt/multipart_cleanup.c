/* Aborts unfinished multipart uploads. */
#include "agent/attempt/multipart_cleanup.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "core/clock.h"
#include "core/units.h"
#include "setup/s3_keys.h"
#include "store/kind.h"

#define REQUEST_DEADLINE_NS (15 * NS_PER_S)
#define REQUEST_ATTEMPTS 4

static int abort_all(const struct attempt *attempt, const struct store_uri *uri, uint64_t *count, struct cb_err *err)
{
    const char *suffix = experiment_text(attempt->experiment, OPT_SUFFIX);
    struct s3_options options;
    int rc = s3_keys_read(attempt->experiment, &options, err);
    if (rc)
        return rc;
    options.attempts = REQUEST_ATTEMPTS;
    if (options.deadline_ns > REQUEST_DEADLINE_NS)
        options.deadline_ns = REQUEST_DEADLINE_NS;
    return uri->kind->abort_leftovers(uri->inner, &options, *suffix ? suffix : attempt->run, count, err);
}

void multipart_cleanup(const struct attempt *attempt)
{
    char path[PATH_MAX];
    struct cb_err err = {0};
    uint64_t count = 0;
    if (!attempt->experiment)
        return;
    struct store_uri uri = store_uri_of(experiment_text(attempt->experiment, OPT_STORE));
    if (!uri.kind->abort_leftovers || attempt->verdict.outcome == OUTCOME_PASS ||
        experiment_is(attempt->experiment, OPT_OPS, "load"))
        return;
    int rc = abort_all(attempt, &uri, &count, &err);
    if (!rc && count == 0)
        return;
    snprintf(path, sizeof path, "%.4000s/logs/agent.log", attempt->path.data);
    FILE *log = fopen(path, "ae");
    if (!log)
        return;
    if (rc)
        fprintf(log, "uploads that the ranks left in %s may still be there: %s\n", uri.inner, err.message);
    else
        fprintf(log, "aborted %" PRIu64 " upload%s that the ranks left in %s\n", count, units_plural(count), uri.inner);
    fclose(log);
}
