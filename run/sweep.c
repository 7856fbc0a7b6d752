/* Sweeps: from settings with several values to the experiments to run, in order. */
#include "run/sweep.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "core/alloc.h"
#include "core/units.h"
#include "run/workload_kind.h"

#define ZIP_KEY "zip"
#define WORKLOAD_KEY "workload"

/* Keys that vary together: one key, or the keys of a zip. */
struct dimension {
    const struct setting **keys; /* owned array of borrowed settings */
    size_t key_count;
    size_t value_count;
    size_t stride; /* number of combinations from one value to the next */
};

struct expansion {
    const struct setting **settings; /* the effective setting of each key, in the order first given */
    size_t setting_count;
    struct dimension *dimensions;
    size_t dimension_count;
    size_t combinations;
    uint64_t repeat;
    struct experiment *base; /* the settings that do not vary */
};

static int no_memory(struct cb_err *err)
{
    return alloc_fail(err, "for a sweep");
}

static void expansion_release(struct expansion *self)
{
    for (size_t i = 0; i < self->dimension_count; i++)
        free(self->dimensions[i].keys);
    free(self->dimensions);
    free(self->settings);
    experiment_free(self->base);
}

static size_t setting_index(const struct expansion *self, const char *key)
{
    size_t index = 0;
    while (index < self->setting_count && strcmp(self->settings[index]->key, key) != 0)
        index++;
    return index;
}

/* A repeated key replaces the earlier value, so the command line, which comes last, wins. */
static int resolve_settings(struct expansion *self, const struct setting_list *list, struct cb_err *err)
{
    self->settings = calloc(list->count + 1, sizeof(const struct setting *));
    self->dimensions = calloc(list->count + 1, sizeof *self->dimensions);
    if (!self->settings || !self->dimensions)
        return no_memory(err);
    for (size_t i = 0; i < list->count; i++) {
        if (strcmp(list->items[i].key, ZIP_KEY) == 0)
            continue;
        size_t index = setting_index(self, list->items[i].key);
        self->settings[index] = &list->items[i];
        if (index == self->setting_count)
            self->setting_count++;
    }
    return 0;
}

static const struct dimension *dimension_of(const struct expansion *self, const struct setting *setting)
{
    for (size_t i = 0; i < self->dimension_count; i++)
        for (size_t j = 0; j < self->dimensions[i].key_count; j++)
            if (self->dimensions[i].keys[j] == setting)
                return &self->dimensions[i];
    return NULL;
}

static int add_zip_key(struct expansion *self, struct dimension *group, const struct setting *zip, const char *key,
                       struct cb_err *err)
{
    size_t index = setting_index(self, key);
    if (index == self->setting_count)
        return cb_fail(err, CB_ERR_USAGE, "%s: zip names '%s', which has no values here", zip->origin, key);
    const struct setting *setting = self->settings[index];
    if (dimension_of(self, setting))
        return cb_fail(err, CB_ERR_USAGE, "%s: zip names '%s' twice", zip->origin, key);
    if (group->key_count && setting->value_count != group->value_count)
        return cb_fail(err, CB_ERR_USAGE, "%s: zip walks keys together, but %s has %zu values and %s has %zu",
                       zip->origin, zip->values[0], group->value_count, key, setting->value_count);
    group->value_count = setting->value_count;
    group->keys[group->key_count++] = setting;
    return 0;
}

static int add_zip(struct expansion *self, const struct setting *zip, struct cb_err *err)
{
    struct dimension *group = &self->dimensions[self->dimension_count];
    group->keys = calloc(zip->value_count, sizeof(const struct setting *));
    if (!group->keys)
        return no_memory(err);
    self->dimension_count++; /* counted before anything fails, so that expansion_release frees it */
    if (zip->value_count < 2)
        return cb_fail(err, CB_ERR_USAGE, "%s: zip needs two keys or more", zip->origin);
    for (size_t i = 0; i < zip->value_count; i++) {
        int rc = add_zip_key(self, group, zip, zip->values[i], err);
        if (rc)
            return rc;
    }
    return 0;
}

static int add_single(struct expansion *self, const struct setting *setting, struct cb_err *err)
{
    struct dimension *dimension = &self->dimensions[self->dimension_count];
    dimension->keys = calloc(1, sizeof(const struct setting *));
    if (!dimension->keys)
        return no_memory(err);
    dimension->keys[0] = setting;
    dimension->key_count = 1;
    dimension->value_count = setting->value_count;
    self->dimension_count++;
    return 0;
}

