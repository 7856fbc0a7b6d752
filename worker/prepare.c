/* Prepares a rank for its first operation: experiment, layout, cores, memory, store, state, engine. Checks come before
 * anything is allocated or written, and either all ranks continue or none does. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "comm/agree.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "core/rlimits.h"
#include "core/units.h"
#include "run/library_keys.h"
#include "run/run_folder.h"
#include "run/workload_kind.h"
#include "setup/checkpoint_options.h"
#include "setup/engine_config.h"
#include "setup/folder/claim.h"
#include "setup/memory_estimate.h"
#include "setup/open_store.h"
#include "setup/trace_requests.h"
#include "store/kind.h"
#include "worker/load_shift.h"
#include "worker/run.h"

#define LIBRARY_WORDS_MAX_BYTES (64 << 10)

/* Preparing has no time-out of its own, and uses that of an operation. */
uint64_t run_deadline(const struct run *self)
{
    return clock_monotonic_ns() + self->op_timeout_ns;
}

int run_join(struct run *self, int code, struct cb_err *err)
{
    return agree(self->comm, code, run_deadline(self), err);
}

static void read_id(struct run *self, const char *run_folder)
{
    size_t len = strlen(run_folder);
    while (len > 1 && run_folder[len - 1] == '/')
        len--;
    size_t start = len;
    while (start > 0 && run_folder[start - 1] != '/')
        start--;
    snprintf(self->id, sizeof self->id, "%.*s", (int)(len - start), run_folder + start);
}

static void read_keys(struct run *self)
{
    const struct experiment *experiment = self->experiment;
    const char *payload = experiment_text(experiment, OPT_PAYLOAD);
    self->op_timeout_ns = experiment_u64(experiment, OPT_TIMEOUT_OP);
    self->saves = !experiment_is(experiment, OPT_OPS, "load");
    self->loads = !experiment_is(experiment, OPT_OPS, "save");
    self->raw = workload_kind_of(experiment)->is_raw;
    self->on_device = experiment_is(experiment, OPT_DEVICE, "cuda");
    self->cold = experiment_bool(experiment, OPT_LOAD_COLD);
    self->async = self->saves && experiment_bool(experiment, OPT_SAVE_ASYNC);
    self->keep_last = experiment_u64(experiment, OPT_KEEP_LAST);
    self->keep = claim_is_to_keep(experiment);
    self->warmup = (uint32_t)experiment_u64(experiment, OPT_WARMUP);
    self->iterations = (uint32_t)experiment_u64(experiment, OPT_ITERATIONS);
    self->payload.seed = experiment_u64(experiment, OPT_SEED);
    self->payload.kind = strcmp(payload, "zero") == 0     ? PAYLOAD_ZERO
                         : strcmp(payload, "random") == 0 ? PAYLOAD_RANDOM
                                                          : PAYLOAD_WEIGHTS;
}

static int load_model(struct run *self, struct cb_err *err)
{
    const struct experiment *experiment = self->experiment;
    const char *name = experiment_text(experiment, OPT_DTYPE);
    enum dtype dtype;
    const enum dtype *wanted = NULL;
    if (strcmp(name, "auto") != 0) {
        if (!dtype_find(name, &dtype))
            return cb_fail(err, CB_ERR_INTERNAL, "dtype=%s is in the option table, but is no element type", name);
        wanted = &dtype;
    }
    return model_load(experiment_text(experiment, OPT_MODEL), experiment_u64(experiment, OPT_LAYERS), wanted,
                      &self->model, err);
}

static int check_engine(const struct run *self, struct cb_err *err)
{
    const char *store = experiment_text(self->experiment, OPT_STORE);
    struct store_uri uri = store_uri_of(store);
    bool plain = uri.kind->keeps_data && !uri.has_faults;
    if (!experiment_is(self->experiment, OPT_ENGINE, "native") && !plain)
        return cb_fail(err, CB_ERR_USAGE, "engine=%s writes files itself and needs store=PATH, not %s",
                       experiment_text(self->experiment, OPT_ENGINE), store);
    if (experiment_is(self->experiment, OPT_ENGINE, "command") && !experiment_text(self->experiment, OPT_COMMAND)[0])
        return cb_fail(err, CB_ERR_USAGE, "engine=command needs command='…', the shell command to run");
    if (self->async && (self->raw || experiment_is(self->experiment, OPT_ENGINE, "command")))
        return cb_fail(err, CB_ERR_USAGE, "save.async=true is for engine=native, torch-dcp and torch-native: %s",
                       self->raw ? "workload=raw saves no state" : "a command ends when its save has");
    if (self->keep_last > 0 && !experiment_is(self->experiment, OPT_FOLDER, "per_iteration"))
        return cb_fail(err, CB_ERR_USAGE, "keep.last=%" PRIu64 " needs folder=per_iteration, not %s", self->keep_last,
                       experiment_text(self->experiment, OPT_FOLDER));
    if (self->raw && !self->saves)
        return cb_fail(err, CB_ERR_USAGE, "workload=raw reads only what it wrote itself: use ops=save+load");
    if (self->raw && !experiment_is(self->experiment, OPT_ENGINE, "native"))
        return cb_fail(err, CB_ERR_USAGE, "workload=raw moves bytes itself: engine=%s does not go with it",
                       experiment_text(self->experiment, OPT_ENGINE));
    return 0;
}

