/* ckptbench report: a page for browsers about a run, a sweep, a comparison, the runs of filters or a pool. Its data are
 * the documents that other verbs print with --json. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/history/overview.h"
#include "cli/history/site_pages.h"
#include "cli/jobs/pool_list.h"
#include "cli/report/history_reading.h"
#include "cli/report/page.h"
#include "cli/report/sweep_report.h"
#include "core/alloc.h"
#include "core/log.h"
#include "core/units.h"
#include "core/version.h"
#include "run/workload_kind.h"

#define MAX_COMMAND_BYTES MIB
#define MOST_FLAGS 8
#define NEWEST_RUNS 200
#define MOST_RIVALS 8 /* combinations of a sweep that are compared with its best */

/* A document of a page: the verb and the flags that print it. The words of the report stand between them. */
struct page_document {
    const char *name, *verb;
    const char *flags[MOST_FLAGS + 1]; /* ends with NULL */
};

/* A kind of page; share/report/kinds.js has what it shows. */
static const struct page_kind {
    const char *name;
    struct page_document documents[3]; /* ends with an empty one */
    bool is_sweep, is_overview;        /* what else it has: comparisons; the history of each primary metric */
} kinds[] = {
    {"run",
     {{"run",
       "show",
       {"--ranks", "--phases", "--nodes", "--latency", "--iterations", "--time", "--lines=32", "--failures"}}}},
    {"run",
     {{"run",
       "show",
       {"--ranks", "--phases", "--nodes", "--advise", "--iterations", "--time", "--lines=32", "--failures"}}}},
    {"run", {{"run", "show", {"--ranks", "--phases", "--nodes", "--iterations", "--failures"}}}},
    {"sweep", {{"sweep", "show", {NULL}}}, .is_sweep = true},
    {"comparison", {{"comparison", "compare", {NULL}}}},
    {"overview", {{"runs", "list", {"-n=200"}}}, .is_overview = true},
};
enum { KIND_RUN, KIND_WATCH, KIND_RUN_UNMEASURED, KIND_SWEEP, KIND_COMPARISON, KIND_OVERVIEW };

/* A command line: words[0] is the verb. */
struct command {
    const char **words; /* owned array of borrowed words */
    size_t count;
};

static void command_add(struct command *self, const char *word)
{
    self->words[self->count++] = word;
}

static int command_init(struct command *self, const char *verb, const char *const *words, size_t count,
                        struct cb_err *err)
{
    *self = (struct command){.words = calloc(count + MOST_FLAGS + 8, sizeof *self->words)};
    if (!self->words)
        return alloc_fail(err, "for a command line");
    command_add(self, verb);
    for (size_t i = 0; i < count; i++)
        command_add(self, words[i]);
    return 0;
}

/* The command as a person types it. */
static void command_describe(const struct command *self, struct buf *out)
{
    buf_append_text(out, "ckptbench");
    for (size_t i = 0; i < self->count; i++) {
        buf_append_char(out, ' ');
        if (self->words[i]
                       [strspn(self->words[i], "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.=/")])
            buf_append_quoted(out, self->words[i]);
        else
            buf_append_text(out, self->words[i]);
    }
}

/* Runs the command in this process, and adds what it prints. */
static int add_document(struct page *page, struct cli *caller, struct history *history, const char *name,
                        struct command *command, struct cb_err *err)
{
    struct cli cli;
    struct buf text;
    buf_init(&text, MAX_COMMAND_BYTES);
    char **argv = calloc(command->count + 3, sizeof *argv);
    if (!argv)
        return alloc_fail(err, "for a command line");
    command_add(command, "--json");
    argv[0] = (char *)caller->program_path;
    for (size_t i = 0; i < command->count; i++)
        argv[i + 1] = (char *)command->words[i];
    int rc = cli_init(&cli, (int)command->count + 1, argv, err);
    cli.history = history;
    if (rc == 0)
        rc = cli.verb->run(&cli, err);
    if (rc == 0) {
        command_describe(command, &text);
        page_add(page, name, text.data, cli.out.data);
        rc = buf_check(&text, "a command line", err);
    }
    cli_release(&cli);
    buf_release(&text);
    free(argv);
    return rc;
}

static int add_kind_documents(struct cli *cli, struct page *page, struct history *history, const struct page_kind *kind,
                              const char *const *words, size_t count, struct cb_err *err)
{
    const char *by = cli_flag_value(cli, "by");
    int rc = 0;
    for (const struct page_document *document = kind->documents; document->name && rc == 0; document++) {
        struct command command;
        rc = command_init(&command, document->verb, words, count, err);
        for (const char *const *flag = document->flags; *flag && rc == 0; flag++)
            command_add(&command, *flag);
        if (rc == 0 && by) {
            command_add(&command, "--by");
            command_add(&command, by);
        }
        rc = rc ? rc : add_document(page, cli, history, document->name, &command, err);
        free(command.words);
    }
    return rc;
}

