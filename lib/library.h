/* A handle between calls: lib/handle.c opens and closes it, lib/library.c saves and loads with it. */
#ifndef LIB_LIBRARY_H
#define LIB_LIBRARY_H

#include <pthread.h>

#include "core/clock.h"
#include "lib/exchange_tables.h"
#include "lib/packing.h"
#include "lib/place.h"
#include "lib/recording.h"

struct ckptbench {
    pthread_mutex_t lock; /* held by a call */
    struct experiment *experiment;
    struct comm *comm, *async_comm; /* async_comm NULL until the first asynchronous save */
    uint32_t cores;                 /* for this rank */
    struct device *device;          /* host memory */
    struct gpu gpu;                 /* of the program's tensors, if any are there */
    struct status_page *page;
    bool allows_different_values;
    char *record;                /* the run that records saves and loads; "": none */
    struct recording *recording; /* from the first save or load on */
    uint32_t calls;
    struct place *saves, *loads;
    /* The state of the last save, whose plan is kept. */
    struct tables saved;
    struct packing packing;
    struct state state;
    struct ckptbench_async *async; /* the last asynchronous save until its end is known, else NULL */
    /* The values of the last load. */
    struct value *values;
    size_t value_count;
    const struct ckptbench_state *loading; /* during a load */
};

/* Of a call that begins now. */
static inline uint64_t library_deadline(const ckptbench *self)
{
    return clock_monotonic_ns() + experiment_u64(self->experiment, OPT_TIMEOUT_OP);
}

/* Ends saves and loads, with the lock held: waits for the asynchronous save, and closes the places and the record. Returns
 * what ckptbench_close returns. If *closed is false, a save hangs that still uses the handle. */
int library_stop(ckptbench *self, bool *closed, struct ckptbench_error *error) CB_MUST_CHECK;

#endif