/* The layouts for saving and loading, for the number of ranks that were started. */
static int make_layouts(struct run *self, struct cb_err *err)
{
    const struct layout_pair_options options = layout_pair_options_of(self->experiment);
    int rc = layout_pair_new(self->model, &options, &self->layouts, err);
    if (rc)
        return rc;
    self->layout = self->layouts.saved;
    if (self->layouts.ranks != comm_size(self->comm))
        return cb_fail(err, CB_ERR_USAGE, "the experiment is for %u ranks, but %u were started", self->layouts.ranks,
                       comm_size(self->comm));
    return 0;
}

const char *run_experiment_folder(const char *pages_folder, const char *run_folder)
{
    char path[4096];
    int len = snprintf(path, sizeof path, "%s/experiment.yaml", pages_folder);
    return len < (int)sizeof path && access(path, R_OK) == 0 ? pages_folder : run_folder;
}

static int read_experiment(struct run *self, struct cb_err *err)
{
    int rc = run_folder_read_experiment(run_experiment_folder(self->pages_folder, self->folder_path), &self->experiment,
                                        err);
    if (rc)
        return rc;
    read_keys(self);
    rc = check_engine(self, err);
    if (!rc)
        rc = load_model(self, err);
    return rc ? rc : make_layouts(self, err);
}

/* The states of this rank: its own for saving, and the state of rank + shift for loading, if the pieces differ. A rank
 * beyond the ranks of a layout has no pieces. */
static int choose_states(struct run *self, struct cb_err *err)
{
    uint32_t rank = comm_rank(self->comm), size = layout_world_size(self->layouts.loaded);
    uint32_t shift = load_shift(self->experiment, self->comm) % size;
    uint32_t holder = rank < size ? (rank + shift) % size : rank;
    bool resharded = self->layouts.loaded != self->layout, verifies = self->loads || self->verify != VERIFY_NONE;
    int rc = 0;
    if (self->saves)
        rc = state_init(&self->own, self->layout, rank, err);
    self->target = &self->own;
    if (rc || self->raw || !verifies || (self->saves && shift == 0 && !resharded))
        return rc;
    rc = state_init(&self->shifted, self->layouts.loaded, holder, err);
    if (rc)
        return rc;
    if (self->saves && !resharded && state_same_pieces(&self->own, &self->shifted))
        state_release(&self->shifted);
    else
        self->target = &self->shifted;
    return 0;
}

static enum state_memory memory_kind(const struct run *self)
{
    if (experiment_is(self->experiment, OPT_ENGINE, "command"))
        return STATE_MEMORY_NONE;
    return experiment_is_in_python(self->experiment) ? STATE_MEMORY_SHARED : STATE_MEMORY_OWN;
}

/* Both states share one memory: loaded values are verified, and set again before the next save. */
static uint64_t state_memory_bytes(const struct run *self)
{
    return self->own.base_bytes > self->shifted.base_bytes ? self->own.base_bytes : self->shifted.base_bytes;
}

static int check_memory(struct run *self, struct cb_err *err)
{
    if (memory_kind(self) == STATE_MEMORY_NONE)
        return state_check_memory(self->comm, 0, run_deadline(self), err);
    uint64_t block = store_block_bytes(self->experiment);
    uint64_t staging = block * experiment_u64(self->experiment, OPT_IO_DEPTH);
    if (self->on_device)
        staging *= 2; /* as many requests are being copied as are in flight */
    staging +=
        estimate_staging_bytes(&self->layouts, self->experiment) + estimate_dataset_memory_bytes(self->experiment);
    uint64_t needed = staging + (self->on_device ? 0 : state_memory_bytes(self));
    char who[32];
    snprintf(who, sizeof who, "rank %" PRIu32, comm_rank(self->comm));
    int rc = run_join(self, rlimits_check_map(needed, who, err), err);
    return rc ? rc : state_check_memory(self->comm, needed, run_deadline(self), err);
}

static int open_one(const struct run *self, struct store **store, struct cb_err *err)
{
    return open_store(self->experiment, self->page, self->pages_folder, store, err);
}