/* A dimension takes the position of its first key. */
static void sort_dimensions(struct expansion *self)
{
    struct dimension sorted;
    size_t done = 0;
    for (size_t i = 0; i < self->setting_count; i++) {
        const struct dimension *found = dimension_of(self, self->settings[i]);
        size_t index = found ? (size_t)(found - self->dimensions) : 0;
        if (!found || index < done)
            continue;
        sorted = *found;
        memmove(self->dimensions + done + 1, self->dimensions + done, (index - done) * sizeof sorted);
        self->dimensions[done++] = sorted;
    }
}

static int find_dimensions(struct expansion *self, const struct setting_list *list, struct cb_err *err)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < list->count; i++)
        if (strcmp(list->items[i].key, ZIP_KEY) == 0)
            rc = add_zip(self, &list->items[i], err);
    for (size_t i = 0; rc == 0 && i < self->setting_count; i++)
        if (self->settings[i]->value_count > 1 && !dimension_of(self, self->settings[i]))
            rc = add_single(self, self->settings[i], err);
    if (rc)
        return rc;
    sort_dimensions(self);
    self->combinations = 1;
    for (size_t i = self->dimension_count; i-- > 0;) { /* the last dimension varies fastest */
        self->dimensions[i].stride = self->combinations;
        self->combinations *= self->dimensions[i].value_count;
        if (self->combinations > SWEEP_MAX_MEMBERS)
            return cb_fail(err, CB_ERR_USAGE, "a sweep of more than %d runs", SWEEP_MAX_MEMBERS);
    }
    return 0;
}

/* Zipped keys may repeat a value (tp=1,4,1), but not the same combination. */
static int check_columns(const struct dimension *group, struct cb_err *err)
{
    for (size_t i = 0; i < group->value_count && group->value_count <= 1000; i++)
        for (size_t j = 0; j < i; j++) {
            size_t same = 0;
            while (same < group->key_count && strcmp(group->keys[same]->values[i], group->keys[same]->values[j]) == 0)
                same++;
            if (same == group->key_count)
                return cb_fail(
                    err, CB_ERR_USAGE,
                    "%s: the zipped keys have the values number %zu and %zu alike; repeat=n repeats whole runs",
                    group->keys[0]->origin, j + 1, i + 1);
        }
    return 0;
}

/* Checks every value, with its origin, and rejects duplicates: comparing a value with itself has no meaning. */
static int check_values(const struct setting *setting, bool may_repeat, struct cb_err *err)
{
    enum option_id id;
    if (strncmp(setting->key, "label.", 6) == 0 || option_find(setting->key, &id, NULL))
        return 0; /* setting it later reports an unknown key */
    struct option_value *values = calloc(setting->value_count, sizeof *values);
    if (!values)
        return no_memory(err);
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < setting->value_count; i++) {
        rc = option_parse(id, setting->values[i], &values[i], err);
        if (rc && err)
            cb_context(err, "%s", setting->origin);
        for (size_t j = 0; rc == 0 && !may_repeat && j < i && setting->value_count <= 1000; j++)
            if (strcmp(values[j].text, values[i].text) == 0)
                rc = cb_fail(err, CB_ERR_USAGE, "%s: %s has the value %s twice; repeat=n repeats whole runs",
                             setting->origin, setting->key, values[i].text);
    }
    for (size_t i = 0; i < setting->value_count; i++)
        option_value_release(&values[i]);
    free(values);
    return rc;
}

static int make_base(struct expansion *self, struct cb_err *err)
{
    int rc = experiment_new(&self->base, err);
    for (size_t i = 0; rc == 0 && i < self->setting_count; i++) {
        const struct setting *setting = self->settings[i];
        rc = experiment_set(self->base, setting->key, setting->values[0], setting->origin, err);
        if (rc == 0 && setting->value_count > 1)
            rc = check_values(setting, dimension_of(self, setting)->key_count > 1, err);
        if (rc == 0 && setting->value_count > 1 && strcmp(setting->key, "repeat") == 0)
            rc = cb_fail(err, CB_ERR_USAGE, "%s: repeat has one value: it repeats the whole sweep", setting->origin);
    }
    for (size_t i = 0; rc == 0 && i < self->dimension_count; i++)
        if (self->dimensions[i].key_count > 1)
            rc = check_columns(&self->dimensions[i], err);
    if (rc)
        return rc;
    self->repeat = experiment_u64(self->base, OPT_REPEAT);
    if (self->repeat * self->combinations > SWEEP_MAX_MEMBERS)
        return cb_fail(err, CB_ERR_USAGE, "repeat=%s of %zu combinations: a sweep of more than %d runs",
                       experiment_text(self->base, OPT_REPEAT), self->combinations, SWEEP_MAX_MEMBERS);
    return 0;
}

