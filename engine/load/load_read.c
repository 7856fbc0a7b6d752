/* Runs the three stages of a load, for the targets of this rank or of a stage of the exchange. It plans the items and
 * reads them in as many passes as their headers require; each pass is completed before the next is built. */
#include <assert.h>
#include <string.h>

#include "core/alloc.h"
#include "engine/load/load_stages.h"

#define MAX_PASSES 4 /* expected layout, short probe, long probe, actual layout; more only for compressed items */

static int prepare(struct native_load *self, struct cb_err *err)
{
    int rc = native_load_make_items(self, err);
    if (!rc)
        rc = native_load_reserve_io(self, err);
    if (rc)
        return rc;
    self->complete.item_total += self->plan.item_count;
    self->complete.arrived = calloc(self->plan.wanted->read_count + 1, sizeof *self->complete.arrived);
    return self->complete.arrived ? 0 : alloc_fail(err, "for %zu reads", self->plan.wanted->read_count);
}

int native_load_read(struct native_load *self, struct cb_err *err)
{
    bool again = true;
    int rc = prepare(self, err);
    for (int pass = 0; again && !rc; pass++) {
        assert(pass < MAX_PASSES || self->io.window.used > 0);
        timeline_enter(&self->operation->timeline, STATE_PLAN);
        rc = native_load_build_pass(self, err);
        if (!rc)
            rc = native_load_run_pass(self, err);
        if (!rc)
            rc = native_load_after_pass(self, &again, err);
    }
    return rc;
}

void native_load_forget(struct native_load *self)
{
    for (size_t i = 0; i < self->plan.item_count; i++)
        native_load_forget_unpacking(&self->plan.items[i]);
    free(self->complete.arrived);
    self->complete.arrived = NULL;
    native_load_release_io(self);
    native_load_forget_items(self);
}
