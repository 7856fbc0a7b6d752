/* One attempt of a run: the state shared by the files of this room. Each header lists the members it fills.
 * agent/attempt/attempt_run.h runs an attempt from creating its folder to its seal. */
#ifndef AGENT_ATTEMPT_ATTEMPT_H
#define AGENT_ATTEMPT_ATTEMPT_H

#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "agent/counters.h"
#include "agent/node/nodes.h"
#include "agent/node/pages.h"
#include "agent/probe.h"
#include "core/buf.h"
#include "core/child.h"
#include "core/err.h"
#include "run/experiment.h"
#include "run/run_folder.h"

/* How the attempt ends, once decided. */
struct verdict_of_attempt {
    bool decided;
    enum outcome outcome;
    int code; /* cb_code of the failure, 0 without one */
    char message[1024];
};

/* The step on all nodes that removes the sent programs when its input ends (broadcast.c). */
struct program_keeper {
    struct child step; /* pid 0: none */
    int input_fd;
    int pipes[2]; /* its stdout and stderr */
};

struct node_peers;
struct attempt {
    const char *run_folder; /* absolute */
    char run[RUN_ID_BYTES];
    uint32_t number;
    struct buf path; /* RUN/attempts/N */
    struct experiment *experiment;
    uint32_t ranks;
    uint64_t warmup, iterations;
    uint64_t started_ns, started_wall_ns;
    uint64_t ended_wall_ns;                  /* 0: when it is sealed */
    const volatile sig_atomic_t *signals;    /* SIGINT and SIGTERM received so far */
    const volatile sig_atomic_t *time_is_up; /* SIGUSR1 arrived: the job's time limit is near */
    bool limit_is_near;                      /* a training was asked to end before timeout.run */
    pid_t parent;                            /* parent of the agent; when it dies, the attempt is cancelled */

    struct pages pages;
    struct nodes nodes;
    char programs[256]; /* folder on the nodes that programs were sent to; "": this program's folder */
    struct program_keeper keeper;
    struct node_peers *peers;  /* NULL if all ranks run on this machine */
    uint64_t rank_start_ns;    /* when the ranks were started, after all nodes had joined */
    struct child mpi_list;     /* `srun --mpi=list`, running while nodes join */
    int mpi_list_fd;           /* its output, if it was run */
    struct child launcher;     /* mpirun or srun, or the one rank */
    const char *launcher_name; /* NULL if the one rank has no launcher */
    bool has_launcher;         /* mpirun or srun runs between the agent and the ranks */
    uint64_t launched_ns;      /* when all ranks had reported; 0 before */
    struct counters counters;
    struct probe *probe; /* NULL before ranks start and after they end */
    struct verdict_of_attempt verdict;
    const char *const *command; /* of workload=watch, NULL-terminated; NULL: the shell command of command= */
    int command_status;         /* as waitpid(2) gives it; -1 before the command has ended */
    uint64_t oom_kills;         /* memory_oom_kills() before the ranks started */
    char stuck[256];            /* processes that could not be killed; "" if all ended */
};

/* The first decision wins. */
void attempt_decide(struct attempt *self, enum outcome outcome, int code, const char *format, ...) CB_PRINTF(4, 5);

/* World size of the experiment: ranks, else the product of its axes. */
uint32_t attempt_world_size(const struct experiment *experiment);

/* "save 3/5, writing": what a rank is doing, or was doing when it died. `text` holds 96 bytes. */
char *attempt_describe_place(const struct attempt *self, uint32_t rank, char text[96]);

#endif
