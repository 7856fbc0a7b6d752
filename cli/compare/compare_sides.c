/* Finds and loads the runs of each side of a comparison. */
#include "cli/compare/compare_sides.h"

#include <stdio.h>
#include <string.h>

#include "cli/report/history_reading.h"
#include "cli/report/sweep_axes.h"
#include "core/alloc.h"
#include "core/log.h"

void sides_release(struct sides *self)
{
    for (size_t i = 0; i < self->count; i++) {
        for (size_t k = 0; k < self->items[i].compared.count; k++)
            run_info_free(self->items[i].runs[k]);
        free(self->items[i].runs);
        free(self->items[i].name);
    }
    free(self->items);
}

static int add_side(struct sides *self, const char *name, struct side **side, struct cb_err *err)
{
    if (alloc_grow(&self->items, self->count, sizeof *self->items, err))
        return CB_ERR_MEMORY;
    *side = &self->items[self->count];
    **side = (struct side){.name = strdup(name)};
    if (!(*side)->name)
        return alloc_fail(err, "to compare runs");
    self->count++;
    return 0;
}

/* Call after the last run was added, because adding may move the arrays. */
static void borrow(struct sides *self)
{
    for (size_t i = 0; i < self->count; i++) {
        self->items[i].compared.name = self->items[i].name;
        self->items[i].compared.runs = (const struct run_info *const *)self->items[i].runs;
    }
}

static bool is_among(const char *word, const char *const *words, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(word, words[i]) == 0)
            return true;
    return false;
}

/* Takes ownership of the run. A run that has not passed is counted and freed. */
static int side_take(struct side *self, struct run_info *run, struct cb_err *err)
{
    static const char *const begun[] = {"booting", "running", "sealing"};
    static const char *const waiting[] = {"planned", "submitted", "pending"};
    struct comparison_side *side = &self->compared;
    int rc = 0;
    if (strcmp(run->outcome, "pass") == 0)
        rc = alloc_grow(&self->runs, side->count, sizeof *self->runs, err);
    else if (!*run->outcome && is_among(run->state, begun, sizeof begun / sizeof *begun))
        side->running++;
    else if (!*run->outcome && is_among(run->state, waiting, sizeof waiting / sizeof *waiting))
        side->planned++;
    else
        side->left_out++;
    if (rc == 0 && strcmp(run->outcome, "pass") == 0)
        self->runs[side->count++] = run;
    else
        run_info_free(run);
    return rc;
}

static int load_side(struct history *history, struct side *side, const struct run_selection *selection,
                     struct cb_err *err)
{
    int rc = 0;
    for (size_t i = 0; i < selection->count && rc == 0; i++) {
        struct run_info *run;
        rc = history_load_run(history, selection->runs[i], &run, err);
        if (rc == 0)
            rc = side_take(side, run, err);
    }
    return rc;
}

/* LATEST is the newest run and its repeats: the runs of its sweep with the same experiment. */
static int select_latest(struct history *history, struct run_selection *selection, struct cb_err *err)
{
    char run[64], sweep[80], hash[48];
    struct run_info *info;
    int rc = history_find_run(history, "LATEST", run, err);
    if (rc == 0)
        rc = history_load_run(history, run, &info, err);
    if (rc)
        return rc;
    snprintf(sweep, sizeof sweep, "sweep=%s", info->sweep);
    snprintf(hash, sizeof hash, "hash=%s", info->hash);
    const char *repeats[] = {sweep, hash}, *alone[] = {run};
    if (info->sweep[0])
        rc = history_select(history, repeats, 2, selection, err);
    else
        rc = history_select(history, alone, 1, selection, err);
    run_info_free(info);
    return rc;
}

static int select_side(struct history *history, const char *name, const struct run_selection *exclude,
                       struct run_selection *selection, struct cb_err *err)
{
    char **words;
    size_t count;
    if (strcmp(name, "LATEST") == 0)
        return select_latest(history, selection, err);
    int rc = split_words(name, &words, &count, err);
    if (rc == 0)
        rc = count ? history_select_excluding(history, (const char *const *)words, count, exclude, selection, err)
                   : cb_fail(err, CB_ERR_USAGE, "a side of a comparison is empty");
    alloc_free_texts(words, count);
    return rc;
}

static int append_selection(struct run_selection *all, const struct run_selection *more, struct cb_err *err)
{
    void *runs = realloc(all->runs, (all->count + more->count + 1) * 64);
    if (!runs)
        return alloc_fail(err, "to compare runs");
    all->runs = runs;
    if (more->count)
        memcpy(all->runs + all->count, more->runs, more->count * 64);
    all->count += more->count;
    return 0;
}

/* Reports every unknown name, not only the first. */
static int check_names(struct history *history, const char *const *words, size_t count, struct cb_err *err)
{
    struct cb_err unknown = {0}, own;
    for (size_t i = 0; i < count; i++) {
        struct run_selection found = {0};
        int rc = select_side(history, words[i], NULL, &found, &own);
        run_selection_release(&found);
        if (rc != CB_ERR_NOT_FOUND)
            continue;
        if (unknown.code)
            log_error("%s", unknown.message);
        unknown = own;
    }
    return unknown.code ? cb_fail(err, unknown.code, "%s", unknown.message) : 0;
}

