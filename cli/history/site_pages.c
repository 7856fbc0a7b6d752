/* Lists the pages of a site, and makes those that are not current. */
#include "cli/history/site_pages.h"

#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/file_batch.h"
#include "core/hash.h"
#include "core/json.h"
#include "core/log.h"
#include "core/path.h"
#include "core/units.h"

#define INDEX_NAME "pages.json"
#define INDEX_VERSION 1
#define INDEX_MAX_BYTES (1u << 30)
#define PAGE_MAX_BYTES (512 * MIB)

static const char *const folders[] = {[SITE_LINE] = "line", [SITE_SWEEP] = "sweep", [SITE_RUN] = "run"};

/* "FOLDER/NAME.html"; characters that a URL or a shell would change are written as =XX. */
static void format_path(enum site_page_kind kind, const char *name, char path[SITE_PATH_BYTES])
{
    char *end = path + sprintf(path, "%s/", folders[kind]);
    for (size_t i = 0; name[i] && i < 63; i++) {
        unsigned char c = (unsigned char)name[i];
        bool plain = isalnum(c) || c == '-' || c == '_' || (c == '.' && i);
        end += plain ? sprintf(end, "%c", c) : sprintf(end, "=%02X", c);
    }
    sprintf(end, ".html");
}

void site_run_path(const char *run, char path[SITE_PATH_BYTES])
{
    format_path(SITE_RUN, run, path);
}

void site_sweep_path(const char *sweep, char path[SITE_PATH_BYTES])
{
    format_path(SITE_SWEEP, sweep, path);
}

/* A hash of two texts. */
static uint64_t hash_pair(const char *x, const char *y)
{
    uint64_t both[] = {hash_u64(x, strlen(x)), hash_u64(y, strlen(y))};
    return hash_u64(both, sizeof both);
}

void site_line_path(const char *hash, const char *store, const char *site, char path[SITE_PATH_BYTES])
{
    char name[64];
    snprintf(name, sizeof name, "%.32s-%016llx", hash, (unsigned long long)hash_pair(store, site));
    format_path(SITE_LINE, name, path);
}

struct finder {
    struct site_pages *pages;
    uint64_t *sums; /* of the pages: combined from what each shows, in the order of the runs */
    uint64_t maker;
    size_t *slots; /* of a hash table of paths: 1 + the index of a page, 0 if empty */
    size_t slot_count;
};

static int make_slots(struct finder *self, struct cb_err *err)
{
    size_t count = 4 * self->pages->count + 1024;
    size_t *slots = calloc(count, sizeof *slots);
    if (!slots)
        return alloc_fail(err, "for the pages of a site");
    for (size_t i = 0; i < self->pages->count; i++) {
        const char *path = self->pages->items[i].path;
        size_t at = hash_u64(path, strlen(path)) % count;
        while (slots[at])
            at = (at + 1) % count;
        slots[at] = i + 1;
    }
    free(self->slots);
    self->slots = slots;
    self->slot_count = count;
    return 0;
}

/* The page with this path, which is added if there is none. */
static int find_page(struct finder *self, enum site_page_kind kind, const char *path, const char *name,
                     struct site_page **page, struct cb_err *err)
{
    struct site_pages *pages = self->pages;
    if (2 * pages->count >= self->slot_count && make_slots(self, err))
        return CB_ERR_MEMORY;
    size_t at = hash_u64(path, strlen(path)) % self->slot_count;
    for (; self->slots[at]; at = (at + 1) % self->slot_count) {
        *page = &pages->items[self->slots[at] - 1];
        if (strcmp((*page)->path, path) == 0)
            return 0;
    }
    if (alloc_grow(&pages->items, pages->count, sizeof *pages->items, err) ||
        alloc_grow(&self->sums, pages->count, sizeof *self->sums, err))
        return CB_ERR_MEMORY;
    *page = &pages->items[pages->count];
    **page = (struct site_page){.kind = kind};
    snprintf((*page)->path, sizeof(*page)->path, "%s", path);
    snprintf((*page)->name, sizeof(*page)->name, "%s", name);
    self->sums[pages->count++] = self->maker;
    self->slots[at] = pages->count;
    return 0;
}

static void add_sum(struct finder *self, const struct site_page *page, uint64_t more)
{
    uint64_t *sum = &self->sums[page - self->pages->items], both[] = {*sum, more};
    *sum = hash_u64(both, sizeof both);
}

