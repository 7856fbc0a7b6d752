/* ckptbench list: the runs of the history, newest first. */
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/table.h"
#include "cli/verb_common.h"
#include "core/log.h"
#include "core/units.h"

#define DEFAULT_LINES 100

struct listing {
    struct table table;
    struct json_writer json;
};

static int json_line(void *context, const struct run_line *line, struct cb_err *err)
{
    struct json_writer *json = &((struct listing *)context)->json;
    (void)err;
    json_write_begin_object(json);
    json_member_text(json, "run", line->run);
    json_member_text(json, "sweep", *line->sweep ? line->sweep : NULL);
    json_member_text(json, "state", line->state);
    json_member_text(json, "outcome", *line->outcome ? line->outcome : NULL);
    json_member_text(json, "site", line->site);
    json_member_u64(json, "block", line->block);
    json_member_u64(json, "combination", line->combination);
    json_member_u64(json, "planned_ns", line->planned_wall_ns);
    json_write_key(json, "started");
    json_write_date(json, line->started_wall_ns);
    json_write_key(json, "experiment");
    json_write_raw(json, line->experiment_json);
    json_write_key(json, "labels");
    json_write_raw(json, line->labels_json);
    json_write_end_object(json);
    return 0;
}

/* {"kind": "nightly", …} as "kind=nightly …". */
static void add_labels(struct table *table, const struct json_value *labels)
{
    struct buf text;
    buf_init(&text, 4096);
    size_t position = 0;
    const char *key, *value;
    const struct json_value *member;
    while (json_next(labels, &position, &key, &member))
        if (json_as_text(member, &value))
            buf_printf(&text, "%s%s=%s", text.len ? " " : "", key, value);
    table_add(table, TABLE_DIM, text.data);
    buf_release(&text);
}

static void add_text(struct table *table, const struct json_value *experiment, const char *key)
{
    const char *text;
    uint64_t number;
    if (json_as_text(json_get(experiment, key), &text))
        table_add(table, TABLE_PLAIN, text);
    else if (json_as_u64(json_get(experiment, key), &number))
        table_addf(table, TABLE_PLAIN, "%llu", (unsigned long long)number);
    else
        table_add(table, TABLE_PLAIN, NULL);
}

static int table_line(void *context, const struct run_line *line, struct cb_err *err)
{
    struct table *table = &((struct listing *)context)->table;
    struct json_value *experiment, *labels = NULL;
    char text[32], date[21];
    int rc = json_parse(line->experiment_json, strlen(line->experiment_json), &experiment, err);
    if (rc == 0)
        rc = json_parse(line->labels_json, strlen(line->labels_json), &labels, err);
    if (rc)
        return cb_context(err, "run %s", line->run);
    bool failed = *line->outcome && strcmp(line->outcome, "pass") != 0;
    table_add(table, TABLE_BOLD, line->run);
    table_add(table, failed ? TABLE_BAD : TABLE_PLAIN, *line->outcome ? line->outcome : line->state);
    table_add(table, TABLE_PLAIN,
              date_text(line->started_wall_ns ? line->started_wall_ns : line->planned_wall_ns, date));
    add_text(table, experiment, "model");
    add_text(table, experiment, "ranks");
    add_text(table, experiment, "store");
    table_add(table, TABLE_PLAIN, figure_text(METRIC_SAVE_S, line->save_s, text));
    table_add(table, TABLE_PLAIN, figure_text(METRIC_LOAD_S, line->load_s, text));
    add_labels(table, labels);
    json_value_free(experiment);
    json_value_free(labels);
    return 0;
}

static int write_table(struct cli *cli, struct history *history, const struct run_selection *selection,
                       struct cb_err *err)
{
    static const char *const headings[] = {"RUN",   "OUTCOME", "STARTED", "MODEL", "RANKS",
                                           "STORE", "SAVE",    "LOAD",    "LABELS"};
    struct listing listing;
    if (selection->count == 0) {
        log_info("no runs%s", cli->word_count ? " match" : " yet: `ckptbench run` makes the first");
        return 0;
    }
    table_init(&listing.table, "llllrlrrl");
    table_add_headings(&listing.table, headings);
    int rc = history_each_run(history, selection, table_line, &listing, err);
    if (rc == 0)
        rc = table_write(&listing.table, 0, cli->colour, &cli->out, err);
    table_release(&listing.table);
    return rc;
}

static int write_json(struct cli *cli, struct history *history, const struct run_selection *selection,
                      struct cb_err *err)
{
    struct listing listing;
    json_writer_init(&listing.json, &cli->out, 0);
    json_write_begin_array(&listing.json);
    int rc = history ? history_each_run(history, selection, json_line, &listing, err) : 0;
    json_write_end_array(&listing.json);
    return rc ? rc : cli_end_json(cli, err);
}

/* How many lines: -n, else all as JSON and the newest 100 as a table. */
static int limit_lines(struct cli *cli, struct run_selection *selection, struct cb_err *err)
{
    const char *given = cli_flag_value(cli, "n");
    uint64_t lines = cli->json || cli_has_flag(cli, "all") ? UINT64_MAX : DEFAULT_LINES;
    int rc = given ? units_parse_u64(given, &lines, err) : 0;
    if (rc)
        return cb_context(err, "-n");
    if (lines == 0)
        return cb_fail(err, CB_ERR_USAGE, "-n 0 lists nothing: give the number of runs, 1 or more");
    if (selection->count > lines) {
        if (!given)
            log_info("the newest %llu of %zu runs; --all lists every one", (unsigned long long)lines, selection->count);
        selection->count = (size_t)lines;
    }
    return 0;
}

static int run_list(struct cli *cli, struct cb_err *err)
{
    struct history *history = NULL;
    struct run_selection selection = {0};
    int rc = history_open_read_only(NULL, &history, err);
    if (rc == CB_ERR_NOT_FOUND)
        return cli->json ? write_json(cli, NULL, &selection, err) : write_table(cli, NULL, &selection, err);
    if (rc)
        return rc;
    rc = history_select(history, cli->words, cli->word_count, &selection, err);
    if (rc == 0)
        rc = limit_lines(cli, &selection, err);
    if (rc == 0)
        rc = cli->json ? write_json(cli, history, &selection, err) : write_table(cli, history, &selection, err);
    run_selection_release(&selection);
    history_close(history);
    return rc;
}

static const struct verb_flag flags[] = {
    {"n", "COUNT", "list the newest COUNT"},
    {"all", NULL, "list every one, however many"},
};

const struct verb verb_list = {
    .name = "list",
    .arguments = "[RUN|SWEEP|BASELINE…] [key=value…]",
    .summary = "the runs of the history, newest first",
    .about =
        "Words add up, filters narrow: any key of an experiment (model=gpt2, a comma is or, * matches any letters), "
        "label.NAME=, state=, outcome=, sweep=, site=, hash=, since=30d, until=7d.",
    .example = "ckptbench list label.kind=nightly since=30d",
    VERB_FLAGS(flags),
    .run = run_list,
};
