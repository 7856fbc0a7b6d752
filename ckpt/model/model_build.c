/* Builds the tensors of each model family from its shape: names and shapes as published by Hugging Face,
 * tensor-parallel dimensions as split by Megatron. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "ckpt/model/model_shape.h"

/* A model under construction: it keeps the first failure, so that families read as lists of tensors. */
struct builder {
    struct model *model;
    const struct model_shape *shape;
    struct cb_err *err;
    int code;
    int32_t layer; /* for the tensors added next */
    int32_t expert;
};

static void put(struct builder *self, struct tensor_role role, uint32_t dims, const uint64_t *shape, const char *format,
                va_list arguments)
{
    if (self->code)
        return;
    char name[256];
    vsnprintf(name, sizeof name, format, arguments);
    role.layer = self->layer;
    role.expert = self->expert;
    self->code = model_add(self->model, role, dims, shape, self->err, "%s", name);
}

/* A matrix of rows x columns; split along tp_dim (-1: replicated) in multiples of `unit`. */
CB_PRINTF(6, 7)
static void matrix(struct builder *self, uint64_t rows, uint64_t columns, int32_t tp_dim, uint64_t unit,
                   const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    put(self, (struct tensor_role){.tp_dim = tp_dim, .tp_unit = unit}, 2, (uint64_t[]){rows, columns}, format,
        arguments);
    va_end(arguments);
}

CB_PRINTF(5, 6)
static void vector(struct builder *self, uint64_t rows, int32_t tp_dim, uint64_t unit, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    put(self, (struct tensor_role){.tp_dim = tp_dim, .tp_unit = unit}, 1, &rows, format, arguments);
    va_end(arguments);
}

/* A tensor of any shape that is never split by tensor parallelism. */
CB_PRINTF(4, 5)
static void whole(struct builder *self, uint32_t dims, const uint64_t *shape, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    put(self, (struct tensor_role){.tp_dim = -1}, dims, shape, format, arguments);
    va_end(arguments);
}

/* A linear layer as torch.nn.Linear stores it ([out, in] and a bias), split along the output. */
static void column_linear(struct builder *self, const char *name, uint64_t out, uint64_t in, uint64_t unit, bool bias)
{
    matrix(self, out, in, 0, unit, "%s.weight", name);
    if (bias)
        vector(self, out, 0, unit, "%s.bias", name);
}

/* The same, split along the input: the bias is replicated. */
static void row_linear(struct builder *self, const char *name, uint64_t out, uint64_t in, uint64_t unit, bool bias)
{
    matrix(self, out, in, 1, unit, "%s.weight", name);
    if (bias)
        vector(self, out, -1, 1, "%s.bias", name);
}

static void norm(struct builder *self, const char *name, uint64_t rows, bool bias)
{
    vector(self, rows, -1, 1, "%s.weight", name);
    if (bias)
        vector(self, rows, -1, 1, "%s.bias", name);
}

static const char *joined(char text[192], const char *prefix, const char *name)
{
    snprintf(text, 192, "%s%s", prefix, name);
    return text;
}

/* Splits are at heads if heads fill the rows; the 1T row of MLPerf has heads of 134, which do not. */
static uint64_t head_unit(uint64_t rows, uint64_t head_size)
{
    return head_size && rows % head_size == 0 ? head_size : 1;
}

static void llama_mixture(struct builder *self, const char *prefix)
{
    const struct model_shape *shape = self->shape;
    matrix(self, shape->experts, shape->hidden, -1, 1, "%sblock_sparse_moe.gate.weight", prefix);
    for (uint32_t e = 0; e < shape->experts; e++) {
        self->expert = (int32_t)e;
        matrix(self, shape->ffn, shape->hidden, 0, 1, "%sblock_sparse_moe.experts.%u.w1.weight", prefix, e);
        matrix(self, shape->hidden, shape->ffn, 1, 1, "%sblock_sparse_moe.experts.%u.w2.weight", prefix, e);
        matrix(self, shape->ffn, shape->hidden, 0, 1, "%sblock_sparse_moe.experts.%u.w3.weight", prefix, e);
    }
    self->expert = -1;
}

