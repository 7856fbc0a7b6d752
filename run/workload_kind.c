#include "run/workload_kind.h"

#include <string.h>

static const struct workload_kind kinds[] = {
    {"checkpoint", .has_ranks = true, .has_layout = true, .uses_engine = true},
    {"raw", .has_ranks = true, .has_layout = true, .is_raw = true},
    {"suite", .has_ranks = true, .measures_cluster = true},
    {"verify", .has_ranks = true, .inspects_checkpoint = true},
    {"train", .has_ranks = true, .trains = true},
    {"wait"},
};

/* For an experiment of another release in the history. */
static const struct workload_kind unknown = {"unknown", .has_ranks = true, .has_layout = true};

const struct workload_kind *workload_kind_of(const struct experiment *experiment)
{
    return workload_kind_named(experiment_text(experiment, OPT_WORKLOAD));
}

const struct workload_kind *workload_kind_named(const char *name)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(kinds[i].name, name) == 0)
            return &kinds[i];
    return &unknown;
}
