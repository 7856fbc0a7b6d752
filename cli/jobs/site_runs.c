/* Adds runs of sites to the local history and keeps them up to date. */
#include "cli/jobs/site_runs.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/path.h"
#include "jobs/slurm/run_follow.h"
#include "run/run_folder.h"

#define WORD_BYTES 64
#define AT_ONCE 64            /* runs fetched in one stream */
#define ASIDE "runs/.fetched" /* folder in which RUN is built up until it is complete */

/* ---- sites ---- */

int remote_sites_get(struct remote_sites *self, const char *name, struct remote **remote, struct cb_err *err)
{
    for (size_t i = 0; i < self->count; i++) {
        if (strcmp(self->items[i].site.name, name) == 0) {
            *remote = &self->items[i];
            return 0;
        }
    }
    if (alloc_grow(&self->items, self->count, sizeof *self->items, err))
        return CB_ERR_MEMORY;
    struct remote *fresh = &self->items[self->count];
    int rc = remote_open(fresh, name, err);
    if (rc) {
        remote_release(fresh);
        return rc;
    }
    self->count++;
    *remote = fresh;
    return 0;
}

void remote_sites_drop(struct remote_sites *self, const char *name)
{
    for (size_t i = 0; i < self->count; i++) {
        if (strcmp(self->items[i].site.name, name) != 0)
            continue;
        remote_release(&self->items[i]);
        self->items[i] = self->items[--self->count];
        return;
    }
}

void remote_sites_release(struct remote_sites *self)
{
    for (size_t i = 0; i < self->count; i++)
        remote_release(&self->items[i]);
    free(self->items);
    *self = (struct remote_sites){0};
}

/* ---- words ---- */

/* Names of runs as words for the site; if allowed, members of a sweep are replaced by the sweep's id, once. */
struct words {
    char (*texts)[WORD_BYTES];
    const char **items;
    size_t count;
};

static int words_init(struct words *self, size_t room, struct cb_err *err)
{
    *self = (struct words){.texts = calloc(room + 1, sizeof *self->texts), .items = calloc(room + 1, sizeof(char *))};
    return self->texts && self->items ? 0 : alloc_fail(err, "for the names of %zu runs", room);
}

static void words_release(struct words *self)
{
    free(self->texts);
    free(self->items);
}

static void words_add(struct words *self, const char *run, bool whole_sweep)
{
    char *text = self->texts[self->count];
    const char *dot = whole_sweep ? strrchr(run, '.') : NULL;
    snprintf(text, WORD_BYTES, "%.*s", (int)(dot ? dot - run : (ptrdiff_t)strlen(run)), run);
    for (size_t i = 0; i < self->count; i++)
        if (strcmp(self->items[i], text) == 0)
            return;
    self->items[self->count++] = text;
}

/* Runs `verb` with the words on the site; `lines` is the array in its reply. */
static int ask(struct remote *remote, const char *verb, const char *const *words, size_t count,
               struct json_value **lines, struct cb_err *err)
{
    const char **all = calloc(count + 3, sizeof *all);
    if (!all)
        return alloc_fail(err, "for %zu words", count);
    all[0] = verb;
    all[1] = "--json";
    if (count)
        memcpy(all + 2, words, count * sizeof *words);
    const struct remote_call call = {.words = all, .timeout_ns = REMOTE_LONG_NS};
    int rc = remote_ask(remote, &call, lines, err);
    free(all);
    return rc;
}

/* Checks the name of a remote run, because it becomes the name of a local folder. */
static bool is_run_name(const char *name)
{
    size_t len = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_");
    return len > 0 && len < RUN_ID_BYTES && name[len] == '\0' && name[0] != '.';
}

static int need_run_name(const struct remote *remote, const struct json_value *line, const char **run,
                         struct cb_err *err)
{
    int rc = json_need_text(line, "run", run, err);
    if (rc == 0 && !is_run_name(*run))
        rc = cb_fail(err, CB_ERR_FORMAT, "'%.60s' is no name of a run", *run);
    return rc ? cb_context(err, "what site %s answers", remote->site.name) : 0;
}

/* ---- runs that the history lacks ---- */

static int note_known(void *context, const struct run_line *line, struct cb_err *err)
{
    (void)line;
    (void)err;
    *(bool *)context = true;
    return 0;
}

static int is_known(struct history *history, const char *run, bool *known, struct cb_err *err)
{
    char name[1][64];
    const struct run_selection selection = {name, 1};
    snprintf(name[0], sizeof name[0], "%s", run);
    *known = false;
    return history_each_run(history, &selection, note_known, known, err);
}

