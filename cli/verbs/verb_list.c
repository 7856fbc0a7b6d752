/* ckptbench list: prints the runs of the history, newest first. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/listing.h"
#include "cli/report/history_reading.h"
#include "cli/report/sweep_axes.h"
#include "cli/workload_table.h"
#include "core/alloc.h"
#include "core/log.h"
#include "core/units.h"

#define DEFAULT_LINES 100

/* The keys in which the runs of the most recently listed sweep differ. */
struct sweep_words {
    char sweep[64];
    struct sweep_axes axes;
};

struct lines {
    struct history *history;
    struct listing list;
    struct sweep_words words;
    char sweep[64];       /* sweep of the first line */
    bool is_of_one_sweep; /* whether all lines so far belong to it */
};

/* ---- rows ---- */

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

static void json_line(struct json_writer *json, const struct run_line *line, const struct row *row)
{
    json_member_text(json, "run", line->run);
    json_member_text(json, "sweep", *line->sweep ? line->sweep : NULL);
    json_member_text(json, "state", line->state);
    json_member_text(json, "outcome", *line->outcome ? line->outcome : NULL);
    json_member_text(json, "site", line->site);
    json_member_u64(json, "block", line->block);
    json_member_u64(json, "combination", line->combination);
    json_member_u64(json, "planned_ns", line->planned_wall_ns);
    json_member_date(json, "started", line->started_wall_ns);
    json_write_key(json, "experiment");
    json_write_raw(json, row->experiment ? line->experiment_json : "null");
    json_write_key(json, "labels");
    json_write_raw(json, row->labels ? line->labels_json : "null");
}

/* ---- what a sweep varied ---- */

/* The keys that a sweep varied, over all its runs, listed or not. Cached, because the next line usually belongs to the
 * same sweep. On failure the column stays empty, and the list is still printed. */
static const struct sweep_axes *sweep_axes_of(struct lines *self, const char *sweep)
{
    char filter[80];
    struct run_selection members = {0};
    struct cb_err why;
    size_t loaded = 0;
    if (strcmp(self->words.sweep, sweep) == 0)
        return &self->words.axes;
    sweep_axes_release(&self->words.axes);
    snprintf(self->words.sweep, sizeof self->words.sweep, "%s", sweep);
    snprintf(filter, sizeof filter, "sweep=%s", sweep);
    int rc = history_select(self->history, (const char *const[]){filter}, 1, &members, &why);
    struct experiment **experiments = calloc(members.count + 1, sizeof(struct experiment *));
    if (rc == 0 && !experiments)
        rc = alloc_fail(&why, "to list runs");
    for (; rc == 0 && loaded < members.count; loaded += rc == 0)
        rc = history_load_experiment(self->history, members.runs[loaded], &experiments[loaded], &why);
    if (rc == 0)
        rc = sweep_axes_find(&self->words.axes, (const struct experiment *const *)experiments, loaded, false, &why);
    if (rc)
        log_verbose("sweep %s: %s", sweep, why.message);
    while (loaded > 0)
        experiment_free(experiments[--loaded]);
    free(experiments);
    run_selection_release(&members);
    return &self->words.axes;
}

static void add_varied(struct lines *self, const struct run_line *line)
{
    struct experiment *experiment;
    struct buf text;
    buf_init(&text, 1u << 16);
    const struct sweep_axes *axes = *line->sweep ? sweep_axes_of(self, line->sweep) : NULL;
    if (axes && axes->count && history_load_experiment(self->history, line->run, &experiment, NULL) == 0) {
        sweep_axes_describe(axes, experiment, &text);
        experiment_free(experiment);
    }
    table_add(&self->list.table, TABLE_PLAIN, text.data);
    buf_release(&text);
}

/* ---- the table ---- */

enum column { COLUMN_MODEL = 3, COLUMN_RANKS, COLUMN_STORE, COLUMN_VARIED };

/* Prints what all runs of one sweep have in common once, above the table; empty columns are dropped. */
static void drop_repetition(struct lines *self, struct buf *out)
{
    static const struct {
        enum column column;
        const char *key;
    } hoisted[] = {{COLUMN_MODEL, "model"}, {COLUMN_RANKS, "ranks"}, {COLUMN_STORE, "store"}};
    const size_t count = sizeof hoisted / sizeof *hoisted;
    const char *varied = table_same_cell(&self->list.table, COLUMN_VARIED);
    if (varied && !*varied)
        table_drop_column(&self->list.table, COLUMN_VARIED);
    if (!self->is_of_one_sweep)
        return;
    buf_printf(out, "sweep %s", self->sweep);
    for (size_t i = 0; i < count; i++) {
        const char *same = table_same_cell(&self->list.table, hoisted[i].column);
        if (same)
            buf_printf(out, "  %s=%s", hoisted[i].key, same);
    }
    buf_append_char(out, '\n');
    for (size_t i = count; i-- > 0;)
        if (table_same_cell(&self->list.table, hoisted[i].column))
            table_drop_column(&self->list.table, hoisted[i].column);
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
    else if (json_as_u64(json_get(experiment, key), &number) && number > 0) /* 0 ranks: workload=watch cannot know */
        table_addf(table, TABLE_PLAIN, "%llu", (unsigned long long)number);
    else
        table_add(table, TABLE_PLAIN, NULL);
}

