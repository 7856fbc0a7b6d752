/* Messages between agents of foreign bytes: every reader, and a page that such a message writes to. */
#include <stdint.h>
#include <stdlib.h>

#include "agent/node/page_copy.h"
#include "agent/node/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void write_to_page(const struct wire_span *span)
{
    struct status_page *page;
    if (page_copy_new(0, 1, 2, &page, NULL) != 0)
        abort();
    int rc = page_copy_apply(page, span->offset, span->bytes, span->len, NULL);
    if (page->magic != STATUS_PAGE_MAGIC || page->sample_capacity != 2)
        abort(); /* not theirs to write */
    (void)rc;
    page_copy_free(page);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct wire_hello hello;
    struct wire_welcome welcome;
    struct wire_pong pong;
    struct wire_joined joined;
    struct wire_beat beat;
    struct wire_rank_report sights[4];
    struct wire_span span;
    struct wire_file file;
    char reason[1024];
    uint64_t now_ns;
    uint32_t count;
    int any = wire_read_hello(data, size, &hello, NULL);
    any |= wire_read_welcome(data, size, &welcome, NULL) | wire_read_pong(data, size, &pong, NULL);
    any |= wire_read_joined(data, size, &joined, NULL) | wire_read_beat(data, size, &beat, NULL);
    any |= wire_read_sights(data, size, sights, 4, &count, NULL) | wire_read_refused(data, size, reason, NULL);
    any |= wire_read_ping(data, size, &now_ns, NULL) | wire_read_file(data, size, &file, NULL);
    if (wire_read_span(data, size, &span, NULL) == 0)
        write_to_page(&span);
    return any > 0; /* any answer is fine, as long as there is one: codes are never positive */
}
