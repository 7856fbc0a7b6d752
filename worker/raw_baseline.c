/* Measures the raw limit of a run: as many bytes at the same place with as many requests in flight, without a
 * checkpoint format. It runs last, so that no timed operation is affected. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "comm/agree.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "core/stats.h"
#include "setup/memory_estimate.h"
#include "worker/drop_cache.h"
#include "worker/raw_io.h"
#include "worker/run.h"

/* The limit is the median of ROUNDS rounds; after ROUNDS_NS no further round begins. */
#define ROUNDS 3
#define ROUNDS_NS (4 * NS_PER_S)
#define SCRATCH_BYTES (UINT64_C(64) << 20)
#define PAGE_BYTES 4096

struct baseline {
    struct run *run;
    struct raw raw;
    void *scratch; /* owned; NULL if the state's memory is used */
    char folder[FOLDER_NAME_BYTES];
    double write_rates[ROUNDS], read_rates[ROUNDS];
    size_t writes, reads;
};

/* Uses the state's memory unless it is on a device: verification is over, so the state is free, and it is as cold in
 * the caches as the source of a save. */
static int choose_memory(struct baseline *self, struct cb_err *err)
{
    struct run *run = self->run;
    const struct state *state = run->own.base ? &run->own : &run->shifted;
    void *memory = state->device ? NULL : state->base;
    uint64_t bytes = state->base_bytes;
    if (!memory) {
        memory = self->scratch = aligned_alloc(PAGE_BYTES, SCRATCH_BYTES);
        bytes = SCRATCH_BYTES;
        if (!memory)
            return alloc_fail(err, "for the baseline");
        memset(memory, 0x5A, bytes);
    }
    raw_init(&self->raw, run->experiment, run->comm, run->page, run->store, memory, bytes,
             estimate_baseline_bytes(run->layout));
    return 0;
}

/* Measures one direction; *rate is the sum of all ranks. */
static int measure(struct baseline *self, enum operation op, uint32_t round, const char *name, double *rate,
                   struct cb_err *err)
{
    struct run *run = self->run;
    struct agreement slowest;
    struct sample *sample = status_page_begin_sample(run->page);
    if (!sample)
        return cb_fail(err, CB_ERR_INTERNAL, "the status page has no room for the baseline");
    sample->op = op;
    sample->iteration = run->warmup + round;
    int rc = op == OP_BASELINE_WRITE ? raw_write(&self->raw, name, sample, run_deadline(run), err)
                                     : raw_read(&self->raw, name, sample, run_deadline(run), err);
    if (rc)
        sample->flags |= SAMPLE_FAILED;
    status_page_publish_sample(run->page);
    if (rc)
        return rc;
    rc = agree_number(run->comm, 0, (uint64_t)(sample->values[METRIC_OP_S] * 1e9), run_deadline(run), &slowest, err);
    if (!rc && slowest.max > 0)
        *rate = (double)self->raw.bytes * comm_size(run->comm) / ((double)slowest.max / 1e9);
    return rc;
}

static int make_cold(struct baseline *self, const char *name, struct cb_err *err)
{
    struct run *run = self->run;
    struct coldness unused;
    if (!run->cold)
        return 0;
    int rc = drop_cache(run->comm, run->folder.plain, name, run_deadline(run), &unused, err);
    return run_join(run, rc, err);
}

static int run_round(struct baseline *self, uint32_t round, struct cb_err *err)
{
    struct run *run = self->run;
    char name[FOLDER_NAME_BYTES + 32];
    snprintf(name, sizeof name, "%s/%u", self->folder, round);
    int rc = measure(self, OP_BASELINE_WRITE, round, name, &self->write_rates[self->writes], err);
    if (rc)
        return rc;
    self->writes++;
    if (!run->loads || !run->folder.path)
        return 0;
    rc = make_cold(self, name, err);
    if (!rc)
        rc = measure(self, OP_BASELINE_READ, round, name, &self->read_rates[self->reads], err);
    if (!rc)
        self->reads++;
    return rc;
}

static int remove_files(struct baseline *self, struct cb_err *err)
{
    int rc = comm_rank(self->run->comm) == 0 ? folder_remove(&self->run->folder, self->folder, err) : 0;
    return run_join(self->run, rc, err);
}

/* Repeats rounds until there are enough, or rank 0 decides that they have taken long enough. */
static int run_rounds(struct baseline *self, struct cb_err *err)
{
    uint64_t end_ns = clock_monotonic_ns() + ROUNDS_NS;
    struct agreement votes = {0};
    for (uint32_t round = 0; round < ROUNDS && votes.max == 0; round++) {
        int rc = run_round(self, round, err);
        if (!rc)
            rc = remove_files(self, err);
        uint64_t enough = comm_rank(self->run->comm) == 0 && clock_monotonic_ns() > end_ns;
        if (!rc)
            rc = agree_number(self->run->comm, 0, enough, run_deadline(self->run), &votes, err);
        if (rc)
            return rc;
    }
    return 0;
}

static double median_of(const double *values, size_t n)
{
    struct summary summary;
    stats_summarize(values, n, &summary);
    return summary.median;
}

static void publish(struct baseline *self)
{
    struct run *run = self->run;
    double write_rate = median_of(self->write_rates, self->writes),
           read_rate = median_of(self->read_rates, self->reads);
    if (comm_rank(run->comm) == 0) {
        run->page->run_values[METRIC_BASELINE_WRITE_BYTES_PER_S] = write_rate;
        run->page->run_values[METRIC_BASELINE_READ_BYTES_PER_S] = read_rate;
    }
    if (run->cold && self->reads > 0)
        drop_cache_mark_suspects(run->page, run->load_bytes, read_rate);
}

int run_baseline(struct run *run, struct cb_err *err)
{
    if (!experiment_bool(run->experiment, OPT_BASELINE) || run->raw)
        return 0; /* a raw run is its own limit */
    if (run->folder.reads_only && !run->folder.ours) {
        status_page_add_fact(run->page, "baseline", "none: the store's folder is not ours to write to");
        return 0;
    }
    struct baseline baseline = {.run = run};
    folder_scratch_name(&run->folder, baseline.folder);
    int rc = run_join(run, choose_memory(&baseline, err), err);
    if (!rc)
        rc = run_rounds(&baseline, err);
    if (!rc)
        publish(&baseline);
    if (store_in_flight(run->store) == 0)
        free(baseline.scratch); /* if not, a store that hangs may still use it: this process will exit (run_stop) */
    return rc;
}
