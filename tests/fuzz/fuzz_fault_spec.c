/* The SPEC of a fault store: any text is read or refused with a sentence. */
#include <stdlib.h>

#include "store/fault/fault_spec.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fault_spec spec;
    struct cb_err err = {0};
    int rc = fault_spec_parse((const char *)data, size, &spec, &err);
    if (rc ? err.message[0] == 0 : spec.ops == 0)
        abort();
    return 0;
}
