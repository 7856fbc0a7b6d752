/* Parses Hugging Face config.json files (llama, gpt2, mixtral, qwen2) into shapes. */
#include <string.h>

#include "ckpt/model/model_shape.h"
#include "core/json.h"

#define CONFIG_MAX_BYTES (1u << 20)
#define CONFIG_MAX_NUMBER (UINT64_C(1) << 28)

struct config {
    const struct json_value *root;
    const char *path;
    struct cb_err *err;
    int code; /* the first failure is kept */
};

static uint64_t number(struct config *self, const char *key, uint64_t max)
{
    if (self->code)
        return 0;
    uint64_t value = 0;
    self->code = json_need_u64(self->root, key, &value, self->err);
    if (self->code)
        self->code = cb_context(self->err, "%s", self->path);
    else if (value == 0 || value > max)
        self->code = cb_fail(self->err, CB_ERR_FORMAT, "%s: %s is %llu; it must be from 1 to %llu", self->path, key,
                             (unsigned long long)value, (unsigned long long)max);
    return self->code ? 0 : value;
}

static uint64_t number_or(struct config *self, const char *key, uint64_t max, uint64_t fallback)
{
    const struct json_value *value = json_get(self->root, key);
    return !value || json_is_null(value) ? fallback : number(self, key, max);
}

static bool flag_or(const struct config *self, const char *key, bool fallback)
{
    bool value;
    return json_as_bool(json_get(self->root, key), &value) ? value : fallback;
}

static void read_llama(struct config *self, struct model_shape *shape)
{
    shape->family = FAMILY_LLAMA;
    shape->hidden = number(self, "hidden_size", CONFIG_MAX_NUMBER);
    shape->ffn = number(self, "intermediate_size", CONFIG_MAX_NUMBER);
    shape->layers = (uint32_t)number(self, "num_hidden_layers", 10000);
    shape->heads = (uint32_t)number(self, "num_attention_heads", 1000000);
    shape->kv_heads = (uint32_t)number_or(self, "num_key_value_heads", 1000000, shape->heads);
    shape->head_size = number_or(self, "head_dim", CONFIG_MAX_NUMBER, 0);
    shape->vocab = number(self, "vocab_size", CONFIG_MAX_NUMBER);
    shape->tied = flag_or(self, "tie_word_embeddings", false);
    shape->qkv_bias = shape->output_bias = flag_or(self, "attention_bias", false);
}

static void read_gpt2(struct config *self, struct model_shape *shape)
{
    shape->family = FAMILY_GPT2;
    shape->hidden = number(self, "n_embd", CONFIG_MAX_NUMBER);
    shape->ffn = number_or(self, "n_inner", CONFIG_MAX_NUMBER, 4 * shape->hidden);
    shape->layers = (uint32_t)number(self, "n_layer", 10000);
    shape->heads = (uint32_t)number(self, "n_head", 1000000);
    shape->vocab = number(self, "vocab_size", CONFIG_MAX_NUMBER);
    shape->positions = number(self, "n_positions", CONFIG_MAX_NUMBER);
    shape->tied = flag_or(self, "tie_word_embeddings", true);
}

static void read_family(struct config *self, struct model_shape *shape)
{
    const char *type;
    self->code = json_need_text(self->root, "model_type", &type, self->err);
    if (self->code) {
        self->code = cb_context(self->err, "%s", self->path);
    } else if (strcmp(type, "llama") == 0) {
        read_llama(self, shape);
    } else if (strcmp(type, "gpt2") == 0) {
        read_gpt2(self, shape);
    } else if (strcmp(type, "mixtral") == 0) {
        read_llama(self, shape);
        shape->experts = (uint32_t)number(self, "num_local_experts", 100000);
    } else if (strcmp(type, "qwen2") == 0) {
        read_llama(self, shape);
        shape->qkv_bias = true;
        shape->output_bias = false;
    } else {
        self->code = cb_fail(self->err, CB_ERR_USAGE,
                             "%s: model_type \"%s\" is not one of llama, gpt2, mixtral, qwen2; give the tensors as a "
                             "YAML list of name, shape, dtype instead",
                             self->path, type);
    }
}

static int check_shape(const char *path, const struct model_shape *shape, struct cb_err *err)
{
    if (!shape->head_size && shape->hidden % shape->heads != 0)
        return cb_fail(err, CB_ERR_FORMAT, "%s: %u attention heads do not divide the hidden size %llu", path,
                       shape->heads, (unsigned long long)shape->hidden);
    if (shape->kv_heads && shape->heads % shape->kv_heads != 0)
        return cb_fail(err, CB_ERR_FORMAT, "%s: %u key-value heads do not divide the %u attention heads", path,
                       shape->kv_heads, shape->heads);
    return 0;
}

int model_read_config(struct model *self, const char *path, const struct model_choice *choice, struct cb_err *err)
{
    struct json_value *root = NULL;
    int code = json_parse_file(path, CONFIG_MAX_BYTES, &root, err);
    if (code)
        return code;
    struct config config = {.root = root, .path = path, .err = err};
    struct model_shape shape = {0};
    enum dtype found = DTYPE_BF16; /* if the file has no type, or a type that weights cannot have */
    const char *name;
    read_family(&config, &shape);
    code = config.code ? config.code : check_shape(path, &shape, err);
    if (!code && (json_as_text(json_get(root, "torch_dtype"), &name) || json_as_text(json_get(root, "dtype"), &name)) &&
        !dtype_find(name, &found))
        code = cb_fail(err, CB_ERR_FORMAT, "%s: torch_dtype \"%s\" is not known", path, name);
    if (!code) {
        self->dtype = choice->dtype ? *choice->dtype : found;
        code = model_build(self, &shape, choice->layers, err);
    }
    json_value_free(root);
    return code;
}
