/* Plans runs: checks them before anything is written, and names them. */
#include "cli/plan/run_plan.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "ckpt/layout/layout.h"
#include "cli/plan/store_location.h"
#include "core/alloc.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/units.h"
#include "run/run_folder.h"
#include "run/workload_kind.h"
#include "setup/memory_estimate.h"
#include "store/kind.h"

/* Memory of one of our ranks without any state (Open MPI 4.1: 16 MiB and 5 threads). */
#define PROCESS_BYTES (16 * MIB)
#define PROCESS_THREADS 4

int run_plan_folder(const char *id, char **folder, struct cb_err *err)
{
    struct buf path;
    buf_init(&path, PATH_MAX);
    int rc = home_folder(&path, err);
    buf_printf(&path, "/runs/%s", id);
    if (rc == 0)
        rc = buf_check(&path, "the run folder's path", err);
    if (rc == 0 && !(*folder = strdup(path.data)))
        rc = alloc_fail(err, "for a path");
    buf_release(&path);
    return rc;
}

/* ---- resources of this machine; the ranks check again when they start ---- */

static uint64_t read_limit(const char *path)
{
    struct buf text;
    buf_init(&text, 256);
    uint64_t limit = UINT64_MAX;
    if (buf_read_file(&text, path, NULL) == 0 && text.len > 0 && text.data[0] >= '0' && text.data[0] <= '9')
        limit = strtoull(text.data, NULL, 10);
    buf_release(&text);
    return limit;
}

/* The smallest limit on processes and threads, and its name. */
static uint64_t thread_limit(const char **name)
{
    static const char *const files[] = {"/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"};
    static const char *const names[] = {"kernel.pid_max", "kernel.threads-max"};
    struct rlimit processes;
    uint64_t least = UINT64_MAX;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        uint64_t limit = read_limit(files[i]);
        if (limit < least) {
            least = limit;
            *name = names[i];
        }
    }
    if (getrlimit(RLIMIT_NPROC, &processes) == 0 && processes.rlim_cur != RLIM_INFINITY && processes.rlim_cur < least) {
        least = processes.rlim_cur;
        *name = "ulimit -u";
    }
    return least;
}

static int check_ranks(uint32_t ranks, struct cb_err *err)
{
    const char *name = "";
    uint64_t threads = thread_limit(&name), available;
    char need[32], have[32];
    if ((uint64_t)ranks * PROCESS_THREADS > threads)
        return cb_fail(err, CB_ERR_USAGE,
                       "%" PRIu32 " ranks cannot be started on this machine: they take about %" PRIu64
                       " processes and threads, and %s is %" PRIu64
                       ". `ckptbench plan` looks at any number without starting them",
                       ranks, (uint64_t)ranks * PROCESS_THREADS, name, threads);
    if (memory_available(&available, NULL) || (uint64_t)ranks * PROCESS_BYTES <= available)
        return 0;
    return cb_fail(
        err, CB_ERR_USAGE,
        "%" PRIu32 " ranks cannot be started on this machine: their processes alone take about %s of memory, "
        "and %s is free. `ckptbench plan` looks at any number without starting them",
        ranks, units_format_bytes((double)ranks * PROCESS_BYTES, need), units_format_bytes((double)available, have));
}

static int check_memory(const struct experiment *experiment, const struct workload *workload, struct cb_err *err)
{
    uint64_t largest, available, metadata, needed = estimate_memory_bytes(&workload->layouts, experiment, &largest);
    char need[32], each[32], have[32];
    int rc = workload_metadata_bytes(experiment, workload, &metadata, err);
    if (rc)
        return rc;
    needed += estimate_metadata_memory_bytes(experiment, metadata);
    if (memory_available(&available, NULL) || needed <= available)
        return 0;
    return cb_fail(
        err, CB_ERR_USAGE,
        "the state of %" PRIu32 " rank%s needs %s of memory (up to %s a rank), and this machine has %s free: "
        "use fewer ranks, a smaller model, or layers=N",
        workload->layouts.ranks, units_plural(workload->layouts.ranks), units_format_bytes((double)needed, need),
        units_format_bytes((double)largest, each), units_format_bytes((double)available, have));
}

