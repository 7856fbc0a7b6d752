/* One attempt of a run: what the files of this room share. Each says which members it fills.
 * agent/attempt/attempt_run.h takes it from its folder to its seal. */
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

/* How the attempt ends, once something has decided it. */
struct verdict_of_attempt {
    bool decided;
    enum outcome outcome;
    int code; /* cb_code behind it, 0 for none */
    char message[1024];
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
    const volatile sig_atomic_t *signals;    /* SIGINT and SIGTERM received so far */
    const volatile sig_atomic_t *time_is_up; /* SIGUSR1 came: the job's time limit is near */
    pid_t parent;                            /* who started the agent; when it dies, the attempt is cancelled */

    struct pages pages;
    struct nodes nodes;
    char programs[256];        /* where they were sent to on the nodes: broadcast_programs; "" for beside this one */
    struct node_peers *peers;  /* NULL where all ranks run on this machine */
    uint64_t rank_start_ns;    /* when the ranks were started: after the nodes had come together */
    struct child mpi_list;     /* `srun --mpi=list`, asked while nodes join */
    int mpi_list_fd;           /* what it says, where it was asked */
    struct child launcher;     /* mpirun or srun, or the one rank */
    const char *launcher_name; /* NULL where nothing stands between us and the one rank */
    bool has_launcher;         /* mpirun or srun stands between us and the ranks */
    uint64_t launched_ns;      /* all ranks had reported; 0 before */
    struct counters counters;
    struct probe *probe; /* NULL before and after */
    struct verdict_of_attempt verdict;
    uint64_t oom_kills; /* before the ranks began: memory_oom_kills */
    char stuck[256];    /* processes that could not be ended, "" for none */
};

/* The first to decide wins. */
void attempt_decide(struct attempt *self, enum outcome outcome, int code, const char *format, ...) CB_PRINTF(4, 5);

/* World size as the experiment says it: ranks, else the product of its axes. */
uint32_t attempt_world_size(const struct experiment *experiment);

/* "save 3/5, writing": where a rank is, or was when it died. `text` holds 96 bytes. */
char *attempt_describe_place(const struct attempt *self, uint32_t rank, char text[96]);

#endif