/* A run on both sides is an error, unless a single run is compared with itself. */
static int check_overlap(const struct sides *sides, struct cb_err *err)
{
    const struct side *base = &sides->items[0];
    for (size_t i = 1; i < sides->count; i++) {
        const struct side *other = &sides->items[i];
        if (base->compared.count == 1 && other->compared.count == 1)
            continue;
        for (size_t a = 0; a < base->compared.count; a++)
            for (size_t b = 0; b < other->compared.count; b++)
                if (strcmp(base->runs[a]->run, other->runs[b]->run) == 0)
                    return cb_fail(err, CB_ERR_USAGE, "run %s is on both sides, of %s and of %s", base->runs[a]->run,
                                   base->name, other->name);
    }
    return 0;
}

/* The other sides are loaded first, because their runs are excluded from the base. */
int sides_find(struct sides *self, struct history *history, const char *const *words, size_t count, struct cb_err *err)
{
    struct run_selection others = {0}, found = {0};
    struct side *side = NULL;
    int rc = check_names(history, words, count, err);
    if (rc == 0)
        rc = add_side(self, words[0], &side, err);
    for (size_t i = 1; i < count && rc == 0; i++) {
        rc = select_side(history, words[i], NULL, &found, err);
        if (rc == 0)
            rc = add_side(self, words[i], &side, err);
        if (rc == 0)
            rc = load_side(history, side, &found, err);
        if (rc == 0)
            rc = append_selection(&others, &found, err);
        run_selection_release(&found);
    }
    if (rc == 0)
        rc = select_side(history, words[0], &others, &found, err);
    if (rc == 0)
        rc = load_side(history, &self->items[0], &found, err);
    run_selection_release(&found);
    run_selection_release(&others);
    if (rc == 0)
        rc = check_overlap(self, err);
    if (rc == 0)
        borrow(self);
    return rc;
}

/* A single run has one value of any key; if it belongs to a sweep, it stands for the whole sweep. */
static int select_to_split(struct history *history, const char *name, struct run_selection *selection,
                           struct cb_err *err)
{
    char run[64], sweep[80];
    struct run_info *info;
    bool latest = strcmp(name, "LATEST") == 0;
    int rc = latest ? history_find_run(history, name, run, err) : select_side(history, name, NULL, selection, err);
    if (rc || (!latest && (selection->count != 1 || strchr(name, '='))))
        return rc;
    if (!latest)
        snprintf(run, sizeof run, "%s", selection->runs[0]);
    run_selection_release(selection);
    rc = history_load_run(history, run, &info, err);
    if (rc)
        return rc;
    snprintf(sweep, sizeof sweep, "sweep=%s", info->sweep);
    const char *words[] = {info->sweep[0] ? sweep : run};
    rc = history_select(history, words, 1, selection, err);
    run_info_free(info);
    return rc;
}

/* Orders sweeps by age, then combinations in the order of the given values, whichever run started or ended first. */
static int compare_planned(const void *a, const void *b)
{
    const struct run_info *x = *(struct run_info *const *)a, *y = *(struct run_info *const *)b;
    bool one_sweep = x->sweep[0] && strcmp(x->sweep, y->sweep) == 0;
    if (one_sweep && x->combination != y->combination)
        return x->combination < y->combination ? -1 : 1;
    if (x->planned_wall_ns != y->planned_wall_ns)
        return x->planned_wall_ns < y->planned_wall_ns ? -1 : 1;
    return strcmp(x->run, y->run);
}

/* Gives all runs of a sweep the time when its first one was planned, so that sorting by time keeps sweeps together. */
static void date_sweeps(struct run_info **runs, size_t count)
{
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; k < count && runs[i]->sweep[0]; k++)
            if (strcmp(runs[i]->sweep, runs[k]->sweep) == 0 && runs[k]->planned_wall_ns < runs[i]->planned_wall_ns)
                runs[i]->planned_wall_ns = runs[k]->planned_wall_ns;
    if (count)
        qsort(runs, count, sizeof *runs, compare_planned);
}

/* Takes ownership of the run: the side owns it, or it is freed. */
static int take_by(struct sides *sides, struct run_info *run, const char *key, struct cb_err *err)
{
    struct side *side = NULL;
    char name[512];
    int rc = 0;
    const char *value = sweep_axes_value(run->experiment, key);
    snprintf(name, sizeof name, "%s=%s", key, *value || strncmp(key, "label.", 6) != 0 ? value : "-");
    for (size_t k = 0; k < sides->count && !side; k++)
        if (strcmp(sides->items[k].name, name) == 0)
            side = &sides->items[k];
    if (!side)
        rc = add_side(sides, name, &side, err);
    if (rc == 0)
        return side_take(side, run, err);
    run_info_free(run);
    return rc;
}

int sides_split(struct sides *self, struct history *history, const char *word, const char *key, struct cb_err *err)
{
    enum option_id id = OPT_NAME;
    struct run_selection found = {0};
    size_t loaded = 0, taken = 0;
    int rc = strncmp(key, "label.", 6) == 0 ? 0 : option_find(key, &id, err);
    if (rc == 0)
        rc = select_to_split(history, word, &found, err);
    struct run_info **runs = calloc(found.count + 1, sizeof(struct run_info *));
    if (rc == 0 && !runs)
        rc = alloc_fail(err, "to compare runs");
    for (; loaded < found.count && rc == 0; loaded += rc == 0)
        rc = history_load_run(history, found.runs[loaded], &runs[loaded], err);
    if (runs)
        date_sweeps(runs, loaded);
    while (taken < loaded && rc == 0)
        rc = take_by(self, runs[taken++], key, err);
    while (taken < loaded)
        run_info_free(runs[taken++]);
    free(runs);
    run_selection_release(&found);
    if (rc == 0 && self->count < 2)
        rc = cb_fail(err, CB_ERR_USAGE, "%s has one value of %s: there is nothing to compare", word, key);
    if (rc == 0)
        borrow(self);
    return rc;
}
