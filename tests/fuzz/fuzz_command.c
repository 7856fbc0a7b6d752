/* engine=command: what a command prints, and any template of a command line. */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/external/engine_command.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void expand(const char *template, const char *value)
{
    const struct command_value values[] = {{"path", value}, {"rank", "3"}};
    struct cb_err err = {0};
    struct buf out;
    buf_init(&out, 1u << 20);
    if (command_expand(template, values, 2, &out, &err) && err.message[0] == '\0')
        abort();
    buf_release(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct sample sample = {.op = OP_SAVE};
    struct cb_err err = {0};
    for (size_t i = 0; i < METRIC_SAMPLE_COUNT; i++)
        sample.values[i] = NAN;
    if (command_take_report((const char *)bytes, len, &sample, &err) && err.message[0] == '\0')
        abort();
    char *text = malloc(len + 1);
    if (!text)
        abort();
    memcpy(text, bytes, len);
    text[len] = '\0';
    expand(text, "/a b/it's");
    expand("{path} {rank} {", text);
    free(text);
    return 0;
}