static void add_cells(struct lines *self, const struct run_line *line, const struct row *row)
{
    struct table *table = &self->list.table;
    char text[32], date[21];
    const char *workload = "";
    bool failed = *line->outcome && strcmp(line->outcome, "pass") != 0, is_first = self->list.count == 1;
    if (is_first)
        snprintf(self->sweep, sizeof self->sweep, "%s", line->sweep);
    self->is_of_one_sweep =
        *line->sweep && (is_first || self->is_of_one_sweep) && strcmp(self->sweep, line->sweep) == 0;
    table_add(table, TABLE_BOLD, line->run);
    table_add(table, failed ? TABLE_BAD : TABLE_PLAIN, *line->outcome ? line->outcome : line->state);
    table_add(table, TABLE_PLAIN,
              date_text(line->started_wall_ns ? line->started_wall_ns : line->planned_wall_ns, date));
    (void)json_as_text(json_get(row->experiment, "workload"), &workload);
    const struct workload_row *kind = workload_row_named(workload);
    add_text(table, kind->has_model ? row->experiment : NULL, "model");
    add_text(table, row->experiment, "ranks");
    add_text(table, kind->needs_store ? row->experiment : NULL, "store");
    add_varied(self, line);
    for (int i = 0; i < METRIC_COUNT; i++)
        if (metric_in_list((enum metric_id)i))
            table_add(table, TABLE_PLAIN, figure_text((enum metric_id)i, line->medians[i], text));
    add_labels(table, row->labels);
}

static int add_line(void *context, const struct run_line *line, struct cb_err *err)
{
    struct lines *self = context;
    struct row row = read_row(line);
    (void)err;
    listing_begin_row(&self->list);
    if (self->list.cli->json)
        json_line(&self->list.json, line, &row);
    else
        add_cells(self, line, &row);
    listing_end_row(&self->list);
    json_value_free(row.experiment);
    json_value_free(row.labels);
    return 0;
}

/* "save_s" as "SAVE". */
static const char *metric_heading(const char *name, char heading[64])
{
    size_t len = strlen(name);
    if (len > 2 && strcmp(name + len - 2, "_s") == 0)
        len -= 2;
    snprintf(heading, 64, "%.*s", (int)len, name);
    for (char *at = heading; *at; at++)
        *at = (char)(*at == '_' ? ' ' : toupper((unsigned char)*at));
    return heading;
}

static void start_list(struct listing *list, struct cli *cli)
{
    const char *headings[TABLE_MAX_COLUMNS] = {"RUN", "OUTCOME", "STARTED", "MODEL", "RANKS", "STORE", "VARIED"};
    char alignment[TABLE_MAX_COLUMNS + 1] = "llllrll", names[METRIC_COUNT][64];
    size_t columns = strlen(alignment);
    for (int i = 0; i < METRIC_COUNT; i++) {
        if (!metric_in_list((enum metric_id)i))
            continue;
        alignment[columns] = 'r';
        headings[columns++] = metric_heading(metric_row((enum metric_id)i)->name, names[i]);
    }
    alignment[columns] = 'l';
    headings[columns] = "LABELS";
    listing_init(list, cli, 0, alignment, headings);
}

static int write_list(struct cli *cli, struct history *history, const struct run_selection *selection,
                      struct cb_err *err)
{
    struct lines self = {.history = history};
    start_list(&self.list, cli);
    self.list.if_empty = cli->word_count ? "no runs match" : "no runs yet: `ckptbench run` makes the first";
    int rc = selection->count ? history_each_run(history, selection, add_line, &self, err) : 0;
    if (rc == 0 && !cli->json && self.list.count && !self.list.table.code)
        drop_repetition(&self, &cli->out);
    sweep_axes_release(&self.words.axes);
    return listing_end(&self.list, rc, err);
}

/* The number of lines: -n, otherwise all for JSON and the newest 100 for a table. */
static int limit_lines(struct cli *cli, struct run_selection *selection, struct cb_err *err)
{
    uint64_t lines = cli->json || cli_has_flag(cli, "all") ? UINT64_MAX : DEFAULT_LINES;
    int rc = cli_parse_flag(cli, "n", units_parse_u64, &lines, err);
    if (rc)
        return rc;
    if (lines == 0)
        return cb_fail(err, CB_ERR_USAGE, "-n 0 lists nothing: give the number of runs, 1 or more");
    if (selection->count > lines) {
        if (!cli_has_flag(cli, "n"))
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
        return write_list(cli, NULL, &selection, err);
    if (rc)
        return rc;
    rc = history_select(history, cli->words, cli->word_count, &selection, err);
    if (rc == 0)
        rc = limit_lines(cli, &selection, err);
    if (rc == 0)
        rc = write_list(cli, history, &selection, err);
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