static int set_member(struct experiment *experiment, const char *key, const struct json_value *value,
                      const char *origin, struct cb_err *err)
{
    char number[40];
    const char *text = number;
    uint64_t whole;
    double real;
    bool boolean;
    if (json_as_bool(value, &boolean))
        text = boolean ? "true" : "false";
    else if (json_as_u64(value, &whole))
        snprintf(number, sizeof number, "%llu", (unsigned long long)whole);
    else if (json_as_double(value, &real))
        snprintf(number, sizeof number, "%.17g", real);
    else if (!json_as_text(value, &text))
        return cb_fail(err, CB_ERR_FORMAT, "%s: the value of %s is neither text nor number", origin, key);
    return experiment_set(experiment, key, text, origin, err);
}

/* The experiment with its labels, as printed by `list --json`. */
static int read_experiment(const struct json_value *line, const char *origin, struct experiment *experiment,
                           struct cb_err *err)
{
    char label[512];
    size_t position = 0;
    const char *key, *text;
    const struct json_value *value;
    enum option_id id;
    int rc = 0;
    while (rc == 0 && json_next(json_get(line, "experiment"), &position, &key, &value)) {
        if (option_find(key, &id, NULL) == 0 && json_as_text(value, &text) &&
            strcmp(text, experiment_text(experiment, id)) == 0)
            continue; /* a default, which may not be accepted as a setting */
        rc = set_member(experiment, key, value, origin, err);
    }
    position = 0;
    while (rc == 0 && json_next(json_get(line, "labels"), &position, &key, &value)) {
        snprintf(label, sizeof label, "label.%s", key);
        rc = set_member(experiment, label, value, origin, err);
    }
    return rc;
}

/* A run that has ended on the site stays unfinished here until it has been fetched. */
static int plan(struct history *history, const struct remote *remote, const struct json_value *line, const char *run,
                const char *folder, const struct experiment *experiment, struct file_batch *batch, struct cb_err *err)
{
    struct planned_run row = {
        .run = run, .folder = folder, .experiment = experiment, .site = remote->site.name, .batch = batch};
    const char *name;
    enum job_state state;
    if (!json_as_text(json_get(line, "sweep"), &row.sweep))
        row.sweep = NULL;
    int rc = json_need_u64(line, "block", &row.block, err);
    if (rc == 0)
        rc = json_need_u64(line, "combination", &row.combination, err);
    if (rc == 0)
        rc = json_need_u64(line, "planned_ns", &row.planned_wall_ns, err);
    if (rc == 0)
        rc = run_folder_create(batch, folder, experiment, err);
    if (rc == CB_ERR_EXISTS) /* left by an earlier ckptbench that was killed */
        rc = 0;
    if (rc == 0)
        rc = history_plan_run(history, &row, err);
    bool goes_on = json_as_text(json_get(line, "state"), &name) && job_state_find(name, &state) &&
                   state != JOB_PLANNED && !job_state_is_final(state);
    return rc || !goes_on ? rc : history_set_state(history, run, name, err);
}

static int take_line(struct history *history, const struct remote *remote, const struct json_value *line,
                     struct file_batch *batch, struct cb_err *err)
{
    char folder[PATH_MAX];
    const char *run;
    bool known;
    struct experiment *experiment = NULL;
    int rc = need_run_name(remote, line, &run, err);
    if (rc == 0)
        rc = is_known(history, run, &known, err);
    if (rc || known)
        return rc;
    if (path_format(folder, sizeof folder, err, "%s/runs/%s", history_folder(history), run))
        return CB_ERR_USAGE;
    rc = experiment_new(&experiment, err);
    if (rc == 0)
        rc = read_experiment(line, run, experiment, err);
    if (rc == 0)
        rc = plan(history, remote, line, run, folder, experiment, batch, err);
    experiment_free(experiment);
    return rc ? cb_context(err, "taking in run %s of site %s", run, remote->site.name) : 0;
}

int remote_runs_take_listed(struct remote *remote, struct history *history, const char *const *words, size_t count,
                            struct cb_err *err)
{
    struct json_value *lines = NULL;
    struct file_batch batch = {0};
    int rc = ask(remote, "list", words, count, &lines, err);
    if (rc)
        return rc;
    rc = history_begin(history, err);
    if (rc == 0) {
        for (size_t i = 0; rc == 0 && i < json_count(lines); i++)
            rc = take_line(history, remote, json_at(lines, i), &batch, err);
        if (rc == 0)
            rc = file_batch_commit(&batch, err);
        file_batch_release(&batch);
        rc = history_end(history, rc, err);
    }
    json_value_free(lines);
    return rc;
}

