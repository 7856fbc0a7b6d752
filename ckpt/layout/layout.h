/* A layout: which rank holds which part of which tensor of the checkpointed state.
 *
 * A mesh of named axes (outermost first; the last varies fastest with the rank) and, for each tensor and axis, a
 * placement: replicate, shard(dim) as torch.chunk splits it (7 over 2 is 4 + 3), or flat (the rank's interval of the
 * flattened, concatenated tensors of its group). dp, tp, pp, zero, sharding and ep are shorthands for a mesh. State
 * tensors have fixed names that no layout changes: `model.<fqn>`, `optimizer.state.<fqn>.{master,exp_avg,exp_avg_sq}`;
 * small bytes items `optimizer.param_groups.*` and `train.*` come last. A flat shard concatenates the regions that a
 * rank of the group holds under tensor parallelism, each row-major. Tied embeddings live on the first stage. Under ep,
 * dense tensors are data parallel over dp and ep, experts over dp.
 *
 * state=mlperf instead has the bytes of MLPerf Storage's formulas: the norms once for every tp rank ([tp, hidden]), and
 * three flat tensors with one row a rank of P / ranks + 5 hidden elements. Immutable after layout_new, so thread-safe;
 * keeps no pointer to the model. */
#ifndef CKPT_LAYOUT_LAYOUT_H
#define CKPT_LAYOUT_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/model/model.h"
#include "ckpt/region.h"
#include "core/err.h"

enum state_kind { KIND_WEIGHT, KIND_MASTER, KIND_EXP_AVG, KIND_EXP_AVG_SQ, KIND_BYTES };

struct state_tensor {
    const char *fqn;       /* full name, owned by the layout */
    uint32_t model_tensor; /* index in the model; UINT32_MAX for bytes items */
    enum state_kind kind;
    enum dtype dtype;
    uint32_t dims;
    uint64_t shape[CKPT_MAX_DIMS];
    /* Tensors of one group that a rank writes go to a file of their own; 0 except for state=mlperf. */
    uint32_t file_group;
    /* bytes items: the value, written as a complete torch.save when planning; here its Python literal */
    const char *literal; /* "3", "(0.9, 0.95)", "'adamw'" */
    /* For a conversion: the complete torch.save, if the value was stored as one (`literal` may then be NULL); and the
     * keys that lead to it in nested dicts, as a Python tuple. */
    const void *blob;
    size_t blob_bytes;
    const char *path;
    /* bytes items: the rank that has the value and writes it. In a layout from parts the other ranks know only its
     * length: their `blob` is NULL. */
    uint32_t owner;
};

struct mesh_axis {
    char name[8];
    uint32_t size;
};

/* One contiguous piece of a rank's memory: a region of one state tensor, row-major. */
struct piece {
    uint32_t tensor; /* index of the state tensor */
    struct region region;
};

struct layout;

/* The options of a layout, as in the keys of the same names; texts are borrowed for the call. */
struct layout_options {
    uint64_t ranks; /* 0: the product of the axes */
    uint64_t dp;    /* 0: the ranks divided by the other axes */
    uint64_t tp, pp, ep, zero;
    const char *mesh;     /* "pp=2+dp=4", instead of the axes and sharding; "" if not given */
    const char *sharding; /* "none", "full", "hybrid(n)" */
    const char *pp_split; /* "balanced", "even", "8+8+7" */
    const char *state;    /* "auto", "weights+adam", "weights", "mlperf" */
    const char *seed;     /* stored with the state */
};

/* CB_ERR_USAGE with the numbers for an invalid combination: axes that do not multiply to ranks, heads that tp does not
 * divide, more stages than layers, … */
int layout_new(const struct model *model, const struct layout_options *options, struct layout **layout,
               struct cb_err *err) CB_MUST_CHECK;

/* Offset of a tensor's elements in a flat buffer of `elements`: from `begin` on, row-major. */
struct layout_range {
    uint64_t begin, elements;
};
/* A bytes item: "optimizer.param_groups.lr", "0.0001". */
struct layout_item {
    const char *fqn, *literal;
};
/* The state of a running training: the fsdp axis splits each flat buffer into equal parts (the last one shorter),
 * regardless of tensor boundaries; every rank has the scalars. Model tensors named "train.…" are counters of the
 * training and keep their names. `items` replace the usual ones. */
struct layout_training {
    const struct layout_range *ranges; /* one per tensor of the model */
    const struct layout_item *items;
    size_t item_count; /* at most LAYOUT_MOST_ITEMS */
};
#define LAYOUT_MOST_ITEMS 8
int layout_new_training(const struct model *model, const struct layout_options *options,
                        const struct layout_training *training, struct layout **layout,
                        struct cb_err *err) CB_MUST_CHECK;

