/* Launchers for several nodes: their flags and files. */
#include "agent/attempt/launch_nodes.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "agent/attempt/mpi_launcher.h"
#include "core/alloc.h"
#include "core/child.h"
#include "core/path.h"
#include "core/process.h"
#include "core/rank_placement.h"
#include "core/version.h"
#include "run/workload_kind.h"

#define FILE_MAX_BYTES (64 << 20)
#define MPI_NODE_PREFIX "ckptbench-node-" /* mpirun cannot parse user@host:port as a host name */

size_t launch_ssh_words(const char *host, char destination[NODE_NAME_BYTES], char port[8],
                        const char *words[LAUNCH_SSH_WORDS])
{
    size_t count = 0;
    nodes_split_host(host, destination, port);
    words[count++] = "ssh";
    words[count++] = "-o";
    words[count++] = "BatchMode=yes"; /* a prompt would wait for ever */
    words[count++] = "-o";
    words[count++] = "ServerAliveInterval=5";
    if (*port) {
        words[count++] = "-p";
        words[count++] = port;
    }
    words[count++] = destination;
    words[count] = NULL;
    return count;
}

void command_line_add(struct command_line *self, const char *const *words)
{
    for (; *words && self->count < LAUNCH_MAX_WORDS; words++)
        self->words[self->count++] = *words;
}

int launch_on_each(const struct nodes *nodes, bool on_own, const struct child_options *options, struct child *step,
                   struct cb_err *err)
{
    static const char *const srun[] = {LAUNCH_BESIDE, "--kill-on-bad-exit=0", "--distribution=block",
                                       "--ntasks-per-node=1", NULL};
    struct child_options all = *options;
    struct command_line line = {0};
    struct buf list;
    char count[16];
    uint32_t left_out = !on_own && nodes->own >= 0 ? 1 : 0;
    buf_init(&list, FILE_MAX_BYTES);
    for (uint32_t i = 0; i < nodes->count; i++)
        if (on_own || nodes->own != (int64_t)i)
            buf_printf(&list, "%s%s", list.len ? "," : "--nodelist=", nodes->name[i]);
    snprintf(count, sizeof count, "%u", nodes->count - left_out);
    int rc = buf_check(&list, "the list of nodes", err);
    if (!rc) {
        command_line_add(&line, srun);
        command_line_add(&line, (const char *const[]){"--nodes", count, "--ntasks", count, list.data, NULL});
        command_line_add(&line, options->argv);
        all.argv = line.words;
        rc = child_start(step, &all, err);
    }
    buf_release(&list);
    return rc;
}

/* Writes a line per rank, or per node with its slots. */
static int write_hosts(const struct attempt *attempt, bool slots, const char *path, struct cb_err *err)
{
    const struct nodes *nodes = &attempt->nodes;
    struct buf text;
    char own[NODE_NAME_BYTES] = "";
    if (gethostname(own, sizeof own - 1))
        return cb_fail_errno(err, errno, "finding this machine's name");
    buf_init(&text, FILE_MAX_BYTES);
    for (uint32_t node = 0; node < nodes->count; node++) {
        uint32_t first = rank_placement_first_rank(attempt->ranks, nodes->count, node);
        uint32_t end = rank_placement_first_rank(attempt->ranks, nodes->count, node + 1);
        if (!slots)
            for (uint32_t rank = first; rank < end; rank++)
                buf_printf(&text, "%s\n", nodes->name[node]);
        else if (nodes->slurm)
            buf_printf(&text, "%s%s%u\n", nodes->name[node], mpi_launcher()->slots, end - first);
        else if (nodes->own == (int64_t)node)
            buf_printf(&text, "%s%s%u\n", own, mpi_launcher()->slots, end - first);
        else
            buf_printf(&text, MPI_NODE_PREFIX "%u%s%u\n", node, mpi_launcher()->slots, end - first);
    }
    int rc = buf_check(&text, "the list of hosts", err);
    if (!rc)
        rc = buf_write_file(&text, path, 0666, err);
    buf_release(&text);
    return rc;
}

void command_line_add_adapter(struct command_line *self, const struct experiment *experiment)
{
    const char *sections = experiment_text(experiment, OPT_SUITE_ONLY);
    bool suite_does = strcmp(sections, "all") == 0 || strstr(sections, "gpu");
    if (workload_kind_of(experiment)->measures_cluster ? suite_does : experiment_is(experiment, OPT_DEVICE, "cuda"))
        command_line_add(self, (const char *const[]){"--adapter", experiment_text(experiment, OPT_ADAPTER), NULL});
}

/* Hydra passes mpirun's environment to the ranks of all nodes, and each has a name of its own. */
static bool names_this_node(const char *variable)
{
    return strncmp(variable, "SLURMD_NODENAME=", strlen("SLURMD_NODENAME=")) == 0;
}

/* Starts the launcher's words, then the rank's arguments. */
static int start_ranks(struct attempt *attempt, const char *const *launcher, const struct worker *worker,
                       const struct mpi_variables *variables, int log_fd, struct cb_err *err)
{
    char number[16], nodes[16];
    struct command_line line = {0};
    snprintf(number, sizeof number, "%u", attempt->number);
    snprintf(nodes, sizeof nodes, "%u", attempt->nodes.count);
    const char *const told[] = {"--run-folder", attempt->run_folder, "--attempt", number,
                                "--pages",      attempt->pages.base, "--nodes",   nodes,
                                "--release",    version_text(),      NULL};
    command_line_add(&line, launcher);
    command_line_add(&line, worker->words);
    command_line_add(&line, told);
    command_line_add_adapter(&line, attempt->experiment);
    const struct child_options options = {.argv = line.words,
                                          .environment = (const char *const *)variables->text,
                                          .leaves_out = names_this_node,
                                          .stdin_fd = -1,
                                          .stdout_fd = log_fd,
                                          .stderr_fd = log_fd};
    return child_start(&attempt->launcher, &options, err);
}