/* In a sweep over workloads a key applies only to workloads that use it: iterations to a suite, not to the training
 * after it. A key that varies on its own stays, since resetting it would make equal members. */
static int reset_unused(const struct expansion *self, struct experiment *member, struct cb_err *err)
{
    size_t index = setting_index(self, WORKLOAD_KEY);
    const struct dimension *of_workload =
        index < self->setting_count ? dimension_of(self, self->settings[index]) : NULL;
    enum option_id id;
    int rc = 0;
    for (size_t i = 0; of_workload && i < self->setting_count && rc == 0; i++) {
        const struct dimension *own = dimension_of(self, self->settings[i]);
        if ((!own || own == of_workload) && option_find(self->settings[i]->key, &id, NULL) == 0 &&
            !workload_uses(workload_kind_of(member), id))
            rc = experiment_reset(member, id, err);
    }
    return rc;
}

static int make_member(const struct expansion *self, size_t combination, struct experiment **member, struct cb_err *err)
{
    struct experiment *fresh;
    int rc = experiment_copy(self->base, &fresh, err);
    if (rc)
        return rc;
    for (size_t i = 0; rc == 0 && i < self->dimension_count; i++) {
        const struct dimension *dimension = &self->dimensions[i];
        size_t index = combination / dimension->stride % dimension->value_count;
        for (size_t j = 0; rc == 0 && j < dimension->key_count; j++)
            rc = experiment_set(fresh, dimension->keys[j]->key, dimension->keys[j]->values[index],
                                dimension->keys[j]->origin, err);
    }
    if (rc == 0)
        rc = reset_unused(self, fresh, err);
    if (rc == 0)
        rc = experiment_validate(fresh, err);
    if (rc) {
        experiment_free(fresh);
        return rc;
    }
    *member = fresh;
    return 0;
}

/* SplitMix64 (Steele, Lea, Flood 2014). */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = (*state += UINT64_C(0x9E3779B97F4A7C15));
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

/* Block 1 is in order, the others are shuffled with their number as seed, so a sweep always runs in the same order. */
static void order_block(size_t block, size_t *order, size_t count)
{
    uint64_t state = block;
    for (size_t i = 0; i < count; i++)
        order[i] = i;
    if (block == 1)
        return;
    for (size_t i = count; i > 1; i--) {
        size_t other = (size_t)(next_random(&state) % i), kept = order[i - 1];
        order[i - 1] = order[other];
        order[other] = kept;
    }
}

static int make_members(const struct expansion *self, struct sweep *sweep, struct cb_err *err)
{
    size_t *order = calloc(self->combinations, sizeof *order);
    sweep->members = calloc(self->combinations * (size_t)self->repeat, sizeof *sweep->members);
    int rc = order && sweep->members ? 0 : no_memory(err);
    for (size_t block = 1; rc == 0 && block <= self->repeat; block++) {
        order_block(block, order, self->combinations);
        for (size_t i = 0; rc == 0 && i < self->combinations; i++) {
            struct sweep_member *member = &sweep->members[sweep->count];
            member->block = block;
            member->combination = order[i];
            rc = make_member(self, order[i], &member->experiment, err);
            if (rc == 0)
                sweep->count++;
        }
    }
    free(order);
    return rc;
}

static int name_varied(const struct expansion *self, struct sweep *sweep, struct cb_err *err)
{
    int rc = 0;
    for (size_t i = 0; i < self->setting_count && rc == 0; i++)
        if (self->settings[i]->value_count > 1)
            rc = alloc_add_text(&sweep->varied, &sweep->varied_count, self->settings[i]->key,
                                strlen(self->settings[i]->key), err);
    return rc;
}

int sweep_expand(const struct setting_list *settings, struct sweep *sweep, struct cb_err *err)
{
    struct expansion expansion = {0};
    struct sweep fresh = {0};
    int rc = resolve_settings(&expansion, settings, err);
    if (rc == 0)
        rc = find_dimensions(&expansion, settings, err);
    if (rc == 0)
        rc = make_base(&expansion, err);
    if (rc == 0)
        rc = name_varied(&expansion, &fresh, err);
    if (rc == 0)
        rc = make_members(&expansion, &fresh, err);
    fresh.combinations = expansion.combinations;
    expansion_release(&expansion);
    if (rc) {
        sweep_release(&fresh);
        return rc;
    }
    *sweep = fresh;
    return 0;
}

void sweep_release(struct sweep *sweep)
{
    for (size_t i = 0; i < sweep->count; i++)
        experiment_free(sweep->members[i].experiment);
    alloc_free_texts(sweep->varied, sweep->varied_count);
    free(sweep->members);
    *sweep = (struct sweep){0};
}