/* What the verb prints of the words. */
static int add_printed(struct cli *cli, struct page *page, struct history *history, const char *name, const char *verb,
                       const char *const *words, size_t count, struct cb_err *err)
{
    struct command command;
    int rc = command_init(&command, verb, words, count, err);
    if (rc == 0)
        rc = add_document(page, cli, history, name, &command, err);
    free(command.words);
    return rc;
}

/* "sweep=NAME io.depth=4 …": a side of a comparison. False if a value would be read as several words or values. */
static bool name_combination(const struct sweep_report *report, size_t row, struct buf *out)
{
    const struct experiment *experiment = report->runs[report->rows[row].first]->experiment;
    buf_printf(out, "sweep=%s", report->sweep);
    for (size_t i = 0; i < report->axes.count; i++) {
        const char *value = sweep_axes_value(experiment, report->axes.keys[i]);
        if (!*value || value[strcspn(value, " \t\n,*")])
            return false;
        buf_printf(out, " %s=%s", report->axes.keys[i], value);
    }
    return true;
}

/* The best combination against the next ones: whether it is better than they are. */
static int add_rivals(struct cli *cli, struct page *page, struct history *history, const struct sweep_report *report,
                      struct cb_err *err)
{
    struct buf sides[1 + MOST_RIVALS];
    const char *words[1 + MOST_RIVALS];
    size_t count = report->row_count < 1 + MOST_RIVALS ? report->row_count : 1 + MOST_RIVALS;
    bool named = count > 1 && report->column_count;
    int rc = 0;
    for (size_t i = 0; i < count; i++) {
        buf_init(&sides[i], MAX_COMMAND_BYTES);
        named = named && name_combination(report, i, &sides[i]);
        words[i] = sides[i].data;
        rc = rc ? rc : buf_check(&sides[i], "a command line", err);
    }
    if (rc == 0 && named)
        rc = add_printed(cli, page, history, "best", "compare", words, count, err);
    for (size_t i = 0; i < count; i++)
        buf_release(&sides[i]);
    return rc;
}

/* A comparison for each key that varies, and of the best combination with others, where all runs passed. */
static int add_sweep_comparisons(struct cli *cli, struct page *page, struct history *history, const char *sweep,
                                 struct cb_err *err)
{
    struct sweep_report report;
    int rc = sweep_report_load(&report, history, sweep, err);
    bool is_whole = rc == 0 && report.passed == report.count;
    for (size_t i = 0; rc == 0 && is_whole && i < report.axes.count; i++) {
        char name[96];
        snprintf(name, sizeof name, "by %s", report.axes.keys[i]);
        const char *words[] = {sweep, "--by", report.axes.keys[i]};
        rc = add_printed(cli, page, history, name, "compare", words, 3, err);
    }
    if (rc == 0 && is_whole)
        rc = add_rivals(cli, page, history, &report, err);
    sweep_report_release(&report);
    return rc;
}

static int stop_at_point(void *context, const struct metric_point *point, struct cb_err *err)
{
    (void)point, (void)err;
    *(bool *)context = true;
    return CB_ERR_EXISTS;
}

/* `history METRIC` of each primary metric that one of the newest runs of the words has. */
static int add_histories(struct cli *cli, struct page *page, struct history *history, const char *const *words,
                         size_t count, struct cb_err *err)
{
    struct run_selection newest = {0};
    const char **all = calloc(count + 1, sizeof *all);
    int rc = all ? history_select(history, words, count, &newest, err) : alloc_fail(err, "for a command line");
    if (newest.count > NEWEST_RUNS)
        newest.count = NEWEST_RUNS;
    for (int i = 0; i < METRIC_COUNT && rc == 0; i++) {
        bool any = false;
        if (!metric_row((enum metric_id)i)->primary)
            continue;
        rc = history_each_point(history, &newest, OP_COUNT, (enum metric_id)i, stop_at_point, &any, err);
        if (!any)
            continue;
        all[0] = metric_row((enum metric_id)i)->name;
        memcpy(all + 1, words, count * sizeof *words);
        rc = add_printed(cli, page, history, all[0], "history", all, count + 1, err);
    }
    run_selection_release(&newest);
    free(all);
    return rc;
}

