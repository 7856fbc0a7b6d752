/* ckptbench compare: prints what changed between sides of runs, and whether it is significant.
 * cli/compare/compare_sides.c finds the sides, cli/compare/comparison.c compares them. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/compare/compare_sides.h"
#include "cli/compare/comparison.h"
#include "cli/compare/scaling_report.h"
#include "cli/history/level_change.h"
#include "cli/report/history_reading.h"
#include "cli/report/metric_format.h"
#include "cli/report/request_repeats.h"
#include "cli/report/table.h"
#include "core/alloc.h"
#include "core/log.h"
#include "core/units.h"
#include "run/workload_kind.h"

#define MAX_EXPLORATORY_LINES 10
#define MENTIONED 0.005        /* smaller changes are rounded away in the table */
#define REPEATS_MENTIONED 0.01 /* smaller differences in the share of repeated requests are not printed */

/* JSON */

static void json_differences(struct json_writer *json, const char *key, const struct comparison_differences *differs)
{
    json_member_object(json, key);
    for (size_t i = 0; i < differs->count; i++) {
        json_member_object(json, differs->items[i].key);
        json_member_text(json, "base", differs->items[i].base);
        json_member_text(json, "other", differs->items[i].other);
        json_write_end_object(json);
    }
    json_write_end_object(json);
}

static void json_metric(struct json_writer *json, const struct comparison_metric *metric)
{
    bool interval = isfinite(metric->shift.high);
    json_member_object(json, metric->name);
    json_member_double(json, "base", metric->base);
    json_member_double(json, "other", metric->other);
    json_member_double(json, "change", metric->shift.estimate);
    const double ci[] = {interval ? metric->shift.low : NAN, interval ? metric->shift.high : NAN};
    json_member_doubles(json, "ci", ci, 2);
    json_member_double(json, "p", metric->p);
    json_member_text(json, "verdict", metric->primary ? verdict_name(metric->verdict) : "exploratory");
    json_member_bool(json, "primary", metric->primary);
    json_member_text(json, "unit", metric_row(metric->metric)->unit);
    json_member_u64_or_null(json, "more_runs", metric->more_runs && metric->more_runs <= STATS_MOST_MORE_RUNS,
                            metric->more_runs);
    json_write_end_object(json);
}

static void json_outliers(struct json_writer *json, const struct comparison *comparison)
{
    json_member_array(json, "outliers");
    for (size_t i = 0; i < comparison->outlier_count; i++) {
        const struct comparison_outlier *outlier = &comparison->outliers[i];
        json_write_begin_object(json);
        json_member_text(json, "run", outlier->run);
        json_member_text(json, "side", outlier->of_base ? "base" : "other");
        json_member_text(json, "metric", outlier->metric);
        json_member_double(json, "value", outlier->value);
        json_write_end_object(json);
    }
    json_write_end_array(json);
}

/* The state that most often made a rank the slowest among the runs of a side, and in how many runs; STATE_COUNT if
 * no run gives a reason. */
static enum rank_state usual_state(const struct comparison_side *side, enum operation op, size_t *runs)
{
    size_t times[STATE_COUNT + 1] = {0};
    enum rank_state most = STATE_COUNT;
    for (size_t i = 0; i < side->count; i++)
        times[side->runs[i]->slowest_rank_state[op]]++;
    for (int state = 0; state < STATE_COUNT; state++)
        if (times[state] && (most == STATE_COUNT || times[state] > times[most]))
            most = (enum rank_state)state;
    *runs = most == STATE_COUNT ? 0 : times[most];
    return most;
}