static int check_training_memory(const struct experiment *experiment, const struct workload *workload,
                                 struct cb_err *err)
{
    const struct training *training = &workload->training;
    uint64_t available, each_bytes = training_least_bytes(experiment, training, workload->model);
    char need[32], each[32], have[32];
    if (memory_available(&available, NULL) || each_bytes * training->ranks <= available)
        return 0;
    return cb_fail(
        err, CB_ERR_USAGE,
        "parameters, gradients and optimizer of %" PRIu32
        " rank%s need at least %s of memory (%s a rank), and this machine has %s free: use a smaller model, layers=N%s",
        training->ranks, units_plural(training->ranks), units_format_bytes((double)each_bytes * training->ranks, need),
        units_format_bytes((double)each_bytes, each), units_format_bytes((double)available, have),
        training->ddp ? ", fewer ranks, or FSDP" : ", or more machines");
}

static int check_space(const struct experiment *experiment, const struct workload *workload, struct cb_err *err)
{
    struct store_uri uri = store_uri_of(experiment_text(experiment, OPT_STORE));
    uint64_t needed = estimate_store_bytes(&workload->layouts, experiment), available;
    char need[32], have[32], fullest[4096], limits[4200] = "";
    if (!store_location_room(&uri, &available, fullest) || needed <= available)
        return 0;
    if (uri.kind->is_mounts)
        snprintf(limits, sizeof limits, " (ranks fill its mounts evenly, and %s is the fullest)", fullest);
    return cb_fail(
        err, CB_ERR_USAGE,
        "this run needs about %s in store %.300s, but only %s is free%.400s: use a smaller model, layers=N, or "
        "another store",
        units_format_bytes((double)needed, need), uri.inner, units_format_bytes((double)available, have), limits);
}

/* Checks whether this machine can run the experiment. Skips requirements of other machines (hosts, nodes), anything
 * that cannot be checked from here, and the suite, whose ranks check their own needs. */
static int check_needs(const struct experiment *experiment, const struct workload *workload, struct cb_err *err)
{
    if (*experiment_text(experiment, OPT_HOSTS) || experiment_u64(experiment, OPT_NODES) > 1)
        return 0;
    if (workload_kind_of(experiment)->trains)
        return check_training_memory(experiment, workload, err);
    if (!workload->layout)
        return 0;
    int rc = check_ranks(workload->layouts.ranks, err);
    if (rc == 0)
        rc = check_memory(experiment, workload, err);
    return rc ? rc : check_space(experiment, workload, err);
}

/* ---- checking combinations ---- */

static int remark(struct remarks *self, const char *text, struct cb_err *err)
{
    for (size_t i = 0; i < self->count; i++)
        if (strcmp(self->texts[i], text) == 0)
            return 0;
    log_info("%s", text);
    return alloc_add_text(&self->texts, &self->count, text, strlen(text), err);
}

/* For runs elsewhere, a folder that is missing or read-only here may be usable there. */
static int check_place(const struct experiment *experiment, bool elsewhere, struct remarks *remarks, struct cb_err *err)
{
    struct cb_err own;
    int rc = store_location_check(experiment, &own);
    if (!rc)
        return 0;
    if ((rc != CB_ERR_NOT_FOUND && rc != CB_ERR_SYSTEM) || !elsewhere)
        return cb_fail(err, rc, "%s", own.message);
    char text[sizeof own.message + 64];
    snprintf(text, sizeof text, "%s (here; on the nodes it may be there)", own.message);
    return remark(remarks, text, err);
}

