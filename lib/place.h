/* The folder or bucket of a checkpoint, with an open store and an engine for it. */
#ifndef LIB_PLACE_H
#define LIB_PLACE_H

#include <limits.h>

#include "comm/comm.h"
#include "core/err.h"
#include "engine/engine.h"
#include "run/experiment.h"

/* A checkpoint's path, split: "/a/b/c" is "c" in the store "/a/b". */
struct place_name {
    char uri[PATH_MAX];    /* of the store */
    char folder[PATH_MAX]; /* of the file system that must exist first; "" if the store needs none */
    char name[PATH_MAX];   /* of the checkpoint in the store */
};
int place_name_read(const char *path, struct place_name *name, struct cb_err *err) CB_MUST_CHECK;

/* What all places of a handle share. Borrowed. */
struct place_setup {
    const struct experiment *experiment; /* with the handle's keys */
    struct comm *comm, *async_comm;      /* async_comm NULL: no asynchronous saves */
    bool has_one_core;                   /* this rank */
    struct status_page *page;
    struct device *device;
    int (*keep_value)(void *context, const char *fqn, const void *bytes, size_t len, struct cb_err *err);
    void *context; /* of keep_value: see engine/engine.h */
};

struct place;

/* Opens the store and makes an engine. With `writes` it makes missing folders. Collective. */
int place_open(const struct place_setup *setup, const struct place_name *name, bool writes, struct place **place,
               struct cb_err *err) CB_MUST_CHECK;
/* Whether it can serve: it is the same store, and open for writing and asynchronous saves if that is asked for. */
bool place_serves(const struct place *self, const struct place_name *name, bool writes, bool async);
struct engine *place_engine(const struct place *self);
/* Aborts a save in progress. False if it hangs in the store: then nothing is freed, and nothing that was passed to the
 * place may be. Not collective. Accepts NULL. */
bool place_close(struct place *self) CB_MUST_CHECK;

/* Opens the store alone. `experiment` has the options of stores. Not collective. */
int place_open_store(const struct experiment *experiment, const struct place_setup *setup,
                     const struct place_name *name, bool writes, struct store **store,
                     struct cb_err *err) CB_MUST_CHECK;

#endif
