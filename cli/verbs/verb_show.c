/* ckptbench show: prints one run as it was printed when it ended, with the time of each rank and phase; or the runs of
 * a sweep. */
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "cli/report/advice.h"
#include "cli/report/history_reading.h"
#include "cli/report/metric_format.h"
#include "cli/report/rank_table.h"
#include "cli/report/report.h"
#include "cli/report/report_heading.h"
#include "cli/report/run_iterations.h"
#include "cli/report/run_latency.h"
#include "cli/report/run_nodes.h"
#include "cli/report/run_time.h"
#include "cli/report/suite_curves.h"
#include "cli/report/suite_report.h"
#include "cli/report/sweep_report.h"
#include "cli/report/table.h"
#include "core/units.h"
#include "run/site.h"

/* Skips ranks that only stopped because another rank failed ("aborted"). */
static int print_failure(void *context, uint32_t rank, const char *code, const char *lines, struct cb_err *err)
{
    struct cli *cli = context;
    (void)err;
    if (code && strcmp(code, "aborted") == 0)
        return 0;
    for (const char *line = lines ? lines : ""; *line;) {
        size_t len = strcspn(line, "\n");
        buf_printf(&cli->out, "rank %u  %.*s\n", rank, (int)len, line);
        line += len + (line[len] == '\n');
    }
    return 0;
}

static int json_failure(void *context, uint32_t rank, const char *code, const char *lines, struct cb_err *err)
{
    struct json_writer *json = context;
    (void)err;
    json_write_begin_object(json);
    json_member_u64(json, "rank", rank);
    json_member_text(json, "code", code);
    json_member_text(json, "text", lines);
    json_write_end_object(json);
    return 0;
}

static int write_phases(struct cli *cli, const struct run_info *run, struct cb_err *err)
{
    struct table table;
    char text[32];
    table_init(&table, "llrr");
    table_add_headings(&table, (const char *const[]){"", "PHASE", "SHARE", "TIME"});
    for (int op = OP_SAVE; op <= OP_LOAD; op++) {
        const struct run_metric *time =
            run_info_metric(run, (enum operation)op, op == OP_SAVE ? METRIC_SAVE_S : METRIC_LOAD_S);
        const char *name = operation_name((enum operation)op);
        for (int state = 0; state < STATE_COUNT; state++) {
            double share = run->state_share[op][state];
            if (!(share > 0))
                continue;
            table_add(&table, TABLE_BOLD, name);
            table_add(&table, TABLE_PLAIN, metric_state_name((enum rank_state)state, (enum operation)op));
            table_addf(&table, TABLE_PLAIN, "%.1f %%", share * 100);
            table_add(&table, TABLE_PLAIN, figure_text(METRIC_OP_S, time ? share * time->summary.median : NAN, text));
            name = "";
        }
    }
    return cli_end_table(cli, &table, err);
}

/* How the nodes joined, what each did, and what the suite measured of them. */
static int write_nodes(struct cli *cli, struct history *history, const struct run_info *run,
                       const struct rank_table *ranks, struct cb_err *err)
{
    struct run_node *nodes = NULL;
    size_t count = 0, before;
    bool written;
    buf_append_char(&cli->out, '\n');
    int rc = run_nodes_write(run, cli->colour, &written, &cli->out, err);
    if (rc == 0)
        rc = run_nodes_load(run, &nodes, &count, err);
    before = cli->out.len;
    if (rc == 0)
        rc = rank_table_write_nodes(ranks, nodes, count, cli->colour, &cli->out, err);
    if (rc == 0)
        rc = suite_report_write(history, run, written || cli->out.len > before, cli->colour, &cli->out, err);
    run_nodes_free(nodes, count);
    return rc ? rc : suite_curves_write(run, cli->colour, &cli->out, err);
}

