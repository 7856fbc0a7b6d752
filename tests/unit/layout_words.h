/* For tests: a model, an experiment and a layout from key=value words. */
#ifndef TESTS_LAYOUT_WORDS_H
#define TESTS_LAYOUT_WORDS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "setup/checkpoint_options.h"

struct words {
    struct model *model;
    struct experiment *experiment;
    struct layout *layout;
};

/* 0, or why: "model=gpt2 tp=2 dp=2". Whatever was made is freed by words_release. */
static inline int words_make(struct words *self, const char *text, struct cb_err *err)
{
    *self = (struct words){0};
    char copy[512];
    snprintf(copy, sizeof copy, "%s", text);
    int code = experiment_new(&self->experiment, err);
    char *save = NULL;
    for (char *word = strtok_r(copy, " ", &save); word && !code; word = strtok_r(NULL, " ", &save)) {
        char *equals = strchr(word, '=');
        *equals = '\0';
        code = experiment_set(self->experiment, word, equals + 1, "test", err);
    }
    if (!code) {
        enum dtype dtype;
        bool given = dtype_find(experiment_text(self->experiment, OPT_DTYPE), &dtype);
        code = model_load(experiment_text(self->experiment, OPT_MODEL), experiment_u64(self->experiment, OPT_LAYERS),
                          given ? &dtype : NULL, &self->model, err);
    }
    if (code)
        return code;
    const struct layout_options options = layout_options_of(self->experiment);
    return layout_new(self->model, &options, &self->layout, err);
}

static inline void words_release(struct words *self)
{
    layout_free(self->layout);
    model_free(self->model);
    experiment_free(self->experiment);
}

#endif
