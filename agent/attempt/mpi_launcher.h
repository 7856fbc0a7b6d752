/* How the mpirun of each MPI starts ranks: a row for each MPI. The programs are built for one MPI (make MPICC=…). */
#ifndef AGENT_ATTEMPT_MPI_LAUNCHER_H
#define AGENT_ATTEMPT_MPI_LAUNCHER_H

#include <stddef.h>

#include "core/err.h"

/* Lists end with NULL. Settings go through the environment where they can, since mpirun ignores variables that it does
 * not know. A variable may contain {folder} (for temporary files), {agent} (this program) and {hosts} (the key). */
struct mpi_launcher {
    const char *name;                /* "Open MPI" */
    const char *package;             /* Debian's package that contains mpirun */
    const char *srun_type;           /* the plugin of `srun --mpi=list` that its ranks need */
    const char *const *words;        /* the start of each command line */
    const char *hosts_flag;          /* the path of the list of hosts follows */
    const char *slots;               /* between a host and its number of ranks in that list */
    const char *const *always;       /* variables of each launch, by srun too */
    const char *const *one_node;     /* more variables, if all ranks run on this machine */
    const char *const *nodes;        /* more variables for several nodes */
    const char *const *through_ssh;  /* more variables for several nodes that ssh reaches */
    const char *const *through_srun; /* more variables for several nodes of a Slurm job */
};

/* The launcher of the MPI that this program was built for. */
const struct mpi_launcher *mpi_launcher(void);

#define MPI_LAUNCHER_MAX_VARIABLES 32

struct mpi_variables {
    const char *folder, *agent, *hosts;         /* the values of the placeholders; set them first */
    char *text[MPI_LAUNCHER_MAX_VARIABLES + 1]; /* "NAME=value", NULL-terminated; owned */
    size_t count;
};

/* Appends variables with their placeholders replaced. On failure, too, free them. */
int mpi_variables_add(struct mpi_variables *self, const char *const *variables, struct cb_err *err) CB_MUST_CHECK;
void mpi_variables_free(struct mpi_variables *self);

#endif