/* A run that has not been sealed with records has no latencies to show. */
static int find_kind_of_run(struct history *history, const char *run, const struct page_kind **kind, struct cb_err *err)
{
    struct run_info *info;
    int rc = history_load_run(history, run, &info, err);
    if (rc)
        return rc;
    if (!info->metric_count)
        *kind = &kinds[KIND_RUN_UNMEASURED];
    else
        *kind = &kinds[workload_kind_of(info->experiment)->watches ? KIND_WATCH : KIND_RUN];
    run_info_free(info);
    return 0;
}

/* Words that stand for a run are replaced by its name in `run`, so that the commands of the page stay true. */
static int find_kind(struct cli *cli, struct history *history, const struct page_kind **kind, char run[64],
                     struct cb_err *err)
{
    bool is_sweep = false;
    int rc = 0;
    if (cli->word_count > 1 || cli_flag_value(cli, "by")) {
        *kind = &kinds[KIND_COMPARISON];
        return 0;
    }
    if (cli->word_count && cli->words[0][strcspn(cli->words[0], "= ")]) {
        *kind = &kinds[KIND_OVERVIEW];
        return 0;
    }
    if (cli->word_count)
        rc = sweep_report_is_sweep(history, cli->words[0], &is_sweep, err);
    *kind = &kinds[KIND_SWEEP];
    if (rc == 0 && !is_sweep)
        rc = find_only_run(cli, history, run, err);
    return rc || is_sweep ? rc : find_kind_of_run(history, run, kind, err);
}

/* Fills the page up to its end, which is left to the caller. */
static int fill_page(struct cli *cli, struct history *history, const struct page_kind *kind, const char *const *words,
                     size_t count, struct page *page, struct cb_err *err)
{
    struct command command;
    struct buf text;
    char **filters = NULL;
    size_t filter_count = 0;
    buf_init(&text, MAX_COMMAND_BYTES);
    int rc = command_init(&command, "report", words, count, err);
    if (rc == 0 && cli_flag_value(cli, "by")) {
        command_add(&command, "--by");
        command_add(&command, cli_flag_value(cli, "by"));
    }
    if (rc == 0) {
        command_describe(&command, &text);
        rc = buf_check(&text, "a command line", err);
    }
    page_init(page, kind->name, text.data);
    if (rc == 0 && kind->is_overview) {
        rc = split_words(words[0], &filters, &filter_count, err);
        words = (const char *const *)filters;
        count = filter_count;
    }
    if (rc == 0)
        rc = add_kind_documents(cli, page, history, kind, words, count, err);
    if (rc == 0 && kind->is_sweep)
        rc = add_sweep_comparisons(cli, page, history, words[0], err);
    if (rc == 0 && kind->is_overview)
        rc = add_histories(cli, page, history, words, count, err);
    alloc_free_texts(filters, filter_count);
    free(command.words);
    buf_release(&text);
    return rc;
}

static int make_page(struct cli *cli, struct history *history, struct page *page, struct cb_err *err)
{
    const struct page_kind *kind;
    char run[64] = "";
    const char *only = run;
    int rc = find_kind(cli, history, &kind, run, err);
    if (rc)
        return rc;
    rc = fill_page(cli, history, kind, *run ? &only : cli->words, *run ? 1 : cli->word_count, page, err);
    return rc ? rc : page_end(page, err);
}

/* The cost of a pool */

static void append_sql_text(struct buf *out, const char *text)
{
    buf_append_char(out, '\'');
    for (; *text; text++)
        buf_printf(out, *text == '\'' ? "''" : "%c", *text);
    buf_append_char(out, '\'');
}

/* The SELECT of the runs that were submitted through the pool. */
static void select_runs(char *const *runs, size_t count, struct buf *out)
{
    buf_append_text(
        out, "select r.run, r.state, r.outcome, max(1, coalesce(cast(p.value as integer), 1)) nodes, (r.ended_ns - "
             "r.started_ns) / 1e9 run_s, q.median queue_s, b.median boot_s from run r left join param p on "
             "p.run=r.run and p.key='nodes' left join metric q on q.run=r.run and q.metric='queue_s' left "
             "join metric b on b.run=r.run and b.metric='boot_s' where r.run in (");
    for (size_t i = 0; i < count; i++) {
        buf_append_text(out, i ? "," : "");
        append_sql_text(out, runs[i]);
    }
    buf_append_text(out, ") order by r.started_ns, r.run");
}

