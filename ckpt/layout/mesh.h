/* A mesh of named axes: ranks as coordinates. Private to ckpt/layout/, ckpt/plan/ and their tests. */
#ifndef CKPT_LAYOUT_MESH_H
#define CKPT_LAYOUT_MESH_H

#include <stddef.h>
#include <stdint.h>

#include "ckpt/layout/layout.h"
#include "ckpt/model/model.h"
#include "core/err.h"

/* What an axis does. Data parallelism has up to three axes: dp replicates (or shards flat under ZeRO), fsdp shards
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

#endif
