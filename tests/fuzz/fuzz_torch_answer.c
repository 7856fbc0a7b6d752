/* What the Python process of engine=torch-dcp answers, from any bytes: libraries it loads write to its stdout, too. */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/external/torch_adapter.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct torch_answer answer;
    struct cb_err err = {0};
    if (torch_answer_parse((const char *)bytes, len, &answer, &err)) {
        if (err.message[0] == '\0')
            abort();
        return 0;
    }
    const double numbers[] = {answer.plan_s,     answer.io_s,    answer.commit_s, answer.cpu_s,
                              answer.save_cpu_s, answer.ended_s, answer.bytes,    answer.rss_bytes};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (!isnan(numbers[i]) && !(numbers[i] >= 0))
            abort();
    if (!memchr(answer.version, '\0', sizeof answer.version))
        abort();
    return 0;
}
