/* ckptbench list: prints the runs of the history, newest first. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/report/history_reading.h"
#include "cli/report/sweep_axes.h"
#include "cli/report/table.h"
#include "cli/workload_table.h"
#include "core/alloc.h"
#include "core/log.h"
#include "core/units.h"

#define DEFAULT_LINES 100

/* The keys in which the runs of the most recently listed sweep differ. */
struct sweep_words {
    char sweep[64];
    struct sweep_axes varied;
};

struct listing {
    struct history *history;
    struct table table;
    struct json_writer json;
    struct sweep_words words;
    char sweep[64];       /* sweep of the first line */
    bool is_of_one_sweep; /* whether all lines so far belong to it */
};

/* ---- damaged rows ---- */

/* The JSON of a row; NULL if it is malformed. */
struct row {
    struct json_value *experiment, *labels;
};

/* A damaged row is reported, and the others are still listed. */
static struct row read_row(const struct run_line *line)
{
    struct row row = {0};
    int damaged = json_parse(line->experiment_json, strlen(line->experiment_json), &row.experiment, NULL);
    if (json_parse(line->labels_json, strlen(line->labels_json), &row.labels, NULL) || damaged)
        log_error("run %s: its row of the history is damaged (experiment or labels are no JSON): `ckptbench collect "
                  "--rebuild` makes the rows anew from the run folders",
                  line->run);
    return row;
}

static void row_release(struct row *self)
{
    json_value_free(self->experiment);
    json_value_free(self->labels);
}

static void write_object(struct json_writer *json, const char *key, const char *text, const struct json_value *parsed)
{
    json_write_key(json, key);
    if (parsed)
        json_write_raw(json, text);
    else
        json_write_null(json);
}

static int json_line(void *context, const struct run_line *line, struct cb_err *err)
{
    struct json_writer *json = &((struct listing *)context)->json;
    struct row row = read_row(line);
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
    write_object(json, "experiment", line->experiment_json, row.experiment);
    write_object(json, "labels", line->labels_json, row.labels);
    json_write_end_object(json);
    row_release(&row);
    return 0;
}

/* ---- what a sweep varied ---- */

static int find_varied(struct history *history, const struct run_selection *members, struct sweep_axes *varied,
                       struct cb_err *err)
{
    struct experiment **experiments = calloc(members->count + 1, sizeof(struct experiment *));
    size_t loaded = 0;
    int rc = experiments ? 0 : alloc_fail(err, "to list runs");
    for (; loaded < members->count && rc == 0; loaded += rc == 0)
        rc = history_load_experiment(history, members->runs[loaded], &experiments[loaded], err);
    if (rc == 0)
        rc = sweep_axes_find(varied, (const struct experiment *const *)experiments, loaded, false, err);
    for (size_t i = 0; experiments && i < loaded; i++)
        experiment_free(experiments[i]);
    free(experiments);
    return rc;
}

/* The keys that a sweep varied, over all its runs, listed or not. Cached, because the next line mostly belongs to
 * the same sweep. On failure the column stays empty: the list is worth more than this column. */
static const struct sweep_axes *sweep_axes_of(struct listing *self, const char *sweep)
{
    char filter[80];
    const char *const words[] = {filter};
    struct run_selection members = {0};
    struct cb_err why;
    if (strcmp(self->words.sweep, sweep) == 0)
        return &self->words.varied;
    sweep_axes_release(&self->words.varied);
    snprintf(self->words.sweep, sizeof self->words.sweep, "%s", sweep);
    snprintf(filter, sizeof filter, "sweep=%s", sweep);
    int rc = history_select(self->history, words, 1, &members, &why);
    if (rc == 0)
        rc = find_varied(self->history, &members, &self->words.varied, &why);
    if (rc)
        log_verbose("sweep %s: %s", sweep, why.message);
    run_selection_release(&members);
    return &self->words.varied;
}

static void add_varied(struct listing *self, const struct run_line *line)
{
    struct experiment *experiment;
    struct buf text;
    buf_init(&text, 1u << 16);
    const struct sweep_axes *varied = *line->sweep ? sweep_axes_of(self, line->sweep) : NULL;
    if (varied && varied->count && history_load_experiment(self->history, line->run, &experiment, NULL) == 0) {
        sweep_axes_describe(varied, experiment, &text);
        experiment_free(experiment);
    }
    table_add(&self->table, TABLE_PLAIN, text.data);
    buf_release(&text);
}

/* ---- the table ---- */

enum column { COLUMN_MODEL = 3, COLUMN_RANKS, COLUMN_STORE, COLUMN_VARIED };

static void note_sweep(struct listing *self, const struct run_line *line)
{
    bool is_first = self->table.count == self->table.columns;
    if (is_first)
        snprintf(self->sweep, sizeof self->sweep, "%s", line->sweep);
    self->is_of_one_sweep =
        *line->sweep && (is_first || self->is_of_one_sweep) && strcmp(self->sweep, line->sweep) == 0;
}

