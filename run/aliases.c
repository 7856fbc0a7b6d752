/* Translates keys and values of other tools to ours. */
#include "run/aliases.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/alloc.h"

#define HYDRA_GROUP "workload."

static const struct alias aliases[] = {
#define ALIAS(word, key, values, tool) {word, OPT_##key, values, tool},
#include "run/aliases.def"
#undef ALIAS
};

size_t alias_count(void)
{
    return sizeof aliases / sizeof *aliases;
}

const struct alias *alias_row(size_t index)
{
    return &aliases[index];
}

static bool is_word(const char *word, const char *name)
{
    for (; *word && (*word == *name || (*word == '_' && *name == '-')); word++, name++)
        ;
    return *word == *name;
}

const struct alias *alias_find(const char *name)
{
    name += strspn(name, "+");
    if (strncmp(name, HYDRA_GROUP, strlen(HYDRA_GROUP)) == 0)
        name += strlen(HYDRA_GROUP);
    for (size_t i = 0; i < alias_count(); i++)
        if (is_word(aliases[i].word, name))
            return &aliases[i];
    return NULL;
}

static bool is_named(const struct setting *setting, const char *word)
{
    const struct alias *alias = alias_find(setting->key);
    return alias && strcmp(alias->word, word) == 0;
}

/* The last setting of a word overrides the earlier ones; NULL if the word is not set. */
static struct setting *find_last(const struct setting_list *list, const char *word)
{
    for (size_t i = list->count; i-- > 0;)
        if (is_named(&list->items[i], word))
            return &list->items[i];
    return NULL;
}

static int replace(char **text, const char *by, struct cb_err *err)
{
    char *copy = strdup(by);
    if (!copy)
        return alloc_fail(err, "for settings");
    free(*text);
    *text = copy;
    return 0;
}

static int rename_setting(struct setting *setting, const char *key, struct buf *said, struct cb_err *err)
{
    buf_printf(said, "%s%s is %s", said->len ? ", " : "", setting->key, key);
    return replace(&setting->key, key, err);
}

/* ---- words that depend on each other ---- */

static void remove_all(struct setting_list *list, const char *word)
{
    size_t kept = 0;
    for (size_t i = 0; i < list->count; i++) {
        if (is_named(&list->items[i], word))
            setting_release(&list->items[i]);
        else
            list->items[kept++] = list->items[i];
    }
    list->count = kept;
}

/* checkpoint.storage=disk,s3 is a sweep over path= and s3.uri=. */
static int choose_store(struct setting_list *list, struct buf *said, struct cb_err *err)
{
    static const char *const kinds[][2] = {{"disk", "path"}, {"s3", "s3.uri"}};
    const struct setting *places[2] = {find_last(list, kinds[0][1]), find_last(list, kinds[1][1])};
    struct setting *storage = find_last(list, "checkpoint.storage");
    if (!storage && places[0] && places[1])
        return cb_fail(err, CB_ERR_USAGE, "%s: path= and s3.uri=: say checkpoint.storage=disk, s3, or disk,s3",
                       places[1]->origin);
    if (!storage)
        return 0;
    for (size_t i = 0; i < storage->value_count; i++) {
        size_t kind = strcmp(storage->values[i], kinds[1][0]) == 0;
        if (strcmp(storage->values[i], kinds[kind][0]) != 0)
            return cb_fail(err, CB_ERR_USAGE, "%s: checkpoint.storage=%s: must be one of disk, s3", storage->origin,
                           storage->values[i]);
        if (!places[kind] || places[kind]->value_count != 1)
            return cb_fail(err, CB_ERR_USAGE, "%s: checkpoint.storage=%s needs %s= with one value", storage->origin,
                           kinds[kind][0], kinds[kind][1]);
        int rc = replace(&storage->values[i], places[kind]->values[0], err);
        if (rc)
            return rc;
    }
    int rc = rename_setting(storage, option_row(OPT_STORE)->name, said, err);
    remove_all(list, "checkpoint.storage"); /* earlier ones */
    remove_all(list, kinds[0][1]);
    remove_all(list, kinds[1][1]);
    return rc;
}

