/* Models from stored checkpoints: names, shapes and types.
 *
 * A checkpoint lacks layers and tensor-parallel dimensions, so they are derived from names, using the public names of
 * Llama, Mixtral and GPT-2. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/format/format_ops.h"
#include "ckpt/model/model_shape.h"
#include "ckpt/stored/read_metadata.h"

#define MAX_LAYER 9999

/* --- properties from names --- */

/* The first part of the name that is a number: "model.layers.12.mlp.w" belongs to layer 12. */
static bool find_number(const char *fqn, uint64_t *number)
{
    for (const char *at = fqn; at; at = strchr(at, '.')) {
        at += *at == '.';
        size_t digits = strspn(at, "0123456789");
        if (digits > 0 && digits < 5 && (at[digits] == '.' || at[digits] == '\0')) {
            *number = strtoull(at, NULL, 10);
            return true;
        }
    }
    return false;
}

static bool has_any(const char *fqn, const char *const *words)
{
    for (size_t i = 0; words[i]; i++) {
        if (strstr(fqn, words[i]))
            return true;
    }
    return false;
}

/* Properties derived from a name: the layer (the first number in it), and the dimension that tensor parallelism
 * splits: as in Llama and GPT-2 if the name is one of theirs, else the first of two or more. */
static struct tensor_role guess_role(const char *fqn, uint32_t dims)
{
    static const char *const last[] = {"lm_head", "output.weight", "final", "ln_f", "model.norm", NULL};
    static const char *const columns[] = {
        "o_proj",        "down_proj",  ".w2.",          "wo.weight",   "attention.dense.",
        "dense_4h_to_h", "fc2.weight", "c_attn.weight", "c_fc.weight", NULL};
    struct tensor_role role = {.layer = MODEL_LAYER_FIRST, .tp_dim = -1, .expert = -1};
    uint64_t number;
    if (find_number(fqn, &number) && number <= MAX_LAYER)
        role.layer = (int32_t)number;
    else if (has_any(fqn, last))
        role.layer = MODEL_LAYER_LAST;
    if (dims >= 2)
        role.tp_dim = has_any(fqn, columns) ? 1 : 0;
    return role;
}

/* --- from a checkpoint to a model --- */

static bool begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

/* A training state contains an optimizer besides the model, or is DCP with everything under "model."; in safetensors
 * of published models that prefix may be part of the names. */
static bool is_training_state(const struct stored_checkpoint *checkpoint)
{
    size_t models = 0, tensors = 0;
    for (size_t i = 0; i < checkpoint->tensor_count; i++) {
        const char *fqn = checkpoint->tensors[i].fqn;
        if (begins(fqn, "optimizer.") || begins(fqn, "optim."))
            return true;
        tensors += !checkpoint->tensors[i].is_bytes;
        models += !checkpoint->tensors[i].is_bytes && begins(fqn, "model.");
    }
    return models == tensors && format_ops_of(checkpoint->format)->keeps_objects;
}

int model_read_stored(struct model *self, const struct stored_checkpoint *checkpoint, bool whole,
                      const struct model_choice *choice, struct cb_err *err)
{
    bool stripped = !whole && is_training_state(checkpoint);
    int code = 0;
    self->verbatim = whole;
    for (size_t i = 0; i < checkpoint->tensor_count && !code; i++) {
        const struct stored_tensor *tensor = &checkpoint->tensors[i];
        if (tensor->is_bytes || (stripped && !begins(tensor->fqn, "model.")))
            continue;
        const char *name = tensor->fqn + (stripped ? strlen("model.") : 0);
        code = model_add_chosen(self, choice, guess_role(name, tensor->dims), tensor->dtype, tensor->dims,
                                tensor->shape, name, err);
    }
    if (!code && self->count == 0 && !whole)
        code = cb_fail(err, CB_ERR_USAGE, "model=%s: the checkpoint has no tensors of a model", self->name);
    return code;
}

static int split_path(const char *path, bool is_folder, char folder[4096], const char **file, struct cb_err *err)
{
    const char *slash = is_folder ? NULL : strrchr(path, '/');
    size_t len = is_folder ? strlen(path) : slash ? (size_t)(slash - path) : 1;
    *file = is_folder ? "" : slash ? slash + 1 : path;
    if (len >= 4096)
        return cb_fail(err, CB_ERR_USAGE, "model=%.60s…: the path is too long", path);
    memcpy(folder, is_folder || slash ? path : ".", len);
    folder[len] = '\0';
    if (len == 0)
        memcpy(folder, "/", 2);
    if (strstr(*file, ".index.json"))
        *file = "";
    return 0;
}

int model_read_path(struct model *self, const char *path, bool is_folder, const struct model_choice *choice,
                    struct cb_err *err)
{
    char folder[4096];
    const char *file;
    struct store_options options = {.direct = STORE_DIRECT_NO, .depth = 1, .in_caller = true, .read_only = true};
    struct store *store;
    struct stored_checkpoint *checkpoint = NULL;
    int code = split_path(path, is_folder, folder, &file, err);
    if (!code)
        code = store_open(folder, &options, &store, err);
    if (code)
        return cb_context(err, "model=%s", path);
    code = *file ? metadata_read_file(store, file, &checkpoint, err)
                 : metadata_read_checkpoint(store, "", &checkpoint, err);
    store_free(store);
    if (code)
        return cb_context(err, "model=%s: neither a config.json nor a checkpoint", path);
    self->default_state = "weights";
    code = model_read_stored(self, checkpoint, false, choice, err);
    stored_checkpoint_free(checkpoint);
    return code;
}
