/* How a layout is stored: ranks as coordinates of a mesh of named axes, cells of the mesh with their regions, and how a
 * region is divided over the data-parallel ranks of its cell. Private to ckpt/layout/ and ckpt/plan/. */
#ifndef CKPT_LAYOUT_LAYOUT_INTERNAL_H
#define CKPT_LAYOUT_LAYOUT_INTERNAL_H

#include "ckpt/layout/layout.h"

/* The role of an axis. Data parallelism has up to three axes: dp replicates (or shards flat under ZeRO), fsdp shards
 * dimension 0, ep distributes experts and is data parallel for all other tensors. */
enum axis_role { AXIS_PP, AXIS_DP, AXIS_FSDP, AXIS_EP, AXIS_TP, AXIS_ROLES };

struct mesh {
    struct mesh_axis axes[AXIS_ROLES]; /* outermost first */
    enum axis_role roles[AXIS_ROLES];  /* of axes */
    size_t count;
    uint32_t size[AXIS_ROLES];   /* by role; 1 if the mesh has no such axis */
    uint32_t stride[AXIS_ROLES]; /* by role, in ranks */
    uint32_t world_size;
    uint32_t zero; /* ZeRO stage, 0 if none */
};

/* From all options but the split and the state. With `published` (state=mlperf) the model's published axes are
 * the defaults of tp, pp, dp and zero if none of them is given, and dp is outermost. */
int mesh_read(struct mesh *self, const struct model *model, const struct layout_options *options, bool published,
              struct cb_err *err) CB_MUST_CHECK;

void mesh_coordinates(const struct mesh *self, uint32_t rank, uint32_t coordinate[AXIS_ROLES]);
uint32_t mesh_rank(const struct mesh *self, const uint32_t coordinate[AXIS_ROLES]);

/* A number from the coordinates of the roles in the set (bit 1 << role) in mesh order, and back; and the count of
 * such numbers. Coordinates of other roles are unchanged. */
uint32_t mesh_index(const struct mesh *self, unsigned roles, const uint32_t coordinate[AXIS_ROLES]);
void mesh_from_index(const struct mesh *self, unsigned roles, uint32_t index, uint32_t coordinate[AXIS_ROLES]);
uint32_t mesh_extent(const struct mesh *self, unsigned roles);

/* Assigns a pipeline stage to each layer: pp.split. `stage_of` holds model->layers numbers. */
int pipeline_split(const struct model *model, uint32_t stages, const char *split, uint32_t *stage_of,
                   struct cb_err *err) CB_MUST_CHECK;

#define LAYOUT_KINDS 4 /* KIND_WEIGHT … KIND_EXP_AVG_SQ */
#define LAYOUT_ABSENT UINT32_MAX

/* A placement over the data axes of a cell. */
enum placement { PLACE_REPLICATE, PLACE_CHUNK, PLACE_FLAT, PLACE_RANGES };

/* A region that tensor parallelism leaves a rank, the same for all data-parallel ranks of a cell. */
struct local {
    uint32_t tensor; /* of the model */
    struct region region;
    uint64_t elements;
    uint64_t begin;              /* in the cell's flat buffer */
    uint64_t row_begin, rows;    /* of dimension 0, within this rank's part of the tensor; total rows */
    uint32_t tp_first, tp_count; /* the tp coordinates that hold the same region */
    struct layout_range range;   /* with PLACE_RANGES */
};

/* All ranks with the same pp and tp coordinate (and ep, for experts). */
struct cell {
    struct local *locals; /* in the model's order */
    size_t count;
    uint64_t elements; /* of the flat buffer */
};

/* A region of a tensor with the ranks that hold it, in a layout from parts. */
struct box {
    uint32_t tensor;
    struct region region;
    uint32_t first_holder, holder_count; /* into holders, ascending; boxes with the same ranks have the same list */
};

struct layout {
    struct mesh mesh;
    char *description;
    const char *state_name;
    struct state_tensor *tensors; /* by kind, then in the model's order; then rows, then bytes items */
    size_t tensor_count;
    uint32_t *state_of[LAYOUT_KINDS]; /* model tensor -> state tensor, LAYOUT_ABSENT if it has none */
    enum placement placement[LAYOUT_KINDS];
    struct cell *dense;                     /* [pp][tp] */
    struct cell *experts;                   /* [pp][tp][ep]; NULL if the model has no experts */
    uint32_t row_first;                     /* state tensors with a row per rank (state=mlperf) … */
    uint32_t row_count;                     /* … and their number; else 0 */
    uint64_t row_elements;                  /* of one row */
    const struct layout_training *training; /* only during construction; else NULL */
    struct box *boxes;                      /* by tensor and region; NULL unless from parts; then there are no cells */
    size_t box_count;
    uint32_t *holders;
    size_t holder_count;
};

/* The axes over which a placement divides a region, as a set of roles; the other data axes replicate. */
unsigned layout_shard_roles(enum placement placement, bool expert);

/* Shard `index` of `shards` of a local: at most BOX_MAX_OF_INTERVAL regions. Returns their number. */
uint32_t layout_shard(const struct cell *cell, const struct local *local, enum placement placement, uint32_t shards,
                      uint32_t index, struct region *regions);
/* The same for the rank with these coordinates. */
uint32_t layout_shard_at(const struct layout *self, const struct cell *cell, const struct local *local,
                         enum placement placement, bool expert, const uint32_t coordinate[AXIS_ROLES],
                         struct region *regions);

/* The cell's first local of this tensor of the model, or of a later one. */
size_t layout_find_local(const struct cell *cell, uint32_t tensor);

static inline const struct cell *layout_dense(const struct layout *self, uint32_t pp, uint32_t tp)
{
    return &self->dense[pp * self->mesh.size[AXIS_TP] + tp];
}

static inline const struct cell *layout_experts(const struct layout *self, uint32_t pp, uint32_t tp, uint32_t ep)
{
    return &self->experts[(pp * self->mesh.size[AXIS_TP] + tp) * self->mesh.size[AXIS_EP] + ep];
}

/* Along fsdp, with PLACE_CHUNK: sets starts[f] for each coordinate f at which some shard of these ranks has another
 * number of rows than at f - 1, and for f = 0. */
void layout_mark_slices(const struct layout *layout, uint32_t pp, uint32_t ep, bool *starts);
/* Elsewhere a shard begins this many rows after the one at f - 1. */
uint64_t layout_row_step(const struct layout *self, const struct local *local, bool expert);

/* Calls `fn` for every local of every kind that a rank holds, in the order of its pieces, except locals whose kind
 * has no state tensor. `state_tensor` is its index. */
typedef void (*layout_local_fn)(void *context, const struct cell *cell, const struct local *local, enum state_kind kind,
                                uint32_t state_tensor, bool expert);
void layout_each_local(const struct layout *self, const uint32_t coordinate[AXIS_ROLES], layout_local_fn each,
                       void *context);

/* Fills tensors, state_of, placement and rows from the state kind. */
int layout_build_state(struct layout *self, const struct model *model, const struct layout_options *options,
                       struct cb_err *err) CB_MUST_CHECK;
/* Fills dense and experts. */
int layout_build_cells(struct layout *self, const struct model *model, const uint32_t *stage_of,
                       struct cb_err *err) CB_MUST_CHECK;

#endif
