/* Computes model, layout and plan of an experiment. */
#include "cli/plan/workload.h"

#include <sched.h>

#include "ckpt/format/format.h"
#include "cli/workload_table.h"
#include "setup/checkpoint_options.h"

#define DIRECT_ALIGNMENT 4096
#define BUFFERED_ALIGNMENT 64

int workload_load_model(const struct experiment *experiment, struct model **model, struct cb_err *err)
{
    enum dtype dtype;
    const char *name = experiment_text(experiment, OPT_DTYPE);
    bool given = !experiment_is(experiment, OPT_DTYPE, "auto");
    if (given && !dtype_find(name, &dtype))
        return cb_fail(err, CB_ERR_INTERNAL, "dtype=%s is an option's choice but no element type", name);
    int rc = model_load(experiment_text(experiment, OPT_MODEL), experiment_u64(experiment, OPT_LAYERS),
                        given ? &dtype : NULL, model, err);
    if (rc == CB_ERR_FORMAT) /* a malformed file named in a key is a usage error */
        rc = CB_ERR_USAGE;
    return rc;
}

uint32_t workload_payload_alignment(const struct experiment *experiment)
{
    return experiment_is(experiment, OPT_IO_DIRECT, "false") ? BUFFERED_ALIGNMENT : DIRECT_ALIGNMENT;
}

int workload_plan_waiting(struct workload *self, const struct experiment *experiment, struct cb_err *err)
{
    uint64_t ranks = experiment_u64(experiment, OPT_RANKS);
    (void)err;
    *self = (struct workload){.layouts.ranks = ranks ? (uint32_t)ranks : 1};
    return 0;
}

/* The command decides how many ranks there are: 0 unless it is given. */
int workload_plan_watching(struct workload *self, const struct experiment *experiment, struct cb_err *err)
{
    (void)err;
    *self = (struct workload){.layouts.ranks = (uint32_t)experiment_u64(experiment, OPT_RANKS)};
    return 0;
}

/* The default number: one rank for each core that this process may use. */
int workload_plan_ranks(struct workload *self, const struct experiment *experiment, struct cb_err *err)
{
    cpu_set_t cores;
    int rc = workload_plan_waiting(self, experiment, err);
    if (experiment_u64(experiment, OPT_RANKS) == 0 && sched_getaffinity(0, sizeof cores, &cores) == 0)
        self->layouts.ranks = (uint32_t)CPU_COUNT(&cores);
    return rc;
}

/* A training has the given number of ranks, or one. */
int workload_plan_training(struct workload *self, const struct experiment *experiment, struct cb_err *err)
{
    struct workload fresh = {0};
    uint64_t ranks = experiment_u64(experiment, OPT_RANKS), dp = experiment_u64(experiment, OPT_DP);
    fresh.layouts.ranks = (uint32_t)(ranks ? ranks : dp ? dp : 1);
    int rc = workload_load_model(experiment, &fresh.model, err);
    if (rc == 0)
        rc = training_read(experiment, fresh.model, fresh.layouts.ranks, &fresh.training, err);
    if (rc)
        workload_release(&fresh);
    else
        *self = fresh;
    return rc;
}

int workload_plan_state(struct workload *self, const struct experiment *experiment, struct cb_err *err)
{
    struct workload fresh = {0};
    struct plan_options options;
    const struct layout_pair_options layouts = layout_pair_options_of(experiment);
    int rc = workload_load_model(experiment, &fresh.model, err);
    if (rc == 0)
        rc = layout_pair_new(fresh.model, &layouts, &fresh.layouts, err);
    fresh.layout = fresh.layouts.saved;
    if (rc == 0)
        rc = plan_options_read(experiment, workload_payload_alignment(experiment), &options, err);
    if (rc == 0)
        rc = plan_compute(fresh.layout, &options, &fresh.plan, err);
    if (rc) {
        workload_release(&fresh);
        return rc;
    }
    *self = fresh;
    return 0;
}

int workload_init(struct workload *self, const struct experiment *experiment, struct cb_err *err)
{
    return workload_row_of(experiment)->plan(self, experiment, err);
}

void workload_release(struct workload *self)
{
    plan_free(self->plan);
    layout_pair_release(&self->layouts);
    model_free(self->model);
    *self = (struct workload){0};
}

int workload_metadata_bytes(const struct experiment *experiment, const struct workload *workload, uint64_t *bytes,
                            struct cb_err *err)
{
    struct plan_options options;
    struct metadata_sink sink = {.write = NULL};
    int rc = plan_options_read(experiment, workload_payload_alignment(experiment), &options, err);
    if (rc == 0)
        rc = format_write_metadata(options.format, workload->layout, workload->plan, "planned", 0, &sink, err);
    *bytes = sink.bytes;
    return rc;
}
