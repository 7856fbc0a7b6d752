/* ckptbench, the controller: parses the command line, runs one verb, prints its output, and exits with a code of
 * core/err.h. Nothing else in this program exits. */
#include "cli/cli.h"
#include "core/log.h"
#include "core/process.h"

static int run(struct cli *cli, int argc, char **argv, struct cb_err *err)
{
    int rc = cli_init(cli, argc, argv, err);
    if (rc)
        return rc;
    log_init("ckptbench", cli->quiet ? LOG_QUIET : cli->verbose ? LOG_VERBOSE : LOG_NORMAL);
    rc = cli_use_own_names(cli, err);
    if (rc)
        return rc;
    if (cli->version)
        cli_write_version(cli);
    else if (cli->help)
        cli_write_help(cli);
    else
        rc = cli->verb->run(cli, err);
    if (rc == 0)
        rc = cli_flush(cli, err);
    return rc;
}

int main(int argc, char **argv)
{
    struct cli cli;
    struct cb_err err = {0};
    process_begin();
    log_init("ckptbench", LOG_NORMAL);
    int rc = run(&cli, argc, argv, &err);
    if (rc)
        log_error("%s", err.message);
    bool is_damaged = cli.verb && cli.verb->reads_checkpoint && (rc == CB_ERR_CORRUPT || rc == CB_ERR_FORMAT);
    int exit_code = rc == 0 ? cli.exit_code : is_damaged ? cb_exit_code(rc) : cb_exit_code_at_home(rc);
    cli_release(&cli);
    return exit_code;
}
