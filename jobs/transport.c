/* What all transports share: answers, and the variables of Slurm. */
#include "jobs/transport.h"

#include <stdio.h>
#include <string.h>

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

static void last_line(const struct buf *from, char *text, size_t bytes)
{
    text[0] = '\0';
    for (const char *at = from->data; *at;) {
        size_t len = strcspn(at, "\n"), blank = strspn(at, " \t\r");
        if (blank < len)
            snprintf(text, bytes, "%.*s", (int)(len < bytes ? len : bytes - 1), at);
        at += len + (at[len] == '\n');
    }
}

char *transport_answer_last_line(const struct transport_answer *self, char *text, size_t bytes)
{
    last_line(&self->errors, text, bytes);
    if (!*text)
        last_line(&self->out, text, bytes);
    return text;
}

void transport_close(struct transport *self)
{
    if (self)
        self->close(self);
}
