/* ckptbench run: runs one experiment, or a sweep, on this machine. */
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/jobs/agent_program.h"
#include "cli/jobs/run_here.h"
#include "cli/plan/run_plan.h"
#include "cli/plan/workload.h"
#include "cli/report/metric_format.h"
#include "cli/report/report.h"
#include "cli/report/report_heading.h"
#include "cli/report/suite_report.h"
#include "cli/report/sweep_axes.h"
#include "cli/report/table.h"
#include "core/alloc.h"
#include "core/log.h"
#include "core/units.h"
#include "run/run_folder.h"

/* A run of this session. */
struct member {
    char id[64];
    char *folder;
    bool finished;                       /* finished earlier: a resumed sweep skips it */
    const struct experiment *experiment; /* borrowed from the sweep, or from `planned` */
    struct run_info *planned;            /* for a resumed sweep, else NULL */
};

struct session {
    struct cli *cli;
    struct history *history;
    char sweep_id[64];        /* "" for a single run */
    struct run_plan run_plan; /* empty for a resumed sweep */
    struct member *members;
    size_t count;
    struct sweep_axes axes; /* keys that differ between members */
    size_t *axis_widths;    /* width of their longest values */
    struct json_writer writer;
    size_t combinations, passed, failed;
};

static void session_release(struct session *self)
{
    for (size_t i = 0; self->members && i < self->count; i++) {
        free(self->members[i].folder);
        if (self->members[i].planned)
            run_info_free(self->members[i].planned);
    }
    free(self->members);
    sweep_axes_release(&self->axes);
    free(self->axis_widths);
    run_plan_release(&self->run_plan);
    history_close(self->history);
}

/* ---- what varies ---- */

/* Borrowed; freed by the caller. */
static const struct experiment **list_experiments(const struct session *self)
{
    const struct experiment **experiments = calloc(self->count + 1, sizeof *experiments);
    for (size_t i = 0; experiments && i < self->count; i++)
        experiments[i] = self->members[i].experiment;
    return experiments;
}

/* The keys that the settings vary; if those are no longer known, the keys whose values differ. */
static int find_axes(struct session *self, struct cb_err *err)
{
    const struct experiment **experiments = list_experiments(self);
    const struct sweep *sweep = &self->run_plan.sweep;
    int rc = experiments ? 0 : alloc_fail(err, "for %zu runs", self->count);
    if (rc == 0)
        rc = sweep->count ? sweep_axes_copy(&self->axes, sweep->varied, sweep->varied_count, err)
                          : sweep_axes_find(&self->axes, experiments, self->count, false, err);
    if (rc == 0 && !(self->axis_widths = calloc(self->axes.count + 1, sizeof *self->axis_widths)))
        rc = alloc_fail(err, "for %zu keys", self->axes.count);
    for (size_t k = 0; rc == 0 && k < self->axes.count; k++) {
        for (size_t i = 0; i < self->count; i++) {
            size_t width = table_text_width(sweep_axes_value(experiments[i], self->axes.keys[k]));
            if (width > self->axis_widths[k])
                self->axis_widths[k] = width;
        }
    }
    free(experiments);
    return rc;
}

/* ---- planning ---- */

static int plan_session(struct session *self, struct cb_err *err)
{
    char agent[PATH_MAX];
    int rc = run_plan_expand(&self->run_plan, &self->cli->settings, false, err);
    if (rc == 0 && (rc = agent_program_find(agent, err)) == CB_ERR_NOT_FOUND)
        rc = 0; /* a missing agent becomes an outcome of the run */
    if (rc == 0)
        rc = history_open(NULL, &self->history, err);
    if (rc)
        return rc;
    const size_t count = self->run_plan.sweep.count;
    self->members = calloc(count + 1, sizeof *self->members);
    if (!self->members)
        return alloc_fail(err, "for %zu runs", count);
    self->count = count;
    self->combinations = self->run_plan.sweep.combinations;
    snprintf(self->sweep_id, sizeof self->sweep_id, "%s", self->run_plan.sweep_id);
    for (size_t i = 0; rc == 0 && i < count; i++) {
        const struct planned *planned = &self->run_plan.members[i];
        struct member *member = &self->members[i];
        snprintf(member->id, sizeof member->id, "%s", planned->id);
        member->experiment = planned->experiment;
        member->folder = strdup(planned->folder);
        rc = member->folder ? run_plan_write(&self->run_plan, i, self->history, NULL, err)
                            : alloc_fail(err, "for a path");
    }
    return rc;
}

/* ---- resuming ---- */

