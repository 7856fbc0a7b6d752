/* Finds the differences between two sides: the fingerprint keys that matter, and those that an experiment key
 * explains. */
#include "cli/compare/differences.h"

#include <string.h>

#include "core/alloc.h"
#include "core/buf.h"
#include "run/options.h"
#include "run/workload_kind.h"

#define VALUES_MAX_BYTES 4096
#define VALUES_SHOWN 6

/* Last words of fingerprint keys that name a machine or change on their own: another node of the same kind counts as
 * the same hardware. */
static const char *const passing[] = {"hostname", "host",     "node",       "serial",     "uuid",
                                      "mac",      "address",  "ip",         "boot_id",    "boot_time",
                                      "uptime_s", "load",     "free_bytes", "used_bytes", "available_bytes",
                                      "time",     "taken_ns", "pid",        "device_id"};

/* Fingerprint groups that follow from an experiment key. */
static const struct {
    enum option_id key;
    const char *group;
} explained[] = {
    {OPT_STORE, "store"}, {OPT_STORE, "filesystem"}, {OPT_STORE, "mount"},  {OPT_STORE, "block_device"},
    {OPT_STORE, "disk"},  {OPT_LAUNCHER, "mpi"},     {OPT_ENGINE, "torch"}, {OPT_ENGINE, "python"},
};

/* Sorted strings without duplicates. Borrowed. */
struct value_set {
    const char **values;
    size_t count;
};