static int add_run(void *context, const struct run_version *run, struct cb_err *err)
{
    struct finder *self = context;
    struct site_page *page;
    char path[SITE_PATH_BYTES];
    bool passed = strcmp(run->outcome, "pass") == 0;
    uint64_t state = hash_pair(run->state, run->outcome), version = hash_u64(run->version, strlen(run->version));
    uint64_t all[] = {hash_u64(run->run, strlen(run->run)), state, version, run->started_wall_ns};
    uint64_t sum = hash_u64(all, sizeof all);
    site_run_path(run->run, path);
    int rc = find_page(self, SITE_RUN, path, run->run, &page, err);
    if (rc)
        return rc;
    add_sum(self, page, sum);
    add_sum(self, page, hash_u64(run->sweep, strlen(run->sweep))); /* it has a link to it */
    if (*run->sweep)
        site_sweep_path(run->sweep, page->sweep);
    if (passed)
        site_line_path(run->hash, run->store, run->site, page->line);
    if (*run->sweep) {
        site_sweep_path(run->sweep, path);
        rc = find_page(self, SITE_SWEEP, path, run->sweep, &page, err);
        if (rc == 0)
            add_sum(self, page, sum);
    }
    if (rc || !passed)
        return rc;
    site_line_path(run->hash, run->store, run->site, path);
    rc = find_page(self, SITE_LINE, path, run->hash, &page, err);
    if (rc)
        return rc;
    add_sum(self, page, sum);
    page->runs++;
    snprintf(page->newest, sizeof page->newest, "%s", run->run);
    if (page->store)
        return 0;
    snprintf(page->site, sizeof page->site, "%s", run->site);
    page->store = strdup(run->store);
    return page->store ? 0 : alloc_fail(err, "for the pages of a site");
}

/* A line of one run has no page: that of the run shows all of it. */
static int drop_single_lines(struct finder *self, struct cb_err *err)
{
    struct site_page *items = self->pages->items, *line;
    size_t kept = 0;
    int rc = 0;
    for (size_t i = 0; i < self->pages->count && rc == 0; i++) {
        if (!*items[i].line)
            continue;
        rc = find_page(self, SITE_LINE, items[i].line, "", &line, err);
        if (rc == 0 && line->runs < 2)
            items[i].line[0] = '\0';
        else if (rc == 0)
            add_sum(self, &items[i], 1); /* it has a link to the line */
    }
    for (size_t i = 0; i < self->pages->count && rc == 0; i++) {
        if (items[i].kind == SITE_LINE && items[i].runs < 2) {
            free(items[i].store);
            continue;
        }
        self->sums[kept] = self->sums[i];
        items[kept++] = items[i];
    }
    if (rc == 0)
        self->pages->count = kept;
    return rc;
}

/* The start page has links to all others. */
static int add_start(struct finder *self, struct cb_err *err)
{
    struct site_page *start;
    size_t others = self->pages->count;
    int rc = make_slots(self, err); /* anew, since pages have moved */
    if (rc == 0)
        rc = find_page(self, SITE_START, "index.html", "", &start, err);
    for (size_t i = 0; i < others && rc == 0; i++)
        add_sum(self, start, self->sums[i]);
    return rc;
}

int site_pages_find(struct site_pages *self, struct history *history, const char *maker, struct cb_err *err)
{
    struct finder finder = {.pages = self, .maker = hash_u64(maker, strlen(maker))};
    *self = (struct site_pages){0};
    int rc = history_each_version(history, add_run, &finder, err);
    if (rc == 0)
        rc = drop_single_lines(&finder, err);
    if (rc == 0)
        rc = add_start(&finder, err);
    for (size_t i = 0; i < self->count && rc == 0; i++)
        snprintf(self->items[i].signature, sizeof self->items[i].signature, "%016llx",
                 (unsigned long long)finder.sums[i]);
    free(finder.sums);
    free(finder.slots);
    return rc;
}

void site_pages_release(struct site_pages *self)
{
    for (size_t i = 0; i < self->count; i++)
        free(self->items[i].store);
    free(self->items);
    *self = (struct site_pages){0};
}

/* Whether a folder can become a site: it is missing or empty. */
static bool is_empty(const char *folder)
{
    DIR *listing = opendir(folder);
    bool empty = true;
    for (struct dirent *entry; listing && empty && (entry = readdir(listing));)
        empty = strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0;
    if (listing)
        closedir(listing);
    return empty;
}

int site_pages_check_folder(const char *folder, struct cb_err *err)
{
    char path[PATH_MAX];
    int rc = path_format(path, sizeof path, err, "%s/" INDEX_NAME, folder);
    if (rc || access(path, F_OK) == 0 || is_empty(folder))
        return rc;
    return cb_fail(err, CB_ERR_USAGE, "%s is not empty and contains no site: name an empty folder, or a new one",
                   folder);
}

/* The signatures of the pages that are there. A damaged index is one without pages: all are made again. */
static int read_index(const char *folder, struct json_value **root, struct cb_err *err)
{
    char path[PATH_MAX];
    uint64_t version;
    *root = NULL;
    int rc = path_format(path, sizeof path, err, "%s/" INDEX_NAME, folder);
    if (rc || json_parse_file(path, INDEX_MAX_BYTES, root, NULL) ||
        (json_as_u64(json_get(*root, "version"), &version) && version == INDEX_VERSION))
        return rc;
    json_value_free(*root);
    *root = NULL;
    return 0;
}

static bool is_current(const struct site_page *page, const char *folder, const struct json_value *signatures)
{
    char path[PATH_MAX];
    const char *signature;
    return json_as_text(json_get(signatures, page->path), &signature) && strcmp(signature, page->signature) == 0 &&
           path_format(path, sizeof path, NULL, "%s/%s", folder, page->path) == 0 && access(path, F_OK) == 0;
}

