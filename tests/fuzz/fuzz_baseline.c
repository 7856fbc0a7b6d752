/* A baseline's file from any bytes: people edit it, and git merges it. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "db/history.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct baseline baseline;
    struct cb_err err = {0};
    if (baseline_parse("nightly", (const char *)bytes, len, &baseline, &err)) {
        if (err.message[0] == '\0')
            abort();
        return 0;
    }
    for (size_t i = 0; i < baseline.word_count; i++)
        if (!baseline.words[i])
            abort();
    baseline_release(&baseline);
    return 0;
}
