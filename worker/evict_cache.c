#include "worker/evict_cache.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/units.h"
#include "worker/drop_cache.h"
#include "worker/scratch_files.h"

#define BUFFER_BYTES (UINT64_C(16) << 20)
#define PAGE_BYTES 4096

static uint64_t wanted_bytes(const struct run *run)
{
    return experiment_u64(run->experiment, OPT_LOAD_EVICT);
}

static int make_buffer(const struct run *run, void **buffer, struct cb_err *err)
{
    int rc = scratch_files_check(run, "load.evict", err);
    if (rc)
        return rc;
    *buffer = aligned_alloc(PAGE_BYTES, BUFFER_BYTES);
    if (!*buffer)
        return alloc_fail(err, "for load.evict");
    memset(*buffer, 0x5A, BUFFER_BYTES);
    return 0;
}

static int write_files(struct run *run, struct raw *raw, const char *folder, struct cb_err *err)
{
    char text[64], bytes[32];
    int rc = scratch_files_write(run, raw, folder, err);
    if (rc)
        return rc;
    run->has_evict_files = true;
    snprintf(text, sizeof text, "%s of other files read before each load",
             units_format_bytes((double)raw->bytes * comm_size(run->comm), bytes));
    status_page_add_fact(run->page, "load.evict", text);
    return 0;
}

int evict_cache_pass(struct run *run, struct cb_err *err)
{
    char folder[FOLDER_NAME_BYTES + 32];
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
    scratch_files_name(run, "evict", folder);
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
