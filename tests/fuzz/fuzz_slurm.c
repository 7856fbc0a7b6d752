/* Slurm's answers, of foreign bytes; the first byte says which. */
#include <stdint.h>

#include "jobs/slurm/slurm.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct slurm_jobs jobs = {0};
    struct cb_err err;
    char id[64] = "", cluster[64] = "", names[64];
    int rc = 0;
    if (size == 0)
        return 0;
    const char *text = (const char *)data + 1;
    switch (data[0] % 6) {
    case 0:
        rc = slurm_parse_queue(text, size - 1, &jobs, &err);
        break;
    case 1:
        rc = slurm_parse_details(text, size - 1, &jobs, &err);
        break;
    case 2:
        rc = slurm_parse_accounting(text, size - 1, &jobs, &err);
        break;
    case 3:
        rc = slurm_parse_submitted(text, size - 1, id, cluster, &err);
        break;
    case 4:
        slurm_parse_names(text, size - 1, names, sizeof names);
        break;
    default:
        rc = slurm_parse_ping(text, size - 1);
    }
    slurm_jobs_release(&jobs);
    (void)rc; /* any answer is fine, as long as there is one */
    return 0;
}
