/* The layout that a run loads in, if it differs from the saved one: the load.* keys and the saved layout become a new
 * experiment, and that a layout. */
#include <stdio.h>
#include <string.h>

#include "ckpt/layout/layout_internal.h"
#include "core/buf.h"

static const enum option_id load_keys[] = {OPT_LOAD_DP,       OPT_LOAD_TP,       OPT_LOAD_PP,
                                           OPT_LOAD_EP,       OPT_LOAD_ZERO,     OPT_LOAD_MESH,
                                           OPT_LOAD_SHARDING, OPT_LOAD_PP_SPLIT, OPT_LOAD_STATE};

static bool is_given(const struct experiment *experiment, enum option_id id)
{
    return strcmp(experiment_text(experiment, id), option_row(id)->fallback) != 0;
}

static bool any_is_given(const struct experiment *experiment)
{
    for (size_t i = 0; i < sizeof load_keys / sizeof *load_keys; i++) {
        if (is_given(experiment, load_keys[i]))
            return true;
    }
    return false;
}

static int set(struct experiment *experiment, enum option_id id, const char *text, struct cb_err *err)
{
    return experiment_set(experiment, option_row(id)->name, text, "load", err);
}

static int set_number(struct experiment *experiment, enum option_id id, uint64_t number, struct cb_err *err)
{
    char text[32];
    snprintf(text, sizeof text, "%llu", (unsigned long long)number);
    return set(experiment, id, text, err);
}

static uint64_t given_or(const struct experiment *experiment, enum option_id id, uint64_t saved)
{
    uint64_t given = experiment_u64(experiment, id);
    return given ? given : saved;
}

struct axis_key {
    enum option_id load, save;
    const char *name;
};

static const struct axis_key axis_keys[] = {
    {OPT_LOAD_DP, OPT_DP, "dp"}, {OPT_LOAD_TP, OPT_TP, "tp"}, {OPT_LOAD_PP, OPT_PP, "pp"}, {OPT_LOAD_EP, OPT_EP, "ep"}};
#define AXIS_KEYS (sizeof axis_keys / sizeof *axis_keys)

/* load.mesh excludes the other keys, as mesh does. */
static int use_mesh(struct experiment *experiment, struct cb_err *err)
{
    for (size_t i = 0; i < AXIS_KEYS; i++) {
        if (is_given(experiment, axis_keys[i].load))
            return cb_fail(err, CB_ERR_USAGE,
                           "load.mesh=%s and %s=%s are both given; write the axes in load.mesh alone",
                           experiment_text(experiment, OPT_LOAD_MESH), option_row(axis_keys[i].load)->name,
                           experiment_text(experiment, axis_keys[i].load));
    }
    if (is_given(experiment, OPT_LOAD_SHARDING))
        return cb_fail(err, CB_ERR_USAGE, "load.mesh=%s and load.sharding=%s are both given; write fsdp as an axis",
                       experiment_text(experiment, OPT_LOAD_MESH), experiment_text(experiment, OPT_LOAD_SHARDING));
    int rc = 0;
    for (size_t i = 0; i < AXIS_KEYS && !rc; i++)
        rc = set(experiment, axis_keys[i].save, option_row(axis_keys[i].save)->fallback, err);
    if (!rc)
        rc = set(experiment, OPT_SHARDING, "none", err);
    return rc ? rc : set(experiment, OPT_MESH, experiment_text(experiment, OPT_LOAD_MESH), err);
}

/* Saved by mesh=: its axes with the sizes of the load.* keys; additional axes come last. */
static int change_mesh(struct experiment *experiment, const struct layout *saved, struct cb_err *err)
{
    struct buf text;
    bool used[AXIS_KEYS] = {false};
    if (is_given(experiment, OPT_LOAD_SHARDING))
        return cb_fail(err, CB_ERR_USAGE, "mesh=%s and load.sharding=%s: write the axes to load in as load.mesh",
                       experiment_text(experiment, OPT_MESH), experiment_text(experiment, OPT_LOAD_SHARDING));
    buf_init(&text, 4096);
    for (size_t i = 0; i < saved->mesh.count; i++) {
        uint64_t size = saved->mesh.axes[i].size;
        for (size_t k = 0; k < AXIS_KEYS; k++) {
            if (strcmp(axis_keys[k].name, saved->mesh.axes[i].name) != 0)
                continue;
            size = given_or(experiment, axis_keys[k].load, size);
            used[k] = true;
        }
        buf_printf(&text, "%s%s=%llu", text.len ? "+" : "", saved->mesh.axes[i].name, (unsigned long long)size);
    }
    for (size_t k = 0; k < AXIS_KEYS; k++) {
        if (!used[k] && is_given(experiment, axis_keys[k].load))
            buf_printf(&text, "+%s=%s", axis_keys[k].name, experiment_text(experiment, axis_keys[k].load));
    }
    int rc = buf_check(&text, "the mesh to load in", err);
    if (!rc)
        rc = set(experiment, OPT_MESH, text.data, err);
    buf_release(&text);
    return rc;
}

/* Each shorthand as given, else its value in the saved layout. */
static int change_shorthands(struct experiment *experiment, const struct layout *saved, struct cb_err *err)
{
    const uint32_t *size = saved->mesh.size;
    uint64_t data = (uint64_t)size[AXIS_DP] * size[AXIS_FSDP] * size[AXIS_EP];
    const uint64_t as_saved[AXIS_KEYS] = {data, size[AXIS_TP], size[AXIS_PP], size[AXIS_EP]};
    int rc = 0;
    for (size_t i = 0; i < AXIS_KEYS && !rc; i++)
        rc = set_number(experiment, axis_keys[i].save, given_or(experiment, axis_keys[i].load, as_saved[i]), err);
    if (!rc && is_given(experiment, OPT_LOAD_SHARDING))
        rc = set(experiment, OPT_SHARDING, experiment_text(experiment, OPT_LOAD_SHARDING), err);
    return rc;
}

