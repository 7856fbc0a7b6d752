/* ckptbench-agent: arguments, signals, exit code. */
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "agent/attempt/attempt_run.h"
#include "agent/attempt/launch_nodes.h"
#include "agent/attempt/seal_lines.h"
#include "agent/attempt/watch_job.h"
#include "agent/attempt/watch_join.h"
#include "agent/node/node.h"
#include "agent/pool/array_lead.h"
#include "agent/pool/pool_job.h"
#include "core/clock.h"
#include "core/foreground.h"
#include "core/json_fields.h"
#include "core/log.h"
#include "core/process.h"
#include "core/units.h"
#include "core/version.h"
#include "run/run_folder.h"
#include "run/spool.h"

static const char usage[] =
    "usage: ckptbench-agent run RUN_FOLDER…\n"
    "       ckptbench-agent watch RUN_FOLDER LOCK COMMAND…\n"
    "       ckptbench-agent seal RUN_FOLDER [--as OUTCOME WHY] [--measure]\n"
    "       ckptbench-agent join RUN_FOLDER TASKS COMMAND…\n"
    "       ckptbench-agent limit RUN_FOLDER ATTEMPT\n"
    "       ckptbench-agent node --head ADDRESSES --port PORT [--name NAME] [--timeout TIME] [--sent]\n"
    "       ckptbench-agent shell HOSTS NAME COMMAND…\n"
    "       ckptbench-agent warm POOL_FOLDER\n"
    "       ckptbench-agent step POOL_FOLDER TICKET NODES\n"
    "       ckptbench-agent array LINKS JOB NAME\n"
    "       ckptbench-agent --version | --help\n"
    "Runs one attempt of the run that is frozen in RUN_FOLDER and seals it; of several, one after the other, but "
    "those\n"
    "that have passed in an attempt before. The others are for itself: it starts\n"
    "`node` on the other nodes of a run, with the run's key as standard input, and has mpirun\n"
    "reach hosts through `shell`; jobs of a warm pool are `warm`, and start the pool's runs through `step`; `array`\n"
    "leads the runs of a job array whose nodes have no programs; ckptbench starts `watch` and `join` for commands that "
    "it\n"
    "watches, and `seal` for attempts of which processes have left lines; `limit` measures on each node after a "
    "watched\n"
    "command.\n"
    "Exit codes: 0 pass, 1 our failure, 2 usage, 3 the benchmark failed, 4 infrastructure.\n";

#define PAGE_BYTES 4096
#define COMMAND_NOT_STARTED 127 /* as a shell reports it */

/* The signal flag: how many times we were asked to stop. */
static volatile sig_atomic_t signals_received;

/* Slurm's warning that the job's time limit is near. */
static volatile sig_atomic_t time_is_up;

static void count_signal(int number)
{
    if (number == SIGUSR1)
        time_is_up = 1;
    else
        signals_received = signals_received + 1;
}

/* A mapped file was truncated: from here on its missing pages read as zeros, which a valid status page never contains,
 * so the attempt is sealed with the other pages. Any other SIGBUS ends this program. */
