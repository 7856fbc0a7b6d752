/* ckptbench watch: runs a command of the user's and records its checkpoints as a run. */
#include <ctype.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/jobs/agent_program.h"
#include "cli/jobs/run_here.h"
#include "cli/jobs/watch_tasks.h"
#include "cli/plan/run_plan.h"
#include "cli/report/advice.h"
#include "cli/report/report.h"
#include "cli/report/report_heading.h"
#include "cli/report/table.h"
#include "core/foreground.h"
#include "core/log.h"
#include "core/units.h"

/* stdout belongs to the command, so the report goes to stderr; only a JSON document that was asked for follows it. */
static int write_report(struct cli *cli, const struct run_info *info, struct cb_err *err)
{
    if (cli->json) {
        struct json_writer writer;
        json_writer_init(&writer, &cli->out, 2);
        json_write_begin_object(&writer);
        report_write_members(info, &writer);
        int rc = cli_has_flag(cli, "advise") ? advice_write_json(info, &writer, err) : 0;
        return rc ? rc : cli_end_json(cli, &writer, err);
    }
    if (cli->quiet)
        return 0;
    cli->colour = table_wants_colour(stderr);
    report_write_heading(info->run, info->experiment, NULL, true, cli->colour, &cli->out);
    int rc = report_write_results(info, cli->colour, &cli->out, err);
    if (rc == 0 && cli_has_flag(cli, "advise"))
        rc = advice_write(info, &cli->out, err);
    return rc ? rc : cli_flush_to(cli, STDERR_FILENO, err);
}

/* Whether a word is a path or a module and nothing else: a shell text, or NAME=value, may have secrets in it. */
static bool is_plain(const char *word)
{
    for (const char *at = word; *at; at++)
        if (!isalnum((unsigned char)*at) && !strchr("._-+/", *at))
            return false;
    return true;
}

/* "train.py" of `torchrun --nproc-per-node 8 train.py`: the script, else the module after -m, else the program. Names the
 * line of the program in the history; other arguments are not recorded. */
static const char *program_of(const char *const *command)
{
    const char *found = command[0] ? command[0] : "";
    for (size_t i = 0; command[i]; i++) {
        const char *ending = strrchr(command[i], '.');
        if (command[i][0] != '-' && is_plain(command[i]) && ending &&
            (strcmp(ending, ".py") == 0 || strcmp(ending, ".sh") == 0)) {
            found = command[i];
            break;
        }
        if (i > 0 && strcmp(command[i], "-m") == 0 && command[i + 1] && is_plain(command[i + 1]) &&
            strncmp(command[i + 1], "torch.", 6) != 0) {
            found = command[i + 1];
            break;
        }
    }
    const char *slash = strrchr(found, '/');
    return slash ? slash + 1 : found;
}

static int make_plan(struct cli *cli, struct run_plan *plan, struct cb_err *err)
{
    *plan = (struct run_plan){0};
    if (cli->word_count == 0)
        return cb_fail(err, CB_ERR_USAGE, "watch needs a command: ckptbench watch [key=value…] -- torchrun …");
    for (size_t i = 0; i < cli->settings.count; i++)
        if (strcmp(cli->settings.items[i].key, "command") == 0)
            return cb_fail(err, CB_ERR_USAGE,
                           "command= is for `ckptbench run workload=watch` and submit: here the command follows --");
    int rc = setting_parse_word("workload=watch", &cli->settings, err);
    if (rc == 0)
        rc = setting_add(&cli->settings, "command", program_of(cli->words), "the command", err);
    if (rc == 0)
        rc = run_plan_expand(plan, &cli->settings, false, err);
    if (rc == 0 && plan->sweep.count != 1)
        rc = cb_fail(err, CB_ERR_USAGE, "watch runs its command once: keys have one value each");
    return rc;
}

static int report_run(struct cli *cli, struct history *history, const char *run, struct cb_err *err)
{
    struct run_info *info = NULL;
    int rc = history_load_run(history, run, &info, err);
    if (rc == 0)
        rc = write_report(cli, info, err);
    if (info)
        run_info_free(info);
    return rc;
}

/* The run could not be begun or joined, for the reason in `err`: the training is worth more than its record, and other
 * tasks may wait for what it does. */
static int run_unwatched(const struct cli *cli, int *code, struct cb_err *err)
{
    int status;
    log_error("%s; the command runs without being watched", err->message);
    int rc = foreground_run(cli->words, NULL, false, 0, &status, err);
    *code = rc ? -1 : foreground_exit_code(status);
    return rc;
}

