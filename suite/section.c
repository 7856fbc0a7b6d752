/* Shared by all sections: deadlines, agreeing at the end of a step, sums over a node, skipped tests. */
#include <stdio.h>
#include <string.h>

#include "comm/agree.h"
#include "core/clock.h"
#include "store/kind.h"
#include "suite/suite.h"

uint64_t suite_deadline(const struct suite *self)
{
    return clock_monotonic_ns() + self->section_timeout_ns;
}

/* Shows progress on the status page, also in tests that count no bytes. */
int suite_join(struct suite *self, int code, struct cb_err *err)
{
    atomic_store_explicit(&self->page->progress_ns, clock_monotonic_ns(), memory_order_relaxed);
    return agree(self->comm, code, suite_deadline(self), err);
}

int suite_sum_of_node(struct suite *self, double value, double *sum, struct cb_err *err)
{
    struct agreement agreement;
    int rc = comm_agree_local(self->comm, 0, (uint64_t)value, suite_deadline(self), &agreement, err);
    if (!rc)
        *sum = (double)agreement.sum;
    return rc;
}

void suite_skip(struct suite *self, const char *what, const char *why)
{
    char key[64];
    snprintf(key, sizeof key, "suite.skipped.%s", what);
    if (comm_rank(self->comm) == 0)
        status_page_add_fact(self->page, key, why);
}

/* "all", or names joined by '+', which the controller has checked. */
bool suite_names(const struct experiment *experiment, const char *name)
{
    const char *only = experiment_text(experiment, OPT_SUITE_ONLY);
    size_t len = strlen(name);
    if (strcmp(only, "all") == 0)
        return true;
    for (const char *word = only; word; word = strchr(word, '+') ? strchr(word, '+') + 1 : NULL)
        if (strncmp(word, name, len) == 0 && (word[len] == '+' || word[len] == '\0'))
            return true;
    return false;
}

static bool keeps_files(const struct experiment *experiment)
{
    return store_uri_of(experiment_text(experiment, OPT_STORE)).kind->keeps_data;
}

/* Storage requires a store that keeps data. */
bool suite_wants(const struct experiment *experiment, const char *name)
{
    return suite_names(experiment, name) && (strcmp(name, "storage") != 0 || keeps_files(experiment));
}