/* Prints what all runs of one sweep have in common once, above the table; empty columns are dropped. */
static void drop_repetition(struct listing *self, struct buf *out)
{
    static const struct {
        enum column column;
        const char *key;
    } hoisted[] = {{COLUMN_MODEL, "model"}, {COLUMN_RANKS, "ranks"}, {COLUMN_STORE, "store"}};
    const size_t count = sizeof hoisted / sizeof *hoisted;
    const char *varied = table_same_cell(&self->table, COLUMN_VARIED);
    if (varied && !*varied)
        table_drop_column(&self->table, COLUMN_VARIED);
    if (!self->is_of_one_sweep)
        return;
    buf_printf(out, "sweep %s", self->sweep);
    for (size_t i = 0; i < count; i++) {
        const char *same = table_same_cell(&self->table, hoisted[i].column);
        if (same)
            buf_printf(out, "  %s=%s", hoisted[i].key, same);
    }
    buf_append_char(out, '\n');
    for (size_t i = count; i-- > 0;)
        if (table_same_cell(&self->table, hoisted[i].column))
            table_drop_column(&self->table, hoisted[i].column);
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

static bool has_model(const struct json_value *experiment)
{
    const char *workload;
    if (!json_as_text(json_get(experiment, "workload"), &workload))
        return true;
    return workload_row_named(workload)->has_model;
}

static int table_line(void *context, const struct run_line *line, struct cb_err *err)
{
    struct listing *self = context;
    struct table *table = &self->table;
    struct row row = read_row(line);
    char text[32], date[21];
    bool failed = *line->outcome && strcmp(line->outcome, "pass") != 0;
    (void)err;
    note_sweep(self, line);
    table_add(table, TABLE_BOLD, line->run);
    table_add(table, failed ? TABLE_BAD : TABLE_PLAIN, *line->outcome ? line->outcome : line->state);
    table_add(table, TABLE_PLAIN,
              date_text(line->started_wall_ns ? line->started_wall_ns : line->planned_wall_ns, date));
    if (has_model(row.experiment))
        add_text(table, row.experiment, "model");
    else
        table_add(table, TABLE_PLAIN, NULL);
    add_text(table, row.experiment, "ranks");
    add_text(table, row.experiment, "store");
    add_varied(self, line);
    for (int i = 0; i < METRIC_COUNT; i++)
        if (metric_in_list((enum metric_id)i))
            table_add(table, TABLE_PLAIN, figure_text((enum metric_id)i, line->medians[i], text));
    add_labels(table, row.labels);
    row_release(&row);
    return 0;
}

/* "save_s" as "SAVE". */
static void add_metric_heading(struct table *table, const char *name)
{
    size_t len = strlen(name);
    char heading[64];
    if (len > 2 && strcmp(name + len - 2, "_s") == 0)
        len -= 2;
    snprintf(heading, sizeof heading, "%.*s", (int)len, name);
    for (char *at = heading; *at; at++)
        *at = (char)(*at == '_' ? ' ' : toupper((unsigned char)*at));
    table_add(table, TABLE_BOLD, heading);
}

static void start_table(struct table *table)
{
    static const char *const headings[] = {"RUN", "OUTCOME", "STARTED", "MODEL", "RANKS", "STORE", "VARIED"};
    char alignment[METRIC_COUNT + sizeof "llllrlll"] = "llllrll";
    size_t columns = strlen(alignment);
    for (int i = 0; i < METRIC_COUNT; i++)
        if (metric_in_list((enum metric_id)i))
            alignment[columns++] = 'r';
    alignment[columns] = 'l';
    table_init(table, alignment);
    for (size_t i = 0; i < sizeof headings / sizeof *headings; i++)
        table_add(table, TABLE_BOLD, headings[i]);
    for (int i = 0; i < METRIC_COUNT; i++)
        if (metric_in_list((enum metric_id)i))
            add_metric_heading(table, metric_row((enum metric_id)i)->name);
    table_add(table, TABLE_BOLD, "LABELS");
}

static int write_table(struct cli *cli, struct history *history, const struct run_selection *selection,
                       struct cb_err *err)
{
    struct listing listing = {.history = history};
    if (selection->count == 0) {
        log_info("no runs%s", cli->word_count ? " match" : " yet: `ckptbench run` makes the first");
        return 0;
    }
    start_table(&listing.table);
    int rc = history_each_run(history, selection, table_line, &listing, err);
    if (rc == 0 && !listing.table.code)
        drop_repetition(&listing, &cli->out);
    if (rc == 0)
        rc = table_write(&listing.table, 0, cli->colour, &cli->out, err);
    table_release(&listing.table);
    sweep_axes_release(&listing.words.varied);
    return rc;
}

static int write_json(struct cli *cli, struct history *history, const struct run_selection *selection,
                      struct cb_err *err)
{
    struct listing listing = {.history = history};
    json_writer_init(&listing.json, &cli->out, 0);
    json_write_begin_array(&listing.json);
    int rc = history ? history_each_run(history, selection, json_line, &listing, err) : 0;
    json_write_end_array(&listing.json);
    return rc ? rc : cli_end_json(cli, err);
}

/* The number of lines: -n, otherwise all for JSON and the newest 100 for a table. */
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
