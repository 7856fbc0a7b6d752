/* ckptbench report: a page for browsers about a run, a sweep or a comparison. Its data are the documents that other
 * verbs print with --json. */
#include <stdio.h>
#include <string.h>

#include "cli/report/history_reading.h"
#include "cli/report/page.h"
#include "cli/report/sweep_report.h"
#include "core/alloc.h"
#include "core/log.h"
#include "core/units.h"

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
    {"run", {{"run", "show", {"--ranks", "--phases", "--nodes", "--latency", "--iterations", "--failures"}}}, NULL},
    {"sweep", {{"sweep", "show", {NULL}}}, "by"},
    {"comparison", {{"comparison", "compare", {NULL}}}, NULL},
};
enum { KIND_RUN, KIND_SWEEP, KIND_COMPARISON };

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
static int add_document(struct page *page, const char *program_path, const char *name, struct command *command,
                        struct cb_err *err)
{
    struct cli cli;
    struct buf text;
    buf_init(&text, MAX_COMMAND_BYTES);
    char **argv = calloc(command->count + 3, sizeof *argv);
    if (!argv)
        return alloc_fail(err, "for a command line");
    command_add(command, "--json");
    argv[0] = (char *)program_path;
    for (size_t i = 0; i < command->count; i++)
        argv[i + 1] = (char *)command->words[i];
    int rc = cli_init(&cli, (int)command->count + 1, argv, err);
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

static int add_kind_documents(struct cli *cli, struct page *page, const struct page_kind *kind,
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
        rc = rc ? rc : add_document(page, cli->program_path, document->name, &command, err);
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
        rc = add_document(page, cli->program_path, name, &command, err);
        free(command.words);
    }
    sweep_report_release(&report);
    return rc;
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
    *kind = &kinds[is_sweep ? KIND_SWEEP : KIND_RUN];
    return rc || is_sweep ? rc : find_only_run(cli, history, run, err);
}

static int make_page(struct cli *cli, struct history *history, struct page *page, struct cb_err *err)
{
    const struct page_kind *kind;
    struct command command = {0};
    struct buf text;
    char run[64] = "";
    const char *only = run;
    buf_init(&text, MAX_COMMAND_BYTES);
    int rc = find_kind(cli, history, &kind, run, err);
    const char *const *words = *run ? &only : cli->words;
    size_t count = *run ? 1 : cli->word_count;
    if (rc == 0)
        rc = command_init(&command, "report", words, count, err);
    if (rc == 0) {
        if (cli_flag_value(cli, "by")) {
            command_add(&command, "--by");
            command_add(&command, cli_flag_value(cli, "by"));
        }
        command_describe(&command, &text);
        rc = buf_check(&text, "a command line", err);
    }
    page_init(page, rc ? "" : kind->name, text.data);
    if (rc == 0)
        rc = add_kind_documents(cli, page, kind, words, count, err);
    if (rc == 0 && kind->by)
        rc = add_sweep_comparisons(cli, page, history, words[0], err);
    free(command.words);
    buf_release(&text);
    return rc ? rc : page_end(page, err);
}

static int run_report(struct cli *cli, struct cb_err *err)
{
    const char *file = cli_flag_value(cli, "o");
    struct history *history;
    struct page page;
    char size[32];
    int rc = history_open_read_only(NULL, &history, err);
    if (rc)
        return rc;
    rc = make_page(cli, history, &page, err);
    history_close(history);
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
