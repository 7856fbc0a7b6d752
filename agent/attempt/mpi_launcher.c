/* The rows: Open MPI with its mpirun (ORTE, PRRTE), and MPICH with Hydra, which Intel MPI has, too. */
#include "agent/attempt/mpi_launcher.h"

#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/buf.h"

#define VARIABLE_MAX_BYTES (1 << 20)
#define LIST(...) ((const char *const[]){__VA_ARGS__, NULL})

/* The site chooses the transport between nodes: nothing here restricts it. */
static const struct mpi_launcher open_mpi = {
    .name = "Open MPI",
    .package = "openmpi-bin",
    .srun_type = "pmix",
    .words = LIST("mpirun"),
    .hosts_flag = "--hostfile",
    .slots = " slots=",
    .always = LIST("OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", /* containers often run as root */
                   "PRTE_ALLOW_RUN_AS_ROOT=1", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                   "OMPI_MCA_hwloc_base_binding_policy=none", "PRTE_MCA_hwloc_default_binding_policy=none",
                   "OMPI_MCA_btl_base_warn_component_unused=0", "OMPI_MCA_orte_tag_output=1"),
    .one_node = LIST("OMPI_MCA_rmaps_base_oversubscribe=1", "PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe",
                     "OMPI_MCA_plm=isolated", /* one machine: no search for ssh */
                     "OMPI_MCA_ras=^slurm",   /* a job's node counts as one machine */
                     "PRTE_MCA_ras=^slurm", "OMPI_MCA_pml=ob1", "OMPI_MCA_btl=self,vader",
                     "OMPI_MCA_btl_vader_single_copy_mechanism=none", "OMPI_MCA_btl_vader_backing_directory={folder}",
                     "OMPI_MCA_orte_tmpdir_base={folder}", "PRTE_MCA_prte_tmpdir_base={folder}"),
    .nodes = LIST("OMPI_MCA_rmaps_base_mapping_policy=slot:oversubscribe",
                  "PRTE_MCA_rmaps_default_mapping_policy=slot:oversubscribe",
                  "OMPI_MCA_plm_rsh_no_tree_spawn=1", /* only our ssh wrapper can resolve these names */
                  "PRTE_MCA_plm_ssh_no_tree_spawn=1"),
    .through_ssh = LIST("OMPI_MCA_plm_rsh_agent={agent} shell {hosts}", "PRTE_MCA_plm_ssh_agent={agent} shell {hosts}"),
    /* The step of mpirun's daemons shares the nodes with the agents' step. */
    .through_srun = LIST("SLURM_OVERLAP=1", "SLURM_MPI_TYPE=none"),
};

/* Hydra passes HYDRA_LAUNCHER_EXEC on as one word, and with its launcher ssh a flag before the others: hence rsh. */
static const struct mpi_launcher mpich = {
    .name = "MPICH",
    .package = "mpich",
    .srun_type = "pmi2",
    .words = LIST("mpirun", "-prepend-rank"),
    .hosts_flag = "-f",
    .slots = ":",
    .always = LIST("HYDRA_RMK=user"), /* a job's nodes are those that we name */
    .one_node = LIST("HYDRA_LAUNCHER=fork"),
    .nodes = LIST(NULL),
    .through_ssh = LIST("HYDRA_LAUNCHER=rsh", "HYDRA_LAUNCHER_EXEC={agent}", "HYDRA_LAUNCHER_EXTRA_ARGS=shell {hosts}"),
    .through_srun = LIST("HYDRA_LAUNCHER=slurm", "SLURM_OVERLAP=1", "SLURM_MPI_TYPE=none"),
};

const struct mpi_launcher *mpi_launcher(void)
{
    return strcmp(CKPTBENCH_MPI, "mpich") == 0 ? &mpich : &open_mpi;
}

/* The value of the placeholder at the start of `text`, and its length; NULL if there is no placeholder. */
static const char *find_value(const struct mpi_variables *self, const char *text, size_t *len)
{
    const char *const names[] = {"{folder}", "{agent}", "{hosts}"};
    const char *const values[] = {self->folder, self->agent, self->hosts};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        *len = strlen(names[i]);
        if (strncmp(text, names[i], *len) == 0)
            return values[i] ? values[i] : "";
    }
    return NULL;
}

int mpi_variables_add(struct mpi_variables *self, const char *const *variables, struct cb_err *err)
{
    for (; *variables && self->count < MPI_LAUNCHER_MAX_VARIABLES; variables++) {
        struct buf text;
        buf_init(&text, VARIABLE_MAX_BYTES);
        for (const char *at = *variables; *at;) {
            size_t len;
            const char *value = find_value(self, at, &len);
            buf_append_text(&text, value ? value : (char[]){*at, '\0'});
            at += value ? len : 1;
        }
        int rc = buf_check(&text, "a variable of mpirun", err);
        char *copy = rc ? NULL : strdup(text.data);
        buf_release(&text);
        if (!copy)
            return rc ? rc : alloc_fail(err, "for mpirun");
        self->text[self->count++] = copy;
    }
    return 0;
}

void mpi_variables_free(struct mpi_variables *self)
{
    for (size_t i = 0; i < self->count; i++)
        free(self->text[i]);
    self->count = 0;
}
