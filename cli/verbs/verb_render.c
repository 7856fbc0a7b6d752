/* ckptbench render: plans runs and writes their job scripts, for people who call sbatch themselves. */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/jobs/submission.h"
#include "cli/sites/site_verb.h"
#include "core/clock.h"
#include "core/json.h"
#include "core/log.h"
#include "core/path.h"
#include "jobs/slurm/run_follow.h"

#define SCRIPT_MAX_BYTES (1u << 16)

/* Writes the run with its record, so that `status` finds the job by its name after anybody has submitted it. */
static int render_run(struct cli *cli, const struct submission *self, const struct run_plan *run_plan, size_t index,
                      struct json_writer *json, struct cb_err *err)
{
    const struct planned *member = &run_plan->members[index];
    struct job_record record;
    struct buf script;
    char path[PATH_MAX];
    buf_init(&script, SCRIPT_MAX_BYTES);
    job_record_init(&record);
    snprintf(record.name, sizeof record.name, "%s", member->id);
    int rc = submission_script(self, member->id, member->folder, 0, member->experiment, &script, err);
    if (rc == 0)
        rc = run_plan_write(run_plan, index, self->history, NULL, err);
    if (rc == 0)
        rc = path_format(path, sizeof path, err, "%s/%s", member->folder, submission_script_name(member->experiment));
    if (rc == 0)
        rc = buf_write_file(&script, path, 0666, err);
    if (rc == 0)
        rc = job_record_enter(&record, JOB_PLANNED, clock_wall_ns(), "rendered", err);
    if (rc == 0)
        rc = job_record_write(member->folder, &record, err);
    if (rc == 0 && cli->json) {
        json_write_begin_object(json);
        json_member_text(json, "run", member->id);
        json_member_text(json, "script", script.data);
        json_write_end_object(json);
    } else if (rc == 0 && *run_plan->sweep_id) {
        buf_printf(&cli->out, "%s\n", path);
    } else if (rc == 0) {
        buf_append_text(&cli->out, script.data);
    }
    job_record_release(&record);
    buf_release(&script);
    return rc;
}

static int render_all(struct cli *cli, struct submission *self, const struct run_plan *run_plan, struct cb_err *err)
{
    struct json_writer json;
    json_writer_init(&json, &cli->out, 2);
    int rc = submission_init(self, err);
    if (rc)
        return rc;
    if (cli->json) {
        json_write_begin_object(&json);
        json_member_text(&json, "sweep", *run_plan->sweep_id ? run_plan->sweep_id : NULL);
        json_member_array(&json, "runs");
    }
    for (size_t i = 0; rc == 0 && i < run_plan->sweep.count; i++)
        rc = render_run(cli, self, run_plan, i, &json, err);
    if (rc)
        return rc;
    bool leads_here = submission_leads_here(run_plan->members[0].experiment);
    log_info("planned %s: %s what is written, then `ckptbench status %s` follows it", run_plan->id,
             leads_here ? "run with sh, on the login node," : "sbatch", run_plan->id);
    if (!cli->json)
        return 0;
    return cli_end_json(cli, &json, err);
}

static int run_render(struct cli *cli, struct cb_err *err)
{
    struct run_plan run_plan;
    struct submission submission = {0};
    if (cli_flag_value(cli, "site"))
        return remote_pass(cli, cli_flag_value(cli, "site"), NULL, err);
    int rc = run_plan_expand(&run_plan, &cli->settings, true, err);
    if (rc == 0 && run_plan.sweep.count > 1 && experiment_bool(run_plan.members[0].experiment, OPT_SLURM_ONE_JOB))
        rc = cb_fail(err, CB_ERR_USAGE,
                     "slurm.one_job=true: render writes a script a run; `submit` makes one job of them");
    if (rc == 0)
        rc = submission_check_led_here(&run_plan, err);
    if (rc == 0)
        rc = history_open(NULL, &submission.history, err);
    if (rc == 0)
        rc = render_all(cli, &submission, &run_plan, err);
    run_plan_release(&run_plan);
    submission_release(&submission);
    history_close(submission.history);
    return rc;
}

static const struct verb_flag flags[] = {REPLACE_KEPT_FLAG, SITE_FLAG};

const struct verb verb_render = {
    .name = "render",
    .arguments = "[FILE.yaml…] [key=value…]",
    .summary = "plan a run and write its job script, to be given to sbatch by hand",
    .about =
        "The script goes to stdout; of a sweep, the path of each run's script. What is sent by hand is followed by "
        "`status` like what `submit` sends. With slurm.sbcast the script is one for sh, which calls salloc.",
    .example = "ckptbench render nightly.yaml nodes=2 store=/shared/ckpt > job.sbatch",
    .takes_experiment = true,
    VERB_FLAGS(flags),
    .run = run_render,
};
