/* The numbers that determine the tensors of a model family, and the builder of a model from them. Private to
 * ckpt/model/ and layout_stored.c. */
#ifndef CKPT_MODEL_MODEL_SHAPE_H
#define CKPT_MODEL_MODEL_SHAPE_H

#include "ckpt/model/model.h"

enum model_family { FAMILY_LLAMA, FAMILY_GPT2, FAMILY_LINEAR, FAMILY_VIT, FAMILY_CLIP, FAMILY_T5 };

/* Presets give the first members by position. */
struct model_shape {
    enum model_family family;
    uint64_t hidden, ffn;
    uint32_t layers, heads, kv_heads; /* kv_heads 0: equal to heads */
    uint64_t vocab, positions;
    uint64_t head_size;         /* 0: hidden / heads */
    uint32_t experts;           /* of a mixture (Mixtral), 0 for a dense model */
    bool tied;                  /* the output head is the embedding, so it is not stored */
    bool qkv_bias, output_bias; /* of attention, in the Llama family */
    uint64_t classes;           /* of ViT's classifier */
};

struct model_preset {
    const char *name, *about;
    struct model_shape shape;
    enum dtype dtype;
    const char *state;
    uint32_t mlperf_tp, mlperf_pp, mlperf_dp, mlperf_zero;
};

struct tensor_role {
    int32_t layer, tp_dim, expert;
    uint64_t tp_unit;
    uint32_t tp_parts;
};
/* Appends a tensor of model->dtype. `shape` has `dims` numbers. */
int model_add(struct model *self, struct tensor_role role, uint32_t dims, const uint64_t *shape, const char *fqn,
              struct cb_err *err) CB_MUST_CHECK;

/* The user's choices for a model: its first `layers` (0: all), and another type for its weights (NULL: its own). */
struct model_choice {
    uint64_t layers;
    const enum dtype *dtype;
};
/* Appends a tensor of a list or a checkpoint, which determines the model's layers, experts and type; skips it if its
 * layer is not selected. */
int model_add_chosen(struct model *self, const struct model_choice *choice, struct tensor_role role, enum dtype dtype,
                     uint32_t dims, const uint64_t *shape, const char *fqn, struct cb_err *err) CB_MUST_CHECK;

/* Fills an empty model with the tensors of the shape, limited to `layers` per stack (0: all). */
int model_build(struct model *self, const struct model_shape *shape, uint64_t layers, struct cb_err *err) CB_MUST_CHECK;

const struct model_preset *model_preset_find(const char *name); /* NULL if there is none */

/* HF config.json and YAML lists; `self` is empty except for its name. Sets the dtype. */
int model_read_config(struct model *self, const char *path, const struct model_choice *choice,
                      struct cb_err *err) CB_MUST_CHECK;
int model_read_list(struct model *self, const char *path, const struct model_choice *choice,
                    struct cb_err *err) CB_MUST_CHECK;
/* A folder without an HF model, or a safetensors file. */
int model_read_path(struct model *self, const char *path, bool is_folder, const struct model_choice *choice,
                    struct cb_err *err) CB_MUST_CHECK;
struct stored_checkpoint;
/* All tensors of a stored checkpoint, without its other values. For a training state only its `model.` tensors,
 * without that prefix; with `whole` all tensors under their own names (verbatim). */
int model_read_stored(struct model *self, const struct stored_checkpoint *checkpoint, bool whole,
                      const struct model_choice *choice, struct cb_err *err) CB_MUST_CHECK;

#endif
