/* Finds a model: presets by name, files and folders by path. */
#include <assert.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/model/model_shape.h"
#include "core/alloc.h"
#include "core/nearest_word.h"
#include "core/path.h"

static bool has_suffix(const char *text, const char *suffix)
{
    size_t len = strlen(text), suffix_len = strlen(suffix);
    return len >= suffix_len && strcmp(text + len - suffix_len, suffix) == 0;
}

static int fail_unknown(const char *source, struct cb_err *err)
{
    const char *names[256];
    size_t count = model_preset_count();
    assert(count <= sizeof names / sizeof *names);
    for (size_t i = 0; i < count; i++)
        names[i] = model_preset_name(i);
    const char *nearest = nearest_word(source, names, count);
    if (nearest)
        return cb_fail(err, CB_ERR_USAGE, "model=%s is neither a preset nor a file; did you mean %s?", source, nearest);
    return cb_fail(err, CB_ERR_USAGE, "model=%s is neither a preset nor a file; `ckptbench models` lists the presets",
                   source);
}

static int build_file(struct model *self, const char *source, const struct model_choice *choice, struct cb_err *err)
{
    struct stat status;
    if (stat(source, &status) != 0)
        return fail_unknown(source, err);
    self->default_state = "weights+adam";
    if (S_ISDIR(status.st_mode)) {
        char path[PATH_MAX];
        int rc = path_format(path, sizeof path, err, "%s/config.json", source);
        if (rc)
            return cb_context(err, "model=%.60s…", source);
        return access(path, F_OK) == 0 ? model_read_config(self, path, choice, err)
                                       : model_read_path(self, source, true, choice, err);
    }
    if (has_suffix(source, ".safetensors") || has_suffix(source, ".safetensors.index.json"))
        return model_read_path(self, source, false, choice, err);
    if (has_suffix(source, ".json"))
        return model_read_config(self, source, choice, err);
    if (has_suffix(source, ".yaml") || has_suffix(source, ".yml"))
        return model_read_list(self, source, choice, err);
    return cb_fail(
        err, CB_ERR_USAGE,
        "model=%s: a model file is an HF config.json (.json), a safetensors file or index, or a list of name, shape, "
        "dtype (.yaml)",
        source);
}

int model_load(const char *source, uint64_t layers, const enum dtype *dtype, struct model **model, struct cb_err *err)
{
    const struct model_choice choice = {layers, dtype};
    int code;
    struct model *self = calloc(1, sizeof *self);
    if (self)
        self->name = strdup(source);
    if (!self || !self->name) {
        code = alloc_fail(err, "for model %s", source);
        goto out;
    }
    const struct model_preset *preset = model_preset_find(source);
    if (preset) {
        self->dtype = dtype ? *dtype : preset->dtype;
        self->default_state = preset->state;
        self->mlperf_tp = preset->mlperf_tp;
        self->mlperf_pp = preset->mlperf_pp;
        self->mlperf_dp = preset->mlperf_dp;
        self->mlperf_zero = preset->mlperf_zero;
        code = model_build(self, &preset->shape, layers, err);
    } else {
        code = build_file(self, source, &choice, err);
    }
    if (code)
        goto out;
    *model = self;
    self = NULL;
out:
    model_free(self);
    return code;
}
