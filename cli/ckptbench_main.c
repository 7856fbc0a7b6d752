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
    bool at_home = cli.verb != &verb_verify; /* for verify, a damaged checkpoint is a result, not a failure */
    int exit_code = rc == 0 ? cli.exit_code : at_home ? cb_exit_code_at_home(rc) : cb_exit_code(rc);
    cli_release(&cli);
    return exit_code;
}
