/* Tar archives of foreign bytes: every entry lies within them, and no path leads elsewhere. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "jobs/ssh/archive.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const struct archive *archive, const struct archive_entry *entry)
{
    const char *end = archive->bytes + archive->len;
    if (entry->bytes < archive->bytes || entry->len > (size_t)(end - entry->bytes))
        abort();
    if (*entry->path == '/' || *entry->path == '\0' || strcmp(entry->path, "..") == 0 ||
        strncmp(entry->path, "../", 3) == 0 || strstr(entry->path, "/../") ||
        entry->path[strlen(entry->path) - 1] == '/')
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct archive archive = {.bytes = (const char *)data, .len = size};
    struct archive_entry entry;
    bool more = true;
    while (archive_next(&archive, &entry, &more, NULL) == 0 && more)
        check(&archive, &entry);
    return 0;
}
