/* ckptbench-worker, one rank: arguments, signals, the status page, the exit code, and the table of workloads. The agent
 * starts it under MPI's launcher, or alone for a single rank. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "comm/agree.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/process.h"
#include "core/rank_placement.h"
#include "core/units.h"
#include "core/version.h"
#include "engine/device_plugin.h"
#include "engine/near_adapter.h"
#include "run/run_folder.h"
#include "run/workload_kind.h"
#include "suite/suite.h"
#include "train/train.h"
#include "worker/dataset_reads.h"
#include "worker/run.h"
#include "worker/scratch_files.h"
#include "worker/verify_stored.h"

#define PROGRAM "ckptbench-worker"
#define READ_WITHIN_NS (60 * NS_PER_S) /* the experiment, as all ranks read it */

struct arguments {
    const char *run_folder, *pages;
    uint64_t attempt, nodes; /* 0 nodes: all ranks are on this machine and `pages` is the folder itself */
    const char *adapter;     /* of adapter=, if the run uses GPUs; else NULL */
};

/* For the signal handler; set once, before handlers are installed. */
static struct status_page *signal_page;
static pid_t signal_parent;
static volatile sig_atomic_t signal_stopped; /* the stop request came from a signal, not from the agent */

static void raise_stop(uint32_t wanted)
{
    uint32_t now = atomic_load(&signal_page->stop);
    signal_stopped = 1;
    while (now < wanted && !atomic_compare_exchange_weak(&signal_page->stop, &now, wanted))
        ;
}

/* SIGINT stops after the iteration, a second one immediately, as does SIGTERM. SIGHUP comes when the parent's thread
 * that started this process has ended; if the whole parent has ended, there is no process to report to. */
static void on_signal(int signal_number)
{
    if (signal_number == SIGHUP) {
        if (getppid() != signal_parent)
            _exit(CB_EXIT_INFRASTRUCTURE);
        return;
    }
    if (signal_number == SIGINT && atomic_load(&signal_page->stop) == STOP_NONE)
        raise_stop(STOP_AFTER_ITERATION);
    else
        raise_stop(STOP_NOW);
}

static void catch_signals(struct status_page *page)
{
    signal_page = page;
    signal_parent = getppid();
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
    prctl(PR_SET_PDEATHSIG, SIGHUP);
}

static int print_usage(FILE *out)
{
    fprintf(out, "usage: " PROGRAM
                 " --run-folder RUN --attempt N --pages FOLDER [--nodes N] [--adapter auto|none] [--release "
                 "VERSION]\n"
                 "       " PROGRAM " --devices\n"
                 "One rank of a run; ckptbench-agent starts it under MPI's launcher. --devices lists the GPUs.\n");
    return out == stdout ? CB_EXIT_PASS : CB_EXIT_USAGE;
}

/* Never fails: if there are no devices, it prints the reason. */
static int print_devices(void)
{
    struct buf out;
    struct cb_err err;
    buf_init(&out, UINT64_C(1) << 20);
    if (device_plugin_list(&out, &err))
        printf("none: %s\n", err.message);
    else
        printf("%s", out.data);
    buf_release(&out);
    return CB_EXIT_PASS;
}

/* `release` is that of the agent. */
static int check_release(const char *release, struct cb_err *err)
{
    if (strcmp(release, version_text()) == 0)
        return 0;
    return cb_fail(err, CB_ERR_UNSUPPORTED,
                   "this is ckptbench-worker %s, and the ckptbench-agent that starts it is %s: install one release",
                   version_text(), release);
}

static int read_arguments(int argc, char **argv, struct arguments *arguments, struct cb_err *err)
{
    *arguments = (struct arguments){0};
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (!value)
            return cb_fail(err, CB_ERR_USAGE, "%s needs a value", argv[i]);
        int rc = 0;
        if (strcmp(argv[i], "--run-folder") == 0)
            arguments->run_folder = value;
        else if (strcmp(argv[i], "--pages") == 0)
            arguments->pages = value;
        else if (strcmp(argv[i], "--attempt") == 0)
            rc = units_parse_u64(value, &arguments->attempt, err);
        else if (strcmp(argv[i], "--nodes") == 0)
            rc = units_parse_u64(value, &arguments->nodes, err);
        else if (strcmp(argv[i], "--adapter") == 0)
            arguments->adapter = value;
        else if (strcmp(argv[i], "--release") == 0)
            rc = check_release(value, err);
        else
            rc = cb_fail(err, CB_ERR_USAGE, "unknown argument %s", argv[i]);
        if (rc)
            return rc;
    }
    if (!arguments->run_folder || !arguments->pages || arguments->attempt == 0 || arguments->attempt > UINT32_MAX ||
        arguments->nodes > UINT32_MAX)
        return cb_fail(err, CB_ERR_USAGE, "--run-folder, --pages and --attempt (from 1) are needed");
    return 0;
}