/* The only task, which the agent seals as its own. */
static int run_alone(struct cli *cli, const struct run_plan *plan, int *code, struct cb_err *err)
{
    struct history *history = NULL;
    char agent[PATH_MAX];
    int rc = agent_program_find(agent, err);
    if (rc == 0)
        rc = history_open(NULL, &history, err);
    if (rc == 0)
        rc = run_plan_write(plan, 0, history, NULL, err);
    if (rc) {
        history_close(history);
        return run_unwatched(cli, code, err);
    }
    const struct launch launch = {.run = plan->members[0].id,
                                  .folder = plan->members[0].folder,
                                  .history = history,
                                  .command = cli->words,
                                  .exit_code = code};
    rc = launch_run(&launch, err);
    if (rc == 0)
        rc = report_run(cli, history, plan->members[0].id, err);
    history_close(history);
    return rc;
}

/* One of several tasks: the last one to end seals the run and prints the report. */
static int run_task(struct cli *cli, const struct run_plan *plan, const struct watch_task *task, int *code,
                    struct cb_err *err)
{
    const char *folder = plan->members[0].folder;
    struct history *history = NULL;
    bool sealed = false;
    int rc = watch_tasks_plan(plan, task, err);
    if (rc)
        return run_unwatched(cli, code, err);
    rc = watch_tasks_run(folder, task->count, cli->words, code, err);
    if (rc && *code < 0)
        return run_unwatched(cli, code, err);
    if (rc == 0)
        rc = history_open(NULL, &history, err);
    if (rc == 0)
        rc = watch_tasks_seal(folder, history, &sealed, err);
    if (rc == 0 && sealed)
        rc = report_run(cli, history, plan->members[0].id, err);
    else if (rc == 0)
        log_verbose("run %s: other tasks have not ended", plan->members[0].id);
    history_close(history);
    return rc;
}

static int run_watch(struct cli *cli, struct cb_err *err)
{
    const char *join = cli_flag_value(cli, "join");
    struct watch_task task = watch_task_find();
    struct run_plan plan;
    int code = -1, rc = make_plan(cli, &plan, err);
    if (rc == 0 && join && !run_plan_is_id(join))
        rc = cb_fail(err, CB_ERR_USAGE, "--join %s: a name has 1 to 40 lower-case letters, digits and dashes", join);
    if (rc == 0 && cli_has_flag(cli, "tasks") && !join)
        rc = cb_fail(err, CB_ERR_USAGE, "--tasks is for --join");
    if (rc == 0)
        rc = cli_parse_flag(cli, "tasks", units_parse_u64, &task.count, err);
    if (rc == 0 && join)
        rc = run_plan_rename(&plan, join, err);
    if (rc == 0)
        rc = join ? run_task(cli, &plan, &task, &code, err) : run_alone(cli, &plan, &code, err);
    else if (rc == CB_ERR_SYSTEM || rc == CB_ERR_NO_SPACE) /* of the home, in which nothing can be recorded */
        rc = run_unwatched(cli, &code, err);
    run_plan_release(&plan);
    if (code < 0)
        return rc;
    if (rc) /* the command has ended: its exit code is the answer, whatever became of the record */
        log_error("%s", err->message);
    cli->exit_code = code;
    return 0;
}

static const struct verb_flag watch_flags[] = {
    {"advise", NULL, "end with at most three things to change, and why"},
    {"join", "RUN", "this command is one task of the run of that name, as srun starts them; the last to end reports"},
    {"tasks", "N", "with --join: how many tasks there are; srun and mpirun tell it themselves"},
};

const struct verb verb_watch = {
    .name = "watch",
    .arguments = "[FILE.yaml…] [key=value…] -- COMMAND…",
    .summary = "run a PyTorch training of yours and record its saves and loads",
    .about = "The code of the training stays as it is. Its output, signals and exit code pass through; the report goes "
             "to stderr. Seen are torch.distributed.checkpoint (save, async_save in a thread or a process, load), "
             "torch.save and torch.load, and safetensors files. Arguments and environment are not recorded.",
    .example = "ckptbench watch label.job=nightly -- torchrun --nproc-per-node 8 train.py",
    .takes_experiment = true,
    .takes_command = true,
    VERB_FLAGS(watch_flags),
    .run = run_watch,
};