static void json_slowest(struct json_writer *json, const struct comparison_side *base,
                         const struct comparison_side *other)
{
    json_member_object(json, "slowest_rank_state");
    for (int op = OP_NONE + 1; op < OP_COUNT; op++) {
        size_t runs;
        enum rank_state before = usual_state(base, (enum operation)op, &runs);
        enum rank_state after = usual_state(other, (enum operation)op, &runs);
        if (before == STATE_COUNT && after == STATE_COUNT)
            continue;
        json_member_object(json, operation_name((enum operation)op));
        json_member_text(json, "base", before == STATE_COUNT ? NULL : rank_state_name(before));
        json_member_text(json, "other", after == STATE_COUNT ? NULL : rank_state_name(after));
        json_write_end_object(json);
    }
    json_write_end_object(json);
}

/* Whether levels are reported: of the newest run, if it is compared as such. */
static bool has_level(const struct side *side, const struct comparison_metric *metric)
{
    return strcmp(side->name, "LATEST") == 0 && side->compared.count && metric->primary && !metric->repeats;
}

static int json_levels(struct json_writer *json, struct history *history, const struct side *side,
                       const struct comparison *comparison, struct cb_err *err)
{
    int rc = 0;
    json_member_object(json, "change_points");
    for (size_t i = 0; i < comparison->metric_count && rc == 0; i++) {
        const struct comparison_metric *metric = &comparison->metrics[i];
        struct run_level level;
        if (!has_level(side, metric))
            continue;
        rc = run_level_load(&level, history, side->runs[0], metric->op, metric->metric, err);
        if (rc == 0 && level.found) {
            json_member_object(json, metric->name);
            level_change_write_json(&level.change, metric->metric, json);
            json_write_end_object(json);
        }
        run_level_release(&level);
    }
    json_write_end_object(json);
    return rc;
}

/* The primary metrics of each run of a side. */
static void json_runs(struct json_writer *json, const char *key, const struct comparison_side *side,
                      const struct comparison *comparison)
{
    json_member_array(json, key);
    for (size_t i = 0; i < side->count; i++) {
        const struct run_info *run = side->runs[i];
        json_write_begin_object(json);
        json_member_text(json, "run", run->run);
        json_member_text(json, "sweep", *run->sweep ? run->sweep : NULL);
        json_member_u64(json, "block", run->block);
        json_member_object(json, "metrics");
        for (size_t j = 0; j < comparison->metric_count && comparison->metrics[j].primary; j++) {
            const struct comparison_metric *metric = &comparison->metrics[j];
            const struct run_metric *found = run_info_metric(run, metric->op, metric->metric);
            json_member_double(json, metric->name, found ? found->summary.median : NAN);
        }
        json_write_end_object(json);
        json_write_end_object(json);
    }
    json_write_end_array(json);
}

static int json_other(struct json_writer *json, struct history *history, const struct side *base,
                      const struct side *side, const struct comparison *comparison, struct cb_err *err)
{
    static const char *const methods[] = {"runs", "blocks", "within-run", "prediction"};
    json_write_begin_object(json);
    json_member_text(json, "name", side->name);
    json_member_u64(json, "n", side->compared.count);
    json_member_u64(json, "left_out", side->compared.left_out);
    json_member_u64(json, "unfinished", side->compared.running + side->compared.planned);
    json_member_text(json, "method", methods[comparison->method]);
    json_member_u64(json, "blocks", comparison->blocks);
    json_member_object(json, "metrics");
    for (size_t i = 0; i < comparison->metric_count; i++)
        json_metric(json, &comparison->metrics[i]);
    json_write_end_object(json);
    json_differences(json, "differs", &comparison->differs);
    json_differences(json, "confounded", &comparison->confounded);
    json_outliers(json, comparison);
    json_slowest(json, &base->compared, &side->compared);
    json_member_object(json, "runs_compared");
    json_runs(json, "base", &base->compared, comparison);
    json_runs(json, "other", &side->compared, comparison);
    json_write_end_object(json);
    json_member_u64(json, "suspected_cache", comparison->suspected_cache_base + comparison->suspected_cache_other);
    int rc = json_levels(json, history, side, comparison, err);
    json_write_end_object(json);
    return rc;
}

