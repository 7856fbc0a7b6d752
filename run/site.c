/* Site files: keys, and which values they accept. */
#include "run/site.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/nearest_word.h"
#include "core/yaml.h"
#include "run/container.h"
#include "run/options.h"
#include "run/run_folder.h"

#define FILE_MAX_BYTES (1u << 20)
#define ENVIRONMENT "environment."

static int check_text(const char *value, struct cb_err *err)
{
    for (const char *at = value; *at; at++)
        if ((unsigned char)*at < ' ' || *at == 0x7f)
            return cb_fail(err, CB_ERR_USAGE, "a value may hold no control characters");
    return option_check_text("a value", value, err);
}

/* Becomes an argument of ssh, so it must not look like an option or contain blanks. */
static int check_host(const char *value, struct cb_err *err)
{
    int rc = check_text(value, err);
    if (rc == 0 && (value[0] == '-' || strpbrk(value, " \t'\"\\$`;|&<>()")))
        rc = cb_fail(err, CB_ERR_USAGE, "'%.100s' is no host: a name that ssh knows, or user@host:port", value);
    return rc;
}

static int check_path(const char *value, struct cb_err *err)
{
    int rc = check_text(value, err);
    if (rc == 0 && (value[0] != '/' || strlen(value) >= PATH_MAX / 2))
        rc = cb_fail(err, CB_ERR_USAGE, "'%.100s' is no absolute path of the site", value);
    return rc;
}

/* Words for `module load`: nothing that a shell would interpret. */
static int check_modules(const char *value, struct cb_err *err)
{
    for (const char *at = value; *at; at++)
        if (!isalnum((unsigned char)*at) && !strchr(" ._/+:@-", *at))
            return cb_fail(err, CB_ERR_USAGE, "'%.100s' is no list of modules: names with blanks between them", value);
    return *value == '-' ? cb_fail(err, CB_ERR_USAGE, "'%.100s' is no list of modules", value) : 0;
}

static int check_launcher(const char *value, struct cb_err *err)
{
    struct option_value parsed = {0};
    int rc = option_parse(OPT_LAUNCHER, value, &parsed, err);
    option_value_release(&parsed);
    return rc;
}

static int check_container(const char *value, struct cb_err *err)
{
    struct container container;
    return container_parse(value, &container, err);
}

static const struct {
    const char *name;
    int (*check)(const char *value, struct cb_err *err);
} rows[SITE_KEY_COUNT] = {
    [SITE_HOST] = {"host", check_host},       [SITE_PREFIX] = {"prefix", check_path},
    [SITE_HOME] = {"home", check_path},       [SITE_PARTITION] = {"partition", check_text},
    [SITE_ACCOUNT] = {"account", check_text}, [SITE_LAUNCHER] = {"launcher", check_launcher},
    [SITE_SBCAST] = {"sbcast", check_path},   [SITE_MODULES] = {"modules", check_modules},
    [SITE_MPI] = {"mpi", check_path},         [SITE_CONTAINER] = {"container", check_container},
};

const char *site_key_name(enum site_key key)
{
    return rows[key].name;
}

static bool is_variable_name(const char *name)
{
    bool is = isalpha((unsigned char)*name) || *name == '_';
    for (; is && *name; name++)
        is = isalnum((unsigned char)*name) || *name == '_';
    return is;
}

static int check_name(const char *name, struct cb_err *err)
{
    bool fine = isalnum((unsigned char)name[0]) && strlen(name) < SITE_NAME_BYTES;
    for (const char *at = name; fine && *at; at++)
        fine = isalnum((unsigned char)*at) || strchr("._-", *at);
    if (!fine)
        return cb_fail(err, CB_ERR_USAGE,
                       "'%.100s' is no name of a site: letters, digits, dots, dashes and underscores, at most %d", name,
                       SITE_NAME_BYTES - 1);
    if (strcmp(name, SITE_LOCAL) == 0)
        return cb_fail(err, CB_ERR_USAGE, "'%s' is what the history calls this machine: take another name", name);
    return 0;
}

int site_init(struct site *self, const char *name, struct cb_err *err)
{
    *self = (struct site){0};
    int rc = check_name(name, err);
    if (rc == 0)
        snprintf(self->name, sizeof self->name, "%s", name);
    return rc;
}

void site_release(struct site *self)
{
    for (size_t i = 0; i < SITE_KEY_COUNT; i++)
        free(self->values[i]);
    for (size_t i = 0; i < self->environment_count; i++) {
        free(self->environment[i].name);
        free(self->environment[i].value);
    }
    free(self->environment);
    *self = (struct site){0};
}

const char *site_text(const struct site *self, enum site_key key)
{
    return self->values[key] ? self->values[key] : "";
}

