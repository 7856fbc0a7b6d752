#include "setup/gds.h"

#include <stdio.h>
#include <string.h>

#include "setup/open_store.h"
#include "store/kind.h"

/* The key that rules it out, or NULL. */
static const char *ruled_out(const struct experiment *experiment)
{
    struct store_uri uri = store_uri_of(experiment_text(experiment, OPT_STORE));
    return !uri.kind->is_path || uri.has_faults ? "it needs store=PATH" : experiment_rules_out_gds(experiment);
}

int gds_open(struct gds *self, const struct experiment *experiment, struct device *device, struct cb_err *err)
{
    struct cb_err why;
    const char *key = ruled_out(experiment);
    *self = (struct gds){.required = experiment_is(experiment, OPT_IO_GDS, "on")};
    if (experiment_is(experiment, OPT_IO_GDS, "off"))
        return 0;
    if (key && self->required)
        return cb_fail(err, CB_ERR_USAGE, "io.gds=on: %s", key);
    int rc = key                        ? cb_fail(&why, CB_ERR_UNSUPPORTED, "%s", key)
             : !device->ops->open_files ? cb_fail(&why, CB_ERR_UNSUPPORTED, "the %s device has none", device->ops->name)
                                        : device->ops->open_files(device, &self->files, &why);
    if (!rc)
        return 0;
    if (self->required)
        return cb_fail(err, rc, "io.gds=on: %s", why.message);
    snprintf(self->reason, sizeof self->reason, "%.511s", why.message);
    return 0;
}

void gds_end(struct gds *self)
{
    if (self->files)
        self->files->ops->end(self->files);
    self->files = NULL;
}

static int try_store(struct store *store, const struct folder *folder, struct cb_err *err)
{
    char name[PATH_MAX];
    struct store_object *object;
    uint64_t length;
    int rc = folder_find_file(folder, name, err);
    if (rc || !*name)
        return rc;
    rc = store_open_read(store, name, &object, &length, err);
    if (!rc)
        store_close(store, object);
    return rc;
}

int gds_open_store(struct gds *self, const struct experiment *experiment, const struct status_page *page,
                   const char *pages_folder, const struct folder *folder, struct store **store, struct cb_err *err)
{
    struct cb_err why;
    struct store *opened = NULL;
    if (!self->files)
        return open_store(experiment, page, pages_folder, store, err);
    int rc = open_store_for_device(experiment, page, pages_folder, self->files, &opened, &why);
    if (!rc)
        rc = try_store(opened, folder, &why);
    if (!rc) {
        *store = opened;
        return 0;
    }
    store_free(opened);
    if (rc != CB_ERR_UNSUPPORTED || self->required) {
        *err = why;
        return cb_context(err, "io.gds=%s", experiment_text(experiment, OPT_IO_GDS));
    }
    snprintf(self->reason, sizeof self->reason, "%.511s", why.message);
    gds_end(self);
    return open_store(experiment, page, pages_folder, store, err);
}

int gds_check(const struct gds *self, uint64_t least, uint64_t most, struct cb_err *err)
{
    if (least == most)
        return 0;
    return cb_fail(err, CB_ERR_UNSUPPORTED, "io.gds=auto: some ranks can use it and others cannot%s%s; use io.gds=off",
                   *self->reason ? ": " : "", self->reason);
}

void gds_note(const struct gds *self, struct status_page *page)
{
    char text[600];
    if (self->files)
        snprintf(text, sizeof text, "between files and the GPU: %s", self->files->ops->describe(self->files));
    else
        snprintf(text, sizeof text, "not used: %s", self->reason);
    if (self->files || *self->reason)
        status_page_add_fact(page, "io.gds", text);
}