static int write_json(struct cli *cli, struct history *history, const struct sides *sides,
                      const struct comparison *comparisons, struct cb_err *err)
{
    const char *by = cli_flag_value(cli, "by");
    struct json_writer json;
    int rc = 0;
    json_writer_init(&json, &cli->out, 2);
    json_write_begin_object(&json);
    json_member_object(&json, "base");
    json_member_text(&json, "name", sides->items[0].name);
    json_member_u64(&json, "n", sides->items[0].compared.count);
    json_member_u64(&json, "left_out", sides->items[0].compared.left_out);
    json_write_end_object(&json);
    json_member_array(&json, "others");
    for (size_t i = 1; i < sides->count && rc == 0; i++)
        rc = json_other(&json, history, &sides->items[0], &sides->items[i], &comparisons[i - 1], err);
    json_write_end_array(&json);
    if (rc == 0 && scaling_is_size(by))
        rc = scaling_write_json(sides, by, &json, err);
    return rc ? rc : cli_end_json(cli, &json, err);
}

/* For people */

/* The reasons for slow ranks, if the sides differ in them. */
static void write_slowest(struct buf *out, const struct comparison_side *base, const struct comparison_side *other)
{
    for (int op = OP_NONE + 1; op < OP_COUNT; op++) {
        size_t runs_before, runs_after;
        enum rank_state before = usual_state(base, (enum operation)op, &runs_before);
        enum rank_state after = usual_state(other, (enum operation)op, &runs_after);
        if (before == after || before == STATE_COUNT || after == STATE_COUNT) /* prints nothing without a reason */
            continue;
        buf_printf(out, "slowest rank of %s: %s (%zu of %zu run%s) -> %s (%zu of %zu run%s)\n",
                   operation_name((enum operation)op), metric_state_name(before, (enum operation)op), runs_before,
                   base->count, units_plural(base->count), metric_state_name(after, (enum operation)op), runs_after,
                   other->count, units_plural(other->count));
    }
}

/* How many requests were repeated, and why, if the sides differ. */
static void write_repeats(struct buf *out, const struct comparison_side *base, const struct comparison_side *other)
{
    for (enum operation op = OP_SAVE; op <= OP_LOAD; op++) {
        struct request_repeats before = {.op = op}, after = {.op = op};
        for (size_t i = 0; i < base->count; i++)
            request_repeats_add(&before, base->runs[i]);
        for (size_t i = 0; i < other->count; i++)
            request_repeats_add(&after, other->runs[i]);
        if (fabs(request_repeats_share(&after) - request_repeats_share(&before)) < REPEATS_MENTIONED)
            continue;
        buf_append_text(out, "repeated: ");
        request_repeats_describe(&before, out);
        buf_append_text(out, " -> ");
        request_repeats_describe(&after, out);
        buf_append_char(out, '\n');
    }
}

static void add_verdict(struct table *table, const struct comparison *comparison,
                        const struct comparison_metric *metric, double threshold)
{
    if (!metric->primary)
        table_addf(table, TABLE_DIM, "exploratory, p = %.2g", metric->p);
    else if (comparison->method == COMPARED_ITERATIONS)
        table_add(table, TABLE_WARN, "within-run: iterations of one run a side; repeat the run to tell");
    else if (comparison->refused)
        table_add(table, TABLE_WARN, "inconclusive: confounded, see below");
    else if (metric->verdict == VERDICT_SAME)
        table_addf(table, TABLE_PLAIN, "same (within %g %%)", threshold * 100);
    else if (metric->verdict == VERDICT_BETTER)
        table_addf(table, TABLE_GOOD, "better   p = %.2g", metric->p);
    else if (metric->verdict == VERDICT_WORSE)
        table_addf(table, TABLE_BAD, "worse   p = %.2g", metric->p);
    else if (comparison->method == COMPARED_PREDICTION && metric->base_n < COMPARISON_MIN_EARLIER)
        table_addf(table, TABLE_WARN, "inconclusive: %zu more run%s of the base %s needed to judge one run",
                   metric->more_runs, units_plural(metric->more_runs), metric->more_runs == 1 ? "is" : "are");
    else if (metric->more_runs > STATS_MOST_MORE_RUNS)
        table_addf(table, TABLE_WARN, "inconclusive: more than %d more runs a side would be needed to tell",
                   STATS_MOST_MORE_RUNS);
    else if (metric->more_runs)
        table_addf(table, TABLE_WARN, "inconclusive: about %zu more run%s a side would tell", metric->more_runs,
                   units_plural(metric->more_runs));
    else
        table_add(table, TABLE_WARN, "inconclusive");
}

