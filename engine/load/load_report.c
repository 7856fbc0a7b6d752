/* Reports missing and wrong items on the status page while the load continues, so that all are reported. */
#include <inttypes.h>
#include <stdio.h>

#include "engine/load/load_stages.h"

int native_load_file_name(const struct native_load *self, uint32_t file, char name[PATH_MAX], struct cb_err *err)
{
    const struct native_engine *engine = self->operation->engine;
    return native_copy_name(self->operation->path, engine->rank % engine->setup.config.copies,
                            self->plan.checkpoint->files[file], name, err);
}

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
    char text[512], file[PATH_MAX] = "";
    struct cb_err unused; /* a file whose name is too long was never opened */
    item->state = ITEM_FAILED;
    (void)!native_load_file_name(self, chunk->file, file, &unused);
    snprintf(text, sizeof text, "%s in %.400s at offset %" PRIu64 ", %" PRIu64 " bytes: %s",
             native_load_tensor(self, item)->fqn, file, chunk->offset, chunk->length, why);
    native_load_fail(self, code, text);
}