/* The folder of this rank's node. */
static int find_pages(const struct arguments *arguments, const struct comm *comm, char folder[4096], struct cb_err *err)
{
    uint32_t nodes = (uint32_t)arguments->nodes;
    int len = 0;
    if (!nodes)
        len = snprintf(folder, 4096, "%s", arguments->pages);
    else if (nodes > comm_size(comm))
        return cb_fail(err, CB_ERR_USAGE, "%u ranks do not fill %u nodes", comm_size(comm), nodes);
    else if (rank_placement_node_folder(arguments->pages,
                                        rank_placement_node_of(comm_size(comm), nodes, comm_rank(comm)), folder, 4096))
        len = 4096;
    return len < 4096 ? 0 : cb_fail(err, CB_ERR_USAGE, "the folder of status pages has too long a name");
}

static void add_own_facts(struct status_page *page, const struct comm *comm, const char *adapters)
{
    char text[256] = "";
    const char *node = getenv("SLURMD_NODENAME");
    if (node)
        status_page_add_fact(page, "node", node);
    snprintf(text, sizeof text, "%d", (int)getpid());
    status_page_add_fact(page, "pid", text);
    if (gethostname(text, sizeof text - 1) == 0)
        status_page_add_fact(page, "hostname", text);
    status_page_add_fact(page, "mpi", comm_library(comm));
    if (*adapters)
        status_page_add_fact(page, "adapter", adapters);
}

static int open_page(const char *pages, const struct comm *comm, struct status_page **page, struct cb_err *err)
{
    char path[4096];
    int rc = status_page_path(pages, comm_rank(comm), path, sizeof path, err);
    if (!rc)
        rc = status_page_open(path, page, err);
    if (!rc && ((*page)->rank != comm_rank(comm) || (*page)->world_size != comm_size(comm))) {
        rc =
            cb_fail(err, CB_ERR_USAGE,
                    "the status page %s is for rank %u of %u, this is rank %u of %u, by %s: is mpirun of the same MPI?",
                    path, (*page)->rank, (*page)->world_size, comm_rank(comm), comm_size(comm), comm_library(comm));
        status_page_close(*page);
        *page = NULL;
    }
    return rc;
}

static void set_phase(struct status_page *page, enum rank_phase phase)
{
    atomic_store(&page->progress_ns, clock_monotonic_ns());
    atomic_store(&page->phase, phase);
}

/* Checkpoints, and raw bytes. */
static int run_checkpoints(const struct arguments *arguments, struct comm *comm, struct status_page *page,
                           const struct experiment *experiment, struct cb_err *err)
{
    (void)experiment; /* run_prepare freezes its own copy */
    struct run run;
    int rc = run_prepare(&run, comm, page, arguments->pages, arguments->run_folder, (uint32_t)arguments->attempt, err);
    if (!rc) {
        set_phase(page, PHASE_RUNNING);
        rc = run_execute(&run, err);
    }
    run_add_facts(&run);
    bool stopped = run_stop(&run);
    if (stopped && dataset_reads_can_end(&run)) { /* if not, requests of a store that hangs may still use the memory */
        if (rc && rc != CB_ERR_TIMEOUT)
            scratch_files_abandon(&run);
        dataset_reads_release(&run);
        run_release(&run);
    }
    return rc;
}

static int run_suite(const struct arguments *arguments, struct comm *comm, struct status_page *page,
                     const struct experiment *experiment, struct cb_err *err)
{
    set_phase(page, PHASE_RUNNING);
    return suite_run(comm, page, experiment, arguments->pages, arguments->run_folder, (uint32_t)arguments->attempt,
                     err);
}

static int run_training(const struct arguments *arguments, struct comm *comm, struct status_page *page,
                        const struct experiment *experiment, struct cb_err *err)
{
    struct train_place place = {.comm = comm,
                                .page = page,
                                .experiment = experiment,
                                .pages_folder = arguments->pages,
                                .run_folder = arguments->run_folder,
                                .attempt = (uint32_t)arguments->attempt};
    set_phase(page, PHASE_RUNNING);
    return train_run(&place, err);
}

static void tell_finding(const char *line)
{
    log_error("%s", line);
}

