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
    int rc = page_copy_apply(page, span->offset, span->bytes.at, span->bytes.len, NULL);
    if (page->magic != STATUS_PAGE_MAGIC || page->sample_capacity != 2)
        abort(); /* not theirs to write */
    (void)rc;
    status_page_close(page);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    union {
        struct wire_hello hello;
        struct wire_refused refused;
        struct wire_welcome welcome;
        struct wire_joined joined;
        struct wire_process process;
        struct wire_file file;
    } message;
    struct wire_span span;
    int any = 0;
    for (enum wire_kind kind = WIRE_HELLO; kind < WIRE_KIND_COUNT; kind++)
        if (kind != WIRE_SPAN)
            any |= wire_read(data, size, kind, &message, NULL);
    if (wire_read(data, size, WIRE_SPAN, &span, NULL) == 0)
        write_to_page(&span);
    return any > 0; /* any answer is fine, as long as there is one: codes are never positive */
}
