/* A status page over which a rank, or anybody, wrote what it liked: refused, or a record that holds. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "run/record.h"
#include "run/status_page.h"

#define CAPACITY 4

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

/* Mostly a good page: {offset (4 bytes), length, bytes…} are written over it in turn. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    size_t size = status_page_bytes(CAPACITY);
    struct status_page *page = calloc(1, size);
    struct record record;
    if (!page)
        abort();
    page->magic = STATUS_PAGE_MAGIC;
    page->version = STATUS_PAGE_VERSION;
    page->world_size = 2;
    page->sample_capacity = CAPACITY;
    page->size_bytes = size;
    for (size_t at = 0; at + 5 <= len;) {
        uint32_t offset;
        memcpy(&offset, bytes + at, sizeof offset);
        size_t count = bytes[at + 4], left = len - at - 5;
        count = count < left ? count : left;
        offset %= (uint32_t)(size - 256);
        memcpy((char *)page + offset, bytes + at + 5, count);
        at += 5 + count;
    }
    record_init(&record, "20261121-abcd", 1, 2);
    if (record_add_page(&record, page, NULL) == 0 &&
        (record.rank_count != 1 || record.ranks[0].sample_count > CAPACITY))
        abort();
    record_release(&record);
    free(page);
    return 0;
}
