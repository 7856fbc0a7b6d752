/* What a kernel says in /proc and /sys, of any release: read as every one of the files that are read. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "agent/counters.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    char *text = malloc(len + 1);
    struct named_list *mounts = calloc(1, sizeof *mounts);
    if (!text || !mounts)
        abort();
    memcpy(text, bytes, len);
    text[len] = '\0';
    struct cpu_counters cpu;
    struct disk_counters disk;
    struct named_counters device = {0};
    uint64_t used_bytes;
    if (counters_parse_cpu(text, &cpu) && strncmp(text, "cpu", 3) != 0)
        abort();
    (void)!counters_parse_memory_used(text, &used_bytes);
    (void)!counters_parse_disk(text, &disk);
    (void)!counters_parse_lustre(text, &device);
    counters_parse_nfs(text, mounts);
    if (mounts->count > COUNTERS_MAX_NAMED)
        abort();
    for (size_t i = 0; i < mounts->count; i++)
        if (!memchr(mounts->items[i].name, '\0', sizeof mounts->items[i].name))
            abort();
    free(mounts);
    free(text);
    return 0;
}