/* Makes a page and adds it to the batch; a page that is left out loses its signature. */
static int make_page(struct site_page *page, const char *folder, site_page_fn make, void *context,
                     struct file_batch *batch, struct cb_err *err)
{
    struct buf text;
    struct cb_err why;
    char path[PATH_MAX];
    buf_init(&text, PAGE_MAX_BYTES);
    int rc = make(context, page, &text, &why);
    if (rc == CB_ERR_CORRUPT) {
        log_error("%s is left out: %s", page->path, why.message);
        page->signature[0] = '\0';
        buf_release(&text);
        return 0;
    }
    if (rc)
        *err = why;
    if (rc == 0)
        rc = path_format(path, sizeof path, err, "%s/%s", folder, page->path);
    if (rc == 0)
        rc = file_batch_add(batch, &text, path, 0644, err);
    buf_release(&text);
    return rc;
}

static int make_pages(struct site_pages *self, const char *folder, const struct json_value *signatures,
                      site_page_fn make, void *context, struct site_counts *counts, struct cb_err *err)
{
    struct file_batch batch = {0};
    int rc = 0;
    for (size_t i = 0; i < self->count && rc == 0; i++) {
        struct site_page *page = &self->items[i];
        if (is_current(page, folder, signatures)) {
            counts->kept++;
            continue;
        }
        rc = make_page(page, folder, make, context, &batch, err);
        counts->made += *page->signature != '\0';
        counts->failed += *page->signature == '\0';
    }
    if (rc == 0)
        rc = file_batch_commit(&batch, err);
    file_batch_release(&batch);
    return rc;
}

/* A path that this program may have written: FOLDER/NAME.html. */
static bool is_page_path(const char *path)
{
    const char *slash = strchr(path, '/');
    size_t len = strlen(path);
    if (!slash || strchr(slash + 1, '/') || len < 6 || strcmp(path + len - 5, ".html") != 0)
        return false;
    for (size_t i = SITE_LINE; i <= SITE_RUN; i++)
        if (strncmp(path, folders[i], strlen(folders[i])) == 0 && path[strlen(folders[i])] == '/')
            return true;
    return false;
}

static int compare_paths(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Removes the pages of the index that the history does not need any more. */
static int remove_pages(const struct site_pages *self, const char *folder, const struct json_value *signatures,
                        struct site_counts *counts, struct cb_err *err)
{
    char path[PATH_MAX];
    const char *key;
    const struct json_value *value;
    const char **needed = calloc(self->count + 1, sizeof *needed);
    if (!needed)
        return alloc_fail(err, "for the pages of a site");
    for (size_t i = 0; i < self->count; i++)
        needed[i] = self->items[i].path;
    qsort(needed, self->count, sizeof *needed, compare_paths);
    for (size_t position = 0; json_next(signatures, &position, &key, &value);)
        if (is_page_path(key) && !bsearch(&key, needed, self->count, sizeof *needed, compare_paths) &&
            path_format(path, sizeof path, NULL, "%s/%s", folder, key) == 0 && unlink(path) == 0)
            counts->removed++;
    free(needed);
    return 0;
}

static int write_index(const struct site_pages *self, const char *folder, struct cb_err *err)
{
    struct buf text;
    struct json_writer json;
    char path[PATH_MAX];
    buf_init(&text, INDEX_MAX_BYTES);
    json_writer_init(&json, &text, 0);
    json_write_begin_object(&json);
    json_member_u64(&json, "version", INDEX_VERSION);
    json_member_object(&json, "pages");
    for (size_t i = 0; i < self->count; i++)
        if (*self->items[i].signature)
            json_member_text(&json, self->items[i].path, self->items[i].signature);
    json_write_end_all(&json);
    int rc = buf_check(&text, "the index of a site", err);
    if (rc == 0)
        rc = path_format(path, sizeof path, err, "%s/" INDEX_NAME, folder);
    if (rc == 0)
        rc = buf_write_file(&text, path, 0644, err);
    buf_release(&text);
    return rc;
}

int site_pages_make(struct site_pages *self, const char *folder, site_page_fn make, void *context,
                    struct site_counts *counts, struct cb_err *err)
{
    struct json_value *root;
    char path[PATH_MAX];
    *counts = (struct site_counts){0};
    int rc = read_index(folder, &root, err);
    for (size_t i = SITE_LINE; i <= SITE_RUN && rc == 0; i++) {
        rc = path_format(path, sizeof path, err, "%s/%s/", folder, folders[i]);
        if (rc == 0)
            rc = path_make_folders(path, 0755, err);
    }
    const struct json_value *signatures = json_get(root, "pages");
    const struct site_pages none = {0};
    if (rc == 0 && !root) /* so that a call after one that failed finds a site */
        rc = write_index(&none, folder, err);
    if (rc == 0)
        rc = make_pages(self, folder, signatures, make, context, counts, err);
    if (rc == 0)
        rc = remove_pages(self, folder, signatures, counts, err);
    if (rc == 0 && counts->made + counts->removed)
        rc = write_index(self, folder, err);
    json_value_free(root);
    return rc;
}