static int compare_runs(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* A run that an agent sealed after its controller had died is finished, too. */
static int resume_member(struct session *self, const char *run, struct member *member, struct cb_err *err)
{
    struct run_info *info;
    bool ingested;
    snprintf(member->id, sizeof member->id, "%s", run);
    int rc = run_plan_folder(run, &member->folder, err);
    if (rc == 0) {
        rc = history_ingest(self->history, member->folder, &ingested, err);
        rc = rc == CB_ERR_NOT_FOUND ? 0 : rc; /* not sealed, so it will run */
    }
    if (rc == 0)
        rc = history_load_run(self->history, run, &info, err);
    if (rc)
        return rc;
    member->planned = info;
    member->experiment = info->experiment;
    member->finished = strcmp(info->state, "done") == 0;
    if (info->combination >= self->combinations)
        self->combinations = (size_t)info->combination + 1;
    snprintf(self->sweep_id, sizeof self->sweep_id, "%s", info->sweep);
    return 0;
}

static int resume_session(struct session *self, const char *sweep, struct cb_err *err)
{
    const char *const words[] = {sweep};
    struct run_selection selection = {0};
    if (self->cli->settings.count)
        return cb_fail(err, CB_ERR_USAGE, "--resume %s takes no keys: its members are frozen already", sweep);
    int rc = history_open(NULL, &self->history, err);
    if (rc == 0)
        rc = history_select(self->history, words, 1, &selection, err);
    if (rc)
        return rc;
    qsort(selection.runs, selection.count, sizeof *selection.runs, compare_runs);
    self->members = calloc(selection.count + 1, sizeof *self->members);
    if (!self->members)
        rc = alloc_fail(err, "for %zu runs", selection.count);
    else
        self->count = selection.count;
    for (size_t i = 0; rc == 0 && i < self->count; i++)
        rc = resume_member(self, selection.runs[i], &self->members[i], err);
    run_selection_release(&selection);
    if (rc == 0 && self->count == 0)
        rc = cb_fail(err, CB_ERR_NOT_FOUND, "no sweep is named %s; `ckptbench list` shows the runs", sweep);
    return rc;
}

/* ---- running ---- */

/* The exit code is that of the first run that did not pass. */
static void count_outcome(struct session *self, const struct run_info *info)
{
    enum outcome outcome;
    if (strcmp(info->outcome, "pass") == 0) {
        self->passed++;
        return;
    }
    self->failed++;
    if (self->cli->exit_code == CB_EXIT_PASS)
        self->cli->exit_code =
            outcome_find(info->outcome, &outcome) ? outcome_exit_code(outcome) : CB_EXIT_INFRASTRUCTURE;
    if (self->cli->json || *self->sweep_id || !isatty(STDOUT_FILENO)) /* else the table on the terminal has it */
        log_error("run %s: %s: %s", info->run, info->outcome, info->message ? info->message : "");
}

/* " save 25.7 ms 466 MiB/s", in columns of fixed width. */
static void add_figure(struct buf *out, const struct run_info *info, enum metric_id time, enum metric_id rate,
                       const char *name)
{
    char text[32], speed[32];
    for (size_t i = 0; i < info->metric_count; i++)
        if (info->metrics[i].metric == time)
            buf_printf(out, "   %s %7s", name, metric_format(time, info->metrics[i].summary.median, text));
    for (size_t i = 0; i < info->metric_count; i++)
        if (info->metrics[i].metric == rate)
            buf_printf(out, " %10s", metric_format(rate, info->metrics[i].summary.median, speed));
}

/* Prints one line for a run of a sweep: what it varies, and its result. */
static void write_member_line(struct session *self, const struct run_info *info)
{
    struct buf *out = &self->cli->out;
    buf_printf(out, "%s  ", info->run);
    for (size_t i = 0; i < self->axes.count; i++) {
        const char *value = sweep_axes_value(info->experiment, self->axes.keys[i]);
        size_t padding = self->axis_widths[i] - table_text_width(value);
        buf_printf(out, "%s=%s%*s  ", self->axes.keys[i], value, (int)padding, "");
    }
    buf_printf(out, "%s", *info->outcome ? info->outcome : info->state);
    add_figure(out, info, METRIC_SAVE_S, METRIC_SAVE_BYTES_PER_S, "save");
    add_figure(out, info, METRIC_LOAD_S, METRIC_LOAD_BYTES_PER_S, "load");
    buf_append_char(out, '\n');
}

static int report_member(struct session *self, const struct member *member, struct cb_err *err)
{
    struct run_info *info;
    int rc = history_load_run(self->history, member->id, &info, err);
    if (rc)
        return rc;
    count_outcome(self, info);
    if (self->cli->json)
        report_write_json(info, &self->writer);
    else if (*self->sweep_id)
        write_member_line(self, info);
    else
        rc = report_write_results(info, self->cli->colour, &self->cli->out, err);
    if (rc == 0 && !self->cli->json && !*self->sweep_id)
        rc = suite_outliers_write(self->history, info, &self->cli->out, err);
    run_info_free(info);
    return rc || self->cli->json ? rc : cli_flush(self->cli, err);
}

static int begin_output(struct session *self, struct cb_err *err)
{
    struct cli *cli = self->cli;
    json_writer_init(&self->writer, &cli->out, 2);
    if (cli->json && *self->sweep_id) {
        json_write_begin_object(&self->writer);
        json_member_text(&self->writer, "sweep", self->sweep_id);
        json_member_array(&self->writer, "runs");
    }
    if (cli->json)
        return 0;
    if (!*self->sweep_id) {
        struct workload workload;
        const struct experiment *experiment = self->members[0].experiment;
        if (self->members[0].planned) /* resumed */
            return 0;
        int rc = workload_init(&workload, experiment, err);
        if (rc)
            return rc;
        report_write_heading(self->members[0].id, experiment, &workload, true, cli->colour, &cli->out);
        workload_release(&workload);
        return cli_flush(cli, err);
    }
    buf_printf(&cli->out, "sweep %s: %zu run%s", self->sweep_id, self->count, units_plural(self->count));
    for (size_t i = 0; i < self->axes.count; i++)
        buf_printf(&cli->out, "%s%s", i ? ", " : " over ", self->axes.keys[i]);
    buf_append_char(&cli->out, '\n');
    return cli_flush(cli, err);
}

/* Suggests the next command. If a key has a different value in each combination (the only varied key, or one of a zip)
 * and all runs passed, suggests a comparison by that key; otherwise a table of all runs. */
static int end_output(struct session *self, struct cb_err *err)
{
    struct cli *cli = self->cli;
    const char *key = NULL;
    if (cli->json)
        return cli_end_json(cli, &self->writer, err);
    if (!*self->sweep_id)
        return 0;
    buf_printf(&cli->out, "\n%zu passed, %zu failed, of %zu", self->passed, self->failed, self->count);
    if (self->passed + self->failed < self->count) {
        buf_printf(&cli->out, "     next: ckptbench run --resume %s\n", self->sweep_id);
        return cli_flush(cli, err);
    }
    const struct experiment **experiments = list_experiments(self);
    for (size_t i = 0; experiments && !key && i < self->axes.count && self->failed == 0; i++)
        if (sweep_axes_count_values(experiments, self->count, self->axes.keys[i]) == self->combinations)
            key = self->axes.keys[i];
    free(experiments);
    if (key)
        buf_printf(&cli->out, "     next: ckptbench compare %s --by %s\n", self->sweep_id, key);
    else
        buf_printf(&cli->out, "     next: ckptbench show %s\n", self->sweep_id);
    return cli_flush(cli, err);
}

static int run_session(struct session *self, struct cb_err *err)
{
    launch_catch_signals(false);
    int rc = find_axes(self, err);
    if (rc == 0)
        rc = begin_output(self, err);
    for (size_t i = 0; rc == 0 && i < self->count; i++) {
        if (launch_was_stopped())
            break;
        const struct member *member = &self->members[i];
        char prefix[128] = "";
        if (*self->sweep_id)
            snprintf(prefix, sizeof prefix, "%s (%zu of %zu)  ", member->id, i + 1, self->count);
        const struct launch launch = {.run = member->id,
                                      .folder = member->folder,
                                      .show_progress = isatty(STDERR_FILENO) && !self->cli->quiet,
                                      .prefix = prefix,
                                      .history = self->history};
        if (!member->finished)
            rc = launch_run(&launch, err);
        if (rc == 0)
            rc = report_member(self, member, err);
    }
    if (rc == 0 && launch_was_stopped() && *self->sweep_id)
        log_info("stopped; `ckptbench run --resume %s` runs what is left", self->sweep_id);
    if (rc == 0 && launch_was_stopped() && self->cli->exit_code == CB_EXIT_PASS)
        self->cli->exit_code = CB_EXIT_INFRASTRUCTURE;
    return rc ? rc : end_output(self, err);
}

static int run_run(struct cli *cli, struct cb_err *err)
{
    struct session session = {.cli = cli};
    const char *sweep = cli_flag_value(cli, "resume");
    int rc = sweep ? resume_session(&session, sweep, err) : plan_session(&session, err);
    if (rc == 0)
        rc = run_session(&session, err);
    session_release(&session);
    return rc;
}

static const struct verb_flag run_flags[] = {
    {"resume", "SWEEP", "run the members of a sweep that have not passed yet"},
    REPLACE_KEPT_FLAG,
};

const struct verb verb_run = {
    .name = "run",
    .arguments = "[FILE.yaml…] [key=value…]",
    .summary = "save and load checkpoints here, measure, verify, and keep the result",
    .about = "A comma in a value sweeps: every combination runs, repeat=n times, in blocks. The first Ctrl-C ends the "
             "run in order and records it, the second ends it now.",
    .example = "ckptbench run model=gpt2 ranks=4 tp=2 dp=2 store=./ckpt iterations=5",
    .takes_experiment = true,
    VERB_FLAGS(run_flags),
    .run = run_run,
};