static int write_nodes_json(struct history *history, const struct run_info *run, const struct rank_table *ranks,
                            struct json_writer *json, struct cb_err *err)
{
    struct run_node *nodes = NULL;
    size_t count = 0;
    run_nodes_write_json(run, json);
    int rc = run_nodes_load(run, &nodes, &count, err);
    if (rc == 0)
        rc = rank_table_write_nodes_json(ranks, nodes, count, json, err);
    if (rc == 0)
        rc = suite_report_write_json(history, run, json, err);
    run_nodes_free(nodes, count);
    suite_curves_write_json(run, json);
    return rc;
}

static int write_text(struct cli *cli, struct history *history, const struct run_info *run,
                      const struct rank_table *ranks, struct cb_err *err)
{
    const struct blocks blocks = blocks_of(STDOUT_FILENO);
    report_write_heading(run->run, run->experiment, NULL, strcmp(run->site, SITE_LOCAL) == 0, cli->colour, &cli->out);
    int rc = report_write_results(run, cli->colour, &cli->out, err);
    if (rc == 0)
        rc = suite_outliers_write(history, run, &cli->out, err);
    if (rc == 0 && cli_has_flag(cli, "advise"))
        rc = advice_write(run, &cli->out, err);
    if (rc == 0 && cli_has_flag(cli, "phases")) {
        buf_append_char(&cli->out, '\n');
        rc = write_phases(cli, run, err);
    }
    if (rc == 0 && cli_has_flag(cli, "latency")) {
        buf_append_char(&cli->out, '\n');
        rc = run_latency_write(run, cli->colour, &cli->out, err);
    }
    if (rc == 0 && cli_has_flag(cli, "iterations")) {
        buf_append_char(&cli->out, '\n');
        rc = run_iterations_write(history, run, cli->colour, &cli->out, err);
    }
    if (rc == 0 && cli_has_flag(cli, "time")) {
        buf_append_char(&cli->out, '\n');
        rc = run_time_write(run, &blocks, cli->colour, &cli->out, err);
    }
    if (rc == 0 && cli_has_flag(cli, "failures")) {
        buf_append_char(&cli->out, '\n');
        size_t before = cli->out.len;
        rc = history_each_failure(history, run->run, run->attempt, print_failure, cli, err);
        if (rc == 0 && cli->out.len == before)
            buf_append_text(&cli->out, "no rank reported a failure\n");
    }
    bool on_terminal = isatty(STDOUT_FILENO); /* scripts read the table of ranks alone, and whole */
    if (rc == 0 && cli_has_flag(cli, "ranks"))
        rc = rank_table_write(ranks, cli_has_flag(cli, "phases"), on_terminal ? blocks.columns : SIZE_MAX, cli->colour,
                              &cli->out, err);
    if (rc == 0 && cli_has_flag(cli, "ranks") && on_terminal)
        rc = run_time_write_ranks(run, &blocks, cli->colour, &cli->out, err);
    if (rc == 0 && cli_has_flag(cli, "nodes"))
        rc = write_nodes(cli, history, run, ranks, err);
    return rc;
}

static int write_json(struct cli *cli, struct history *history, const struct run_info *run,
                      const struct rank_table *ranks, struct cb_err *err)
{
    struct json_writer json;
    uint64_t most_lines = 0;
    int rc = cli_parse_flag(cli, "lines", units_parse_u64, &most_lines, err);
    json_writer_init(&json, &cli->out, 2);
    json_write_begin_object(&json);
    report_write_members(run, &json);
    if (cli_has_flag(cli, "ranks"))
        rank_table_write_json(ranks, cli_has_flag(cli, "phases"), &json);
    if (rc == 0 && cli_has_flag(cli, "nodes"))
        rc = write_nodes_json(history, run, ranks, &json, err);
    if (rc == 0 && cli_has_flag(cli, "advise"))
        rc = advice_write_json(run, &json, err);
    if (rc == 0 && cli_has_flag(cli, "latency"))
        rc = run_latency_write_json(run, &json, err);
    if (rc == 0 && cli_has_flag(cli, "iterations")) {
        run_iterations_write_json(run, &json);
        rc = run_iterations_write_numbers_json(history, run, &json, err);
    }
    if (rc == 0 && cli_has_flag(cli, "time"))
        rc = run_time_write_json(run, most_lines, &json, err);
    if (rc == 0 && cli_has_flag(cli, "failures")) {
        json_member_array(&json, "failures");
        rc = history_each_failure(history, run->run, run->attempt, json_failure, &json, err);
        json_write_end_array(&json);
    }
    return rc ? rc : cli_end_json(cli, &json, err);
}