static void replace_lost_page(int number, siginfo_t *info, void *context)
{
    (void)context;
    uintptr_t page = (uintptr_t)info->si_addr & ~(uintptr_t)(PAGE_BYTES - 1);
    void *place = (char *)info->si_addr - ((uintptr_t)info->si_addr - page);
    if (info->si_code != BUS_ADRERR ||
        mmap(place, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
        signal(number, SIG_DFL);
}

static void catch_signals(void)
{
    struct sigaction action = {.sa_handler = count_signal};
    struct sigaction lost = {.sa_sigaction = replace_lost_page, .sa_flags = SA_SIGINFO};
    sigemptyset(&action.sa_mask);
    sigemptyset(&lost.sa_mask);
    sigaction(SIGBUS, &lost, NULL);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
    sigaction(SIGUSR1, &action, NULL);
}

static int run(const char *folder)
{
    struct cb_err err;
    enum outcome outcome;
    int code, unused;
    catch_signals();
    int rc = attempt_run(folder, NULL, &unused, &signals_received, &time_is_up, &outcome, &code, &err);
    if (rc) {
        log_error("%s", err.message);
        return cb_exit_code_at_home(rc);
    }
    return code == CB_ERR_USAGE ? CB_EXIT_USAGE : outcome_exit_code(outcome);
}

/* The exit code is the command's; 127 if it was not started, as in a shell. `lock` is our parent's descriptor of the run
 * folder's lock, which is held as long as one of us lives; the command does not get it. */
static int run_watched(const char *folder, const char *lock, const char *const *command)
{
    struct cb_err err;
    enum outcome outcome;
    uint64_t fd = 0;
    int code, status = -1, rc = units_parse_u64(lock, &fd, &err);
    if (!rc && (fd > INT_MAX || fcntl((int)fd, F_SETFD, FD_CLOEXEC) < 0))
        rc = cb_fail(&err, CB_ERR_USAGE, "%s is no descriptor of a lock", lock);
    if (!rc)
        rc = attempt_run(folder, command, &status, &signals_received, &time_is_up, &outcome, &code, &err);
    if (rc)
        log_error("%s", err.message);
    return status == -1 ? COMMAND_NOT_STARTED : foreground_exit_code(status);
}

/* A task of a watched run (agent/attempt/watch_join.h). If it cannot join, its command runs unobserved, since other tasks
 * may wait for it. */
static int join(const char *folder, const char *tasks, const char *const *command)
{
    struct cb_err err;
    uint64_t expected = 0;
    int status = -1, rc = units_parse_u64(tasks, &expected, &err);
    expected = expected < UINT32_MAX ? expected : UINT32_MAX;
    if (!rc)
        rc = watch_join(folder, (uint32_t)expected, command, &status, &err);
    if (rc)
        log_error("%s%s", err.message, status == -1 ? "; the command runs without being watched" : "");
    if (status == -1 && foreground_run(command, NULL, true, 0, &status, &err))
        log_error("%s", err.message);
    return status == -1 ? COMMAND_NOT_STARTED : foreground_exit_code(status);
}

/* Whether the run's last attempt was sealed as a pass. */
static bool has_passed(const char *folder)
{
    char path[PATH_MAX], name[32];
    uint32_t attempt = 0;
    struct manifest manifest;
    if (run_folder_last_attempt(folder, &attempt, NULL) || attempt == 0)
        return false;
    snprintf(name, sizeof name, "attempts/%" PRIu32, attempt);
    return run_folder_join(path, folder, name, NULL) == 0 && manifest_read(path, &manifest, NULL) == 0 &&
           manifest.outcome == OUTCOME_PASS;
}

/* Executes the runs of one job. If Slurm restarts the job, runs that passed are skipped. Returns the worst exit
 * code. */
static int run_each(int count, char **folders)
{
    int worst = CB_EXIT_PASS;
    for (int i = 0; i < count; i++) {
        int code = count > 1 && has_passed(folders[i]) ? CB_EXIT_PASS : run(folders[i]);
        worst = code > worst ? code : worst;
    }
    return worst;
}

static int read_node_options(int argc, char **argv, struct node_options *options, struct cb_err *err)
{
    uint64_t port = 0;
    *options =
        (struct node_options){.name = getenv("SLURMD_NODENAME"), .timeout_ns = 60 * NS_PER_S, .key_fd = STDIN_FILENO};
    if (argc > 0 && strcmp(argv[argc - 1], "--sent") == 0) {
        options->was_sent = true;
        argc--;
    }
    for (int i = 0; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        int rc = value ? 0 : cb_fail(err, CB_ERR_USAGE, "%s needs a value", argv[i]);
        if (!rc && strcmp(argv[i], "--name") == 0)
            options->name = value;
        else if (!rc && strcmp(argv[i], "--head") == 0)
            options->addresses = value;
        else if (!rc && strcmp(argv[i], "--port") == 0)
            rc = units_parse_u64(value, &port, err);
        else if (!rc && strcmp(argv[i], "--timeout") == 0)
            rc = units_parse_duration(value, &options->timeout_ns, err);
        else if (!rc)
            rc = cb_fail(err, CB_ERR_USAGE, "unknown argument %s", argv[i]);
        if (rc)
            return rc;
    }
    options->port = (uint16_t)port;
    if (!options->addresses || !options->name || port == 0 || port > UINT16_MAX)
        return cb_fail(err, CB_ERR_USAGE, "--head and --port are needed, and --name where Slurm does not say it");
    return 0;
}

/* Ignores the signals that Slurm sends to every process of a job: the head agent decides what ranks do. */
static int run_node(int argc, char **argv)
{
    struct node_options options;
    struct cb_err err;
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    int rc = read_node_options(argc, argv, &options, &err);
    if (!rc)
        rc = node_run(&options, &err);
    if (rc)
        log_error("node %s: %s", options.name ? options.name : "?", err.message);
    return rc == CB_ERR_USAGE ? CB_EXIT_USAGE : rc ? CB_EXIT_INFRASTRUCTURE : CB_EXIT_PASS;
}

/* A job of a warm pool. */
static int run_warm(const char *folder)
{
    struct pool_job job;
    struct cb_err err;
    catch_signals();
    int rc = pool_job_begin(&job, folder, &signals_received, &time_is_up, &err);
    if (!rc) {
        rc = job.pool.mode == POOL_TOUCH ? touch_run(&job, &err) : hold_run(&job, &err);
        int left = pool_job_leave(&job, rc ? NULL : &err);
        rc = rc ? rc : left;
    }
    if (rc)
        log_error("%s", err.message);
    return rc ? CB_EXIT_INFRASTRUCTURE : CB_EXIT_PASS;
}

static int run_step(const char *pool_folder, const char *ticket, const char *nodes)
{
    char run_folder[SPOOL_PATH_BYTES];
    struct cb_err err;
    if (hold_enter_step(pool_folder, ticket, nodes, run_folder, &err)) {
        log_error("%s", err.message);
        return CB_EXIT_INFRASTRUCTURE;
    }
    return run(run_folder);
}

static int run_seal(const char *folder, int count, char **words)
{
    struct seal_request request = {0};
    unsigned outcome;
    struct cb_err err;
    foreground_catch(false); /* files of a measurement are removed, and nothing is half sealed */
    for (int i = 0; i < count; i++) {
        if (strcmp(words[i], "--measure") == 0)
            request.measures_limit = true;
        else if (strcmp(words[i], "--as") == 0 && i + 2 < count && name_find(&outcome_names, words[i + 1], &outcome)) {
            request.outcome = (enum outcome)outcome;
            request.why = words[i + 2];
            i += 2;
        } else
            return CB_EXIT_USAGE;
    }
    int rc = seal_lines(folder, &request, &err);
    if (rc)
        log_error("%s", err.message);
    return rc ? cb_exit_code_at_home(rc) : CB_EXIT_PASS;
}

static int run_limit(const char *folder, const char *attempt)
{
    struct cb_err err;
    int rc = watch_job_take_part(folder, attempt, &err);
    if (rc)
        log_error("%s", err.message);
    return rc ? CB_EXIT_INFRASTRUCTURE : CB_EXIT_PASS;
}

static int run_array(const char *links, const char *job, const char *name)
{
    struct cb_err err;
    catch_signals();
    int rc = array_lead(links, job, name, &signals_received, &err);
    if (rc)
        log_error("%s", err.message);
    return rc ? CB_EXIT_INFRASTRUCTURE : CB_EXIT_PASS;
}

static int run_shell(int argc, char **argv)
{
    struct cb_err err;
    int rc = launch_shell(argc, argv, &err);
    log_error("%s", err.message);
    return cb_exit_code(rc);
}

int main(int argc, char **argv)
{
    process_begin();
    log_init("ckptbench-agent", LOG_NORMAL);
    if (argc > 2 && strcmp(argv[1], "run") == 0)
        return run_each(argc - 2, argv + 2);
    if (argc > 4 && strcmp(argv[1], "watch") == 0)
        return run_watched(argv[2], argv[3], (const char *const *)(argv + 4));
    if (argc > 2 && strcmp(argv[1], "seal") == 0)
        return run_seal(argv[2], argc - 3, argv + 3);
    if (argc > 4 && strcmp(argv[1], "join") == 0)
        return join(argv[2], argv[3], (const char *const *)(argv + 4));
    if (argc == 4 && strcmp(argv[1], "limit") == 0)
        return run_limit(argv[2], argv[3]);
    if (argc > 2 && strcmp(argv[1], "node") == 0)
        return run_node(argc - 2, argv + 2);
    if (argc > 2 && strcmp(argv[1], "shell") == 0)
        return run_shell(argc - 2, argv + 2);
    if (argc == 3 && strcmp(argv[1], "warm") == 0)
        return run_warm(argv[2]);
    if (argc == 5 && strcmp(argv[1], "array") == 0)
        return run_array(argv[2], argv[3], argv[4]);
    if (argc == 5 && strcmp(argv[1], "step") == 0)
        return run_step(argv[2], argv[3], argv[4]);
    if (argc == 2 && strcmp(argv[1], "--version") == 0) {
        printf("ckptbench-agent %s (%s)\n", version_text(), version_commit());
        return CB_EXIT_PASS;
    }
    if (argc == 2 && strcmp(argv[1], "--help") == 0) {
        fputs(usage, stdout);
        return CB_EXIT_PASS;
    }
    fputs(usage, stderr);
    return CB_EXIT_USAGE;
}