static int add_pool(struct cli *cli, struct page *page, struct history *history, const struct pool_entry *pool,
                    struct cb_err *err)
{
    struct buf cost, runs;
    char **names = NULL;
    size_t count = 0;
    buf_init(&cost, MAX_COMMAND_BYTES);
    buf_init(&runs, MAX_COMMAND_BYTES);
    buf_append_text(&cost, "select * from pool where id=");
    append_sql_text(&cost, pool->pool.id);
    int rc = pool_runs(pool, &names, &count, err);
    select_runs(names, count, &runs);
    rc = rc ? rc : buf_check(&runs, "a command line", err);
    if (rc == 0)
        rc = add_printed(cli, page, history, "pool", "sql", (const char *const[]){cost.data}, 1, err);
    if (rc == 0)
        rc = add_printed(cli, page, history, "runs", "sql", (const char *const[]){runs.data}, 1, err);
    alloc_free_texts(names, count);
    buf_release(&cost);
    buf_release(&runs);
    return rc;
}

/* Brings the cost in the history up to date first. */
static int make_pool_page(struct cli *cli, const char *name, struct page *page, struct cb_err *err)
{
    struct pool_list pools = {0};
    struct pool_entry *pool = NULL;
    struct history *history = NULL;
    struct buf command;
    buf_init(&command, MAX_COMMAND_BYTES);
    buf_printf(&command, "ckptbench report --pool %s", name); /* of an existing pool: a plain word */
    page_init(page, "pool", command.data);
    buf_release(&command);
    int rc = pool_list_glance(&pools, err);
    if (rc == 0)
        rc = pool_list_find(&pools, name, &pool, err);
    if (rc == 0)
        rc = history_open(NULL, &history, err);
    if (rc == 0)
        rc = pool_list_keep(history, err);
    if (rc == 0)
        rc = add_pool(cli, page, history, pool, err);
    history_close(history);
    pool_list_release(&pools);
    return rc ? rc : page_end(page, err);
}

/* The pages of a site */

struct site {
    struct cli *cli;
    struct history *history;
    struct page_scripts scripts;
};

/* The primary metrics of its runs. */
static int add_line_documents(struct site *self, const struct site_page *line, struct page *page, struct cb_err *err)
{
    char hash[80], site[80];
    struct buf store;
    snprintf(hash, sizeof hash, "hash=%s", line->name);
    snprintf(site, sizeof site, "site=%s", line->site);
    buf_init(&store, MAX_COMMAND_BYTES);
    buf_printf(&store, "store=%s", line->store);
    const char *words[] = {hash, site, store.data};
    int rc = buf_check(&store, "a command line", err);
    if (rc == 0)
        rc = add_histories(self->cli, page, self->history, words, 3, err);
    buf_release(&store);
    return rc;
}

/* "llama3-8b on 8 ranks", or the workload if it has no model; without ranks if the machine gives their number. */
static int add_line_title(struct site *self, const struct site_page *line, struct page *page, struct cb_err *err)
{
    struct experiment *experiment;
    char title[256];
    int rc = history_load_experiment(self->history, line->newest, &experiment, err);
    if (rc)
        return rc;
    bool has_model = workload_has_key(experiment, OPT_MODEL);
    const char *ranks = experiment_text(experiment, OPT_RANKS);
    int len = snprintf(title, sizeof title, "%s",
                       has_model ? experiment_text(experiment, OPT_MODEL) : workload_kind_of(experiment)->name);
    if (strcmp(ranks, "0") != 0 && len < (int)sizeof title)
        snprintf(title + len, sizeof title - (size_t)len, " on %s ranks", ranks);
    json_member_text(&page->json, "title", title);
    experiment_free(experiment);
    return 0;
}

static int add_overview(struct site *self, struct page *page, struct cb_err *err)
{
    struct buf document;
    buf_init(&document, 512 * MIB);
    int rc = overview_write(self->history, &document, err);
    if (rc == 0)
        page_add(page, "site", NULL, document.data);
    buf_release(&document);
    return rc;
}

