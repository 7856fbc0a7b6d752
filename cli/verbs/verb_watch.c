/* ckptbench watch: runs a command of the user's and records its checkpoints as a run. */
#include <stdio.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/jobs/run_here.h"
#include "cli/plan/run_plan.h"
#include "cli/report/advice.h"
#include "cli/report/report.h"
#include "cli/report/report_heading.h"
#include "cli/report/table.h"
#include "core/log.h"

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

static int run_watch(struct cli *cli, struct cb_err *err)
{
    struct run_plan plan;
    struct history *history = NULL;
    struct run_info *info = NULL;
    char agent[PATH_MAX];
    int command_code = -1;
    const char *const setting = "workload=watch";
    if (cli->word_count == 0)
        return cb_fail(err, CB_ERR_USAGE, "watch needs a command: ckptbench watch [key=value…] -- torchrun …");
    int rc = setting_parse_word(setting, &cli->settings, err);
    if (rc)
        return rc;
    rc = run_plan_expand(&plan, &cli->settings, false, err);
    if (rc == 0 && plan.sweep.count != 1)
        rc = cb_fail(err, CB_ERR_USAGE, "watch runs its command once: keys have one value each");
    if (rc == 0)
        rc = agent_program_find(agent, err);
    if (rc == 0)
        rc = history_open(NULL, &history, err);
    if (rc == 0)
        rc = run_plan_write(&plan, 0, history, NULL, err);
    if (rc == 0) {
        const struct launch launch = {.run = plan.members[0].id,
                                      .folder = plan.members[0].folder,
                                      .history = history,
                                      .command = cli->words,
                                      .exit_code = &command_code};
        rc = launch_run(&launch, err);
    }
    if (rc == 0)
        rc = history_load_run(history, plan.members[0].id, &info, err);
    if (rc == 0)
        rc = write_report(cli, info, err);
    if (info)
        run_info_free(info);
    history_close(history);
    run_plan_release(&plan);
    if (command_code < 0)
        return rc;
    if (rc) /* the command has ended: its exit code is the answer, whatever became of the record */
        log_error("%s", err->message);
    cli->exit_code = command_code;
    return 0;
}

static const struct verb_flag watch_flags[] = {
    {"advise", NULL, "end with at most three things to change, and why"},
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