static void llama_layer(struct builder *self, int32_t layer)
{
    const struct model_shape *shape = self->shape;
    uint64_t hidden = shape->hidden;
    uint64_t head_size = shape->head_size ? shape->head_size : hidden / shape->heads;
    uint64_t kv = (shape->kv_heads ? shape->kv_heads : shape->heads) * head_size;
    /* Without a given head size, queries are as wide as the hidden state, whatever the number of heads. */
    uint64_t queries = shape->head_size ? shape->heads * head_size : hidden;
    char prefix[64], text[192];
    snprintf(prefix, sizeof prefix, "model.layers.%d.", layer);
    self->layer = layer;
    column_linear(self, joined(text, prefix, "self_attn.q_proj"), queries, hidden, head_unit(queries, head_size),
                  shape->qkv_bias);
    column_linear(self, joined(text, prefix, "self_attn.k_proj"), kv, hidden, head_size, shape->qkv_bias);
    column_linear(self, joined(text, prefix, "self_attn.v_proj"), kv, hidden, head_size, shape->qkv_bias);
    row_linear(self, joined(text, prefix, "self_attn.o_proj"), hidden, queries, head_unit(queries, head_size),
               shape->output_bias);
    if (shape->experts) {
        llama_mixture(self, prefix);
    } else {
        column_linear(self, joined(text, prefix, "mlp.gate_proj"), shape->ffn, hidden, 1, false);
        column_linear(self, joined(text, prefix, "mlp.up_proj"), shape->ffn, hidden, 1, false);
        row_linear(self, joined(text, prefix, "mlp.down_proj"), hidden, shape->ffn, 1, false);
    }
    norm(self, joined(text, prefix, "input_layernorm"), hidden, false);
    norm(self, joined(text, prefix, "post_attention_layernorm"), hidden, false);
}

static void build_llama(struct builder *self, uint32_t layers)
{
    const struct model_shape *shape = self->shape;
    self->layer = MODEL_LAYER_FIRST;
    matrix(self, shape->vocab, shape->hidden, 0, 1, "model.embed_tokens.weight");
    for (uint32_t i = 0; i < layers; i++)
        llama_layer(self, (int32_t)i);
    self->layer = MODEL_LAYER_LAST;
    norm(self, "model.norm", shape->hidden, false);
    if (!shape->tied)
        matrix(self, shape->vocab, shape->hidden, 0, 1, "lm_head.weight");
}

/* GPT-2's linear layers are stored [in, out]. Query, key and value are one fused tensor. */
static void gpt2_layer(struct builder *self, int32_t layer)
{
    const struct model_shape *shape = self->shape;
    uint64_t hidden = shape->hidden, head_size = hidden / shape->heads;
    self->layer = layer;
    char prefix[64], text[192];
    snprintf(prefix, sizeof prefix, "transformer.h.%d.", layer);
    norm(self, joined(text, prefix, "ln_1"), hidden, true);
    struct tensor_role fused = {.layer = layer, .tp_dim = 1, .tp_unit = head_size, .tp_parts = 3, .expert = -1};
    if (!self->code)
        self->code = model_add(self->model, fused, 2, (uint64_t[]){hidden, 3 * hidden}, self->err,
                               "%sattn.c_attn.weight", prefix);
    fused.tp_dim = 0;
    if (!self->code)
        self->code =
            model_add(self->model, fused, 1, (uint64_t[]){3 * hidden}, self->err, "%sattn.c_attn.bias", prefix);
    matrix(self, hidden, hidden, 0, head_size, "%sattn.c_proj.weight", prefix);
    vector(self, hidden, -1, 1, "%sattn.c_proj.bias", prefix);
    norm(self, joined(text, prefix, "ln_2"), hidden, true);
    matrix(self, hidden, shape->ffn, 1, 1, "%smlp.c_fc.weight", prefix);
    vector(self, shape->ffn, 0, 1, "%smlp.c_fc.bias", prefix);
    matrix(self, shape->ffn, hidden, 0, 1, "%smlp.c_proj.weight", prefix);
    vector(self, hidden, -1, 1, "%smlp.c_proj.bias", prefix);
}

static void build_gpt2(struct builder *self, uint32_t layers)
{
    const struct model_shape *shape = self->shape;
    self->layer = MODEL_LAYER_FIRST;
    matrix(self, shape->vocab, shape->hidden, 0, 1, "transformer.wte.weight");
    matrix(self, shape->positions, shape->hidden, -1, 1, "transformer.wpe.weight");
    for (uint32_t i = 0; i < layers; i++)
        gpt2_layer(self, (int32_t)i);
    self->layer = MODEL_LAYER_LAST;
    norm(self, "transformer.ln_f", shape->hidden, true);
    if (!shape->tied)
        matrix(self, shape->vocab, shape->hidden, 0, 1, "lm_head.weight");
}

static void build_linear(struct builder *self, uint32_t layers)
{
    char name[64];
    for (uint32_t i = 0; i < layers; i++) {
        self->layer = (int32_t)i;
        snprintf(name, sizeof name, "layers.%u", i);
        column_linear(self, name, self->shape->hidden, self->shape->hidden, 1, true);
    }
}

