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

/* Prefixes in the states of trainings. Lightning numbers its optimizers: "optimizer_0.". */
static bool is_of_optimizer(const char *fqn)
{
    static const char numbered[] = "optimizer_";
    const char *number = fqn + strlen(numbered);
    if (begins(fqn, numbered))
        return isdigit((unsigned char)*number) && number[strspn(number, "0123456789")] == '.';
    return begins(fqn, "optimizer.") || begins(fqn, "optim.");
}

/* What torchtitan keeps besides model and optimizer. */
static bool is_of_loop(const char *fqn)
{
    return begins(fqn, "train_state.") || begins(fqn, "lr_scheduler.") || begins(fqn, "dataloader.");
}

/* The prefix of a model's tensors: "model." in our states, HF Trainer's and Lightning's with FSDP1, "state_dict." in
 * Lightning's with FSDP2, none in torchtitan's. */
static const char *find_model_prefix(const struct stored_checkpoint *checkpoint)
{
    static const char *const prefixes[] = {"model.", "state_dict."};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        for (size_t k = 0; k < checkpoint->tensor_count; k++) {
            if (!checkpoint->tensors[k].is_bytes && begins(checkpoint->tensors[k].fqn, prefixes[i]))
                return prefixes[i];
        }
    }
    return "";
}

/* A training state contains an optimizer besides the model, or is DCP with everything under the model's prefix; in
 * safetensors of published models that prefix may be part of the names. */
static bool is_training_state(const struct stored_checkpoint *checkpoint, const char *prefix)
{
    bool all = *prefix && format_ops_of(checkpoint->format)->keeps_objects;
    for (size_t i = 0; i < checkpoint->tensor_count; i++) {
        const struct stored_tensor *tensor = &checkpoint->tensors[i];
        if (is_of_optimizer(tensor->fqn))
            return true;
        all = all && (tensor->is_bytes || begins(tensor->fqn, prefix));
    }
    return all;
}

int model_read_stored(struct model *self, const struct stored_checkpoint *checkpoint, bool whole,
                      const struct model_choice *choice, struct cb_err *err)
{
    const char *prefix = find_model_prefix(checkpoint);
    bool stripped = !whole && is_training_state(checkpoint, prefix);
    int code = 0;
    self->verbatim = whole;
    for (size_t i = 0; i < checkpoint->tensor_count && !code; i++) {
        const struct stored_tensor *tensor = &checkpoint->tensors[i];
        if (tensor->is_bytes ||
            (stripped && (!begins(tensor->fqn, prefix) || is_of_optimizer(tensor->fqn) || is_of_loop(tensor->fqn))))
            continue;
        const char *name = tensor->fqn + (stripped ? strlen(prefix) : 0);
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
