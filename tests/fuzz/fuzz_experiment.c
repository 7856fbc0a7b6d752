/* A frozen experiment from any bytes; one that reads must freeze to the same experiment again. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "run/experiment.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct experiment *experiment, *again;
    struct cb_err err;
    struct buf first, second;
    if (experiment_read_yaml("fuzz.yaml", (const char *)bytes, len, &experiment, &err))
        return 0;
    buf_init(&first, 64u << 20);
    buf_init(&second, 64u << 20);
    if (experiment_write_yaml(experiment, &first, &err) ||
        experiment_read_yaml("frozen", first.data, first.len, &again, &err) ||
        experiment_write_yaml(again, &second, &err) || strcmp(first.data, second.data) != 0)
        __builtin_trap();
    buf_release(&first);
    buf_release(&second);
    experiment_free(again);
    experiment_free(experiment);
    return 0;
}