static void add_metric(struct table *table, const struct comparison *comparison, const struct comparison_metric *metric,
                       double threshold)
{
    char base[32], other[32];
    table_add(table, TABLE_BOLD, metric->name);
    table_add(table, TABLE_PLAIN, figure_short_text(metric->metric, metric->base, base));
    table_add(table, TABLE_PLAIN, figure_short_text(metric->metric, metric->other, other));
    if (isnan(metric->shift.estimate))
        table_add(table, TABLE_PLAIN, NULL);
    else
        table_addf(table, TABLE_PLAIN, "%+.1f %%", metric->shift.estimate * 100);
    if (isfinite(metric->shift.high))
        table_addf(table, TABLE_PLAIN, "[%+.1f, %+.1f]", metric->shift.low * 100, metric->shift.high * 100);
    else
        table_add(table, TABLE_DIM, "[too few]");
    add_verdict(table, comparison, metric, threshold);
}

/* Shows exploratory metrics that changed, each value once; with --all, all of them. */
static bool is_shown(const struct comparison_metric *metric, double threshold, bool all, size_t *shown)
{
    if (all || metric->repeats)
        return all;
    if (metric->primary)
        return true;
    if (!(metric->p < 0.05) || !(fabs(metric->shift.estimate) >= threshold) || *shown >= MAX_EXPLORATORY_LINES ||
        metric_row(metric->metric)->direction == METRIC_NEUTRAL)
        return false;
    ++*shown;
    return true;
}

static void write_differences(struct buf *out, const char *title, const struct comparison_differences *differs)
{
    if (!differs->count)
        return;
    buf_printf(out, "%s", title);
    for (size_t i = 0; i < differs->count; i++)
        buf_printf(out, "%s %s %s -> %s", i ? "," : "", differs->items[i].key, differs->items[i].base,
                   differs->items[i].other);
    buf_append_char(out, '\n');
}

static void write_left_out(struct buf *out, const struct side *side)
{
    if (side->compared.left_out)
        buf_printf(out, "left out: %zu run%s of %s did not pass\n", side->compared.left_out,
                   units_plural(side->compared.left_out), side->name);
    if (side->compared.running)
        buf_printf(out, "not in yet: %zu run%s of %s still running\n", side->compared.running,
                   units_plural(side->compared.running), side->name);
    if (side->compared.planned)
        buf_printf(out, "not in yet: %zu run%s of %s not started\n", side->compared.planned,
                   units_plural(side->compared.planned), side->name);
}

/* The change is not the ratio of the two printed medians; if their signs differ, a line explains that. */
static void write_contradictions(struct buf *out, const struct comparison *comparison)
{
    for (size_t i = 0; i < comparison->metric_count && comparison->metrics[i].primary; i++) {
        const struct comparison_metric *metric = &comparison->metrics[i];
        double medians = metric->other / metric->base - 1, change = metric->shift.estimate;
        if (!metric->repeats && fabs(medians) >= MENTIONED && fabs(change) >= MENTIONED && medians * change < 0)
            buf_printf(out,
                       "%s: the medians say %+.1f %%; the change is the typical ratio of a run of one side to one of "
                       "the other\n",
                       metric->name, 100 * medians);
    }
}

static bool is_watched(const struct comparison_side *side)
{
    for (size_t i = 0; i < side->count; i++)
        if (!workload_kind_of(side->runs[i]->experiment)->watches)
            return false;
    return true;
}

