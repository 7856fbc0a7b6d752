/* The numbers that determine the tensors of a model family, and the builder of a model from them. Private to
 * ckpt/model/ and layout_stored.c. */
#ifndef CKPT_MODEL_MODEL_SHAPE_H
#define CKPT_MODEL_MODEL_SHAPE_H

#include <stdbool.h>

#include "ckpt/model/model.h"
#include "core/err.h"

enum model_family { FAMILY_LLAMA, FAMILY_GPT2, FAMILY_LINEAR, FAMILY_VIT, FAMILY_CLIP, FAMILY_T5 };

struct model_shape {
    enum model_family family;
    uint64_t hidden, ffn, vocab, positions;
    uint32_t layers, heads, kv_heads; /* kv_heads 0: equal to heads */
    uint64_t head_size;               /* 0: hidden / heads */
    uint32_t experts;                 /* of a mixture (Mixtral), 0 for a dense model */
    bool tied;                        /* the output head is the embedding, so it is not stored */
    bool qkv_bias, output_bias;       /* of attention, in the Llama family */
    uint64_t classes;                 /* of ViT's classifier */
};

struct model_preset {
    const char *name, *about;
    struct model_shape shape;
    enum dtype dtype;
    const char *state;
    uint32_t mlperf_tp, mlperf_pp, mlperf_dp, mlperf_zero;
};

/* Appends a tensor of model->dtype; its fqn is the formatted text. `shape` has `dims` numbers. */
struct tensor_role {
    int32_t layer, tp_dim, expert;
    uint64_t tp_unit;
    uint32_t tp_parts;
};
int model_add(struct model *self, struct tensor_role role, uint32_t dims, const uint64_t *shape, struct cb_err *err,
              const char *format, ...) CB_MUST_CHECK CB_PRINTF(6, 7);

/* Fills an empty model with the tensors of the shape, limited to `layers` per stack (0: all). */
int model_build(struct model *self, const struct model_shape *shape, uint64_t layers, struct cb_err *err) CB_MUST_CHECK;

const struct model_preset *model_preset_find(const char *name); /* NULL if there is none */

/* HF config.json and YAML lists; `self` is empty except for its name. Sets the dtype. */
int model_read_config(struct model *self, const char *path, uint64_t layers, const enum dtype *dtype,
                      struct cb_err *err) CB_MUST_CHECK;
struct stored_checkpoint;
/* All tensors of a stored checkpoint, without its other values. For a training state only its `model.` tensors,
 * without that prefix; with `whole` all tensors under their own names (verbatim). */
int model_read_stored(struct model *self, const struct stored_checkpoint *checkpoint, bool whole, uint64_t layers,
                      const enum dtype *dtype, struct cb_err *err) CB_MUST_CHECK;
/* Whether it is a folder without an HF model, or a safetensors file. */
int model_read_path(struct model *self, const char *path, bool is_folder, uint64_t layers, const enum dtype *dtype,
                    struct cb_err *err) CB_MUST_CHECK;
int model_read_list(struct model *self, const char *path, uint64_t layers, const enum dtype *dtype,
                    struct cb_err *err) CB_MUST_CHECK;

#endif
