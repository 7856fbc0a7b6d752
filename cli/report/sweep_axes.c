/* Finds the keys in which experiments differ, except keys that follow from others. */
#include "cli/report/sweep_axes.h"

#include "core/alloc.h"
#include "run/workload_kind.h"

#include <stdio.h>
#include <string.h>

#define TEXT_MAX_BYTES (1u << 16)

/* Keys that planning sets, and the keys that determine them; OPTION_COUNT: any key. */
static const struct {
    enum option_id key, from[2];
} frozen[] = {
    {OPT_DP, {OPTION_COUNT, OPTION_COUNT}},
    {OPT_RANKS, {OPT_NODES, OPT_RANKS_PER_NODE}},
};

const char *sweep_axes_value(const struct experiment *experiment, const char *key)
{
    enum option_id id;
    if (option_find(key, &id, NULL) == 0)
        return experiment_text(experiment, id);
    for (size_t i = 0; i < experiment_label_count(experiment); i++)
        if (strcmp(experiment_label_key(experiment, i), key + strlen("label.")) == 0)
            return experiment_label_value(experiment, i);
    return "";
}

void sweep_axes_release(struct sweep_axes *self)
{
    alloc_free_texts(self->keys, self->count);
    *self = (struct sweep_axes){0};
}

static int add_key(struct sweep_axes *self, const char *key, struct cb_err *err)
{
    return alloc_add_text(&self->keys, &self->count, key, strlen(key), err);
}

int sweep_axes_copy(struct sweep_axes *self, char *const *keys, size_t count, struct cb_err *err)
{
    int rc = 0;
    *self = (struct sweep_axes){0};
    for (size_t i = 0; i < count && rc == 0; i++)
        rc = add_key(self, keys[i], err);
    return rc;
}

bool sweep_axes_differ(const struct experiment *const *experiments, size_t count, const char *key)
{
    for (size_t i = 1; i < count; i++)
        if (strcmp(sweep_axes_value(experiments[0], key), sweep_axes_value(experiments[i], key)) != 0)
            return true;
    return false;
}

static bool has_key(const struct experiment *experiment, enum option_id id)
{
    return workload_has_key(experiment, id) && experiment_uses(experiment, id);
}

/* Whether the experiments that use the key have several values of it. */
static bool option_differs(const struct experiment *const *experiments, size_t count, enum option_id id)
{
    const char *first = NULL;
    for (size_t i = 0; i < count; i++) {
        const char *value = experiment_text(experiments[i], id);
        if (!has_key(experiments[i], id))
            continue;
        if (first && strcmp(first, value) != 0)
            return true;
        first = first ? first : value;
    }
    return false;
}

bool sweep_axes_has(const struct sweep_axes *self, const char *key)
{
    for (size_t i = 0; i < self->count; i++)
        if (strcmp(self->keys[i], key) == 0)
            return true;
    return false;
}

static int find_labels(struct sweep_axes *self, const struct experiment *const *experiments, size_t count,
                       struct cb_err *err)
{
    char key[256];
    int rc = 0;
    for (size_t i = 0; i < count; i++) {
        for (size_t k = 0; k < experiment_label_count(experiments[i]) && rc == 0; k++) {
            snprintf(key, sizeof key, "label.%s", experiment_label_key(experiments[i], k));
            if (!sweep_axes_has(self, key) && sweep_axes_differ(experiments, count, key))
                rc = add_key(self, key, err);
        }
    }
    return rc;
}

/* ---- keys that follow from others ---- */

/* The values of one experiment: of one key, and of the keys that may determine it. */
struct reading {
    char *others; /* owned */
    const char *value;
};

static int compare_readings(const void *a, const void *b)
{
    return strcmp(((const struct reading *)a)->others, ((const struct reading *)b)->others);
}

static bool counts_for(const char *key, size_t rule)
{
    if (strcmp(key, option_row(frozen[rule].key)->name) == 0)
        return false;
    if (frozen[rule].from[0] == OPTION_COUNT)
        return true;
    for (size_t i = 0; i < 2; i++)
        if (strcmp(key, option_row(frozen[rule].from[i])->name) == 0)
            return true;
    return false;
}