/* What a watched program would have to do so that a verdict can be given: keys like repeat= are not for its command. */
static void write_how_to_watch_more(struct buf *out, const struct comparison_side *base,
                                    const struct comparison_side *other, const struct comparison *comparison)
{
    size_t tests = 0, open = 0, needed = stats_fewest_a_side(1);
    if (comparison->refused || !is_watched(base) || !is_watched(other))
        return;
    for (size_t i = 0; i < comparison->metric_count && comparison->metrics[i].primary; i++) {
        const struct comparison_metric *metric = &comparison->metrics[i];
        if (metric->repeats)
            continue;
        tests++;
        open += metric->verdict == VERDICT_INCONCLUSIVE;
        if (comparison->method == COMPARED_ITERATIONS && !isfinite(metric->shift.high))
            buf_printf(out, "%s: %zu against %zu %ss are too few for an interval: it needs %zu on each side\n",
                       metric->name, metric->base_n, metric->other_n, operation_name(metric->op), needed);
    }
    if (open > 0)
        buf_printf(
            out,
            "for a verdict: at least %zu runs a side, with a label for each side: "
            "ckptbench watch label.side=NAME -- …, and then ckptbench compare label.side=NAME label.side=OTHER\n",
            stats_fewest_a_side(tests));
}

static void write_notes(struct buf *out, const struct side *base, const struct side *other,
                        const struct comparison *comparison)
{
    char text[32];
    write_differences(out, "differs:", &comparison->differs);
    write_differences(out, "confounded:", &comparison->confounded);
    if (comparison->refused)
        buf_append_text(out, "   what changed may be due to these; --across judges all the same\n");
    if (comparison->same_count) {
        buf_append_text(out, "same:");
        for (size_t i = 0; i < comparison->same_count; i++)
            buf_printf(out, "%s %s", i ? "," : "", comparison->same[i]);
        buf_append_char(out, '\n');
    }
    write_slowest(out, &base->compared, &other->compared);
    write_repeats(out, &base->compared, &other->compared);
    write_contradictions(out, comparison);
    if (comparison->method == COMPARED_BLOCKS)
        buf_printf(out, "tested within %zu blocks, which take out what changed over time\n", comparison->blocks);
    if (comparison->method == COMPARED_PREDICTION && base->compared.count >= COMPARISON_MIN_EARLIER)
        buf_printf(out, "one run, tested against the spread of %zu: repeat it before you act on a change\n",
                   base->compared.count);
    for (size_t i = 0; i < comparison->outlier_count; i++) {
        const struct comparison_outlier *outlier = &comparison->outliers[i];
        enum metric_id metric;
        if (metric_find(outlier->metric, &metric))
            buf_printf(out, "outlier: run %s of %s, %s %s (kept)\n", outlier->run,
                       outlier->of_base ? base->name : other->name, outlier->metric,
                       figure_short_text(metric, outlier->value, text));
    }
    if (comparison->suspected_cache_base + comparison->suspected_cache_other)
        buf_printf(out, "loads that look cached: %zu of %s, %zu of %s\n", comparison->suspected_cache_base, base->name,
                   comparison->suspected_cache_other, other->name);
    write_left_out(out, base);
    write_left_out(out, other);
    write_how_to_watch_more(out, &base->compared, &other->compared, comparison);
}

static int write_table(struct cli *cli, const struct side *base, const struct side *other,
                       const struct comparison *comparison, double threshold, struct cb_err *err)
{
    struct table table;
    size_t shown = 0;
    table_init(&table, "lrrrll");
    table_add(&table, TABLE_PLAIN, "median of");
    table_addf(&table, TABLE_BOLD, "%s (n=%zu)", base->name, base->compared.count);
    table_addf(&table, TABLE_BOLD, "%s (n=%zu)", other->name, other->compared.count);
    table_add(&table, TABLE_BOLD, "typical change");
    table_add(&table, TABLE_BOLD, "95 % interval");
    table_add(&table, TABLE_BOLD, "verdict");
    for (size_t i = 0; i < comparison->metric_count; i++)
        if (is_shown(&comparison->metrics[i], threshold, cli_has_flag(cli, "all"), &shown))
            add_metric(&table, comparison, &comparison->metrics[i], threshold);
    int rc = cli_end_table(cli, &table, err);
    if (rc == 0)
        write_notes(&cli->out, base, other, comparison);
    return rc;
}