bool site_is_here(const struct site *self)
{
    const char *host = site_text(self, SITE_HOST);
    return *host == '\0' || strcmp(host, "localhost") == 0;
}

static int no_memory(struct cb_err *err)
{
    return alloc_fail(err, "for a site");
}

static int set_variable(struct site *self, const char *name, const char *value, struct cb_err *err)
{
    if (!is_variable_name(name))
        return cb_fail(err, CB_ERR_USAGE, "'%.100s' is no name of an environment variable", name);
    int rc = check_text(value, err);
    if (rc)
        return rc;
    for (size_t i = self->environment_count; i-- > 0;) {
        struct site_variable *old = &self->environment[i];
        if (strcmp(old->name, name) != 0)
            continue;
        free(old->name);
        free(old->value);
        *old = self->environment[--self->environment_count];
    }
    if (!*value)
        return 0;
    if (alloc_grow(&self->environment, self->environment_count, sizeof *self->environment, err))
        return CB_ERR_MEMORY;
    struct site_variable *fresh = &self->environment[self->environment_count];
    *fresh = (struct site_variable){strdup(name), strdup(value)};
    if (!fresh->name || !fresh->value) {
        free(fresh->name);
        free(fresh->value);
        return no_memory(err);
    }
    self->environment_count++;
    return 0;
}

static int unknown_key(const char *key, struct cb_err *err)
{
    const char *names[SITE_KEY_COUNT + 1];
    for (size_t i = 0; i < SITE_KEY_COUNT; i++)
        names[i] = rows[i].name;
    names[SITE_KEY_COUNT] = "environment.NAME";
    const char *nearest = nearest_word(key, names, SITE_KEY_COUNT + 1);
    if (nearest)
        return cb_fail(err, CB_ERR_USAGE, "a site has no key '%.100s': did you mean '%s'?", key, nearest);
    return cb_fail(err, CB_ERR_USAGE,
                   "a site has no key '%.100s': host, prefix, home, partition, account, launcher, container, "
                   "sbcast, modules, mpi and environment.NAME are all",
                   key);
}

static int set_key(struct site *self, const char *key, const char *value, struct cb_err *err)
{
    if (strncmp(key, ENVIRONMENT, strlen(ENVIRONMENT)) == 0)
        return set_variable(self, key + strlen(ENVIRONMENT), value, err);
    for (size_t i = 0; i < SITE_KEY_COUNT; i++) {
        if (strcmp(rows[i].name, key) != 0)
            continue;
        int rc = *value ? rows[i].check(value, err) : 0;
        char *copy = rc || !*value ? NULL : strdup(value);
        if (rc)
            return cb_context(err, "%s", key);
        if (*value && !copy)
            return no_memory(err);
        free(self->values[i]);
        self->values[i] = copy;
        return 0;
    }
    return unknown_key(key, err);
}

int site_set(struct site *self, const char *key, const char *value, const char *origin, struct cb_err *err)
{
    struct cb_err own;
    int rc = set_key(self, key, value, &own);
    return rc ? cb_fail(err, rc, "%s: %s", origin, own.message) : 0;
}

/* The value of modules may contain blanks; other keys hold a single value, commas included. */
static int set_from_file(struct site *self, const struct setting *setting, struct cb_err *err)
{
    bool blanks = strcmp(setting->key, rows[SITE_MODULES].name) == 0;
    struct buf joined;
    buf_init(&joined, FILE_MAX_BYTES);
    for (size_t i = 0; i < setting->value_count; i++)
        buf_printf(&joined, "%s%s", i == 0 ? "" : blanks ? " " : ",", setting->values[i]);
    int rc = buf_check(&joined, setting->origin, err);
    if (rc == 0)
        rc = site_set(self, setting->key, joined.data, setting->origin, err);
    buf_release(&joined);
    return rc;
}

int site_parse(struct site *self, const char *path, const char *text, size_t len, struct cb_err *err)
{
    struct setting_list settings = {0};
    int rc = yaml_read_settings(path, text, len, &settings, err);
    for (size_t i = 0; rc == 0 && i < settings.count; i++)
        rc = set_from_file(self, &settings.items[i], err);
    setting_list_release(&settings);
    return rc;
}

/* Quoted, so that it reads back unchanged. */
static void write_line(struct buf *out, const char *indent, const char *key, const char *value)
{
    buf_printf(out, "%s%s: \"", indent, key);
    for (; *value; value++) {
        if (*value == '"' || *value == '\\')
            buf_append_char(out, '\\');
        buf_append_char(out, *value);
    }
    buf_append_text(out, "\"\n");
}