int remote_runs_take(struct remote *remote, struct history *history, const char *const *words, size_t count,
                     struct cb_err *err)
{
    struct json_value *lines = NULL;
    struct words unknown = {0};
    int rc = ask(remote, "status", words, count, &lines, err);
    if (rc == 0)
        rc = words_init(&unknown, json_count(lines), err);
    for (size_t i = 0; rc == 0 && i < json_count(lines); i++) {
        const char *run;
        bool known;
        rc = need_run_name(remote, json_at(lines, i), &run, err);
        if (rc == 0)
            rc = is_known(history, run, &known, err);
        if (rc == 0 && !known)
            words_add(&unknown, run, true);
    }
    if (rc == 0 && unknown.count)
        rc = remote_runs_take_listed(remote, history, unknown.items, unknown.count, err);
    words_release(&unknown);
    json_value_free(lines);
    return rc;
}

/* ---- fetching ---- */

/* A run that has ended on the site, and its line in the site's reply. */
struct remote_fetch {
    struct job_entry *entry;
    const struct json_value *line;
    int rc; /* the result, with `why` */
    struct cb_err why;
    int lock_fd;
    bool is_wanted;
};

/* Checks every sealed attempt against its manifest; the last attempt must be sealed. */
static int check_fetched(const char *folder, const char *run, struct cb_err *err)
{
    char path[PATH_MAX];
    uint32_t last;
    int rc = run_folder_last_attempt(folder, &last, err);
    if (rc == 0 && last == 0)
        return cb_fail(err, CB_ERR_NOT_FOUND, "it holds no attempt");
    for (uint32_t number = 1; rc == 0 && number <= last; number++) {
        struct manifest manifest;
        if (path_format(path, sizeof path, err, "%s/attempts/%u", folder, number))
            return CB_ERR_USAGE;
        rc = manifest_read(path, &manifest, err);
        if (rc == CB_ERR_NOT_FOUND && number < last)
            rc = 0;
        else if (rc == 0 && strcmp(manifest.run, run) != 0)
            rc = cb_fail(err, CB_ERR_CORRUPT, "%s is sealed for run %s", path, manifest.run);
    }
    return rc;
}

/* The run was fetched before but not ingested; its folder is sufficient. */
static bool is_here(const char *folder)
{
    struct manifest manifest;
    char path[PATH_MAX];
    uint32_t last = 0;
    return run_folder_last_attempt(folder, &last, NULL) == 0 && last > 0 &&
           snprintf(path, sizeof path, "%s/attempts/%u", folder, last) < (int)sizeof path &&
           manifest_read(path, &manifest, NULL) == 0;
}

/* Locks the run; if another ckptbench is fetching it, does nothing. */
static void begin_fetch(struct history *history, struct remote_fetch *item)
{
    bool ingested;
    item->lock_fd = -1;
    item->is_wanted = false;
    if (is_here(item->entry->folder)) {
        item->rc = history_ingest(history, item->entry->folder, &ingested, &item->why);
        return;
    }
    item->rc = job_folder_lock(item->entry->folder, &item->lock_fd, &item->why);
    item->is_wanted = item->rc == CB_ERR_NOT_FOUND || (item->rc == 0 && item->lock_fd >= 0);
    if (item->rc == CB_ERR_NOT_FOUND) /* the folder to lock does not exist yet */
        item->rc = 0;
}

static int move_in(struct remote *remote, struct history *history, const char *aside, struct remote_fetch *item)
{
    char fetched[PATH_MAX], old[PATH_MAX];
    bool ingested;
    if (path_format(fetched, sizeof fetched, &item->why, "%s/%s", aside, item->entry->run) ||
        path_format(old, sizeof old, &item->why, "%s/runs/.old-%s", history_folder(history), item->entry->run))
        return CB_ERR_USAGE;
    int rc = check_fetched(fetched, item->entry->run, &item->why);
    if (rc == 0)
        rc = history_mark_folder(fetched, remote->site.name, &item->why);
    if (rc == 0) { /* the fetched folder replaces the planned one */
        run_folder_discard(old);
        if (rename(item->entry->folder, old) < 0 && errno != ENOENT)
            rc = cb_fail_errno(&item->why, errno, "making room for %s", item->entry->folder);
        else if (rename(fetched, item->entry->folder) < 0)
            rc = cb_fail_errno(&item->why, errno, "naming %s", item->entry->folder);
        else
            run_folder_discard(old);
    }
    if (rc == 0)
        rc = history_ingest(history, item->entry->folder, &ingested, &item->why);
    return rc;
}

