#include "lib/place.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "comm/agree.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "core/path.h"
#include "lib/claims.h"
#include "setup/engine_config.h"
#include "setup/open_store.h"
#include "store/kind.h"

/* Names in stores that keep nothing, whose URI has no place for one. */
#define NAME_WITHOUT_PLACE "checkpoint"

struct place {
    char uri[PATH_MAX];
    bool writes;
    struct experiment *experiment; /* the engine borrows its texts */
    struct store *store, *async_store;
    struct claims *claims; /* of rank 0 */
    struct engine *engine;
};

/* --- names --- */

int place_name_read(const char *path, struct place_name *name, struct cb_err *err)
{
    struct store_uri uri;
    size_t len = strlen(path);
    *name = (struct place_name){.folder = ""};
    int rc = len > 0 && len < PATH_MAX ? store_uri_parse(path, &uri, err)
                                       : cb_fail(err, CB_ERR_USAGE, "a checkpoint's path is empty or too long");
    if (rc)
        return rc;
    if (!uri.kind->keeps_data) {
        snprintf(name->name, sizeof name->name, "%s", NAME_WITHOUT_PLACE);
        return path_format(name->uri, sizeof name->uri, err, "%s", path);
    }
    const char *inner = uri.inner + strlen(uri.kind->scheme);
    size_t end = len, before = (size_t)(inner - path);
    while (end > before + 1 && path[end - 1] == '/')
        end--;
    size_t slash = end;
    while (slash > before && path[slash - 1] != '/')
        slash--;
    if (slash == end || (slash == before && !uri.kind->is_path))
        return cb_fail(err, CB_ERR_USAGE, "%s is no place for a checkpoint: it needs a name of its own below", path);
    rc = path_format(name->name, sizeof name->name, err, "%.*s", (int)(end - slash), path + slash);
    size_t store_end = slash > before + 1 ? slash - 1 : slash; /* "/" stays */
    if (!rc)
        rc = path_format(name->uri, sizeof name->uri, err, "%.*s%s", (int)store_end, path, slash == before ? "." : "");
    if (!rc && store_uri_of(name->uri).kind->is_path && slash > before)
        rc = path_format(name->folder, sizeof name->folder, err, "%.*s", (int)(slash - before), inner);
    if (!rc && (strcmp(name->name, ".") == 0 || strcmp(name->name, "..") == 0))
        rc = cb_fail(err, CB_ERR_USAGE, "%s is no name for a checkpoint", path);
    return rc;
}

/* --- opening and closing --- */

int place_open_store(const struct experiment *experiment, const struct place_setup *setup,
                     const struct place_name *name, bool writes, struct store **store, struct cb_err *err)
{
    struct s3_options s3;
    struct store_options options;
    int rc = store_options_read(experiment, comm_rank(setup->comm), &s3, &options, err);
    options.read_only = !writes;
    options.has_one_core = setup->has_one_core;
    return rc ? rc : store_open(name->uri, &options, store, err);
}

static int make_engine(struct place *self, const struct place_setup *setup, struct cb_err *err)
{
    struct engine_setup engine = {
        .comm = setup->comm,
        .page = setup->page,
        .store = self->store,
        .plain = self->store,
        .async_comm = setup->async_comm,
        .async_store = self->async_store,
        .device = setup->device,
        .check_owner = claims_check,
        .enter = claims_enter,
        .leave = claims_leave,
        .folder = self->claims,
        .keep_value = setup->keep_value,
        .values = setup->context,
    };
    int rc = engine_config_read(self->experiment, &engine.config, err);
    engine.config.inflight = 1;
    engine.config.replaces = true; /* what a failed save has left; claims_enter refuses a complete checkpoint */
    return rc ? rc : engine_new(&engine, &self->engine, err);
}

static int open_stores(struct place *self, const struct place_setup *setup, const struct place_name *name,
                       struct cb_err *err)
{
    int rc = place_open_store(self->experiment, setup, name, self->writes, &self->store, err);
    if (!rc && setup->async_comm)
        rc = place_open_store(self->experiment, setup, name, self->writes, &self->async_store, err);
    if (!rc && comm_rank(setup->comm) == 0)
        rc = claims_new(self->experiment, comm_local_size(setup->comm) == comm_size(setup->comm), &self->claims, err);
    return rc ? rc : make_engine(self, setup, err);
}

int place_open(const struct place_setup *setup, const struct place_name *name, bool writes, struct place **place,
               struct cb_err *err)
{
    uint64_t deadline_ns = clock_monotonic_ns() + experiment_u64(setup->experiment, OPT_TIMEOUT_OP);
    struct place *self = calloc(1, sizeof *self);
    int rc = self ? experiment_copy(setup->experiment, &self->experiment, err) : alloc_fail(err, "for a store");
    if (!rc)
        rc = experiment_set(self->experiment, "store", name->uri, "the path", err);
    if (!rc && writes && comm_rank(setup->comm) == 0 && *name->folder)
        rc = path_make_folders(name->folder, 0777, err);
    rc = agree(setup->comm, rc, deadline_ns, err); /* the other ranks wait for the folders */
    if (!rc) {
        assert(self); /* else this rank has failed */
        snprintf(self->uri, sizeof self->uri, "%s", name->uri);
        self->writes = writes;
        rc = agree(setup->comm, open_stores(self, setup, name, err), deadline_ns, err);
    }
    if (rc)
        (void)!place_close(self); /* without an engine's save it always closes */
    else
        *place = self;
    return rc;
}

bool place_serves(const struct place *self, const struct place_name *name, bool writes, bool async)
{
    return self && strcmp(self->uri, name->uri) == 0 && (self->writes || !writes) && (self->async_store || !async);
}

struct engine *place_engine(const struct place *self)
{
    return self->engine;
}

bool place_close(struct place *self)
{
    if (!self)
        return true;
    if (!engine_stop(self->engine))
        return false;
    engine_free(self->engine);
    claims_free(self->claims);
    store_free(self->async_store);
    store_free(self->store);
    experiment_free(self->experiment);
    free(self);
    return true;
}
