/* Manifests of foreign bytes. */
#include <stdint.h>

#include "run/run_folder.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct manifest manifest;
    struct cb_err err;
    int rc = manifest_parse("fuzz", (const char *)data, size, &manifest, &err);
    (void)rc; /* any answer is fine, as long as there is one */
    return 0;
}
