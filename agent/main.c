/* ckptbench-agent: arguments, signals, exit code. */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "agent/attempt.h"
#include "core/log.h"
#include "core/process.h"
#include "core/version.h"

static const char usage[] = "usage: ckptbench-agent run RUN_FOLDER\n"
                            "       ckptbench-agent --version | --help\n"
                            "Runs one attempt of the run that is frozen in RUN_FOLDER on this machine and seals it.\n"
                            "Exit codes: 0 pass, 1 our failure, 2 usage, 3 the benchmark failed, 4 infrastructure.\n";

#define PAGE_BYTES 4096

/* The signal flag: how many times the user or the system asked us to end. */
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

/* A mapped file that somebody cut short: what is gone reads as zeros from here on, which no status page is.
 * The attempt is sealed with what is known of the others. All else that raises SIGBUS is our end. */
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
    int code;
    catch_signals();
    int rc = attempt_run(folder, &signals_received, &time_is_up, &outcome, &code, &err);
    if (rc) {
        log_error("%s", err.message);
        return cb_exit_code_at_home(rc);
    }
    return code == CB_ERR_USAGE ? CB_EXIT_USAGE : outcome_exit_code(outcome);
}

int main(int argc, char **argv)
{
    process_begin();
    log_init("ckptbench-agent", LOG_NORMAL);
    if (argc == 3 && strcmp(argv[1], "run") == 0)
        return run(argv[2]);
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