static int open_stores(struct run *self, struct cb_err *err)
{
    int rc = folder_open(&self->folder, self->experiment, self->id, err);
    if (!rc)
        rc = gds_open_store(&self->gds, self->experiment, self->page, self->pages_folder, &self->folder, &self->store,
                            err);
    if (!rc && self->async && experiment_is(self->experiment, OPT_ENGINE, "native"))
        rc = open_one(self, &self->async_store, err);
    const struct trace_place place = {self->folder_path, self->attempt};
    if (!rc)
        rc = trace_requests_start(self->experiment, &place, self->page, self->store, false, &self->trace, err);
    if (!rc && self->async_store)
        rc = trace_requests_start(self->experiment, &place, self->page, self->async_store, true, &self->async_trace,
                                  err);
    return rc;
}

static int claim_folder(struct run *self, struct cb_err *err)
{
    const struct lease_owner owner = {.run = self->id,
                                      .run_folder = self->folder_path,
                                      .attempt = self->attempt,
                                      .one_machine = comm_local_size(self->comm) == comm_size(self->comm)};
    int rc = folder_prepare(&self->folder, self->experiment, &owner,
                            estimate_store_bytes(&self->layouts, self->experiment), err);
    if (!rc && folder_weakness(&self->folder))
        status_page_add_fact(self->page, "claim", folder_weakness(&self->folder));
    return rc;
}

/* Rank 0 creates and claims the folder. An earlier attempt may have left checkpoints in it. */
static int prepare_store(struct run *self, struct cb_err *err)
{
    int rc = 0;
    if (comm_rank(self->comm) == 0)
        rc = claim_folder(self, err);
    rc = run_join(self, rc, err);
    if (!rc)
        rc = run_join(self, open_stores(self, err), err);
    if (!rc && self->attempt > 1 && !self->folder.overwrite && comm_rank(self->comm) == 0)
        rc = folder_clear(&self->folder, err);
    if (!rc && comm_rank(self->comm) == 0 && experiment_is(self->experiment, OPT_FOLDER, "rotate"))
        rc = folder_choose_slot(&self->folder, err);
    rc = run_join(self, rc, err);
    return rc ? rc
              : comm_broadcast(self->comm, &self->folder.first, sizeof self->folder.first, run_deadline(self), err);
}

/* With io.gds=auto, either all ranks use it or none. */
static int agree_on_gds(struct run *self, struct cb_err *err)
{
    struct agreement agreement;
    if (!experiment_is(self->experiment, OPT_IO_GDS, "auto"))
        return 0;
    int rc = comm_agree(self->comm, 0, self->gds.files ? 1 : 0, run_deadline(self), &agreement, err);
    return rc ? rc : gds_check(&self->gds, agreement.min, agreement.max, err);
}

static int find_checkpoint(struct run *self, struct cb_err *err)
{
    if (self->saves)
        return 0;
    int rc = 0;
    if (comm_rank(self->comm) == 0)
        rc = folder_find_checkpoint(&self->folder, self->checkpoint, err);
    rc = run_join(self, rc, err);
    return rc ? rc : comm_broadcast(self->comm, self->checkpoint, sizeof self->checkpoint, run_deadline(self), err);
}

/* Reports the shift that replaces the default of 1 on several nodes. */
static void add_shift(struct run *self)
{
    char text[64];
    uint32_t shift = load_shift(self->experiment, self->comm);
    snprintf(text, sizeof text, "%u rank%s: one node further", shift, units_plural(shift));
    if (self->loads && comm_fullest_node(self->comm) < comm_size(self->comm) &&
        experiment_u64(self->experiment, OPT_LOAD_SHIFT) == 1)
        status_page_add_fact(self->page, "load.shift", text);
}

static int make_states(struct run *self, struct cb_err *err)
{
    struct state *owner = self->saves ? &self->own : self->target;
    int rc = self->on_device ? state_allocate_on(owner, self->device, state_memory_bytes(self), err)
                             : state_allocate(owner, memory_kind(self), state_memory_bytes(self), err);
    if (rc)
        return rc;
    if (self->target != owner && owner->base)
        state_borrow(self->target, owner);
    if (self->gds.files && owner->base)
        self->gds.files->ops->add_memory(self->gds.files, owner->base, owner->mapped_bytes);
    rc = state_set_values(&self->own, &self->payload, err);
    if (rc || self->on_device)
        return rc;
    struct iovec region = {.iov_base = owner->base, .iov_len = owner->mapped_bytes};
    if (owner->base && experiment_is(self->experiment, OPT_ENGINE, "native"))
        store_register(self->store, &region, 1);
    return 0;
}

