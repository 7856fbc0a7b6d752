/* What pools read: pool.json, tickets of a spool, Slurm's words about power saving and about a pool's job. The
 * first byte says which. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "agent/pool/pool_job.h"
#include "jobs/slurm/pool_state.h"
#include "run/pool.h"
#include "run/spool.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct cb_err err;
    struct pool pool;
    struct ticket ticket;
    struct slurm_power power;
    struct pool_share share = {0};
    uint64_t boot_s = 0;
    if (size == 0)
        return 0;
    char *text = malloc(size);
    if (!text)
        return 0;
    memcpy(text, data + 1, size - 1);
    text[size - 1] = '\0';
    int rc = 0;
    switch (data[0] % 4) {
    case 0:
        rc = pool_parse("pool.json", text, size - 1, &pool, &err);
        break;
    case 1:
        rc = spool_parse("00000000000000000001.r", text, size - 1, &ticket, &err);
        break;
    case 2:
        slurm_parse_power(text, text, "gpu", &power);
        break;
    default:
        rc = pool_job_read_details(text, &share, &boot_s) ? 0 : CB_ERR_FORMAT;
    }
    free(text);
    (void)rc; /* any answer is fine, as long as there is one */
    return 0;
}