/* The change points at which the levels of the newest run began. */
static int write_levels(struct cli *cli, struct history *history, const struct side *side,
                        const struct comparison *comparison, struct cb_err *err)
{
    int rc = 0;
    for (size_t i = 0; i < comparison->metric_count && rc == 0; i++) {
        const struct comparison_metric *metric = &comparison->metrics[i];
        struct run_level level;
        if (!has_level(side, metric))
            continue;
        rc = run_level_load(&level, history, side->runs[0], metric->op, metric->metric, err);
        if (rc == 0 && level.found) {
            buf_printf(&cli->out, "level of %s: ", metric->name);
            level_change_write(&level.change, metric->metric, &cli->out);
        }
        run_level_release(&level);
    }
    return rc;
}

static int compare_sides(struct cli *cli, struct history *history, struct sides *sides,
                         const struct comparison_options *options, struct cb_err *err)
{
    struct comparison *comparisons = calloc(sides->count, sizeof *comparisons);
    int exit_code = CB_EXIT_PASS, rc = comparisons ? 0 : alloc_fail(err, "to compare runs");
    for (size_t i = 1; i < sides->count && rc == 0; i++) {
        rc =
            comparison_compute(&sides->items[0].compared, &sides->items[i].compared, options, &comparisons[i - 1], err);
        if (rc == 0)
            exit_code = comparison_exit_code(&comparisons[i - 1]);
        if (cli->exit_code != CB_EXIT_REGRESSION && exit_code != CB_EXIT_PASS) /* has precedence over inconclusive */
            cli->exit_code = exit_code;
    }
    if (rc == 0 && cli->json)
        rc = write_json(cli, history, sides, comparisons, err);
    for (size_t i = 1; i < sides->count && rc == 0 && !cli->json; i++) {
        if (i > 1)
            buf_append_char(&cli->out, '\n');
        rc = write_table(cli, &sides->items[0], &sides->items[i], &comparisons[i - 1], options->threshold, err);
        if (rc == 0)
            rc = write_levels(cli, history, &sides->items[i], &comparisons[i - 1], err);
    }
    if (rc == 0 && !cli->json && scaling_is_size(cli_flag_value(cli, "by")))
        rc = scaling_write(sides, cli_flag_value(cli, "by"), cli->colour, &cli->out, err);
    for (size_t i = 1; comparisons && i < sides->count; i++)
        comparison_release(&comparisons[i - 1]);
    free(comparisons);
    return rc;
}

/* The baseline contains only the runs that are compared with it: not a failure, but there is nothing to compare yet. */
static bool is_first_night(struct history *history, const struct sides *sides)
{
    struct baseline baseline;
    const struct comparison_side *base = &sides->items[0].compared;
    if (base->count || base->left_out || history_read_baseline(history, sides->items[0].name, &baseline, NULL))
        return false;
    bool slides = baseline.window > 0; /* a fixed one is empty because all of its runs are on the other side */
    baseline_release(&baseline);
    if (!slides)
        return false;
    for (size_t i = 1; i < sides->count; i++)
        if (sides->items[i].compared.count == 0)
            return false;
    return true;
}

