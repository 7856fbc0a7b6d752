/* Builds the tensors of each model family from its shape: names and shapes as published by Hugging Face,
 * tensor-parallel dimensions as split by Megatron. */
#include <stdarg.h>
#include <stdio.h>

#include "ckpt/model/model_shape.h"

/* A model under construction: it keeps the first failure, so that families read as lists of tensors. */
struct builder {
    struct model *model;
    const struct model_shape *shape;
    struct cb_err *err;
    int code;
    int32_t layer, expert; /* of the tensors added next … */
    char prefix[96];       /* … and the start of their names */
};

CB_PRINTF(3, 4)
static void enter(struct builder *self, int32_t layer, const char *prefix, ...)
{
    va_list arguments;
    va_start(arguments, prefix);
    vsnprintf(self->prefix, sizeof self->prefix, prefix, arguments);
    va_end(arguments);
    self->layer = layer;
}

static void put(struct builder *self, const char *name, const char *suffix, uint32_t dims, const uint64_t *shape,
                struct tensor_role role)
{
    char fqn[256];
    snprintf(fqn, sizeof fqn, "%s%s%s", self->prefix, name, suffix);
    role.layer = self->layer;
    role.expert = self->expert;
    if (!self->code)
        self->code = model_add(self->model, role, dims, shape, fqn, self->err);
}

/* A matrix of rows x columns; split along tp_dim (-1: replicated) in multiples of `unit`. */
static void matrix(struct builder *self, const char *name, uint64_t rows, uint64_t columns, int32_t tp_dim,
                   uint64_t unit)
{
    put(self, name, "", 2, (uint64_t[]){rows, columns}, (struct tensor_role){.tp_dim = tp_dim, .tp_unit = unit});
}

static void vector(struct builder *self, const char *name, uint64_t rows, int32_t tp_dim)
{
    put(self, name, "", 1, &rows, (struct tensor_role){.tp_dim = tp_dim});
}

/* A tensor of any shape that is never split by tensor parallelism. */
static void whole(struct builder *self, const char *name, uint32_t dims, const uint64_t *shape)
{
    put(self, name, "", dims, shape, (struct tensor_role){.tp_dim = -1});
}

/* A linear layer as torch.nn.Linear stores it ([out, in] and a bias), split along the output. */
static void column_linear(struct builder *self, const char *name, uint64_t out, uint64_t in, uint64_t unit, bool bias)
{
    const struct tensor_role role = {.tp_dim = 0, .tp_unit = unit};
    put(self, name, ".weight", 2, (uint64_t[]){out, in}, role);
    if (bias)
        put(self, name, ".bias", 1, &out, role);
}

static void norm(struct builder *self, const char *name, uint64_t rows, bool bias)
{
    const struct tensor_role role = {.tp_dim = -1};
    put(self, name, ".weight", 1, &rows, role);
    if (bias)
        put(self, name, ".bias", 1, &rows, role);
}

/* Like column_linear(), but split along the input: the bias is replicated. */
static void row_linear(struct builder *self, const char *name, uint64_t out, uint64_t in, uint64_t unit, bool bias)
{
    put(self, name, ".weight", 2, (uint64_t[]){out, in}, (struct tensor_role){.tp_dim = 1, .tp_unit = unit});
    if (bias)
        put(self, name, ".bias", 1, &out, (struct tensor_role){.tp_dim = -1});
}

/* Splits are at heads if heads fill the rows; the 1T row of MLPerf has heads of 134, which do not. */
static uint64_t head_unit(uint64_t rows, uint64_t head_size)
{
    return head_size && rows % head_size == 0 ? head_size : 1;
}

static void llama_mixture(struct builder *self, int32_t layer)
{
    const struct model_shape *shape = self->shape;
    matrix(self, "block_sparse_moe.gate.weight", shape->experts, shape->hidden, -1, 1);
    for (uint32_t e = 0; e < shape->experts; e++) {
        self->expert = (int32_t)e;
        enter(self, layer, "model.layers.%d.block_sparse_moe.experts.%u.", layer, e);
        matrix(self, "w1.weight", shape->ffn, shape->hidden, 0, 1);
        matrix(self, "w2.weight", shape->hidden, shape->ffn, 1, 1);
        matrix(self, "w3.weight", shape->ffn, shape->hidden, 0, 1);
    }
    self->expert = -1;
    enter(self, layer, "model.layers.%d.", layer);
}