static int start_srun(struct attempt *attempt, const struct worker *worker, const char *hosts, int log_fd,
                      struct cb_err *err)
{
    char ranks[16], type[32];
    struct mpi_variables variables = {.hosts = hosts};
    snprintf(ranks, sizeof ranks, "%u", attempt->ranks);
    snprintf(type, sizeof type, "--mpi=%s", mpi_launcher()->srun_type);
    /* --mem=0 and --overcommit: the steps of agents and of ranks share the job's resources. */
    const char *const words[] = {"srun",
                                 type,
                                 "--overlap",
                                 "--overcommit",
                                 "--kill-on-bad-exit=1",
                                 "--cpu-bind=none",
                                 "--mem=0",
                                 "--label",
                                 "--distribution=arbitrary",
                                 "--ntasks",
                                 ranks,
                                 NULL};
    int rc = mpi_variables_add(&variables, mpi_launcher()->always, err);
    if (!rc)
        rc = mpi_variables_add(&variables, (const char *const[]){"SLURM_HOSTFILE={hosts}", NULL}, err);
    if (!rc)
        rc = start_ranks(attempt, words, worker, &variables, log_fd, err);
    mpi_variables_free(&variables);
    return rc;
}

static int start_mpirun(struct attempt *attempt, const struct worker *worker, const char *hosts, int log_fd,
                        struct cb_err *err)
{
    const struct mpi_launcher *mpi = mpi_launcher();
    const char *list = experiment_text(attempt->experiment, OPT_HOSTS);
    char ranks[16], own[PATH_MAX];
    struct mpi_variables variables = {.agent = own, .hosts = list};
    struct command_line line = {0};
    snprintf(ranks, sizeof ranks, "%u", attempt->ranks);
    if (!process_own_path(own))
        return cb_fail_errno(err, errno, "finding this program's own path");
    command_line_add(&line, mpi->words);
    command_line_add(&line, (const char *const[]){mpi->hosts_flag, hosts, "-n", ranks, NULL});
    int rc = mpi_variables_add(&variables, mpi->always, err);
    if (!rc)
        rc = mpi_variables_add(&variables, mpi->nodes, err);
    if (!rc)
        rc = mpi_variables_add(&variables, *list ? mpi->through_ssh : mpi->through_srun, err);
    if (!rc)
        rc = start_ranks(attempt, line.words, worker, &variables, log_fd, err);
    mpi_variables_free(&variables);
    return rc;
}

int launch_across_nodes(struct attempt *attempt, const struct worker *worker, int log_fd, struct cb_err *err)
{
    char hosts[PATH_MAX];
    bool srun = strcmp(attempt->launcher_name, "srun") == 0;
    if (path_format(hosts, sizeof hosts, err, "%s/logs/hosts", attempt->path.data))
        return CB_ERR_USAGE;
    int rc = write_hosts(attempt, !srun, hosts, err);
    if (rc)
        return rc;
    return srun ? start_srun(attempt, worker, hosts, log_fd, err) : start_mpirun(attempt, worker, hosts, log_fd, err);
}

/* "ckptbench-node-1" is b of "a,b,c". */
static int find_host(const char *hosts, const char *name, char host[NODE_NAME_BYTES], struct cb_err *err)
{
    const char *at = hosts;
    size_t prefix = strlen(MPI_NODE_PREFIX);
    char *end = NULL;
    unsigned long index = strncmp(name, MPI_NODE_PREFIX, prefix) == 0 ? strtoul(name + prefix, &end, 10) : 0;
    if (!end || *end)
        return cb_fail(err, CB_ERR_USAGE, "%s is not one of the names that mpirun was given", name);
    for (; index > 0 && *at; index--)
        at += strcspn(at, ",") + (at[strcspn(at, ",")] == ',');
    size_t len = strcspn(at, ",");
    if (len == 0 || len >= NODE_NAME_BYTES)
        return cb_fail(err, CB_ERR_USAGE, "%s is not in %s", name, hosts);
    snprintf(host, NODE_NAME_BYTES, "%.*s", (int)len, at);
    return 0;
}

int launch_shell(int argc, char **argv, struct cb_err *err)
{
    char host[NODE_NAME_BYTES], destination[NODE_NAME_BYTES], port[8];
    const char *ssh[LAUNCH_SSH_WORDS];
    if (argc < 3)
        return cb_fail(err, CB_ERR_USAGE, "shell needs HOSTS NAME COMMAND…");
    int rc = find_host(argv[0], argv[1], host, err);
    if (rc)
        return rc;
    size_t count = launch_ssh_words(host, destination, port, ssh);
    char **words = calloc(count + (size_t)argc, sizeof *words);
    if (!words)
        return alloc_fail(err, "to start ssh");
    memcpy(words, ssh, count * sizeof *words);
    for (int i = 2; i < argc; i++)
        words[count + (size_t)i - 2] = argv[i];
    execvp("ssh", words);
    rc = cb_fail_errno(err, errno, "starting ssh");
    free(words);
    return rc;
}