static bool has_axes(const struct experiment *experiment)
{
    return experiment_u64(experiment, OPT_DP) > 0 || experiment_u64(experiment, OPT_TP) > 1 ||
           experiment_u64(experiment, OPT_PP) > 1 || experiment_u64(experiment, OPT_EP) > 1 ||
           *experiment_text(experiment, OPT_MESH);
}

static int set_number(struct experiment *experiment, const char *key, uint64_t number, const char *origin,
                      struct cb_err *err)
{
    char text[24];
    snprintf(text, sizeof text, "%" PRIu64, number);
    return experiment_set(experiment, key, text, origin, err);
}

/* Ranks from nodes: nodes x ranks_per_node, or one per node if nothing else sets the number. */
static int freeze_nodes(struct experiment *experiment, bool elsewhere, struct cb_err *err)
{
    uint64_t nodes = experiment_u64(experiment, OPT_NODES), a_node = experiment_u64(experiment, OPT_RANKS_PER_NODE);
    if (experiment_u64(experiment, OPT_RANKS) > 0)
        return 0;
    if (a_node)
        return set_number(experiment, "ranks", (nodes ? nodes : 1) * a_node, "nodes x ranks_per_node", err);
    if (elsewhere && nodes > 1 && !has_axes(experiment))
        return set_number(experiment, "ranks", nodes, "nodes", err);
    return 0;
}

/* Called when the number of ranks is known: sets the number of nodes, and fails if the three contradict each other. */
static int check_nodes(struct experiment *experiment, bool elsewhere, struct cb_err *err)
{
    uint64_t nodes = experiment_u64(experiment, OPT_NODES), a_node = experiment_u64(experiment, OPT_RANKS_PER_NODE);
    uint64_t ranks = experiment_u64(experiment, OPT_RANKS);
    if (elsewhere && nodes == 0 && a_node && ranks > a_node) {
        nodes = (ranks + a_node - 1) / a_node;
        int rc = set_number(experiment, "nodes", nodes, "ranks / ranks_per_node", err);
        if (rc)
            return rc;
    }
    if (nodes && a_node && nodes * a_node != ranks)
        return cb_fail(err, CB_ERR_USAGE,
                       "nodes=%" PRIu64 " and ranks_per_node=%" PRIu64 " make %" PRIu64 " ranks, not %" PRIu64, nodes,
                       a_node, nodes * a_node, ranks);
    if (nodes > ranks && !workload_kind_of(experiment)->watches)
        return cb_fail(err, CB_ERR_USAGE,
                       "nodes=%" PRIu64 " for %" PRIu64 " ranks: a node without a rank has nothing to do", nodes,
                       ranks);
    return 0;
}

int run_plan_freeze_nodes(struct experiment *experiment, struct cb_err *err)
{
    int rc = freeze_nodes(experiment, true, err);
    return rc || experiment_u64(experiment, OPT_RANKS) == 0 ? rc : check_nodes(experiment, true, err);
}

/* The values that follow from the axes of a combination: its ranks, and dp if loads have another layout (0:
 * unchanged). */
struct world {
    uint32_t ranks, dp;
};

static struct world world_of(const struct experiment *experiment, const struct workload *workload)
{
    bool by_mesh = *experiment_text(experiment, OPT_MESH) != '\0';
    return (struct world){workload->layouts.ranks, by_mesh ? 0 : workload->layouts.data_ranks};
}

/* A frozen `ranks` is the number that is started, so dp can no longer be derived from it. */
static int freeze_world(struct experiment *experiment, const struct world *world, struct cb_err *err)
{
    int rc = world->dp ? set_number(experiment, "dp", world->dp, "the mesh", err) : 0;
    return rc ? rc : set_number(experiment, "ranks", world->ranks, "the mesh", err);
}

int run_plan_freeze_world(struct experiment *experiment, const struct workload *workload, struct cb_err *err)
{
    struct world world = world_of(experiment, workload);
    return freeze_world(experiment, &world, err);
}