static char *read_others(const struct sweep_axes *self, const struct experiment *experiment, size_t rule)
{
    struct buf text;
    buf_init(&text, TEXT_MAX_BYTES);
    for (size_t i = 0; i < self->count; i++)
        if (counts_for(self->keys[i], rule))
            buf_printf(&text, "%s\n", sweep_axes_value(experiment, self->keys[i]));
    return buf_take(&text);
}

/* Whether experiments that agree in the other keys also agree in this key. */
static int follows(const struct sweep_axes *self, const struct experiment *const *experiments, size_t count,
                   size_t rule, bool *does, struct cb_err *err)
{
    const char *key = option_row(frozen[rule].key)->name;
    struct reading *readings = calloc(count + 1, sizeof *readings);
    int rc = readings ? 0 : alloc_fail(err, "for the keys of a sweep");
    for (size_t i = 0; i < count && rc == 0; i++) {
        readings[i] = (struct reading){read_others(self, experiments[i], rule), sweep_axes_value(experiments[i], key)};
        if (!readings[i].others)
            rc = alloc_fail(err, "for the keys of a sweep");
    }
    if (rc == 0) {
        qsort(readings, count, sizeof *readings, compare_readings);
        *does = true;
    }
    for (size_t i = 1; i < count && rc == 0 && *does; i++)
        *does = strcmp(readings[i - 1].others, readings[i].others) != 0 ||
                strcmp(readings[i - 1].value, readings[i].value) == 0;
    for (size_t i = 0; readings && i < count; i++)
        free(readings[i].others);
    free(readings);
    return rc;
}

static int drop_frozen(struct sweep_axes *self, const struct experiment *const *experiments, size_t count,
                       struct cb_err *err)
{
    int rc = 0;
    for (size_t rule = 0; rule < sizeof frozen / sizeof *frozen && rc == 0; rule++) {
        size_t at = 0;
        bool does = false;
        while (at < self->count && strcmp(self->keys[at], option_row(frozen[rule].key)->name) != 0)
            at++;
        if (at < self->count)
            rc = follows(self, experiments, count, rule, &does, err);
        if (!does)
            continue;
        free(self->keys[at]);
        self->count--;
        memmove(self->keys + at, self->keys + at + 1, (self->count - at) * sizeof *self->keys);
    }
    return rc;
}

int sweep_axes_find(struct sweep_axes *self, const struct experiment *const *experiments, size_t count, bool identity,
                    struct cb_err *err)
{
    int rc = 0;
    *self = (struct sweep_axes){0};
    for (int i = 0; i < OPTION_COUNT && rc == 0; i++) {
        const struct option *row = option_row((enum option_id)i);
        if ((!identity || row->class == OPTION_IDENTITY) && option_differs(experiments, count, (enum option_id)i))
            rc = add_key(self, row->name, err);
    }
    if (rc == 0 && !identity)
        rc = find_labels(self, experiments, count, err);
    return rc ? rc : drop_frozen(self, experiments, count, err);
}

/* ---- as text ---- */

/* What has no command is done by this program, or by one that uses libckptbench. */
static bool says_something(const struct experiment *experiment, enum option_id id, const char *value)
{
    return has_key(experiment, id) && (id != OPT_COMMAND || *value);
}

void sweep_axes_describe(const struct sweep_axes *self, const struct experiment *experiment, struct buf *out)
{
    enum option_id id;
    bool any = false;
    for (size_t i = 0; i < self->count; i++) {
        const char *value = sweep_axes_value(experiment, self->keys[i]);
        if (option_find(self->keys[i], &id, NULL) == 0 && !says_something(experiment, id, value))
            continue;
        buf_printf(out, "%s%s=%s", any ? " " : "", self->keys[i], value);
        any = true;
    }
}

size_t sweep_axes_count_values(const struct experiment *const *experiments, size_t count, const char *key)
{
    size_t values = 0;
    for (size_t i = 0; i < count; i++) {
        size_t before = 0;
        while (before < i &&
               strcmp(sweep_axes_value(experiments[i], key), sweep_axes_value(experiments[before], key)) != 0)
            before++;
        values += before == i;
    }
    return values;
}
