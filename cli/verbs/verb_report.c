/* ckptbench report: a page for browsers about a run, a sweep or a comparison. Its data are the documents that other
 * verbs print with --json. */
#include <stdio.h>
#include <string.h>

#include "cli/history/overview.h"
#include "cli/history/site_pages.h"
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

/* A document of a page: the verb and the flags that print it. The words of the report stand between them. */
struct page_document {
    const char *name, *verb;
    const char *flags[MOST_FLAGS + 1]; /* ends with NULL */
};

/* A kind of page; share/report/kinds.js has what it shows. */
static const struct page_kind {
    const char *name;
    struct page_document documents[3]; /* ends with an empty one */
    const char *by;                    /* name of the documents `compare --by KEY`, one for each key that varies */
} kinds[] = {
    {"run",
     {{"run",
       "show",
       {"--ranks", "--phases", "--nodes", "--latency", "--iterations", "--time", "--lines=32", "--failures"}}},
     NULL},
    {"run", {{"run", "show", {"--ranks", "--phases", "--nodes", "--iterations", "--failures"}}}, NULL},
    {"sweep", {{"sweep", "show", {NULL}}}, "by"},
    {"comparison", {{"comparison", "compare", {NULL}}}, NULL},
};
enum { KIND_RUN, KIND_RUN_UNMEASURED, KIND_SWEEP, KIND_COMPARISON };

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

/* A comparison for each key that varies, where each of its values has runs that passed. */
static int add_sweep_comparisons(struct cli *cli, struct page *page, struct history *history, const char *sweep,
                                 struct cb_err *err)
{
    struct sweep_report report;
    int rc = sweep_report_load(&report, history, sweep, err);
    for (size_t i = 0; rc == 0 && report.passed == report.count && i < report.axes.count; i++) {
        struct command command;
        char name[96];
        rc = command_init(&command, "compare", &sweep, 1, err);
        if (rc)
            break;
        snprintf(name, sizeof name, "by %s", report.axes.keys[i]);
        command_add(&command, "--by");
        command_add(&command, report.axes.keys[i]);
        rc = add_document(page, cli, history, name, &command, err);
        free(command.words);
    }
    sweep_report_release(&report);
    return rc;
}

/* A run that has not been sealed with records has no latencies to show. */
static int find_kind_of_run(struct history *history, const char *run, const struct page_kind **kind, struct cb_err *err)
{
    struct run_info *info;
    int rc = history_load_run(history, run, &info, err);
    if (rc)
        return rc;
    *kind = &kinds[info->metric_count ? KIND_RUN : KIND_RUN_UNMEASURED];
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
    if (rc == 0)
        rc = add_kind_documents(cli, page, history, kind, words, count, err);
    if (rc == 0 && kind->by)
        rc = add_sweep_comparisons(cli, page, history, words[0], err);
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

/* The pages of a site */

struct site {
    struct cli *cli;
    struct history *history;
    struct page_scripts scripts;
};

/* `history METRIC` of a metric of a line. */
static int add_line_document(struct site *self, const struct site_page *line, const char *metric, struct page *page,
                             struct cb_err *err)
{
    char hash[80], site[80];
    struct buf store;
    struct command command;
    snprintf(hash, sizeof hash, "hash=%s", line->name);
    snprintf(site, sizeof site, "site=%s", line->site);
    buf_init(&store, MAX_COMMAND_BYTES);
    buf_printf(&store, "store=%s", line->store);
    const char *words[] = {metric, hash, site, store.data};
    int rc = command_init(&command, "history", words, sizeof words / sizeof *words, err);
    if (rc == 0)
        rc = add_document(page, self->cli, self->history, metric, &command, err);
    free(command.words);
    buf_release(&store);
    return rc;
}

/* The primary metrics of its newest run. */
static int add_line_documents(struct site *self, const struct site_page *line, struct page *page, struct cb_err *err)
{
    struct run_info *run;
    int rc = history_load_run(self->history, line->newest, &run, err);
    if (rc)
        return rc;
    for (int i = 0; i < METRIC_COUNT && rc == 0; i++) {
        const struct metric *row = metric_row((enum metric_id)i);
        bool has = false;
        for (size_t k = 0; k < run->metric_count && row->primary; k++)
            has = has || run->metrics[k].metric == (enum metric_id)i;
        if (has)
            rc = add_line_document(self, line, row->name, page, err);
    }
    run_info_free(run);
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
    bool has_model = experiment_uses(experiment, OPT_MODEL);
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
    const char *file = cli_flag_value(cli, "o");
    struct history *history;
    struct page page = {0};
    char size[32];
    if (cli_flag_value(cli, "site")) {
        if (cli->word_count || file || cli->json)
            return cb_fail(err, CB_ERR_USAGE, "report --site DIR takes the whole history: no runs, -o or --json");
        return make_site(cli, cli_flag_value(cli, "site"), err);
    }
    int rc = open_history(cli, &history, err);
    if (rc)
        return rc;
    rc = make_page(cli, history, &page, err);
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
    {"o", "FILE", "write the page there; otherwise to stdout"},
    {"by", "KEY", "compare the values of a key of one sweep"},
    {"site", "DIR", "pages of the whole history in that folder; later calls make only what has changed"},
};

const struct verb verb_report = {
    .name = "report",
    .arguments = "[RUN|SWEEP|BASE OTHER…]",
    .summary = "a page with charts, in one file, for a browser",
    .about =
        "Of a run, a sweep, or two sides and more, each as `compare` takes it. The file has its figures, scripts and "
        "styles in it and loads nothing, so it can be mailed and kept. --json: the data of the page, which are "
        "the documents of show and compare. Without a name: the latest run.",
    .example = "ckptbench report LATEST -o report.html",
    VERB_FLAGS(flags),
    .run = run_report,
};
