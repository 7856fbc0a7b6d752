/* Drops files from the page cache, and checks that they are gone. */
#include "worker/drop_cache.h"

#include <math.h>

/* A few pages from read-ahead or metadata do not make a file cached. */
#define RESIDENT_SUSPECT 0.01
/* A load that is faster than the raw limit by this factor must have used a cache. */
#define FASTER_SUSPECT 2.0

struct drop {
    struct store *store;
    uint32_t share, shares, next;
    uint64_t bytes, resident_bytes;
    bool unknown;
};

static int drop_one(void *context, const char *name, uint64_t length, struct cb_err *err)
{
    struct drop *self = context;
    if (self->next++ % self->shares != self->share)
        return 0;
    double resident = NAN;
    int rc = store_drop_cache(self->store, name, &resident, err);
    if (rc)
        return rc;
    if (isnan(resident))
        self->unknown = true;
    else
        self->resident_bytes += (uint64_t)(resident * (double)length);
    self->bytes += length;
    return 0;
}

int drop_cache(struct comm *comm, struct store *store, const char *folder, uint64_t deadline_ns,
               struct coldness *coldness, struct cb_err *err)
{
    if (!store_capabilities(store)->page_cache) { /* this machine does not cache this store */
        *coldness = (struct coldness){.resident_fraction = NAN};
        return 0;
    }
    struct drop drop = {.store = store, .share = comm_local_rank(comm), .shares = comm_local_size(comm)};
    int rc = store_list(store, folder, drop_one, &drop, err);
    if (rc)
        drop.unknown = true; /* the caller agrees on the failure with all ranks */
    struct agreement bytes, resident;
    struct cb_err agreed;
    int code = comm_agree_local(comm, 0, drop.bytes, deadline_ns, &bytes, &agreed);
    if (!code) /* CB_ERR_UNSUPPORTED: a rank does not know */
        code = comm_agree_local(comm, drop.unknown ? CB_ERR_UNSUPPORTED : 0, drop.resident_bytes, deadline_ns,
                                &resident, &agreed);
    if (rc)
        return rc;
    if (code) {
        if (err)
            *err = agreed;
        return code;
    }
    coldness->flags = 0;
    if (resident.code || bytes.sum == 0) {
        coldness->resident_fraction = NAN;
        coldness->flags = SAMPLE_COLDNESS_UNKNOWN;
        return 0;
    }
    coldness->resident_fraction = (double)resident.sum / (double)bytes.sum;
    if (coldness->resident_fraction > RESIDENT_SUSPECT)
        coldness->flags = SAMPLE_SUSPECTED_CACHE;
    return 0;
}

void drop_cache_mark_suspects(struct status_page *page, uint64_t load_bytes, double limit_bytes_per_s)
{
    uint32_t count = atomic_load(&page->sample_count);
    for (uint32_t i = 0; i < count; i++) {
        struct sample *sample = &page->samples[i];
        double op_s = sample->values[METRIC_OP_S];
        if (sample->op == OP_LOAD && op_s > 0 && (double)load_bytes / op_s > FASTER_SUSPECT * limit_bytes_per_s)
            sample->flags |= SAMPLE_SUSPECTED_CACHE;
    }
}
