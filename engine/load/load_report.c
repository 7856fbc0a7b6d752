/* Reports missing and wrong items on the status page while the load continues, so that all are reported. */
#include <inttypes.h>
#include <stdio.h>

#include "engine/load/load_stages.h"

void native_load_fail(struct native_load *self, int code, const char *text)
{
    if (self->complete.failures++ == 0)
        snprintf(self->complete.first_failure, sizeof self->complete.first_failure, "%s", text);
    status_page_add_failure(self->operation->engine->setup.page, code, text);
}

void native_load_fail_item(struct native_load *self, struct load_item *item, int code, const char *why)
{
    if (item->state == ITEM_FAILED)
        return;
    const struct stored_chunk *chunk = native_load_chunk(self, item);
    char text[512];
    item->state = ITEM_FAILED;
    snprintf(text, sizeof text, "%s in %s/%s at offset %" PRIu64 ", %" PRIu64 " bytes: %s",
             native_load_tensor(self, item)->fqn, self->operation->path, self->plan.checkpoint->files[chunk->file],
             chunk->offset, chunk->length, why);
    native_load_fail(self, code, text);
}