/* Collective. */
static int prepare_behind(struct run *self, struct cb_err *err)
{
    if (!self->async)
        return 0;
    self->pending = calloc(RUN_PENDING, sizeof *self->pending);
    int rc = self->pending ? 0 : alloc_fail(err, "for samples");
    if (!rc && self->async_store && !self->on_device)
        rc = device_host_open(device_host_cores(), &self->device, err);
    rc = run_join(self, rc, err);
    if (rc || !self->async_store)
        return rc;
    rc = comm_twin(self->comm, &self->async_comm, err);
    if (!rc)
        comm_watch(self->async_comm, status_page_check, self->page);
    return rc ? cb_context(err, "save.async=true") : 0;
}

static int make_engine(struct run *self, struct cb_err *err)
{
    if (self->raw)
        return 0;
    bool native = experiment_is(self->experiment, OPT_ENGINE, "native");
    struct engine_setup setup = {
        .layout = self->layout,
        .comm = self->comm,
        .page = self->page,
        .store = native ? self->store : NULL,
        .store_path = native ? NULL : self->folder.path,
        .plain = self->folder.plain,
        .run_folder = self->folder_path,
        .check_owner = folder_check_owner,
        .folder = &self->folder,
        .async_comm = self->async_comm,
        .async_store = self->async_store,
        .device = self->device,
        .device_comm = self->on_device ? self->plugin.ops->comm : NULL,
    };
    int rc = engine_config_read(self->experiment, &setup.config, err);
    library_keys_write(self->experiment, &self->library_words);
    if (!rc)
        rc = buf_check(&self->library_words, "the keys for libckptbench", err);
    setup.config.library_words = self->library_words.data;
    return rc ? rc : engine_new(&setup, &self->engine, err);
}

int run_prepare(struct run *self, struct comm *comm, struct status_page *page, const char *pages_folder,
                const char *run_folder, uint32_t attempt, struct cb_err *err)
{
    memset(self, 0, sizeof *self);
    buf_init(&self->library_words, LIBRARY_WORDS_MAX_BYTES);
    self->comm = comm;
    self->page = page;
    self->pages_folder = pages_folder;
    self->folder_path = run_folder;
    self->attempt = attempt;
    self->own.shared_fd = self->shifted.shared_fd = -1;
    self->op_timeout_ns = 60 * NS_PER_S; /* until the experiment's value is known */
    read_id(self, run_folder);
    int rc = run_join(self, read_experiment(self, err), err);
    if (rc)
        return rc;
    self->verify = self->raw || memory_kind(self) == STATE_MEMORY_NONE
                       ? VERIFY_NONE
                       : verify_mode_read(self->experiment, self->layout);
    if (!store_uri_of(experiment_text(self->experiment, OPT_STORE)).kind->keeps_data)
        self->verify = VERIFY_NONE; /* null: has no data to verify */
    add_shift(self);
    if (self->on_device)
        rc = device_plugin_open_own(&self->plugin, self->comm, self->page, &self->device, &self->device_info, err);
    rc = run_join(self, rc, err);
    if (!rc)
        rc = device_place_apply(self->comm, "/sys", self->on_device ? &self->device_info : NULL,
                                experiment_is(self->experiment, OPT_AFFINITY, "auto"), self->page, run_deadline(self),
                                err);
    if (!rc)
        rc = run_join(self, choose_states(self, err), err);
    if (!rc)
        rc = run_join(self, check_memory(self, err), err);
    if (!rc)
        rc = run_join(self, gds_open(&self->gds, self->experiment, self->device, err), err);
    if (!rc)
        rc = prepare_store(self, err);
    if (!rc)
        rc = agree_on_gds(self, err);
    if (!rc)
        rc = find_checkpoint(self, err);
    if (!rc)
        rc = run_join(self, make_states(self, err), err);
    if (!rc)
        rc = run_join(self, prepare_behind(self, err), err);
    if (!rc)
        rc = run_join(self, make_engine(self, err), err);
    if (!rc)
        rc = run_join(self, compute_gap_init(&self->gap, self->experiment, err), err);
    return rc;
}

bool run_stop(struct run *self)
{
    bool stopped = engine_stop(self->engine);
    return stopped && (!self->store || store_in_flight(self->store) == 0);
}

void run_release(struct run *self)
{
    engine_free(self->engine);
    buf_release(&self->library_words);
    compute_gap_release(&self->gap);
    comm_free(self->async_comm);
    free(self->pending);
    trace_requests_end(self->async_trace);
    trace_requests_end(self->trace);
    if (self->async_store)
        store_free(self->async_store);
    if (self->store)
        store_free(self->store);
    gds_end(&self->gds); /* after the store that uses its files, before the memory that it knows */
    folder_release(&self->folder);
    state_release(&self->shifted);
    state_release(&self->own);
    device_close(self->device); /* after the states that use its memory */
    device_plugin_close(&self->plugin);
    layout_pair_release(&self->layouts);
    model_free(self->model);
    experiment_free(self->experiment);
    memset(self, 0, sizeof *self);
}
