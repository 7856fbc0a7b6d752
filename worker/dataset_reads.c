#include "worker/dataset_reads.h"

#include <stdio.h>
#include <stdlib.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "core/units.h"
#include "engine/rng.h"
#include "setup/memory_estimate.h"
#include "setup/open_store.h"
#include "worker/drop_cache.h"
#include "worker/load_shift.h"
#include "worker/paced_reader.h"
#include "worker/scratch_files.h"

#define PAGE_BYTES 4096

struct dataset_reads {
    struct store *store; /* of its own, for the reader's thread */
    struct paced_reader *reader;
    void *memory;
    uint64_t memory_bytes, file_bytes;
    bool is_reading;
};

static uint64_t wanted_rate(const struct run *run)
{
    return experiment_u64(run->experiment, OPT_LOAD_DATASET);
}

/* Contents that neither compress nor repeat within a block. */
static void fill(uint64_t *words, uint64_t count, uint64_t seed)
{
    for (uint64_t i = 0; i < count; i++)
        words[i] = rng_mix(seed + i);
}

static int make(struct run *run, struct cb_err *err)
{
    uint64_t block = estimate_dataset_block_bytes(run->experiment);
    uint32_t depth = (uint32_t)experiment_u64(run->experiment, OPT_IO_DEPTH);
    int rc = scratch_files_check(run, "load.dataset", err);
    if (rc)
        return rc;
    struct dataset_reads *self = run->dataset = calloc(1, sizeof *self);
    if (!self)
        return alloc_fail(err, "for load.dataset");
    self->memory_bytes = estimate_dataset_memory_bytes(run->experiment);
    self->memory = aligned_alloc(PAGE_BYTES, self->memory_bytes);
    if (!self->memory)
        return alloc_fail(err, "for load.dataset");
    fill(self->memory, self->memory_bytes / sizeof(uint64_t), (uint64_t)comm_rank(run->comm) << 40);
    rc = open_store(run->experiment, run->page, run->pages_folder, &self->store, err);
    if (rc)
        return rc;
    const struct paced_reader_setup setup = {.store = self->store,
                                             .bytes_per_s = wanted_rate(run),
                                             .block_bytes = block,
                                             .depth = depth,
                                             .memory = self->memory};
    return paced_reader_new(&setup, &self->reader, err);
}

static int write_files(struct run *run, const char *folder, struct cb_err *err)
{
    struct dataset_reads *self = run->dataset;
    uint64_t block = estimate_dataset_block_bytes(run->experiment);
    char text[128], rate[32], bytes[32];
    struct raw raw;
    raw_init(&raw, run->experiment, run->comm, run->page, run->store, self->memory, self->memory_bytes,
             estimate_dataset_file_bytes(run->experiment));
    int rc = scratch_files_write(run, &raw, folder, err);
    if (rc)
        return rc;
    run->has_dataset_files = true;
    self->file_bytes = raw.bytes / block * block;
    snprintf(text, sizeof text, "each rank reads %s/s beside its loads, from a file of %s",
             units_format_bytes((double)wanted_rate(run), rate), units_format_bytes((double)raw.bytes, bytes));
    status_page_add_fact(run->page, "load.dataset", text);
    return 0;
}

int dataset_reads_prepare(struct run *run, struct cb_err *err)
{
    char folder[FOLDER_NAME_BYTES + 32];
    struct coldness unused;
    int rc = 0;
    if (wanted_rate(run) == 0)
        return 0;
    if (!run->dataset)
        rc = make(run, err);
    if (rc)
        dataset_reads_release(run);
    rc = run_join(run, rc, err);
    scratch_files_name(run, "dataset", folder);
    if (!rc && !run->has_dataset_files)
        rc = write_files(run, folder, err);
    if (!rc)
        rc = run_join(run, drop_cache(run->comm, run->folder.plain, folder, run_deadline(run), &unused, err), err);
    return rc;
}

static int start(struct run *run, struct cb_err *err)
{
    struct dataset_reads *self = run->dataset;
    char folder[FOLDER_NAME_BYTES + 32], name[FOLDER_NAME_BYTES + 64];
    uint32_t owner = (comm_rank(run->comm) + load_shift(run->experiment, run->comm)) % comm_size(run->comm);
    scratch_files_name(run, "dataset", folder);
    snprintf(name, sizeof name, "%s/rank-%u", folder, owner);
    int rc = paced_reader_start(self->reader, name, self->file_bytes, err);
    self->is_reading = rc == 0;
    return rc;
}

int dataset_reads_start(struct run *run, struct cb_err *err)
{
    return wanted_rate(run) == 0 ? 0 : run_join(run, start(run, err), err);
}

int dataset_reads_end(struct run *run, struct sample *sample, struct cb_err *err)
{
    struct dataset_reads *self = run->dataset;
    uint64_t elapsed_ns;
    if (!self || !self->is_reading)
        return 0;
    uint64_t bytes = paced_reader_progress(self->reader, &elapsed_ns);
    sample->values[METRIC_DATASET_BYTES] = (double)bytes;
    sample->values[METRIC_DATASET_BYTES_PER_S] = (double)bytes / ((double)elapsed_ns / NS_PER_S);
    self->is_reading = false;
    int rc = paced_reader_stop(self->reader, err);
    return rc ? cb_context(err, "load.dataset") : 0;
}

bool dataset_reads_can_end(const struct run *run)
{
    return !run->dataset || !paced_reader_is_stuck(run->dataset->reader);
}

void dataset_reads_release(struct run *run)
{
    struct dataset_reads *self = run->dataset;
    if (!self)
        return;
    paced_reader_free(self->reader);
    if (self->store)
        store_free(self->store);
    free(self->memory);
    free(self);
    run->dataset = NULL;
}