static int show_sweep(struct cli *cli, struct history *history, const char *sweep, struct cb_err *err)
{
    struct sweep_report report;
    if (cli->flag_count)
        return cb_fail(err, CB_ERR_USAGE, "%s is a sweep: --%s is of one run, and `ckptbench show %s` names them",
                       sweep, cli->flags[0].flag->name, sweep);
    int rc = sweep_report_load(&report, history, sweep, err);
    if (rc == 0 && cli->json) {
        struct json_writer json;
        json_writer_init(&json, &cli->out, 2);
        json_write_begin_object(&json);
        sweep_report_write_members(&report, &json);
        rc = cli_end_json(cli, &json, err);
    } else if (rc == 0) {
        rc = sweep_report_write(&report, cli->colour, &cli->out, err);
    }
    sweep_report_release(&report);
    return rc;
}

static int show_run(struct cli *cli, struct history *history, struct cb_err *err)
{
    struct run_info *run = NULL;
    struct rank_table *ranks = NULL;
    char name[64];
    int rc = find_only_run(cli, history, name, err);
    if (rc == 0)
        rc = history_load_run(history, name, &run, err);
    if (rc == 0 && (cli_has_flag(cli, "ranks") || cli_has_flag(cli, "nodes")))
        rc = rank_table_load(history, run, &ranks, err);
    if (rc == 0)
        rc = cli->json ? write_json(cli, history, run, ranks, err) : write_text(cli, history, run, ranks, err);
    rank_table_free(ranks);
    run_info_free(run);
    return rc;
}

static int run_show(struct cli *cli, struct cb_err *err)
{
    struct history *history;
    bool is_sweep = false;
    int rc = open_history(cli, &history, err);
    if (rc)
        return rc;
    if (cli->word_count == 1)
        rc = sweep_report_is_sweep(history, cli->words[0], &is_sweep, err);
    if (rc == 0)
        rc = is_sweep ? show_sweep(cli, history, cli->words[0], err) : show_run(cli, history, err);
    close_history(cli, history);
    return rc;
}

static const struct verb_flag flags[] = {
    {"ranks", NULL,
     "what each rank took, medians over the iterations; with --phases in every state; of more than 64 the slowest; on "
     "a "
     "terminal also each rank's throughput over time"},
    {"nodes", NULL,
     "the nodes and how they joined, bytes, time and rate of each, the slowest first; workload=suite: outliers, what "
     "each pair of nodes did, and curves over message sizes"},
    {"latency", NULL, "latencies of requests by operation: percentiles, a histogram and the ten slowest requests"},
    {"lines", "N", "with --time --json: at most N lines of ranks, the sums of several in each (a line a rank)"},
    {"iterations", NULL, "what each measured iteration took; --json has every metric of each"},
    {"time", NULL, "bytes of all ranks and activity of the nodes over time, drawn in blocks; --json has every rank"},
    {"failures", NULL, "everything that was wrong, of every rank"},
    {"phases", NULL, "what time went into, state by state"},
    {"advise", NULL, "of a watched training: at most three things to change, and why"},
};

const struct verb verb_show = {
    .name = "show",
    .arguments = "[RUN|SWEEP]",
    .summary = "one run, or the members of a sweep",
    .about =
        "Of a sweep: what varied and the primary metrics of each combination, best first, and the runs that did not "
        "pass or are not in yet. The flags are of one run. Without a name: the latest run.",
    .example = "ckptbench show LATEST --ranks --phases",
    VERB_FLAGS(flags),
    .run = run_show,
};