/* "3%", "3", "0.03%": always percent. */
static int read_threshold(const struct cli *cli, double *threshold, struct cb_err *err)
{
    const char *text = cli_flag_value(cli, "threshold");
    char number[32], *end;
    *threshold = COMPARISON_DEFAULT_THRESHOLD;
    if (!text)
        return 0;
    snprintf(number, sizeof number, "%s", text);
    double percent = strtod(number, &end);
    while (*end == ' ')
        end++;
    if (*end == '%')
        end++;
    if (end == number || *end || !(percent > 0) || percent > 1000)
        return cb_fail(err, CB_ERR_USAGE, "--threshold takes per cent, as 3%%, not %s", text);
    *threshold = percent / 100;
    return 0;
}

/* Which verdicts fail the command: without --fail-on only worse. */
static int read_fail_on(const struct cli *cli, bool *inconclusive, struct cb_err *err)
{
    const char *text = cli_flag_value(cli, "fail-on");
    *inconclusive = text && strcmp(text, verdict_name(VERDICT_INCONCLUSIVE)) == 0;
    if (text && !*inconclusive && strcmp(text, verdict_name(VERDICT_WORSE)) != 0)
        return cb_fail(err, CB_ERR_USAGE, "--fail-on takes worse or inconclusive, not %s", text);
    return 0;
}

static int run_compare(struct cli *cli, struct cb_err *err)
{
    struct history *history;
    struct sides sides = {0};
    struct comparison_options options = {.across = cli_has_flag(cli, "across")};
    const char *by = cli_flag_value(cli, "by");
    bool fails_inconclusive;
    int rc = read_threshold(cli, &options.threshold, err);
    if (rc == 0)
        rc = read_fail_on(cli, &fails_inconclusive, err);
    if (rc)
        return rc;
    if (by && cli->word_count != 1)
        return cb_fail(err, CB_ERR_USAGE, "compare --by KEY takes one sweep (or baseline, or filters in quotes)");
    if (!by && cli->word_count < 2)
        return cb_fail(
            err, CB_ERR_USAGE,
            "compare takes a base and others, each a run, a sweep, a baseline or filters in quotes; or one of "
            "them and --by KEY");
    rc = open_history(cli, &history, err);
    if (rc)
        return rc;
    rc = by ? sides_split(&sides, history, cli->words[0], by, err)
            : sides_find(&sides, history, cli->words, cli->word_count, err);
    if (rc == 0 && !by && is_first_night(history, &sides)) {
        cli->exit_code = CB_EXIT_INCONCLUSIVE;
        log_info("the baseline %s has no older runs on this store yet: run again, then compare", sides.items[0].name);
        if (cli->json)
            rc = write_json(cli, history, &(const struct sides){sides.items, 1}, NULL, err);
    } else if (rc == 0) {
        rc = compare_sides(cli, history, &sides, &options, err);
    }
    if (cli->exit_code == CB_EXIT_INCONCLUSIVE && !fails_inconclusive)
        cli->exit_code = CB_EXIT_PASS;
    sides_release(&sides);
    close_history(cli, history);
    return rc;
}

static const struct verb_flag flags[] = {
    {"by", "KEY", "one side for each value of a key; nodes and ranks also with efficiency and a scaling model"},
    {"threshold", "PERCENT", "a change smaller than this does not matter (3%)"},
    {"fail-on", "VERDICT", "worse (default): exit code 5 if a primary metric is worse; inconclusive: also 6 if one is"},
    {"across", NULL, "judge although machines, kernels or libraries differ"},
    {"all", NULL, "every metric, also those that did not move"},
};

const struct verb verb_compare = {
    .name = "compare",
    .arguments = "BASE OTHER…",
    .summary = "what changed between runs, and whether that can be told",
    .about = "Each side is a run, a sweep, a baseline, LATEST (the newest run and its repeats) or filters in quotes "
             "('model=gpt2 since=7d'). The sample is the run: two runs alone give no verdict. Exit code 5: a primary "
             "metric is worse; 6: inconclusive (see --fail-on). docs/history.md says how it is computed.",
    .example = "ckptbench compare 20261121-m2 --by io.engine",
    VERB_FLAGS(flags),
    .run = run_compare,
};