void site_format(const struct site *self, struct buf *out)
{
    for (size_t i = 0; i < SITE_KEY_COUNT; i++)
        if (self->values[i])
            write_line(out, "", rows[i].name, self->values[i]);
    if (self->environment_count)
        buf_append_text(out, "environment:\n");
    for (size_t i = 0; i < self->environment_count; i++)
        write_line(out, "  ", self->environment[i].name, self->environment[i].value);
}

/* $XDG_CONFIG_HOME/ckptbench/sites, else ~/.config/ckptbench/sites. */
static int sites_folder(struct buf *path, struct cb_err *err)
{
    const char *config = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    if (config && config[0] == '/')
        buf_printf(path, "%s/ckptbench/sites", config);
    else if (home && home[0] == '/')
        buf_printf(path, "%s/.config/ckptbench/sites", home);
    else
        return cb_fail(err, CB_ERR_USAGE, "where are the sites? set HOME or XDG_CONFIG_HOME to an absolute path");
    return buf_check(path, "the folder of the sites", err);
}

int site_path(const char *name, struct buf *path, struct cb_err *err)
{
    int rc = check_name(name, err);
    if (rc == 0)
        rc = sites_folder(path, err);
    buf_printf(path, "/%s.yaml", name);
    return rc ? rc : buf_check(path, "the path of a site", err);
}

static int unknown_site(const char *name, struct cb_err *err)
{
    struct site_names names = {0};
    int rc = site_list(&names, err);
    const char *nearest = rc ? NULL : nearest_word(name, (const char *const *)names.items, names.count);
    if (rc == 0 && nearest)
        rc = cb_fail(err, CB_ERR_NOT_FOUND, "no site '%s': did you mean '%s'?", name, nearest);
    else if (rc == 0 && names.count)
        rc = cb_fail(err, CB_ERR_NOT_FOUND, "no site '%s': `ckptbench site show` lists them", name);
    else if (rc == 0)
        rc = cb_fail(err, CB_ERR_NOT_FOUND, "no site '%s', and no other: `ckptbench site add %s --host LOGIN` adds it",
                     name, name);
    site_names_release(&names);
    return rc;
}

int site_read(const char *name, struct site *self, struct cb_err *err)
{
    struct buf path, text;
    buf_init(&path, PATH_MAX);
    buf_init(&text, FILE_MAX_BYTES);
    int rc = site_init(self, name, err);
    if (rc == 0)
        rc = site_path(name, &path, err);
    if (rc == 0)
        rc = buf_read_file(&text, path.data, err);
    if (rc == CB_ERR_NOT_FOUND)
        rc = unknown_site(name, err);
    else if (rc == 0)
        rc = site_parse(self, path.data, text.data, text.len, err);
    buf_release(&text);
    buf_release(&path);
    return rc;
}

int site_write(const struct site *self, struct cb_err *err)
{
    struct buf path, text;
    buf_init(&path, PATH_MAX);
    buf_init(&text, FILE_MAX_BYTES);
    site_format(self, &text);
    int rc = buf_check(&text, "a site", err);
    if (rc == 0)
        rc = site_path(self->name, &path, err);
    if (rc == 0)
        rc = run_folder_make_parents(path.data, 0700, err);
    if (rc == 0)
        rc = buf_write_file(&text, path.data, 0600, err);
    buf_release(&text);
    buf_release(&path);
    return rc;
}

int site_remove(const char *name, struct cb_err *err)
{
    struct buf path;
    buf_init(&path, PATH_MAX);
    int rc = site_path(name, &path, err);
    if (rc == 0 && unlink(path.data) < 0)
        rc = errno == ENOENT ? unknown_site(name, err) : cb_fail_errno(err, errno, "removing %s", path.data);
    buf_release(&path);
    return rc;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int add_name(struct site_names *names, const char *file, struct cb_err *err)
{
    size_t len = strlen(file);
    if (file[0] == '.' || len <= 5 || len - 5 >= SITE_NAME_BYTES || strcmp(file + len - 5, ".yaml") != 0)
        return 0;
    return alloc_add_text(&names->items, &names->count, file, len - 5, err);
}

int site_list(struct site_names *names, struct cb_err *err)
{
    struct buf path;
    *names = (struct site_names){0};
    buf_init(&path, PATH_MAX);
    int rc = sites_folder(&path, err);
    DIR *entries = rc ? NULL : opendir(path.data);
    if (rc == 0 && !entries && errno != ENOENT)
        rc = cb_fail_errno(err, errno, "reading %s", path.data);
    for (struct dirent *entry; rc == 0 && entries && (entry = readdir(entries));)
        rc = add_name(names, entry->d_name, err);
    if (entries)
        closedir(entries);
    if (names->count)
        qsort(names->items, names->count, sizeof *names->items, compare_names);
    buf_release(&path);
    return rc;
}

void site_names_release(struct site_names *names)
{
    alloc_free_texts(names->items, names->count);
    *names = (struct site_names){0};
}