static int compare_texts(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void set_finish(struct value_set *self)
{
    size_t kept = 0;
    if (self->count)
        qsort(self->values, self->count, sizeof *self->values, compare_texts);
    for (size_t i = 0; i < self->count; i++)
        if (i == 0 || strcmp(self->values[i], self->values[i - 1]) != 0)
            self->values[kept++] = self->values[i];
    self->count = kept;
}

static bool set_equal(const struct value_set *a, const struct value_set *b)
{
    if (a->count != b->count)
        return false;
    for (size_t i = 0; i < a->count; i++)
        if (strcmp(a->values[i], b->values[i]) != 0)
            return false;
    return true;
}

static char *set_text(const struct value_set *set)
{
    struct buf text;
    buf_init(&text, VALUES_MAX_BYTES);
    for (size_t i = 0; i < set->count && i < VALUES_SHOWN; i++)
        buf_printf(&text, "%s%s", i ? ", " : "", set->values[i]);
    if (set->count > VALUES_SHOWN)
        buf_append_text(&text, ", ...");
    return buf_take(&text);
}

void differences_release(struct comparison_differences *self)
{
    for (size_t i = 0; i < self->count; i++) {
        free(self->items[i].key);
        free(self->items[i].base);
        free(self->items[i].other);
    }
    free(self->items);
    *self = (struct comparison_differences){0};
}

static int add_difference(struct comparison_differences *self, const char *key, const struct value_set *base,
                          const struct value_set *other, struct cb_err *err)
{
    if (alloc_grow(&self->items, self->count, sizeof *self->items, err))
        return CB_ERR_MEMORY;
    struct comparison_difference *item = &self->items[self->count++];
    *item = (struct comparison_difference){strdup(key), set_text(base), set_text(other)};
    if (!item->key || !item->base || !item->other)
        return alloc_fail(err, "to compare runs");
    return 0;
}

/* A key for which runs have values. */
struct key {
    enum { KEY_OPTION, KEY_LABEL, KEY_FINGERPRINT } kind;
    enum option_id option;
    const char *name; /* of a label or a fingerprint */
};

static int compare_keys(const void *name, const void *key)
{
    return strcmp(name, *(const char *const *)key);
}

/* "-" if the run has no value. */
static const char *value_of(const struct run_info *run, const struct key *key)
{
    if (key->kind == KEY_OPTION)
        return experiment_text(run->experiment, key->option);
    if (key->kind == KEY_FINGERPRINT) {
        char **found = run->fingerprint_count ? bsearch(key->name, run->fingerprint_keys, run->fingerprint_count,
                                                        sizeof *run->fingerprint_keys, compare_keys)
                                              : NULL;
        return found ? run->fingerprint_values[found - run->fingerprint_keys] : "-";
    }
    for (size_t i = 0; i < experiment_label_count(run->experiment); i++)
        if (strcmp(experiment_label_key(run->experiment, i), key->name) == 0)
            return experiment_label_value(run->experiment, i);
    return "-";
}

static int gather(const struct comparison_side *side, const struct key *key, struct value_set *set, struct cb_err *err)
{
    *set = (struct value_set){calloc(side->count + 1, sizeof *set->values), 0};
    if (!set->values)
        return alloc_fail(err, "to compare runs");
    for (size_t i = 0; i < side->count; i++)
        set->values[set->count++] = value_of(side->runs[i], key);
    set_finish(set);
    return 0;
}

/* Appends a difference to `differs` if the sides have different values; *same is the result. */
static int compare_key(const struct comparison_side *const sides[2], const struct key *key, const char *shown,
                       struct comparison_differences *differs, bool *same, struct cb_err *err)
{
    struct value_set a, b = {0};
    int rc = gather(sides[0], key, &a, err);
    if (rc == 0)
        rc = gather(sides[1], key, &b, err);
    *same = rc == 0 && set_equal(&a, &b);
    if (rc == 0 && !*same)
        rc = add_difference(differs, shown, &a, &b, err);
    free(a.values);
    free(b.values);
    return rc;
}

/* Whether both sides have runs on which the key has an effect. */
static bool is_used(const struct comparison_side *const sides[2], enum option_id id)
{
    bool used[2] = {false, false};
    for (int s = 0; s < 2; s++)
        for (size_t i = 0; i < sides[s]->count && !used[s]; i++)
            used[s] = experiment_uses(sides[s]->runs[i]->experiment, id) &&
                      workload_has_key(sides[s]->runs[i]->experiment, id);
    return used[0] && used[1];
}

static int find_options(const struct comparison_side *const sides[2], struct comparison *out, struct cb_err *err)
{
    int rc = 0;
    bool same;
    for (enum option_id id = 0; id < OPTION_COUNT && rc == 0; id++)
        if (option_row(id)->class != OPTION_COSMETIC && id != OPT_SUFFIX && is_used(sides, id))
            rc = compare_key(sides, &(struct key){.kind = KEY_OPTION, .option = id}, option_row(id)->name,
                             &out->differs, &same, err);
    return rc;
}

/* A sorted list of the labels or fingerprint keys that any run of either side has. */
static int all_keys(const struct comparison_side *const sides[2], bool labels, struct value_set *set,
                    struct cb_err *err)
{
    *set = (struct value_set){0};
    for (int s = 0; s < 2; s++) {
        for (size_t i = 0; i < sides[s]->count; i++) {
            const struct run_info *run = sides[s]->runs[i];
            size_t count = labels ? experiment_label_count(run->experiment) : run->fingerprint_count;
            for (size_t k = 0; k < count; k++) {
                if (alloc_grow(&set->values, set->count, sizeof *set->values, err))
                    return CB_ERR_MEMORY;
                set->values[set->count++] =
                    labels ? experiment_label_key(run->experiment, k) : run->fingerprint_keys[k];
            }
        }
    }
    set_finish(set);
    return 0;
}

static int find_labels(const struct comparison_side *const sides[2], struct comparison *out, struct cb_err *err)
{
    struct value_set keys;
    bool same;
    int rc = all_keys(sides, true, &keys, err);
    for (size_t i = 0; i < keys.count && rc == 0; i++) {
        struct buf shown;
        buf_init(&shown, VALUES_MAX_BYTES);
        buf_printf(&shown, "label.%s", keys.values[i]);
        rc = compare_key(sides, &(struct key){.kind = KEY_LABEL, .name = keys.values[i]}, shown.data, &out->differs,
                         &same, err);
        buf_release(&shown);
    }
    free(keys.values);
    return rc;
}

static bool is_passing(const char *key)
{
    const char *dot = strrchr(key, '.');
    const char *last = dot ? dot + 1 : key;
    for (size_t i = 0; i < sizeof passing / sizeof passing[0]; i++)
        if (strcmp(last, passing[i]) == 0)
            return true;
    return false;
}

static bool in_group(const char *key, const char *group)
{
    size_t len = strlen(group);
    return strncmp(key, group, len) == 0 && (key[len] == '.' || key[len] == '\0' || key[len] == '_');
}

static bool is_explained(const char *key, const struct comparison_differences *differs)
{
    for (size_t i = 0; i < sizeof explained / sizeof explained[0]; i++)
        for (size_t k = 0; k < differs->count && in_group(key, explained[i].group); k++)
            if (strcmp(differs->items[k].key, option_row(explained[i].key)->name) == 0)
                return true;
    return false;
}

/* Adds the group of a key (up to its first dot) to `same`, unless it was the last one added. */
static int add_same(struct comparison *out, const char *key, struct cb_err *err)
{
    size_t len = strcspn(key, ".");
    if (out->same_count) {
        const char *last = out->same[out->same_count - 1];
        if (strlen(last) == len && strncmp(last, key, len) == 0)
            return 0;
    }
    return alloc_add_text(&out->same, &out->same_count, key, len, err);
}

/* Removes groups of which a key differs. */
static void drop_groups_that_differ(struct comparison *out, const struct comparison_differences *differs)
{
    size_t kept = 0;
    for (size_t i = 0; i < out->same_count; i++) {
        size_t k = 0, len = strlen(out->same[i]);
        while (k < differs->count &&
               (strncmp(differs->items[k].key, out->same[i], len) != 0 || strcspn(differs->items[k].key, ".") != len))
            k++;
        if (k < differs->count)
            free(out->same[i]);
        else
            out->same[kept++] = out->same[i];
    }
    out->same_count = kept;
}

static int find_fingerprints(const struct comparison_side *const sides[2], struct comparison *out, struct cb_err *err)
{
    struct value_set keys;
    size_t options = out->differs.count;
    int rc = all_keys(sides, false, &keys, err);
    for (size_t i = 0; i < keys.count && rc == 0; i++) {
        const char *key = keys.values[i];
        bool same = false;
        if (is_passing(key))
            continue;
        struct comparison_differences asked = {out->differs.items, options};
        bool explained_by_key = is_explained(key, &asked);
        rc = compare_key(sides, &(struct key){.kind = KEY_FINGERPRINT, .name = key}, key,
                         explained_by_key ? &out->differs : &out->confounded, &same, err);
        if (rc == 0 && same)
            rc = add_same(out, key, err);
    }
    free(keys.values);
    drop_groups_that_differ(out, &out->confounded);
    drop_groups_that_differ(out, &out->differs);
    return rc;
}

int differences_find(const struct comparison_side *const sides[2], struct comparison *comparison, struct cb_err *err)
{
    int rc = find_options(sides, comparison, err);
    if (rc == 0)
        rc = find_labels(sides, comparison, err);
    return rc ? rc : find_fingerprints(sides, comparison, err);
}

static bool is_among(const char *key, const struct comparison_differences *differs)
{
    for (size_t i = 0; i < differs->count; i++)
        if (strcmp(differs->items[i].key, key) == 0)
            return true;
    return false;
}

int differences_block_key(const struct run_info *run, const struct comparison_differences *differs, char **text,
                          struct cb_err *err)
{
    struct buf key;
    buf_init(&key, 1u << 16);
    if (run->sweep[0] && run->block) {
        buf_printf(&key, "%s %llu", run->sweep, (unsigned long long)run->block);
        for (int i = 0; i < OPTION_COUNT; i++) {
            const struct option *row = option_row((enum option_id)i);
            if ((row->class == OPTION_IDENTITY || row->class == OPTION_PLACE) && i != OPT_SUFFIX &&
                !is_among(row->name, differs))
                buf_printf(&key, "\n%s", experiment_text(run->experiment, (enum option_id)i));
        }
    }
    int rc = buf_check(&key, "the key of a block", err);
    if (rc == 0) {
        *text = buf_take(&key);
        if (!*text)
            rc = alloc_fail(err, "to compare runs");
    }
    buf_release(&key);
    return rc;
}
