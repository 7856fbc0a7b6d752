/* ckptbench baseline: named sets of runs to compare with. */
#include <string.h>

#include "cli/cli.h"
#include "cli/report/history_reading.h"
#include "cli/report/table.h"
#include "core/alloc.h"
#include "core/log.h"
#include "core/units.h"

struct listing {
    struct history *history;
    struct table table;
    struct json_writer json;
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

static void join_words(const struct baseline *baseline, struct buf *out)
{
    for (size_t i = 0; i < baseline->word_count; i++)
        buf_printf(out, "%s%s", i ? " " : "", baseline->words[i]);
}

static int table_line(void *context, const struct baseline *baseline, struct cb_err *err)
{
    struct listing *self = context;
    struct buf words;
    size_t count;
    int rc = count_runs(self->history, baseline, &count, err);
    if (rc)
        return rc;
    buf_init(&words, 1u << 16);
    join_words(baseline, &words);
    table_add(&self->table, TABLE_BOLD, baseline->name);
    if (baseline->window)
        table_addf(&self->table, TABLE_PLAIN, "the newest %llu", (unsigned long long)baseline->window);
    else
        table_add(&self->table, TABLE_PLAIN, "fixed");
    table_addf(&self->table, TABLE_PLAIN, "%zu", count);
    table_add(&self->table, TABLE_PLAIN, words.data);
    buf_release(&words);
    return 0;
}

static int json_line(void *context, const struct baseline *baseline, struct cb_err *err)
{
    struct listing *self = context;
    size_t count;
    int rc = count_runs(self->history, baseline, &count, err);
    if (rc)
        return rc;
    json_write_begin_object(&self->json);
    json_member_text(&self->json, "baseline", baseline->name);
    json_write_key(&self->json, "window");
    if (baseline->window)
        json_write_u64(&self->json, baseline->window);
    else
        json_write_null(&self->json);
    json_member_u64(&self->json, "n", count);
    json_write_key(&self->json, baseline->window ? "filters" : "runs");
    json_write_begin_array(&self->json);
    for (size_t i = 0; i < baseline->word_count; i++)
        json_write_text(&self->json, baseline->words[i]);
    json_write_end_array(&self->json);
    json_write_end_object(&self->json);
    return 0;
}

static int list_baselines(struct cli *cli, struct history *history, struct cb_err *err)
{
    struct listing self = {.history = history};
    int rc;
    if (cli->json) {
        json_writer_init(&self.json, &cli->out, 0);
        json_write_begin_array(&self.json);
        rc = history_each_baseline(history, json_line, &self, err);
        json_write_end_array(&self.json);
        return rc ? rc : cli_end_json(cli, err);
    }
    table_init(&self.table, "llrl");
    table_add_headings(&self.table, (const char *const[]){"BASELINE", "KIND", "RUNS", "OF"});
    rc = history_each_baseline(history, table_line, &self, err);
    if (rc == 0 && self.table.count == self.table.columns)
        log_info("no baselines yet: `ckptbench baseline set NAME RUN…` makes one");
    else if (rc == 0)
        rc = table_write(&self.table, 0, cli->colour, &cli->out, err);
    table_release(&self.table);
    return rc;
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
            baseline->words[baseline->word_count] = strdup(words[i]);
            rc = baseline->words[baseline->word_count++] ? 0 : alloc_fail(err, "for a baseline");
        }
    }
    return rc;
}

/* Takes the passed runs among those selected by the words; names the others and leaves them out. */
static int fill_runs(struct history *history, struct baseline *baseline, const char *const *words, size_t count,
                     struct cb_err *err)
{
    struct run_selection selection;
    int rc = history_select(history, words, count, &selection, err);
    if (rc)
        return rc;
    free(baseline->words);
    baseline->words = calloc(selection.count + 1, sizeof *baseline->words);
    if (!baseline->words)
        rc = alloc_fail(err, "for a baseline");
    for (size_t i = 0; i < selection.count && rc == 0; i++) {
        struct run_info *info;
        rc = history_load_run(history, selection.runs[i], &info, err);
        if (rc)
            break;
        if (strcmp(info->outcome, "pass") != 0) {
            log_info("left out: %s did not pass", info->run);
        } else {
            baseline->words[baseline->word_count] = strdup(info->run);
            rc = baseline->words[baseline->word_count++] ? 0 : alloc_fail(err, "for a baseline");
        }
        run_info_free(info);
    }
    run_selection_release(&selection);
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
    struct baseline baseline = {.words = calloc(count + 1, sizeof(char *))};
    bool window = false;
    int rc = baseline.words ? 0 : alloc_fail(err, "for a baseline");
    if (rc)
        return rc;
    if (strlen(cli->words[1]) >= sizeof baseline.name)
        rc = cb_fail(err, CB_ERR_USAGE, "the name %s is too long", cli->words[1]);
    if (rc == 0)
        memcpy(baseline.name, cli->words[1], strlen(cli->words[1]) + 1);
    for (size_t i = 0; i < count && !window; i++)
        window = strncmp(words[i], "window=", 7) == 0;
    if (rc == 0)
        rc = window ? fill_window(&baseline, words, count, err) : fill_runs(history, &baseline, words, count, err);
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