static void llama_layer(struct builder *self, int32_t layer)
{
    const struct model_shape *shape = self->shape;
    uint64_t hidden = shape->hidden;
    uint64_t head_size = shape->head_size ? shape->head_size : hidden / shape->heads;
    uint64_t kv = (shape->kv_heads ? shape->kv_heads : shape->heads) * head_size;
    /* Without a given head size, queries are as wide as the hidden state, whatever the number of heads. */
    uint64_t queries = shape->head_size ? shape->heads * head_size : hidden, unit = head_unit(queries, head_size);
    enter(self, layer, "model.layers.%d.", layer);
    column_linear(self, "self_attn.q_proj", queries, hidden, unit, shape->qkv_bias);
    column_linear(self, "self_attn.k_proj", kv, hidden, head_size, shape->qkv_bias);
    column_linear(self, "self_attn.v_proj", kv, hidden, head_size, shape->qkv_bias);
    row_linear(self, "self_attn.o_proj", hidden, queries, unit, shape->output_bias);
    if (shape->experts) {
        llama_mixture(self, layer);
    } else {
        column_linear(self, "mlp.gate_proj", shape->ffn, hidden, 1, false);
        column_linear(self, "mlp.up_proj", shape->ffn, hidden, 1, false);
        row_linear(self, "mlp.down_proj", hidden, shape->ffn, 1, false);
    }
    norm(self, "input_layernorm", hidden, false);
    norm(self, "post_attention_layernorm", hidden, false);
}

static void build_llama(struct builder *self, uint32_t layers)
{
    const struct model_shape *shape = self->shape;
    matrix(self, "model.embed_tokens.weight", shape->vocab, shape->hidden, 0, 1);
    for (uint32_t i = 0; i < layers; i++)
        llama_layer(self, (int32_t)i);
    enter(self, MODEL_LAYER_LAST, "%s", "");
    norm(self, "model.norm", shape->hidden, false);
    if (!shape->tied)
        matrix(self, "lm_head.weight", shape->vocab, shape->hidden, 0, 1);
}

/* GPT-2's linear layers are stored [in, out]. Query, key and value are one fused tensor. */
static void gpt2_layer(struct builder *self, int32_t layer)
{
    const struct model_shape *shape = self->shape;
    uint64_t hidden = shape->hidden, head_size = hidden / shape->heads, fused[] = {hidden, 3 * hidden};
    enter(self, layer, "transformer.h.%d.", layer);
    norm(self, "ln_1", hidden, true);
    put(self, "attn.c_attn.weight", "", 2, fused,
        (struct tensor_role){.tp_dim = 1, .tp_unit = head_size, .tp_parts = 3});
    put(self, "attn.c_attn.bias", "", 1, fused + 1,
        (struct tensor_role){.tp_dim = 0, .tp_unit = head_size, .tp_parts = 3});
    matrix(self, "attn.c_proj.weight", hidden, hidden, 0, head_size);
    vector(self, "attn.c_proj.bias", hidden, -1);
    norm(self, "ln_2", hidden, true);
    matrix(self, "mlp.c_fc.weight", hidden, shape->ffn, 1, 1);
    vector(self, "mlp.c_fc.bias", shape->ffn, 0);
    matrix(self, "mlp.c_proj.weight", shape->ffn, hidden, 0, 1);
    vector(self, "mlp.c_proj.bias", hidden, -1);
}

static void build_gpt2(struct builder *self, uint32_t layers)
{
    const struct model_shape *shape = self->shape;
    matrix(self, "transformer.wte.weight", shape->vocab, shape->hidden, 0, 1);
    matrix(self, "transformer.wpe.weight", shape->positions, shape->hidden, -1, 1);
    for (uint32_t i = 0; i < layers; i++)
        gpt2_layer(self, (int32_t)i);
    enter(self, MODEL_LAYER_LAST, "%s", "");
    norm(self, "transformer.ln_f", shape->hidden, true);
    if (!shape->tied)
        matrix(self, "lm_head.weight", shape->vocab, shape->hidden, 0, 1);
}