static int run_verification(const struct arguments *arguments, struct comm *comm, struct status_page *page,
                            const struct experiment *experiment, struct cb_err *err)
{
    struct verify_stored_setup setup = {
        .comm = comm, .page = page, .experiment = experiment, .pages_folder = arguments->pages, .tell = tell_finding};
    set_phase(page, PHASE_RUNNING);
    return verify_stored_run(&setup, err);
}

/* The table of workloads; their properties are in run/workload_kind.c. wait has no ranks. */
static const struct {
    const char *name;
    int (*run)(const struct arguments *arguments, struct comm *comm, struct status_page *page,
               const struct experiment *experiment, struct cb_err *err);
} workloads[] = {
    {"checkpoint", run_checkpoints}, {"raw", run_checkpoints},     {"suite", run_suite},
    {"train", run_training},         {"verify", run_verification},
};

static int run_workload(const struct arguments *arguments, struct comm *comm, struct status_page *page,
                        const struct experiment *experiment, struct cb_err *err)
{
    const char *name = workload_kind_of(experiment)->name;
    for (size_t i = 0; i < sizeof workloads / sizeof *workloads; i++)
        if (strcmp(workloads[i].name, name) == 0)
            return workloads[i].run(arguments, comm, page, experiment, err);
    return cb_fail(err, CB_ERR_UNSUPPORTED, "workload=%s has no ranks", name);
}

/* Runs the rank with an open status page. Returns 0, or a cb_code that is on the page. */
static int live(const struct arguments *arguments, struct comm *comm, struct status_page *page, const char *adapters)
{
    struct cb_err err = {0};
    struct experiment *experiment = NULL;
    catch_signals(page);
    comm_watch(comm, status_page_check, page);
    atomic_store(&page->pid, (uint32_t)getpid());
    add_own_facts(page, comm, adapters);
    atomic_store(&page->ready_ns, clock_monotonic_ns());
    set_phase(page, PHASE_READY);
    int rc = agree(
        comm,
        run_folder_read_experiment(run_experiment_folder(arguments->pages, arguments->run_folder), &experiment, &err),
        clock_monotonic_ns() + READ_WITHIN_NS, &err);
    if (!rc)
        rc = run_workload(arguments, comm, page, experiment, &err);
    if (rc)
        status_page_add_failure(page, rc, err.message);
    if (signal_stopped)
        status_page_add_fact(page, STATUS_FACT_STOPPED, "by a signal");
    set_phase(page, rc ? PHASE_FAILED : PHASE_DONE);
    if (rc && rc != CB_ERR_ABORTED)
        log_error("rank %u: %s", comm_rank(comm), err.message);
    experiment_free(experiment);
    return rc;
}

int main(int argc, char **argv)
{
    struct arguments arguments;
    struct comm *comm = NULL;
    struct status_page *page = NULL;
    struct cb_err err = {0};
    char pages[4096], adapters[NEAR_ADAPTER_BYTES] = "";
    process_begin();
    log_init(PROGRAM, LOG_NORMAL);
    if (argc == 2 && strcmp(argv[1], "--help") == 0)
        return print_usage(stdout);
    if (argc == 2 && strcmp(argv[1], "--version") == 0) {
        printf(PROGRAM " %s (%s)\n", version_text(), version_commit());
        return CB_EXIT_PASS;
    }
    if (argc == 2 && strcmp(argv[1], "--devices") == 0)
        return print_devices();
    int rc = read_arguments(argc, argv, &arguments, &err);
    if (rc) {
        log_error("%s", err.message);
        return rc == CB_ERR_USAGE ? print_usage(stderr) : cb_exit_code(rc);
    }
    if (arguments.adapter && strcmp(arguments.adapter, "auto") == 0)
        device_plugin_set_adapters("/sys", adapters, sizeof adapters);
    else if (arguments.adapter)
        snprintf(adapters, sizeof adapters, "left alone (adapter=%.32s)", arguments.adapter);
    rc = comm_new((uint32_t)arguments.nodes, &comm, &err);
    if (!rc)
        rc = find_pages(&arguments, comm, pages, &err);
    arguments.pages = pages;
    if (!rc)
        rc = open_page(pages, comm, &page, &err);
    if (rc) {
        log_error("%s", err.message);
        _exit(cb_exit_code(rc)); /* ranks that found their page must not wait for this one in MPI_Finalize */
    }
    rc = live(&arguments, comm, page, adapters);
    fflush(NULL);
    if (comm_can_end(comm))
        comm_free(comm);
    else
        _exit(cb_exit_code(rc));
    return cb_exit_code(rc);
}