static bool has_only(const struct setting *setting, const char *value)
{
    return setting->value_count == 1 && strcmp(setting->values[0], value) == 0;
}

static bool have_same_values(const struct setting *a, const struct setting *b)
{
    bool same = a->value_count == b->value_count;
    for (size_t i = 0; same && i < a->value_count; i++)
        same = strcmp(a->values[i], b->values[i]) == 0;
    return same;
}

/* MLPerf Storage has a count of saves and one of loads: 0 saves is ops=load, 0 loads is ops=save. */
static int choose_ops(struct setting_list *list, const char *const words[2], struct buf *said, struct cb_err *err)
{
    static const char *const others[] = {"load", "save"};
    struct setting *counts[2] = {find_last(list, words[0]), find_last(list, words[1])};
    for (size_t i = 0; i < 2; i++) {
        if (!counts[i] || !has_only(counts[i], "0"))
            continue;
        int rc = rename_setting(counts[i], option_row(OPT_OPS)->name, said, err);
        return rc ? rc : replace(&counts[i]->values[0], others[i], err);
    }
    if (counts[0] && counts[1] && !have_same_values(counts[0], counts[1]))
        return cb_fail(err, CB_ERR_USAGE,
                       "%s: %s and %s differ: an iteration saves once and loads once; 0 leaves one out",
                       counts[1]->origin, words[0], words[1]);
    return 0;
}

/* ---- word by word ---- */

/* Our value for a value of another tool, in `text`; NULL if the value stays. */
static const char *translate(const char *values, const char *value, char text[32])
{
    for (size_t len = strlen(value); *values; values += strcspn(values, "|"), values += *values == '|') {
        if (strncasecmp(values, value, len) == 0 && values[len] == '=') {
            snprintf(text, 32, "%.*s", (int)strcspn(values + len + 1, "|"), values + len + 1);
            return text;
        }
    }
    return NULL;
}

static int resolve_one(struct setting *setting, struct buf *said, struct cb_err *err)
{
    const struct alias *alias = alias_find(setting->key);
    int rc = 0;
    if (!alias)
        return 0;
    const char *key = option_row(alias->id)->name;
    buf_printf(said, "%s%s is %s", said->len ? ", " : "", setting->key, key);
    for (size_t i = 0; i < setting->value_count && rc == 0; i++) {
        char text[32];
        const char *own = translate(alias->values, setting->values[i], text);
        if (own && strcmp(own, setting->values[i]) != 0)
            buf_printf(said, " (%s: %s)", setting->values[i], own);
        rc = own ? replace(&setting->values[i], own, err) : 0;
    }
    return rc ? rc : replace(&setting->key, key, err);
}

/* The values of zip=world_size,tp are names of keys. */
static int resolve_zip(struct setting *zip, struct cb_err *err)
{
    int rc = 0;
    for (size_t i = 0; i < zip->value_count && rc == 0; i++) {
        const struct alias *alias = alias_find(zip->values[i]);
        rc = alias ? replace(&zip->values[i], option_row(alias->id)->name, err) : 0;
    }
    return rc;
}

int aliases_resolve(struct setting_list *list, struct buf *said, struct cb_err *err)
{
    static const char *const counts[][2] = {{"num_checkpoints_write", "num_checkpoints_read"},
                                            {"checkpoint.num_checkpoints_write", "checkpoint.num_checkpoints_read"}};
    int rc = choose_store(list, said, err);
    for (size_t i = 0; i < sizeof counts / sizeof *counts && rc == 0; i++)
        rc = choose_ops(list, counts[i], said, err);
    for (size_t i = 0; i < list->count && rc == 0; i++)
        rc = strcmp(list->items[i].key, "zip") == 0 ? resolve_zip(&list->items[i], err)
                                                    : resolve_one(&list->items[i], said, err);
    return rc ? rc : buf_check(said, "the names of keys", err);
}