static void clear_aside(const char *aside, const struct remote_fetch *item)
{
    char fetched[PATH_MAX];
    if (snprintf(fetched, sizeof fetched, "%s/%s", aside, item->entry->run) < (int)sizeof fetched)
        run_folder_discard(fetched);
}

/* Fetches runs one by one after fetching them together has failed. After two connection errors in a row, the
 * remaining runs fail with the same error. */
static void get_one_by_one(struct remote *remote, const char *parent, const char *aside, struct remote_fetch *items,
                           size_t count)
{
    const struct remote_fetch *broken = NULL;
    size_t in_a_row = 0;
    for (size_t i = 0; i < count; i++) {
        if (!items[i].is_wanted)
            continue;
        clear_aside(aside, &items[i]);
        const char *run = items[i].entry->run;
        if (in_a_row >= 2 && broken) {
            items[i].rc = broken->rc;
            items[i].why = broken->why;
            continue;
        }
        items[i].rc = remote->transport->get_folders(remote->transport, parent, &run, 1, aside, &items[i].why);
        bool is_broken = items[i].rc == CB_ERR_SYSTEM || items[i].rc == CB_ERR_TIMEOUT;
        in_a_row = is_broken ? in_a_row + 1 : 0;
        broken = is_broken ? &items[i] : NULL;
    }
}

static void get_all(struct remote *remote, const char *aside, struct remote_fetch *items, size_t count)
{
    const char *names[AT_ONCE];
    char parent[PATH_MAX];
    size_t wanted = 0;
    for (size_t i = 0; i < count; i++) {
        if (!items[i].is_wanted)
            continue;
        clear_aside(aside, &items[i]);
        names[wanted++] = items[i].entry->run;
    }
    snprintf(parent, sizeof parent, "%.4000s/runs", site_text(&remote->site, SITE_HOME));
    if (wanted && remote->transport->get_folders(remote->transport, parent, names, wanted, aside, NULL))
        get_one_by_one(remote, parent, aside, items, count);
}

static void fetch_some(struct remote *remote, struct history *history, const char *aside, struct remote_fetch *items,
                       size_t count)
{
    for (size_t i = 0; i < count; i++)
        begin_fetch(history, &items[i]);
    get_all(remote, aside, items, count);
    for (size_t i = 0; i < count; i++) {
        if (items[i].is_wanted && items[i].rc == 0)
            items[i].rc = move_in(remote, history, aside, &items[i]);
        if (items[i].is_wanted && items[i].rc)
            clear_aside(aside, &items[i]);
        run_folder_unlock(items[i].lock_fd);
    }
}

/* Each item has its own result: 0 if the run is in the history, or another ckptbench is fetching it. */
static void fetch(struct remote *remote, struct history *history, struct remote_fetch *items, size_t count)
{
    char aside[PATH_MAX];
    snprintf(aside, sizeof aside, "%.4000s/" ASIDE, history_folder(history));
    for (size_t done = 0; done < count; done += AT_ONCE)
        fetch_some(remote, history, aside, items + done, count - done < AT_ONCE ? count - done : AT_ONCE);
    rmdir(aside); /* fails if another ckptbench still uses it */
}

/* ---- unfinished runs ---- */

static double number_of(const struct json_value *line, const char *key)
{
    double number;
    return json_as_double(json_get(line, key), &number) ? number : NAN;
}

static void copy_text(const struct json_value *line, const char *key, char *text, size_t bytes)
{
    const char *given;
    snprintf(text, bytes, "%s", json_as_text(json_get(line, key), &given) ? given : "");
}

/* Copies the site's state of a run to its entry. */
static void tell_entry(struct job_entry *entry, const struct json_value *line, enum job_state state)
{
    entry->told = (struct job_told){.is = true,
                                    .queue_s = number_of(line, "queue_s"),
                                    .boot_s = number_of(line, "boot_s"),
                                    .launch_s = number_of(line, "launch_s"),
                                    .run_s = number_of(line, "run_s")};
    entry->has_record = true;
    copy_text(line, "progress", entry->told.progress, sizeof entry->told.progress);
    copy_text(line, "job", entry->record.job, sizeof entry->record.job);
    if (!json_as_u64(json_get(line, "nodes"), &entry->record.node_count))
        entry->record.node_count = 0;
    entry->verdict = (struct job_verdict){.state = state};
    copy_text(line, "note", entry->verdict.note, sizeof entry->verdict.note);
}