/* A value of a stored checkpoint that is not a tensor: its literal, or the torch.save as it was stored, or both. */
struct stored_value {
    const struct stored_tensor *tensor;
    char *literal; /* NULL if it has none */
    void *blob;    /* NULL if it was stored as a literal */
    size_t blob_bytes;
};
struct stored_checkpoint;
/* For conversions: all tensors of a stored checkpoint under their own names, over the mesh of the options;
 * options->state is ignored. Takes ownership of literal and blob of each value; these become bytes items. */
int layout_from_stored(const struct stored_checkpoint *checkpoint, const struct layout_options *options,
                       struct stored_value *values, size_t value_count, struct layout **layout,
                       struct cb_err *err) CB_MUST_CHECK;

/* A region of a tensor in the memory of a rank. */
struct layout_part {
    uint32_t tensor, rank;
    struct region region;
};
/* The layout of a state that is described by what each rank holds, instead of a model and a mesh. Equal regions on
 * several ranks are replicas. Takes ownership of `tensors` and their texts, and sorts `parts`; also on failure. With
 * `is_complete` the regions of each tensor must make up all of it without overlap: else CB_ERR_USAGE, with the tensor's
 * name. */
int layout_from_parts(uint32_t ranks, struct state_tensor *tensors, size_t tensor_count, struct layout_part *parts,
                      size_t part_count, bool is_complete, struct layout **layout, struct cb_err *err) CB_MUST_CHECK;
/* Frees tensors that no layout owns yet, and their texts. */
void layout_free_tensors(struct state_tensor *tensors, size_t count);
/* Replaces the value of a bytes item of such a layout by a copy of `bytes`. Its length was given with the tensor and does
 * not change. No save of the layout may be in progress. */
int layout_set_value(struct layout *layout, size_t tensor, const void *bytes, struct cb_err *err) CB_MUST_CHECK;
void layout_free(struct layout *layout);

#define LAYOUT_AS_SAVED UINT64_MAX
struct layout_pair_options {
    struct layout_options save;
    /* The load.* keys. The saved setting is kept by axes of 0, zero == LAYOUT_AS_SAVED, and NULL texts; ranks and seed
     * have no meaning. */
    struct layout_options load;
    bool loads_only; /* the run saves nothing */
};

/* The layouts in which a run saves and loads: equal unless something in `load` is given. The run has the ranks of the
 * larger layout (with loads_only, of the one to load in); a rank beyond the ranks of a layout holds nothing of it.
 * Errors are those of layout_new. */
struct layout_pair {
    struct layout *saved, *loaded; /* the same pointer if they are equal */
    uint32_t ranks;                /* processes of the run */
    uint32_t data_ranks;           /* the resulting dp of the save; 0 without load.* keys */
};
int layout_pair_new(const struct model *model, const struct layout_pair_options *options, struct layout_pair *pair,
                    struct cb_err *err) CB_MUST_CHECK;
void layout_pair_release(struct layout_pair *pair);

uint32_t layout_world_size(const struct layout *layout);
size_t layout_tensor_count(const struct layout *layout);
const struct state_tensor *layout_tensor(const struct layout *layout, size_t index);
const char *layout_describe(const struct layout *layout);   /* "dp2 tp2" */
const char *layout_state_name(const struct layout *layout); /* "weights+adam" */

/* The pieces that a rank holds, in memory order: by state tensor, then by first element. Bytes items are not pieces:
 * all ranks know them, and rank 0 writes them. *pieces is allocated; free it with free(). */
int layout_pieces(const struct layout *layout, uint32_t rank, struct piece **pieces, size_t *count,
                  struct cb_err *err) CB_MUST_CHECK;
/* Bytes of tensors that a rank holds. */
uint64_t layout_rank_bytes(const struct layout *layout, uint32_t rank);
/* The same for rank after rank, skipping ranks that hold as much as an earlier one (replicas). */
struct layout_sizes {
    const struct layout *layout;
    unsigned roles;  /* the axes along which ranks may differ */
    uint64_t *known; /* indexed by coordinates along these axes; 0 if not known yet; NULL if there are too many */
    bool *starts;    /* [pp][ep][fsdp]: this rank may hold more or less than the one before it along fsdp; or NULL */
};
void layout_sizes_init(struct layout_sizes *self, const struct layout *layout);
void layout_sizes_release(struct layout_sizes *self);
uint64_t layout_sizes_of(struct layout_sizes *self, uint32_t rank);
/* Bytes of one complete checkpoint (each element once), by kind (KIND_WEIGHT, …), without bytes items. */
uint64_t layout_total_bytes(const struct layout *layout);
uint64_t layout_kind_bytes(const struct layout *layout, enum state_kind kind);

#endif