static int make_site_page(void *context, const struct site_page *about, struct buf *out, struct cb_err *err)
{
    struct site *self = context;
    struct page page;
    const char *words[] = {about->name};
    int rc = 0;
    const struct page_kind *kind = &kinds[KIND_SWEEP];
    if (about->kind == SITE_RUN)
        rc = find_kind_of_run(self->history, about->name, &kind, err);
    if (rc)
        return rc;
    if (about->kind == SITE_RUN || about->kind == SITE_SWEEP)
        rc = fill_page(self->cli, self->history, kind, words, 1, &page, err);
    else
        page_init(&page, about->kind == SITE_LINE ? "line" : "site", NULL);
    if (about->kind == SITE_LINE)
        rc = add_line_documents(self, about, &page, err);
    if (about->kind == SITE_START)
        rc = add_overview(self, &page, err);
    const char *root = about->kind == SITE_START ? "" : "../";
    page_share_scripts(&page, &self->scripts, root);
    if (rc == 0) {
        json_write_end_object(&page.json); /* of the documents */
        json_member_object(&page.json, "site");
        json_member_text(&page.json, "root", root);
        if (about->kind == SITE_LINE)
            rc = add_line_title(self, about, &page, err);
        json_member_text(&page.json, "line", *about->line ? about->line : NULL);
        json_member_text(&page.json, "sweep", *about->sweep ? about->sweep : NULL);
        rc = rc ? rc : page_end(&page, err);
    }
    if (rc == 0)
        rc = page_write(&page, out, err);
    page_release(&page);
    return rc;
}

static int make_site(struct cli *cli, const char *folder, struct cb_err *err)
{
    struct site self = {.cli = cli};
    struct site_pages pages = {0};
    struct site_counts counts;
    char maker[128];
    int rc = open_history(cli, &self.history, err);
    if (rc)
        return rc;
    rc = page_scripts_load(&self.scripts, err);
    snprintf(maker, sizeof maker, "%s %s", version_text(), self.scripts.digest);
    if (rc == 0)
        rc = site_pages_find(&pages, self.history, maker, err);
    if (rc == 0)
        rc = site_pages_check_folder(folder, err);
    if (rc == 0)
        rc = page_scripts_write(&self.scripts, folder, err);
    if (rc == 0)
        rc = site_pages_make(&pages, folder, make_site_page, &self, &counts, err);
    if (rc == 0)
        log_info("%s/index.html: %zu page%s made, %zu kept, %zu removed", folder, counts.made,
                 units_plural(counts.made), counts.kept, counts.removed);
    site_pages_release(&pages);
    page_scripts_release(&self.scripts);
    close_history(cli, self.history);
    return rc;
}

static int run_report(struct cli *cli, struct cb_err *err)
{
    const char *file = cli_flag_value(cli, "o"), *pool = cli_flag_value(cli, "pool");
    struct history *history = NULL;
    struct page page = {0};
    char size[32];
    if (cli_flag_value(cli, "site")) {
        if (cli->word_count || file || pool || cli->json)
            return cb_fail(err, CB_ERR_USAGE,
                           "report --site DIR takes the whole history: no runs, --pool, -o or --json");
        return make_site(cli, cli_flag_value(cli, "site"), err);
    }
    if (pool && (cli->word_count || cli_flag_value(cli, "by")))
        return cb_fail(err, CB_ERR_USAGE, "report --pool NAME takes no runs and no --by");
    if (!file && !cli->json && isatty(STDOUT_FILENO))
        return cb_fail(err, CB_ERR_USAGE,
                       "a page is for a browser, not for a terminal: -o report.html writes it there");
    int rc = pool ? make_pool_page(cli, pool, &page, err) : open_history(cli, &history, err);
    if (rc == 0 && !pool)
        rc = make_page(cli, history, &page, err);
    if (history)
        close_history(cli, history);
    if (rc == 0 && cli->json)
        buf_append(&cli->out, page.data.data, page.data.len);
    else if (rc == 0)
        rc = page_write(&page, &cli->out, err);
    if (rc == 0 && file)
        rc = buf_write_file(&cli->out, file, 0644, err);
    if (rc == 0 && file) {
        log_info("%s: %s, for a browser", file, units_format_bytes((double)cli->out.len, size));
        buf_clear(&cli->out);
    }
    page_release(&page);
    return rc;
}

static const struct verb_flag flags[] = {
    {"o", "FILE", "write the page there; otherwise to stdout, if that is no terminal"},
    {"by", "KEY", "compare the values of a key of one sweep"},
    {"pool", "NAME", "what a warm pool cost"},
    {"site", "DIR", "pages of the whole history in that folder; later calls make only what has changed"},
};

const struct verb verb_report = {
    .name = "report",
    .arguments = "[RUN|SWEEP|'key=value…'|BASE OTHER…]",
    .summary = "a page with charts, in one file, for a browser",
    .about =
        "Of a run, a sweep, the runs that match filters or have names (in quotes), or two sides and more, each as "
        "`compare` takes it. The file has its figures, scripts and styles in it and loads nothing, so it can be mailed "
        "and kept. --json: the data of the page, which are the documents of show, list, history and compare. Without "
        "a name: the latest run.",
    .example = "ckptbench report LATEST -o report.html",
    VERB_FLAGS(flags),
    .run = run_report,
};