static void build_vit(struct builder *self, uint32_t layers)
{
    const struct model_shape *shape = self->shape;
    uint64_t hidden = shape->hidden, head_size = hidden / shape->heads;
    self->layer = MODEL_LAYER_FIRST;
    whole(self, 3, (uint64_t[]){1, 1, hidden}, "vit.embeddings.cls_token");
    whole(self, 3, (uint64_t[]){1, 197, hidden}, "vit.embeddings.position_embeddings");
    whole(self, 4, (uint64_t[]){hidden, 3, 16, 16}, "vit.embeddings.patch_embeddings.projection.weight");
    vector(self, hidden, -1, 1, "vit.embeddings.patch_embeddings.projection.bias");
    for (uint32_t i = 0; i < layers; i++) {
        char prefix[64], text[192];
        snprintf(prefix, sizeof prefix, "vit.encoder.layer.%u.", i);
        self->layer = (int32_t)i;
        column_linear(self, joined(text, prefix, "attention.attention.query"), hidden, hidden, head_size, true);
        column_linear(self, joined(text, prefix, "attention.attention.key"), hidden, hidden, head_size, true);
        column_linear(self, joined(text, prefix, "attention.attention.value"), hidden, hidden, head_size, true);
        row_linear(self, joined(text, prefix, "attention.output.dense"), hidden, hidden, head_size, true);
        column_linear(self, joined(text, prefix, "intermediate.dense"), shape->ffn, hidden, 1, true);
        row_linear(self, joined(text, prefix, "output.dense"), hidden, shape->ffn, 1, true);
        norm(self, joined(text, prefix, "layernorm_before"), hidden, true);
        norm(self, joined(text, prefix, "layernorm_after"), hidden, true);
    }
    self->layer = MODEL_LAYER_LAST;
    norm(self, "vit.layernorm", hidden, true);
    column_linear(self, "classifier", shape->classes, hidden, 1, true);
}

static void clip_layers(struct builder *self, const char *tower, uint64_t hidden, uint64_t head_size, uint32_t layers,
                        uint32_t first)
{
    for (uint32_t i = 0; i < layers; i++) {
        char prefix[64], text[192];
        snprintf(prefix, sizeof prefix, "%s.encoder.layers.%u.", tower, i);
        self->layer = (int32_t)(first + i);
        column_linear(self, joined(text, prefix, "self_attn.k_proj"), hidden, hidden, head_size, true);
        column_linear(self, joined(text, prefix, "self_attn.v_proj"), hidden, hidden, head_size, true);
        column_linear(self, joined(text, prefix, "self_attn.q_proj"), hidden, hidden, head_size, true);
        row_linear(self, joined(text, prefix, "self_attn.out_proj"), hidden, hidden, head_size, true);
        norm(self, joined(text, prefix, "layer_norm1"), hidden, true);
        column_linear(self, joined(text, prefix, "mlp.fc1"), 4 * hidden, hidden, 1, true);
        row_linear(self, joined(text, prefix, "mlp.fc2"), hidden, 4 * hidden, 1, true);
        norm(self, joined(text, prefix, "layer_norm2"), hidden, true);
    }
}

/* CLIP ViT-L/14: a text tower of 12 layers of 768, then a vision tower of 24 layers of 1024. */
static void build_clip(struct builder *self, uint64_t layers)
{
    uint32_t text_layers = layers && layers < 12 ? (uint32_t)layers : 12;
    uint32_t vision_layers = layers && layers < 24 ? (uint32_t)layers : 24;
    self->layer = MODEL_LAYER_FIRST;
    whole(self, 0, NULL, "logit_scale");
    matrix(self, 49408, 768, 0, 1, "text_model.embeddings.token_embedding.weight");
    matrix(self, 77, 768, -1, 1, "text_model.embeddings.position_embedding.weight");
    clip_layers(self, "text_model", 768, 64, text_layers, 0);
    norm(self, "text_model.final_layer_norm", 768, true);
    self->layer = (int32_t)text_layers;
    vector(self, 1024, -1, 1, "vision_model.embeddings.class_embedding");
    whole(self, 4, (uint64_t[]){1024, 3, 14, 14}, "vision_model.embeddings.patch_embedding.weight");
    matrix(self, 257, 1024, -1, 1, "vision_model.embeddings.position_embedding.weight");
    norm(self, "vision_model.pre_layrnorm", 1024, true);
    clip_layers(self, "vision_model", 1024, 64, vision_layers, text_layers);
    self->layer = MODEL_LAYER_LAST;
    norm(self, "vision_model.post_layernorm", 1024, true);
    matrix(self, 768, 1024, -1, 1, "visual_projection.weight");
    matrix(self, 768, 768, -1, 1, "text_projection.weight");
    self->model->layers = text_layers + vision_layers;
    self->model->heads = 4; /* the largest split that both towers' 12 and 16 heads allow */
    self->model->kv_heads = 4;
    self->model->hidden = 1024;
    self->model->ffn = 4096;
    self->model->vocab = 49408;
}

