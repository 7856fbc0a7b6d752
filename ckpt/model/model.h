/* A model: its tensors, in order, with everything that a layout requires.
 *
 * From a preset, an HF config.json (Llama, GPT-2, Mixtral, Qwen2), a YAML list, or a stored checkpoint, whose names
 * then determine layers and tensor-parallel dimensions. docs/models.md lists the presets. Not thread-safe on one
 * object. */
#ifndef CKPT_MODEL_MODEL_H
#define CKPT_MODEL_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/dtype.h"
#include "ckpt/region.h"
#include "core/err.h"

#define MODEL_LAYER_FIRST (-1) /* before the layers: on the first pipeline stage */
#define MODEL_LAYER_LAST (-2)  /* after them: on the last one */

struct model_tensor {
    char *fqn; /* as the published model names it: "model.layers.0.self_attn.q_proj.weight" */
    uint32_t dims;
    uint64_t shape[CKPT_MAX_DIMS];
    enum dtype dtype;
    int32_t layer;     /* from 0, or MODEL_LAYER_FIRST/LAST */
    int32_t tp_dim;    /* split by tensor parallelism, -1 replicated */
    uint64_t tp_unit;  /* a tp split must be at a multiple of this many rows of tp_dim (a head's size); 1 is free */
    uint32_t tp_parts; /* equal parts of tp_dim that are split separately: 3 for a fused q, k, v */
    int32_t expert;    /* index of the expert, -1 if none */
};

struct model {
    char *name;
    struct model_tensor *tensors;
    size_t count;
    uint64_t elements; /* of all tensors */
    uint32_t layers, heads, kv_heads, experts;
    uint64_t hidden, ffn, vocab;
    enum dtype dtype;          /* of the preset or file; used by dtype=auto */
    bool verbatim;             /* names include the prefix of the whole state, so a layout adds none */
    const char *default_state; /* "weights+adam", "weights" or "mlperf": used by state=auto */
    uint32_t mlperf_tp, mlperf_pp, mlperf_dp, mlperf_zero; /* published layout, 0 if none */
};

/* `source` is a preset's name or a path; `layers` 0 keeps all; `dtype` NULL keeps the model's. */
int model_load(const char *source, uint64_t layers, const enum dtype *dtype, struct model **model,
               struct cb_err *err) CB_MUST_CHECK;
void model_free(struct model *model);
uint64_t model_parameters(const struct model *model);

size_t model_preset_count(void);
const char *model_preset_name(size_t index);
const char *model_preset_about(size_t index); /* one line: family, and origin of the numbers */

#endif