static int follow_state(struct job_list *list, struct job_entry *entry, struct cb_err *err)
{
    const char *state = job_state_name(entry->verdict.state);
    int rc = strcmp(entry->known_state, state) ? history_set_state(list->history, entry->run, state, err) : 0;
    snprintf(entry->known_state, sizeof entry->known_state, "%s", state);
    return rc;
}

/* A run that cannot be fetched (yet) stays unfinished here, with the reason. */
static int take_end(struct remote *remote, struct job_list *list, const struct remote_fetch *fetched,
                    struct cb_err *err)
{
    int rc = fetched->rc;
    struct job_entry *entry = fetched->entry;
    const char *why = fetched->why.message;
    if (rc == CB_ERR_NO_SPACE || rc == CB_ERR_MEMORY)
        return cb_fail(err, rc, "fetching run %s from site %s: %s", entry->run, remote->site.name, why);
    if (rc) {
        entry->verdict.state = JOB_SEALING;
        snprintf(entry->verdict.note, sizeof entry->verdict.note, "ended, and not fetched yet: %.400s", why);
        return follow_state(list, entry, err);
    }
    copy_text(fetched->line, "outcome", entry->outcome, sizeof entry->outcome);
    snprintf(entry->known_state, sizeof entry->known_state, "%s", job_state_name(entry->verdict.state));
    job_entry_look(entry);
    entry->is_final = true;
    return 0;
}

/* Whether it is an unfinished run of the site. */
static bool is_of(const struct job_entry *entry, const struct remote *remote)
{
    return job_entry_is_away(entry) && strcmp(entry->site, remote->site.name) == 0;
}

static int take_status(struct remote *remote, struct job_list *list, const struct json_value *line,
                       struct remote_fetch *ends, size_t *end_count, struct cb_err *err)
{
    const char *run, *name;
    enum job_state state;
    int rc = need_run_name(remote, line, &run, err);
    if (rc == 0)
        rc = json_need_text(line, "state", &name, err);
    if (rc)
        return rc;
    size_t i = 0;
    while (i < list->count && strcmp(list->items[i].run, run) != 0)
        i++;
    struct job_entry *entry = &list->items[i];
    if (i == list->count || !is_of(entry, remote))
        return 0;
    if (!job_state_find(name, &state))
        return cb_fail(err, CB_ERR_FORMAT, "site %s: run %s is '%.30s', which this release does not know",
                       remote->site.name, run, name);
    tell_entry(entry, line, state);
    if (!job_state_is_final(state))
        return follow_state(list, entry, err);
    ends[(*end_count)++] = (struct remote_fetch){.entry = entry, .line = line};
    return 0;
}

/* Runs `verb` on the site for its runs in the list, and applies the lines of the reply. */
static int ask_for_entries(struct remote *remote, struct job_list *list, const char *verb, bool whole_sweeps,
                           struct cb_err *err)
{
    struct words words = {0};
    struct remote_fetch *ends = NULL;
    struct json_value *lines = NULL;
    size_t end_count = 0;
    int rc = words_init(&words, list->count, err);
    for (size_t i = 0; rc == 0 && i < list->count; i++)
        if (is_of(&list->items[i], remote))
            words_add(&words, list->items[i].run, whole_sweeps);
    if (rc == 0)
        rc = ask(remote, verb, words.items, words.count, &lines, err);
    if (rc == 0 && !(ends = calloc(json_count(lines) + 1, sizeof *ends)))
        rc = alloc_fail(err, "to fetch %zu runs", json_count(lines));
    for (size_t i = 0; rc == 0 && i < json_count(lines); i++)
        rc = take_status(remote, list, json_at(lines, i), ends, &end_count, err);
    if (rc == 0)
        fetch(remote, list->history, ends, end_count);
    for (size_t i = 0; rc == 0 && i < end_count; i++)
        rc = take_end(remote, list, &ends[i], err);
    if (rc == 0 && *remote->trouble)
        snprintf(list->trouble, sizeof list->trouble, "site %s: %.400s", remote->site.name, remote->trouble);
    free(ends);
    words_release(&words);
    json_value_free(lines);
    return rc;
}

int remote_runs_sync(struct remote *remote, struct job_list *list, struct cb_err *err)
{
    return ask_for_entries(remote, list, "status", true, err);
}

int remote_runs_cancel(struct remote *remote, struct job_list *list, struct cb_err *err)
{
    return ask_for_entries(remote, list, "cancel", false, err);
}
