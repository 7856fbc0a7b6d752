/* /proc/self/mountinfo, of any kernel and with any name in it. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "agent/probe.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    char *text = malloc(len + 1);
    struct mount mount;
    if (!text)
        abort();
    memcpy(text, bytes, len);
    text[len] = '\0';
    if (probe_parse_mount(text, "/data/my store/x", &mount) &&
        (!memchr(mount.place, '\0', sizeof mount.place) || !memchr(mount.type, '\0', sizeof mount.type) ||
         !memchr(mount.source, '\0', sizeof mount.source) || !memchr(mount.options, '\0', sizeof mount.options)))
        abort();
    free(text);
    return 0;
}
