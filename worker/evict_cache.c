#include "worker/evict_cache.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/units.h"
#include "worker/drop_cache.h"
#include "worker/raw_io.h"

#define BUFFER_BYTES (UINT64_C(16) << 20)
#define PAGE_BYTES 4096

static uint64_t wanted_bytes(const struct run *run)
{
    return experiment_u64(run->experiment, OPT_LOAD_EVICT);
}

static int make_buffer(const struct run *run, void **buffer, struct cb_err *err)
{
    if (run->folder.reads_only && !run->folder.ours)
        return cb_fail(err, CB_ERR_USAGE, "load.evict writes files, and the store's folder is not ours to write to");
    *buffer = aligned_alloc(PAGE_BYTES, BUFFER_BYTES);
    if (!*buffer)
        return alloc_fail(err, "for load.evict");
    memset(*buffer, 0x5A, BUFFER_BYTES);
    return 0;
}

void evict_cache_abandon(struct run *run)
{
    char scratch[FOLDER_NAME_BYTES];
    bool has_files = run->has_evict_files;
    run->has_evict_files = false;
    if (!has_files || comm_rank(run->comm) != 0)
        return;
    folder_scratch_name(&run->folder, scratch);
    (void)!folder_remove(&run->folder, scratch, NULL);
}

static int write_files(struct run *run, struct raw *raw, const char *folder, struct cb_err *err)
{
    struct sample unmeasured = {.op = OP_BASELINE_WRITE, .flags = SAMPLE_WARMUP};
    char text[64], bytes[32];
    int rc = raw_write(raw, folder, &unmeasured, run_deadline(run), err);
    run->has_evict_files = true;
    if (rc) { /* a later try begins anew, without these files in its way */
        evict_cache_abandon(run);
        return rc;
    }
    snprintf(text, sizeof text, "%s of other files read before each load",
             units_format_bytes((double)raw->bytes * comm_size(run->comm), bytes));
    status_page_add_fact(run->page, "load.evict", text);
    return 0;
}

int evict_cache_pass(struct run *run, struct cb_err *err)
{
    char scratch[FOLDER_NAME_BYTES], folder[FOLDER_NAME_BYTES + 32];
    struct sample unmeasured = {.op = OP_BASELINE_READ, .flags = SAMPLE_WARMUP};
    struct coldness unused;
    struct raw raw;
    void *buffer = NULL;
    if (wanted_bytes(run) == 0)
        return 0;
    int rc = run_join(run, make_buffer(run, &buffer, err), err);
    if (rc) {
        free(buffer);
        return rc;
    }
    raw_init(&raw, run->experiment, run->comm, run->page, run->store, buffer, BUFFER_BYTES,
             (wanted_bytes(run) + comm_size(run->comm) - 1) / comm_size(run->comm));
    raw.unseen = true;
    folder_scratch_name(&run->folder, scratch);
    snprintf(folder, sizeof folder, "%s/evict", scratch);
    if (!run->has_evict_files)
        rc = write_files(run, &raw, folder, err);
    if (!rc) /* what this machine has cached would not be asked of the server */
        rc = run_join(run, drop_cache(run->comm, run->folder.plain, folder, run_deadline(run), &unused, err), err);
    if (!rc)
        rc = raw_read(&raw, folder, &unmeasured, run_deadline(run), err);
    if (store_in_flight(run->store) == 0)
        free(buffer); /* if not, a store that hangs may still use it: this process will exit (run_stop) */
    return rc;
}

int evict_cache_finish(struct run *run, struct cb_err *err)
{
    char scratch[FOLDER_NAME_BYTES];
    if (!run->has_evict_files)
        return 0;
    folder_scratch_name(&run->folder, scratch);
    return run_join(run, comm_rank(run->comm) == 0 ? folder_remove(&run->folder, scratch, err) : 0, err);
}
