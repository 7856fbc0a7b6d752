/* ckptbench baseline: named sets of runs to compare with. */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/listing.h"
#include "cli/report/history_reading.h"
#include "core/alloc.h"
#include "core/log.h"
#include "core/units.h"
#include "db/history.h"

struct baselines {
    struct history *history;
    struct listing list;
};

static int count_runs(struct history *history, const struct baseline *baseline, size_t *count, struct cb_err *err)
{
    struct run_selection selection;
    const char *words[] = {baseline->name};
    int rc = history_select(history, words, 1, &selection, err);
    if (rc)
        return rc;
    *count = selection.count;
    run_selection_release(&selection);
    return 0;
}

static int add_line(void *context, const struct baseline *baseline, struct cb_err *err)
{
    struct baselines *self = context;
    struct listing *list = &self->list;
    struct buf words;
    char window[48] = "fixed";
    size_t count;
    int rc = count_runs(self->history, baseline, &count, err);
    if (rc)
        return rc;
    buf_init(&words, 1u << 16);
    for (size_t i = 0; i < baseline->word_count; i++)
        buf_printf(&words, "%s%s", i ? " " : "", baseline->words[i]);
    if (baseline->window)
        snprintf(window, sizeof window, "the newest %llu", (unsigned long long)baseline->window);
    listing_begin_row(list);
    listing_text(list, "baseline", TABLE_BOLD, baseline->name);
    if (list->cli->json)
        json_member_u64_or_null(&list->json, "window", baseline->window != 0, baseline->window);
    else
        table_add(&list->table, TABLE_PLAIN, window);
    listing_u64(list, "n", count);
    if (list->cli->json) {
        json_member_array(&list->json, baseline->window ? "filters" : "runs");
        for (size_t i = 0; i < baseline->word_count; i++)
            json_write_text(&list->json, baseline->words[i]);
        json_write_end_array(&list->json);
    } else {
        table_add(&list->table, TABLE_PLAIN, words.data);
    }
    listing_end_row(list);
    buf_release(&words);
    return 0;
}

static int list_baselines(struct cli *cli, struct history *history, struct cb_err *err)
{
    struct baselines self = {.history = history};
    listing_init(&self.list, cli, 0, "llrl", (const char *const[]){"BASELINE", "KIND", "RUNS", "OF"});
    self.list.if_empty = "no baselines yet: `ckptbench baseline set NAME RUN…` makes one";
    return listing_end(&self.list, history_each_baseline(history, add_line, &self, err), err);
}

static int add_word(struct baseline *baseline, const char *word, struct cb_err *err)
{
    if (alloc_grow(&baseline->words, baseline->word_count, sizeof *baseline->words, err))
        return CB_ERR_MEMORY;
    baseline->words[baseline->word_count] = strdup(word);
    return baseline->words[baseline->word_count++] ? 0 : alloc_fail(err, "for a baseline");
}

/* Adds a run that passed; reports the others and excludes them. */
static int take_run(void *context, struct run_info *info, struct cb_err *err)
{
    if (strcmp(info->outcome, "pass") == 0)
        return add_word(context, info->run, err);
    log_info("left out: %s did not pass", info->run);
    return 0;
}

/* The words are window=10 and filters. */
static int fill_window(struct baseline *baseline, const char *const *words, size_t count, struct cb_err *err)
{
    int rc = 0;
    for (size_t i = 0; i < count && rc == 0; i++) {
        if (strncmp(words[i], "window=", 7) == 0) {
            rc = units_parse_u64(words[i] + 7, &baseline->window, err);
            if (rc == 0 && baseline->window == 0)
                rc = cb_fail(err, CB_ERR_USAGE, "window=0 holds no run");
        } else if (!strchr(words[i], '=')) {
            rc = cb_fail(err, CB_ERR_USAGE, "a window takes filters, not the run %s", words[i]);
        } else {
            rc = add_word(baseline, words[i], err);
        }
    }
    return rc;
}

static int set_baseline(struct cli *cli, struct history *history, struct cb_err *err)
{
    if (cli->word_count < 3)
        return cb_fail(
            err, CB_ERR_USAGE,
            "baseline set takes a name and runs, or window=10 and filters, as `ckptbench baseline set nightly "
            "window=10 label.kind=nightly`");
    const char *const *words = (const char *const *)cli->words + 2;
    size_t count = cli->word_count - 2;
    struct baseline baseline = {0};
    bool window = false;
    int rc = 0;
    if (strlen(cli->words[1]) >= sizeof baseline.name)
        rc = cb_fail(err, CB_ERR_USAGE, "the name %s is too long", cli->words[1]);
    if (rc == 0)
        memcpy(baseline.name, cli->words[1], strlen(cli->words[1]) + 1);
    for (size_t i = 0; i < count && !window; i++)
        window = strncmp(words[i], "window=", 7) == 0;
    if (rc == 0)
        rc = window ? fill_window(&baseline, words, count, err)
                    : for_each_run(history, words, count, take_run, &baseline, err);
    if (rc == 0)
        rc = history_set_baseline(history, &baseline, err);
    size_t runs = 0;
    if (rc == 0)
        rc = count_runs(history, &baseline, &runs, err);
    if (rc == 0)
        log_info("baseline %s: %zu run%s now", baseline.name, runs, units_plural(runs));
    baseline_release(&baseline);
    return rc;
}

static int run_baseline(struct cli *cli, struct cb_err *err)
{
    struct history *history;
    const char *what = cli->word_count ? cli->words[0] : "list";
    int rc = history_open(NULL, &history, err);
    if (rc)
        return rc;
    if (strcmp(what, "list") == 0 && cli->word_count <= 1)
        rc = list_baselines(cli, history, err);
    else if (strcmp(what, "set") == 0)
        rc = set_baseline(cli, history, err);
    else if (strcmp(what, "remove") == 0 && cli->word_count == 2)
        rc = history_remove_baseline(history, cli->words[1], err);
    else
        rc = cb_fail(err, CB_ERR_USAGE,
                     "baseline set NAME RUN…, baseline set NAME window=10 [filters], baseline list, or "
                     "baseline remove NAME");
    history_close(history);
    return rc;
}

const struct verb verb_baseline = {
    .name = "baseline",
    .arguments = "set NAME RUN…|set NAME window=10 [key=value…]|list|remove NAME",
    .summary = "name the runs that others are compared with",
    .about =
        "A baseline is a set of runs or a sliding window of the newest that passed and match filters, never one run: "
        "one run says nothing of how runs vary. Compare leaves runs out of a window that are on its other side.",
    .example = "ckptbench baseline set nightly window=10 label.kind=nightly && ckptbench compare nightly LATEST",
    .run = run_baseline,
};