/* Remarks that layers= cuts nothing: the model may be another than the user believes. */
static int note_unused_layers(const struct experiment *experiment, const struct workload *workload,
                              struct remarks *remarks, struct cb_err *err)
{
    char text[256];
    uint64_t layers = experiment_u64(experiment, OPT_LAYERS);
    if (!workload->model || layers <= workload->model->layers)
        return 0;
    snprintf(text, sizeof text, "layers=%" PRIu64 ": model=%.128s has %" PRIu32 ", nothing is cut", layers,
             experiment_text(experiment, OPT_MODEL), workload->model->layers);
    return remark(remarks, text, err);
}

/* Remarks on keys of the native engine that were given for another engine, which ignores them. */
static int note_unused_keys(const struct experiment *experiment, struct remarks *remarks, struct cb_err *err)
{
    static const enum option_id keys[] = {OPT_IO_ENGINE, OPT_IO_DIRECT, OPT_IO_BLOCK, OPT_IO_DEPTH, OPT_CHECKSUM};
    struct buf text;
    size_t unused = 0;
    if (experiment_is(experiment, OPT_ENGINE, "native"))
        return 0;
    buf_init(&text, 1024);
    buf_printf(&text, "engine=%s does not look at ", experiment_text(experiment, OPT_ENGINE));
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strcmp(experiment_text(experiment, keys[i]), option_row(keys[i])->fallback) != 0)
            buf_printf(&text, "%s%s", unused++ ? ", " : "", option_row(keys[i])->name);
    buf_append_text(&text, ": it writes in its own way");
    int rc = unused ? remark(remarks, text.data, err) : 0;
    buf_release(&text);
    return rc;
}

int run_plan_remark(const struct experiment *experiment, const struct workload *workload, struct remarks *remarks,
                    struct cb_err *err)
{
    int rc = note_unused_layers(experiment, workload, remarks, err);
    return rc ? rc : note_unused_keys(experiment, remarks, err);
}

void remarks_release(struct remarks *self)
{
    alloc_free_texts(self->texts, self->count);
    *self = (struct remarks){0};
}

/* Checks all keys of a combination and computes its number of ranks. */
static int check_combination(const struct experiment *experiment, bool elsewhere, struct world *world,
                             struct remarks *remarks, struct cb_err *err)
{
    struct workload workload = {0};
    int rc = workload_init(&workload, experiment, err);
    if (rc == 0 && workload.layout)
        rc = estimate_check_staging(&workload.layouts, experiment, err);
    if (rc == 0 && !elsewhere)
        rc = check_needs(experiment, &workload, err);
    if (rc == 0)
        rc = run_plan_remark(experiment, &workload, remarks, err);
    if (rc == 0)
        *world = world_of(experiment, &workload);
    workload_release(&workload);
    return rc;
}

/* Checks every combination once before anything is written. Only at this point do the axes determine the number of
 * ranks; the frozen experiment contains the number. */
static int check_members(const struct run_plan *self, bool elsewhere, struct cb_err *err)
{
    struct world *worlds = calloc(self->sweep.combinations + 1, sizeof *worlds);
    struct remarks remarks = {0};
    int rc = worlds ? 0 : alloc_fail(err, "for %zu combinations", self->sweep.combinations);
    for (size_t i = 0; rc == 0 && i < self->sweep.count; i++) {
        struct sweep_member *member = &self->sweep.members[i];
        rc = store_location_freeze(member->experiment, err);
        if (rc == 0)
            rc = check_place(member->experiment, elsewhere, &remarks, err);
        if (rc == 0)
            rc = freeze_nodes(member->experiment, elsewhere, err);
        if (rc == 0 && worlds[member->combination].ranks == 0)
            rc = check_combination(member->experiment, elsewhere, &worlds[member->combination], &remarks, err);
        if (rc == 0)
            rc = freeze_world(member->experiment, &worlds[member->combination], err);
        if (rc == 0)
            rc = check_nodes(member->experiment, elsewhere, err);
        if (rc == 0 && workload_kind_of(member->experiment)->trains) /* the agent counts its measured steps */
            rc = set_number(member->experiment, "iterations",
                            experiment_u64(member->experiment, OPT_TRAIN_STEPS) -
                                experiment_u64(member->experiment, OPT_WARMUP),
                            "train.steps - warmup", err);
    }
    remarks_release(&remarks);
    free(worlds);
    return rc;
}

