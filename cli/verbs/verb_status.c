/* ckptbench status: prints the state of jobs and collects finished ones. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/jobs/job_list.h"
#include "cli/jobs/job_status.h"
#include "cli/jobs/run_here.h"
#include "cli/jobs/site_runs.h"
#include "cli/sites/site_verb.h"
#include "core/clock.h"
#include "core/log.h"

#define WATCH_EVERY_NS (2 * NS_PER_S)
#define CLEAR_SCREEN "\033[H\033[J"

static int show(struct cli *cli, struct job_list *list, struct cb_err *err)
{
    int rc = job_list_sync(list, err);
    if (rc)
        return rc;
    if (cli->word_count == 0)
        job_list_narrow(list, NULL, true); /* finished local runs are not listed */
    if (*list->trouble)
        log_error("%s; what is shown was seen before", list->trouble);
    if (list->count == 0 && !cli->json) {
        log_info("no runs%s",
                 cli->word_count ? " match" : "; `ckptbench submit` sends some, `ckptbench list` has the rest");
        return 0;
    }
    rc = job_status_write(cli, list, err);
    cli->exit_code = *list->trouble ? CB_EXIT_INFRASTRUCTURE : CB_EXIT_PASS; /* with --watch, of the last update */
    return rc;
}

static int watch(struct cli *cli, struct job_list *list, struct cb_err *err)
{
    bool terminal = isatty(STDOUT_FILENO);
    launch_catch_signals(false);
    for (;;) {
        if (terminal)
            buf_append_text(&cli->out, CLEAR_SCREEN);
        int rc = show(cli, list, err);
        if (rc == 0)
            rc = cli_flush(cli, err);
        if (rc || job_list_is_final(list) || launch_was_stopped())
            return rc;
        clock_sleep_ns(WATCH_EVERY_NS);
        if (launch_was_stopped())
            return 0;
        if (!terminal)
            buf_append_char(&cli->out, '\n');
    }
}

static int run_status(struct cli *cli, struct cb_err *err)
{
    static const char *const unfinished[] = {"state=planned,submitted,pending,booting,running,sealing"};
    static const char *const recent[] = {"since=1d", "state=done,failed,cancelled"};
    const char *site = cli_flag_value(cli, "site");
    struct job_list list;
    if (cli->json && cli_has_flag(cli, "watch"))
        return cb_fail(err, CB_ERR_USAGE, "--json is one document, and --watch never ends: give one of them");
    int rc = job_list_init(&list, NULL, err);
    if (rc == 0) /* runs that the history does not have: all that the site reports, or those of lost replies */
        rc = site ? job_list_take(&list, site, cli->words, cli->word_count, err) : remote_take_unanswered(&list, err);
    if (rc == 0)
        rc = cli->word_count ? job_list_add(&list, cli->words, cli->word_count, err)
                             : job_list_add(&list, unfinished, 1, err);
    if (rc == 0 && cli->word_count == 0)
        rc = job_list_add(&list, recent, 2, err);
    job_list_narrow(&list, site, false);
    if (rc == 0)
        rc = cli_has_flag(cli, "watch") ? watch(cli, &list, err) : show(cli, &list, err);
    job_list_release(&list);
    return rc;
}

static const struct verb_flag flags[] = {
    {"watch", NULL, "show it again every 2 s until all have ended"},
    SITE_FLAG,
};

const struct verb verb_status = {
    .name = "status",
    .arguments = "[RUN|SWEEP…] [key=value…]",
    .summary = "where jobs are, how far they have come, and why they wait",
    .about = "Without words: every run that is not finished, and jobs that ended within a day. Asks Slurm once for all "
             "of them, "
             "keeps every change of state, and brings what is finished into the history. Runs of a site are asked for "
             "there; what is finished is fetched. --site also finds runs that were submitted there by others of yours.",
    .example = "ckptbench status --watch",
    VERB_FLAGS(flags),
    .run = run_status,
};