/* ZeRO and FSDP shard the same state: the requested one replaces the other. */
static int change_zero(struct experiment *experiment, const struct layout *saved, struct cb_err *err)
{
    bool zero_given = is_given(experiment, OPT_LOAD_ZERO);
    uint64_t zero = saved->mesh.zero;
    if (zero_given)
        zero = (uint64_t)(experiment_text(experiment, OPT_LOAD_ZERO)[0] - '0');
    else if (is_given(experiment, OPT_LOAD_SHARDING) &&
             strcmp(experiment_text(experiment, OPT_LOAD_SHARDING), "none") != 0)
        zero = 0;
    int rc = set_number(experiment, OPT_ZERO, zero, err);
    if (!rc && zero_given && zero > 0 && !is_given(experiment, OPT_LOAD_SHARDING))
        rc = set(experiment, OPT_SHARDING, "none", err);
    return rc;
}

static int change_keys(struct experiment *experiment, const struct layout *saved, struct cb_err *err)
{
    int rc = is_given(experiment, OPT_LOAD_MESH)        ? use_mesh(experiment, err)
             : experiment_text(experiment, OPT_MESH)[0] ? change_mesh(experiment, saved, err)
                                                        : change_shorthands(experiment, saved, err);
    if (!rc)
        rc = change_zero(experiment, saved, err);
    if (!rc && is_given(experiment, OPT_LOAD_PP_SPLIT))
        rc = set(experiment, OPT_PP_SPLIT, experiment_text(experiment, OPT_LOAD_PP_SPLIT), err);
    if (!rc && is_given(experiment, OPT_LOAD_STATE))
        rc = set(experiment, OPT_STATE, experiment_text(experiment, OPT_LOAD_STATE), err);
    return rc ? rc : set(experiment, OPT_RANKS, "0", err);
}

static int make_loaded(const struct model *model, const struct experiment *experiment, const struct layout *saved,
                       struct layout **loaded, struct cb_err *err)
{
    struct experiment *changed = NULL;
    if (saved->row_count > 0)
        return cb_fail(
            err, CB_ERR_USAGE,
            "state=mlperf has a row of its optimizer for each rank: it is loaded as it was saved, and load.* "
            "have no meaning");
    int rc = experiment_copy(experiment, &changed, err);
    if (!rc)
        rc = change_keys(changed, saved, err);
    if (!rc)
        rc = layout_new(model, changed, loaded, err);
    experiment_free(changed);
    return rc ? cb_context(err, "the layout to load in (load.*)") : 0;
}

/* `ranks` is the number of processes once the mesh is settled (dp or mesh given), else it determines dp. */
static int make_saved(const struct model *model, const struct experiment *experiment, bool settled,
                      struct layout **saved, struct cb_err *err)
{
    struct experiment *changed = NULL;
    int rc = experiment_copy(experiment, &changed, err);
    if (!rc && settled)
        rc = set(changed, OPT_RANKS, "0", err);
    if (!rc)
        rc = layout_new(model, changed, saved, err);
    experiment_free(changed);
    return rc;
}

static int check_ranks(const struct layout_pair *pair, uint64_t ranks, struct cb_err *err)
{
    uint32_t saved = layout_world_size(pair->saved), loaded = layout_world_size(pair->loaded);
    if (ranks == 0 || ranks == saved || ranks == pair->ranks)
        return 0;
    return cb_fail(err, CB_ERR_USAGE, "ranks=%llu, but the mesh to save in has %u ranks and the one to load in %u",
                   (unsigned long long)ranks, saved, loaded);
}

int layout_pair_new(const struct model *model, const struct experiment *experiment, struct layout_pair *pair,
                    struct cb_err *err)
{
    struct layout_pair made = {0};
    uint64_t ranks = experiment_u64(experiment, OPT_RANKS);
    if (!any_is_given(experiment)) {
        int code = layout_new(model, experiment, &made.saved, err);
        if (code)
            return code;
        made.loaded = made.saved;
        made.ranks = layout_world_size(made.saved);
        *pair = made;
        return 0;
    }
    bool settled = is_given(experiment, OPT_DP) || is_given(experiment, OPT_MESH);
    int rc = make_saved(model, experiment, settled, &made.saved, err);
    if (!rc)
        rc = make_loaded(model, experiment, made.saved, &made.loaded, err);
    if (rc)
        goto out;
    uint32_t loaded = layout_world_size(made.loaded);
    made.data_ranks =
        made.saved->mesh.size[AXIS_DP] * made.saved->mesh.size[AXIS_FSDP] * made.saved->mesh.size[AXIS_EP];
    made.ranks = layout_world_size(made.saved);
    made.ranks = loaded > made.ranks ? loaded : made.ranks;
    if (experiment_is(experiment, OPT_OPS, "load"))
        made.ranks = loaded;
    if (settled)
        rc = check_ranks(&made, ranks, err);
out:
    if (rc)
        layout_pair_release(&made);
    else
        *pair = made;
    return rc;
}

void layout_pair_release(struct layout_pair *pair)
{
    if (pair->loaded != pair->saved)
        layout_free(pair->loaded);
    layout_free(pair->saved);
    *pair = (struct layout_pair){0};
}
