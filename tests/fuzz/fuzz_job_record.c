/* job.json of foreign bytes. */
#include <stdint.h>

#include "run/job_record.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct job_record record;
    struct cb_err err;
    if (job_record_parse("fuzz", (const char *)data, size, &record, &err) == 0)
        job_record_release(&record);
    return 0;
}