static void build_linear(struct builder *self, uint32_t layers)
{
    for (uint32_t i = 0; i < layers; i++) {
        enter(self, (int32_t)i, "layers.%u", i);
        column_linear(self, "", self->shape->hidden, self->shape->hidden, 1, true);
    }
}

static void build_vit(struct builder *self, uint32_t layers)
{
    const struct model_shape *shape = self->shape;
    uint64_t hidden = shape->hidden, head_size = hidden / shape->heads;
    enter(self, MODEL_LAYER_FIRST, "vit.embeddings.");
    whole(self, "cls_token", 3, (uint64_t[]){1, 1, hidden});
    whole(self, "position_embeddings", 3, (uint64_t[]){1, 197, hidden});
    whole(self, "patch_embeddings.projection.weight", 4, (uint64_t[]){hidden, 3, 16, 16});
    vector(self, "patch_embeddings.projection.bias", hidden, -1);
    for (uint32_t i = 0; i < layers; i++) {
        enter(self, (int32_t)i, "vit.encoder.layer.%u.", i);
        column_linear(self, "attention.attention.query", hidden, hidden, head_size, true);
        column_linear(self, "attention.attention.key", hidden, hidden, head_size, true);
        column_linear(self, "attention.attention.value", hidden, hidden, head_size, true);
        row_linear(self, "attention.output.dense", hidden, hidden, head_size, true);
        column_linear(self, "intermediate.dense", shape->ffn, hidden, 1, true);
        row_linear(self, "output.dense", hidden, shape->ffn, 1, true);
        norm(self, "layernorm_before", hidden, true);
        norm(self, "layernorm_after", hidden, true);
    }
    enter(self, MODEL_LAYER_LAST, "%s", "");
    norm(self, "vit.layernorm", hidden, true);
    column_linear(self, "classifier", shape->classes, hidden, 1, true);
}

static void clip_layers(struct builder *self, const char *tower, uint64_t hidden, uint32_t layers, uint32_t first)
{
    for (uint32_t i = 0; i < layers; i++) {
        enter(self, (int32_t)(first + i), "%s.encoder.layers.%u.", tower, i);
        column_linear(self, "self_attn.k_proj", hidden, hidden, 64, true);
        column_linear(self, "self_attn.v_proj", hidden, hidden, 64, true);
        column_linear(self, "self_attn.q_proj", hidden, hidden, 64, true);
        row_linear(self, "self_attn.out_proj", hidden, hidden, 64, true);
        norm(self, "layer_norm1", hidden, true);
        column_linear(self, "mlp.fc1", 4 * hidden, hidden, 1, true);
        row_linear(self, "mlp.fc2", hidden, 4 * hidden, 1, true);
        norm(self, "layer_norm2", hidden, true);
    }
}

/* CLIP ViT-L/14: a text tower of 12 layers of 768, then a vision tower of 24 layers of 1024. */
static void build_clip(struct builder *self, uint32_t layers)
{
    uint32_t text_layers = layers < 12 ? layers : 12;
    whole(self, "logit_scale", 0, NULL);
    matrix(self, "text_model.embeddings.token_embedding.weight", 49408, 768, 0, 1);
    matrix(self, "text_model.embeddings.position_embedding.weight", 77, 768, -1, 1);
    clip_layers(self, "text_model", 768, text_layers, 0);
    enter(self, (int32_t)text_layers - 1, "%s", "");
    norm(self, "text_model.final_layer_norm", 768, true);
    enter(self, (int32_t)text_layers, "vision_model.");
    vector(self, "embeddings.class_embedding", 1024, -1);
    whole(self, "embeddings.patch_embedding.weight", 4, (uint64_t[]){1024, 3, 14, 14});
    matrix(self, "embeddings.position_embedding.weight", 257, 1024, -1, 1);
    norm(self, "pre_layrnorm", 1024, true);
    clip_layers(self, "vision_model", 1024, layers, text_layers);
    enter(self, MODEL_LAYER_LAST, "%s", "");
    norm(self, "vision_model.post_layernorm", 1024, true);
    matrix(self, "visual_projection.weight", 768, 1024, -1, 1);
    matrix(self, "text_projection.weight", 768, 768, -1, 1);
    self->model->layers = text_layers + layers;
}

