/* The layout in which a run loads, if it differs from the saved one: combines the load.* keys and the saved layout to
 * new options, and builds a layout from them. */
#include <stdio.h>
#include <string.h>

#include "ckpt/layout/layout_internal.h"
#include "core/buf.h"

struct load_axis {
    const char *name;
    uint64_t size; /* 0 is as saved */
};
#define LOAD_AXES 4

static void axes_of(const struct layout_options *load, struct load_axis axes[LOAD_AXES])
{
    axes[0] = (struct load_axis){"dp", load->dp};
    axes[1] = (struct load_axis){"tp", load->tp};
    axes[2] = (struct load_axis){"pp", load->pp};
    axes[3] = (struct load_axis){"ep", load->ep};
}

/* load.mesh excludes the other keys, as mesh does. */
static int use_mesh(struct layout_options *made, const struct layout_options *load, struct cb_err *err)
{
    struct load_axis axes[LOAD_AXES];
    axes_of(load, axes);
    for (size_t i = 0; i < LOAD_AXES; i++) {
        if (axes[i].size)
            return cb_fail(err, CB_ERR_USAGE,
                           "load.mesh=%s and load.%s=%llu are both given; write the axes in load.mesh alone",
                           load->mesh, axes[i].name, (unsigned long long)axes[i].size);
    }
    if (load->sharding)
        return cb_fail(err, CB_ERR_USAGE, "load.mesh=%s and load.sharding=%s are both given; write fsdp as an axis",
                       load->mesh, load->sharding);
    made->dp = 0;
    made->tp = made->pp = made->ep = 1;
    made->sharding = "none";
    made->mesh = load->mesh;
    return 0;
}

/* Saved by mesh=: its axes with the sizes given for loading; additional axes come last. `text` keeps the new mesh. */
static int change_mesh(struct layout_options *made, const struct layout_options *load, const struct layout *saved,
                       struct buf *text, struct cb_err *err)
{
    struct load_axis axes[LOAD_AXES];
    if (load->sharding)
        return cb_fail(err, CB_ERR_USAGE, "mesh=%s and load.sharding=%s: write the axes to load in as load.mesh",
                       made->mesh, load->sharding);
    axes_of(load, axes);
    for (size_t i = 0; i < saved->mesh.count; i++) {
        uint64_t size = saved->mesh.axes[i].size;
        for (size_t k = 0; k < LOAD_AXES; k++) {
            if (axes[k].size && strcmp(axes[k].name, saved->mesh.axes[i].name) == 0) {
                size = axes[k].size;
                axes[k].size = 0;
            }
        }
        buf_printf(text, "%s%s=%llu", text->len ? "+" : "", saved->mesh.axes[i].name, (unsigned long long)size);
    }
    for (size_t k = 0; k < LOAD_AXES; k++) {
        if (axes[k].size)
            buf_printf(text, "+%s=%llu", axes[k].name, (unsigned long long)axes[k].size);
    }
    made->mesh = text->data;
    return buf_check(text, "the mesh to load in", err);
}

/* Each shorthand as given, else its value in the saved layout. */
static void change_shorthands(struct layout_options *made, const struct layout_options *load,
                              const struct layout *saved)
{
    const uint32_t *size = saved->mesh.size;
    uint64_t data = (uint64_t)size[AXIS_DP] * size[AXIS_FSDP] * size[AXIS_EP];
    made->dp = load->dp ? load->dp : data;
    made->tp = load->tp ? load->tp : size[AXIS_TP];
    made->pp = load->pp ? load->pp : size[AXIS_PP];
    made->ep = load->ep ? load->ep : size[AXIS_EP];
    if (load->sharding)
        made->sharding = load->sharding;
}

static int make_loaded(const struct model *model, const struct layout_pair_options *options, const struct layout *saved,
                       struct layout **loaded, struct cb_err *err)
{
    const struct layout_options *load = &options->load;
    struct layout_options made = options->save;
    struct buf mesh;
    if (saved->row_count > 0)
        return cb_fail(
            err, CB_ERR_USAGE,
            "state=mlperf has a row of its optimizer for each rank: it is loaded as it was saved, and load.* "
            "have no meaning");
    buf_init(&mesh, 4096);
    int rc = 0;
    if (load->mesh)
        rc = use_mesh(&made, load, err);
    else if (*made.mesh)
        rc = change_mesh(&made, load, saved, &mesh, err);
    else
        change_shorthands(&made, load, saved);
    /* ZeRO and FSDP shard the same state: the requested one replaces the other. */
    bool zero_given = load->zero != LAYOUT_AS_SAVED, shards = load->sharding && strcmp(load->sharding, "none") != 0;
    made.zero = zero_given ? load->zero : shards ? 0 : saved->mesh.zero;
    if (zero_given && made.zero > 0 && !load->sharding)
        made.sharding = "none";
    made.pp_split = load->pp_split ? load->pp_split : made.pp_split;
    made.state = load->state ? load->state : made.state;
    made.ranks = 0;
    if (!rc)
        rc = layout_new(model, &made, loaded, err);
    buf_release(&mesh);
    return rc ? cb_context(err, "the layout to load in (load.*)") : 0;
}

int layout_pair_new(const struct model *model, const struct layout_pair_options *options, struct layout_pair *pair,
                    struct cb_err *err)
{
    struct layout_pair made = {0};
    const struct layout_options *load = &options->load;
    bool differ = load->dp || load->tp || load->pp || load->ep || load->zero != LAYOUT_AS_SAVED || load->mesh ||
                  load->sharding || load->pp_split || load->state;
    /* Once the mesh is complete, `ranks` is the number of processes, else it determines dp. */
    bool settled = differ && (options->save.dp || *options->save.mesh);
    struct layout_options save = options->save;
    if (settled)
        save.ranks = 0;
    int rc = layout_new(model, &save, &made.saved, err);
    if (!rc && differ)
        rc = make_loaded(model, options, made.saved, &made.loaded, err);
    if (rc)
        goto out;
    made.ranks = layout_world_size(made.saved);
    if (!differ) {
        made.loaded = made.saved;
        goto out;
    }
    uint32_t loaded = layout_world_size(made.loaded);
    const uint32_t *size = made.saved->mesh.size;
    made.data_ranks = size[AXIS_DP] * size[AXIS_FSDP] * size[AXIS_EP];
    made.ranks = loaded > made.ranks || options->loads_only ? loaded : made.ranks;
    uint64_t ranks = options->save.ranks;
    if (settled && ranks && ranks != layout_world_size(made.saved) && ranks != made.ranks)
        rc = cb_fail(err, CB_ERR_USAGE, "ranks=%llu, but the mesh to save in has %u ranks and the one to load in %u",
                     (unsigned long long)ranks, layout_world_size(made.saved), loaded);
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