static void t5_attention(struct builder *self, const char *prefix, const char *name)
{
    uint64_t hidden = self->shape->hidden, head_size = self->shape->head_size;
    uint64_t inner = self->shape->heads * head_size;
    matrix(self, inner, hidden, 0, head_size, "%s%s.q.weight", prefix, name);
    matrix(self, inner, hidden, 0, head_size, "%s%s.k.weight", prefix, name);
    matrix(self, inner, hidden, 0, head_size, "%s%s.v.weight", prefix, name);
    matrix(self, hidden, inner, 1, head_size, "%s%s.o.weight", prefix, name);
}

/* One block: self-attention, in a decoder cross-attention, and the gated feed-forward layer. */
static void t5_block(struct builder *self, const char *stack, uint32_t block, int32_t layer, bool decoder)
{
    const struct model_shape *shape = self->shape;
    char prefix[64];
    self->layer = layer;
    snprintf(prefix, sizeof prefix, "%s.block.%u.layer.0.", stack, block);
    t5_attention(self, prefix, "SelfAttention");
    if (block == 0)
        matrix(self, 32, shape->heads, 1, 1, "%sSelfAttention.relative_attention_bias.weight", prefix);
    vector(self, shape->hidden, -1, 1, "%slayer_norm.weight", prefix);
    if (decoder) {
        snprintf(prefix, sizeof prefix, "%s.block.%u.layer.1.", stack, block);
        t5_attention(self, prefix, "EncDecAttention");
        vector(self, shape->hidden, -1, 1, "%slayer_norm.weight", prefix);
    }
    snprintf(prefix, sizeof prefix, "%s.block.%u.layer.%d.", stack, block, decoder ? 2 : 1);
    matrix(self, shape->ffn, shape->hidden, 0, 1, "%sDenseReluDense.wi_0.weight", prefix);
    matrix(self, shape->ffn, shape->hidden, 0, 1, "%sDenseReluDense.wi_1.weight", prefix);
    matrix(self, shape->hidden, shape->ffn, 1, 1, "%sDenseReluDense.wo.weight", prefix);
    vector(self, shape->hidden, -1, 1, "%slayer_norm.weight", prefix);
}

/* An encoder of `layers` blocks and a decoder of as many: 2 x layers layers in total. */
static void build_t5(struct builder *self, uint32_t layers)
{
    const struct model_shape *shape = self->shape;
    self->layer = MODEL_LAYER_FIRST;
    matrix(self, shape->vocab, shape->hidden, 0, 1, "shared.weight");
    for (uint32_t i = 0; i < layers; i++)
        t5_block(self, "encoder", i, (int32_t)i, false);
    vector(self, shape->hidden, -1, 1, "encoder.final_layer_norm.weight");
    for (uint32_t i = 0; i < layers; i++)
        t5_block(self, "decoder", i, (int32_t)(layers + i), true);
    self->layer = MODEL_LAYER_LAST;
    vector(self, shape->hidden, -1, 1, "decoder.final_layer_norm.weight");
    matrix(self, shape->vocab, shape->hidden, 0, 1, "lm_head.weight");
    self->model->layers = 2 * layers;
}

static void describe(struct model *model, const struct model_shape *shape, uint32_t layers)
{
    model->layers = layers;
    model->heads = shape->heads;
    model->kv_heads = shape->kv_heads ? shape->kv_heads : shape->heads;
    model->experts = shape->experts;
    model->hidden = shape->hidden;
    model->ffn = shape->ffn;
    model->vocab = shape->vocab;
}

int model_build(struct model *self, const struct model_shape *shape, uint64_t layers, struct cb_err *err)
{
    uint32_t kept = layers && layers < shape->layers ? (uint32_t)layers : shape->layers;
    struct builder builder = {.model = self, .shape = shape, .err = err, .expert = -1};
    describe(self, shape, kept);
    switch (shape->family) {
    case FAMILY_LLAMA:
        build_llama(&builder, kept);
        break;
    case FAMILY_GPT2:
        build_gpt2(&builder, kept);
        break;
    case FAMILY_LINEAR:
        build_linear(&builder, kept);
        break;
    case FAMILY_VIT:
        build_vit(&builder, kept);
        break;
    case FAMILY_CLIP:
        build_clip(&builder, layers);
        break;
    case FAMILY_T5:
        build_t5(&builder, kept);
        break;
    }
    return builder.code;
}