/* Part `part` of a block: self-attention or cross-attention, and its norm. */
static void t5_attention(struct builder *self, const char *stack, uint32_t block, int32_t layer, unsigned part)
{
    uint64_t hidden = self->shape->hidden, head_size = self->shape->head_size;
    uint64_t inner = self->shape->heads * head_size;
    enter(self, layer, "%s.block.%u.layer.%u.%s.", stack, block, part, part ? "EncDecAttention" : "SelfAttention");
    matrix(self, "q.weight", inner, hidden, 0, head_size);
    matrix(self, "k.weight", inner, hidden, 0, head_size);
    matrix(self, "v.weight", inner, hidden, 0, head_size);
    matrix(self, "o.weight", hidden, inner, 1, head_size);
    if (part == 0 && block == 0)
        matrix(self, "relative_attention_bias.weight", 32, self->shape->heads, 1, 1);
    enter(self, layer, "%s.block.%u.layer.%u.", stack, block, part);
    norm(self, "layer_norm", hidden, false);
}

/* One block: self-attention, in a decoder cross-attention, and the gated feed-forward layer. */
static void t5_block(struct builder *self, const char *stack, uint32_t block, int32_t layer, bool decoder)
{
    const struct model_shape *shape = self->shape;
    t5_attention(self, stack, block, layer, 0);
    if (decoder)
        t5_attention(self, stack, block, layer, 1);
    enter(self, layer, "%s.block.%u.layer.%d.", stack, block, decoder ? 2 : 1);
    matrix(self, "DenseReluDense.wi_0.weight", shape->ffn, shape->hidden, 0, 1);
    matrix(self, "DenseReluDense.wi_1.weight", shape->ffn, shape->hidden, 0, 1);
    matrix(self, "DenseReluDense.wo.weight", shape->hidden, shape->ffn, 1, 1);
    norm(self, "layer_norm", shape->hidden, false);
}

/* An encoder of `layers` blocks and a decoder of as many: 2 x layers layers in total. */
static void build_t5(struct builder *self, uint32_t layers)
{
    const struct model_shape *shape = self->shape;
    matrix(self, "shared.weight", shape->vocab, shape->hidden, 0, 1);
    for (uint32_t i = 0; i < layers; i++)
        t5_block(self, "encoder", i, (int32_t)i, false);
    enter(self, (int32_t)layers - 1, "%s", "");
    norm(self, "encoder.final_layer_norm", shape->hidden, false);
    for (uint32_t i = 0; i < layers; i++)
        t5_block(self, "decoder", i, (int32_t)(layers + i), true);
    enter(self, MODEL_LAYER_LAST, "%s", "");
    norm(self, "decoder.final_layer_norm", shape->hidden, false);
    matrix(self, "lm_head.weight", shape->vocab, shape->hidden, 0, 1);
    self->model->layers = 2 * layers;
}

int model_build(struct model *self, const struct model_shape *shape, uint64_t layers, struct cb_err *err)
{
    static void (*const build[])(struct builder * self, uint32_t layers) = {
        [FAMILY_LLAMA] = build_llama, [FAMILY_GPT2] = build_gpt2, [FAMILY_LINEAR] = build_linear,
        [FAMILY_VIT] = build_vit,     [FAMILY_CLIP] = build_clip, [FAMILY_T5] = build_t5};
    struct builder builder = {.model = self, .shape = shape, .err = err, .layer = MODEL_LAYER_FIRST, .expert = -1};
    self->layers = layers && layers < shape->layers ? (uint32_t)layers : shape->layers;
    self->heads = shape->heads;
    self->kv_heads = shape->kv_heads ? shape->kv_heads : shape->heads;
    self->experts = shape->experts;
    self->hidden = shape->hidden;
    self->ffn = shape->ffn;
    self->vocab = shape->vocab;
    build[shape->family](&builder, self->layers);
    return builder.code;
}
