/* Shared by all transports: results of commands, and the variables of Slurm. */
#include "jobs/transport.h"

#define ANSWER_MAX_BYTES (64u << 20)

const char *const transport_slurm_prefixes[] = {"SBATCH_", "SLURM_", "SRUN_",    "SALLOC_", "SQUEUE_",
                                                "SACCT_",  "SINFO_", "SCANCEL_", NULL};
const char *const transport_slurm_kept[] = {"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_CLUSTERS", NULL};

void transport_answer_init(struct transport_answer *self)
{
    self->exit_status = 0;
    buf_init(&self->out, ANSWER_MAX_BYTES);
    buf_init(&self->errors, ANSWER_MAX_BYTES);
}

void transport_answer_release(struct transport_answer *self)
{
    buf_release(&self->out);
    buf_release(&self->errors);
}

char *transport_answer_last_line(const struct transport_answer *self, char *text, size_t bytes)
{
    text_last_line(self->errors.data, " \t\r", text, bytes);
    if (!*text)
        text_last_line(self->out.data, " \t\r", text, bytes);
    return text;
}

void transport_close(struct transport *self)
{
    if (self)
        self->close(self);
}
