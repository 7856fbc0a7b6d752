#include "run/workload_kind.h"

#include <string.h>

#include "run/library_keys.h"

static const struct workload_kind kinds[] = {
    {"checkpoint", .has_ranks = true, .has_layout = true, .uses_engine = true},
    {"raw", .has_ranks = true, .has_layout = true, .is_raw = true},
    {"suite", .has_ranks = true, .measures_cluster = true},
    {"verify", .has_ranks = true, .inspects_checkpoint = true},
    {"train", .has_ranks = true, .trains = true},
    {"wait"},
    {"watch", .has_ranks = true, .watches = true},
};

/* For a workload of another release in the history. */
static const struct workload_kind unknown = {"unknown", .has_ranks = true, .has_layout = true};

const struct workload_kind *workload_kind_of(const struct experiment *experiment)
{
    return workload_kind_named(experiment_text(experiment, OPT_WORKLOAD));
}

/* Saves and loads a state: a benchmark of checkpoints, or a training. */
static bool has_state(const struct workload_kind *self)
{
    return self->has_layout || self->trains;
}

static bool repeats(const struct workload_kind *self)
{
    return self->has_layout || self->measures_cluster;
}

static bool trains(const struct workload_kind *self)
{
    return self->trains;
}

static bool measures_cluster(const struct workload_kind *self)
{
    return self->measures_cluster;
}

static bool has_layout(const struct workload_kind *self)
{
    return self->has_layout;
}

/* Saves and loads it by the engine. */
static bool saves_state(const struct workload_kind *self)
{
    return self->uses_engine || self->trains;
}

static bool only_waits(const struct workload_kind *self)
{
    return !self->has_ranks;
}

/* The keys that some workloads do not use; a name that ends with a dot is a prefix. */
static const struct {
    const char *name;
    bool (*used_by)(const struct workload_kind *self);
} limited_keys[] = {
    {"train.", trains},      {"suite.", measures_cluster}, {"wait.", only_waits},     {"model", has_state},
    {"layers", has_state},   {"state", has_state},         {"dtype", has_state},      {"device", has_state},
    {"trace", has_state},    {"iterations", repeats},      {"duration", repeats},     {"ops", has_layout},
    {"folder", has_layout},  {"load.dp", has_layout},      {"load.tp", has_layout},   {"load.pp", has_layout},
    {"load.ep", has_layout}, {"load.zero", has_layout},    {"load.mesh", has_layout}, {"load.state", has_layout},
    {"io.gds", saves_state},
};

static bool is_named(const char *name, const char *listed)
{
    size_t len = strlen(listed);
    return listed[len - 1] == '.' ? strncmp(name, listed, len) == 0 : strcmp(name, listed) == 0;
}

bool workload_watch_uses(enum option_id id)
{
    static const char *const used[] = {"workload", "command", "ranks", "nodes",  "ranks_per_node", "baseline",
                                       "store",    "repeat",  "mtbf",  "slurm.", "timeout.run"};
    size_t i = 0;
    while (i < sizeof used / sizeof *used && !is_named(option_row(id)->name, used[i]))
        i++;
    return i < sizeof used / sizeof *used;
}

bool workload_uses(const struct workload_kind *self, enum option_id id)
{
    for (size_t i = 0; i < sizeof limited_keys / sizeof *limited_keys; i++)
        if (is_named(option_row(id)->name, limited_keys[i].name))
            return limited_keys[i].used_by(self);
    return !self->watches || workload_watch_uses(id);
}

/* A watched program has no store but the places where it saves; its ranks may be unknown. Those of libckptbench, which
 * have no command, have the keys of the library. */
static bool watched_run_has(const struct experiment *experiment, enum option_id id)
{
    if (id == OPT_STORE || (id == OPT_RANKS && experiment_u64(experiment, id) == 0))
        return false;
    return workload_watch_uses(id) ||
           (!*experiment_text(experiment, OPT_COMMAND) && library_keys_has(option_row(id)->name));
}

bool workload_has_key(const struct experiment *experiment, enum option_id id)
{
    const struct workload_kind *kind = workload_kind_of(experiment);
    return kind->watches ? watched_run_has(experiment, id) : workload_uses(kind, id);
}

const struct workload_kind *workload_kind_named(const char *name)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(kinds[i].name, name) == 0)
            return &kinds[i];
    return &unknown;
}