int run_plan_check(struct experiment *experiment, uint32_t *ranks, struct cb_err *err)
{
    struct world world = {0};
    struct remarks remarks = {0};
    int rc = freeze_nodes(experiment, false, err);
    if (rc == 0)
        rc = check_combination(experiment, false, &world, &remarks, err);
    *ranks = world.ranks;
    remarks_release(&remarks);
    return rc;
}

/* ---- names ---- */

/* "ID" alone, or "ID.07": padded with zeros to the width of the largest number, so that names sort numerically. */
static void name_member(const struct run_plan *self, size_t index, char name[64])
{
    char number[32];
    size_t digits = 2, count = self->sweep.count;
    for (size_t limit = 100; count >= limit; limit *= 10)
        digits++;
    int len = snprintf(number, sizeof number, "%020zu", index + 1);
    snprintf(name, 64, "%.40s%s%s", self->id, count > 1 ? "." : "", count > 1 ? number + len - digits : "");
}

bool run_plan_is_id(const char *id)
{
    size_t len = strspn(id, "abcdefghijklmnopqrstuvwxyz0123456789-");
    return len > 0 && len <= 40 && id[len] == '\0' && id[0] != '-';
}

int run_plan_rename(struct run_plan *self, const char *id, struct cb_err *err)
{
    int rc = 0;
    snprintf(self->id, sizeof self->id, "%s", id);
    snprintf(self->sweep_id, sizeof self->sweep_id, "%s", self->sweep.count > 1 ? id : "");
    for (size_t i = 0; rc == 0 && i < self->sweep.count; i++) {
        name_member(self, i, self->members[i].id);
        free(self->members[i].folder);
        self->members[i].folder = NULL;
        rc = run_plan_folder(self->members[i].id, &self->members[i].folder, err);
    }
    return rc;
}

int run_plan_expand(struct run_plan *self, const struct setting_list *settings, bool elsewhere, struct cb_err *err)
{
    *self = (struct run_plan){0};
    int rc = sweep_expand(settings, &self->sweep, err);
    if (rc)
        return rc;
    rc = check_members(self, elsewhere, err);
    if (rc)
        return rc;
    self->members = calloc(self->sweep.count + 1, sizeof *self->members);
    if (!self->members)
        return alloc_fail(err, "for %zu runs", self->sweep.count);
    for (size_t i = 0; i < self->sweep.count; i++)
        self->members[i].experiment = self->sweep.members[i].experiment;
    char id[RUN_ID_BYTES];
    run_id_new(id);
    return run_plan_rename(self, id, err);
}

int run_plan_write(const struct run_plan *self, size_t index, struct history *history, struct file_batch *batch,
                   struct cb_err *err)
{
    const struct planned *member = &self->members[index];
    const struct planned_run row = {.run = member->id,
                                    .sweep = *self->sweep_id ? self->sweep_id : NULL,
                                    .folder = member->folder,
                                    .block = self->sweep.members[index].block,
                                    .combination = self->sweep.members[index].combination,
                                    .experiment = member->experiment,
                                    .batch = batch};
    int rc = run_folder_create(batch, member->folder, member->experiment, err);
    if (rc)
        return rc;
    rc = history_plan_run(history, &row, err);
    if (rc)
        run_folder_discard(member->folder);
    return rc;
}

void run_plan_release(struct run_plan *self)
{
    for (size_t i = 0; self->members && i < self->sweep.count; i++)
        free(self->members[i].folder);
    free(self->members);
    sweep_release(&self->sweep);
}
