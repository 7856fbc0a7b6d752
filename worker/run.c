/* The iterations of one rank: save, cold load, verification, removal of old checkpoints. The engine times the
 * operations; everything here happens between them. */
#include "worker/run.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "comm/agree.h"
#include "core/clock.h"
#include "worker/dataset_reads.h"
#include "worker/drop_cache.h"
#include "worker/evict_cache.h"
#include "worker/raw_io.h"
#include "worker/scratch_files.h"

/* The number of samples that one more iteration and the end of the run may need. */
#define SAMPLES_IN_RESERVE 20

static int begin_sample(struct run *self, enum operation op, uint32_t iteration, struct sample **sample,
                        struct cb_err *err)
{
    struct sample *next = status_page_begin_sample(self->page);
    if (!next)
        return cb_fail(err, CB_ERR_INTERNAL, "the status page has no room for another sample");
    next->op = op;
    next->iteration = iteration;
    next->flags = iteration < self->warmup ? SAMPLE_WARMUP : 0;
    *sample = next;
    return 0;
}

/* A failed operation has a sample too, which shows how far the rank got. */
static int end_sample(struct run *self, struct sample *sample, int code)
{
    if (code)
        sample->flags |= SAMPLE_FAILED;
    status_page_publish_sample(self->page);
    return code;
}

static struct raw raw_of(struct run *self)
{
    struct raw raw;
    uint64_t share = (layout_total_bytes(self->layout) + comm_size(self->comm) - 1) / comm_size(self->comm);
    raw_init(&raw, self->experiment, self->comm, self->page, self->store, self->own.base, self->own.base_bytes, share);
    return raw;
}

static int save_once(struct run *self, uint32_t iteration, struct sample *sample, struct cb_err *err)
{
    struct engine_options options = {.iteration = iteration, .deadline_ns = run_deadline(self), .async = self->async};
    if (!self->raw)
        return engine_save(self->engine, self->checkpoint, &self->own, &options, sample, err);
    struct raw raw = raw_of(self);
    return raw_write(&raw, self->checkpoint, sample, options.deadline_ns, err);
}

static int load_once(struct run *self, uint32_t iteration, struct sample *sample, struct cb_err *err)
{
    struct engine_options options = {.iteration = iteration, .deadline_ns = run_deadline(self)};
    if (!self->raw)
        return engine_load(self->engine, self->checkpoint, self->target, &options, sample, err);
    struct raw raw = raw_of(self);
    return raw_read(&raw, self->checkpoint, sample, options.deadline_ns, err);
}

/* A synchronous save stalls training for its whole duration. Raw files are durable when it ends; engines report whether
 * their saves are. */
static void fill_synchronous(const struct run *self, struct sample *sample)
{
    if (isnan(sample->values[METRIC_STALL_S]))
        sample->values[METRIC_STALL_S] = sample->values[METRIC_OP_S];
    if (self->raw && experiment_bool(self->experiment, OPT_IO_FSYNC))
        sample->values[METRIC_DURABLE_S] = sample->values[METRIC_OP_S];
}

static int count_files(struct run *self, const char *checkpoint, struct cb_err *err)
{
    uint64_t bytes = 0, files = 0;
    if (comm_rank(self->comm) != 0 || !self->folder.path || !isnan(self->page->run_values[METRIC_CHECKPOINT_FILES]))
        return 0;
    int rc = store_measure(self->folder.plain, checkpoint, &bytes, &files, err);
    if (!rc) {
        self->page->run_values[METRIC_CHECKPOINT_FILES] = (double)files;
        self->page->run_values[METRIC_CHECKPOINT_STORED_BYTES] = (double)bytes;
    }
    return rc;
}

static int remove_checkpoint(struct run *self, const char *name, uint32_t iteration, struct cb_err *err)
{
    struct sample *sample = NULL;
    if (comm_rank(self->comm) != 0 || !name[0] || !self->folder.path)
        return 0;
    int rc = begin_sample(self, OP_DELETE, iteration, &sample, err);
    if (rc)
        return rc;
    uint64_t start_ns = clock_monotonic_ns();
    status_page_enter(self->page, OP_DELETE, STATE_OTHER, start_ns);
    rc = folder_remove(&self->folder, name, err);
    uint64_t end_ns = clock_monotonic_ns();
    status_page_enter(self->page, OP_NONE, STATE_OTHER, end_ns);
    sample->values[METRIC_DELETE_S] = (double)(end_ns - start_ns) / 1e9;
    return end_sample(self, sample, rc);
}

/* Removes the previous checkpoint, so that the store never holds more than planned. If it will be overwritten, the
 * engine removes it: its marker goes before the first new byte. */
static int make_room(struct run *self, const char *next, struct cb_err *err)
{
    int rc = 0;
    if (self->async || self->keep_last > 0)
        return 0; /* old checkpoints are removed when a newer one is durable: retire() */
    if (!self->folder.overwrite || self->raw) {
        if (self->raw || strcmp(self->checkpoint, next) != 0)
            rc = remove_checkpoint(self, self->checkpoint, self->checkpoint_iteration, err);
        rc = run_join(self, rc, err);
    }
    return rc;
}

/* The checkpoint of `iteration` is durable: removes all but the last keep.last. */
static int retire(struct run *self, uint32_t iteration, struct cb_err *err)
{
    char name[FOLDER_NAME_BYTES];
    uint64_t kept = self->keep_last > 0 ? self->keep_last : 1;
    if (self->folder.overwrite || (!self->async && self->keep_last == 0) || iteration < kept)
        return 0;
    folder_checkpoint_name(&self->folder, self->experiment, (uint32_t)(iteration - kept), name);
    return remove_checkpoint(self, name, iteration, err);
}

static int save_here(struct run *self, uint32_t iteration, struct cb_err *err)
{
    struct sample *sample = NULL;
    int rc = begin_sample(self, OP_SAVE, iteration, &sample, err);
    if (rc)
        return rc;
    rc = save_once(self, iteration, sample, err);
    if (!rc)
        fill_synchronous(self, sample);
    rc = end_sample(self, sample, rc);
    self->checkpoint_complete = rc == 0;
    if (rc)
        return rc;
    rc = count_files(self, self->checkpoint, err);
    if (!rc)
        rc = retire(self, iteration, err);
    return run_join(self, rc, err); /* rank 0 alone did these */
}

/* --- asynchronous saves --- */

static int publish_pending(struct run *self, const struct pending_save *pending, struct cb_err *err)
{
    struct sample *sample = NULL;
    int rc = begin_sample(self, OP_SAVE, pending->iteration, &sample, err);
    if (rc)
        return rc;
    *sample = pending->sample;
    sample->values[METRIC_INTERFERENCE_FRACTION] = pending->interference_fraction;
    status_page_publish_sample(self->page);
    if (sample->flags & SAMPLE_FAILED)
        return 0;
    self->checkpoint_complete = self->checkpoint_iteration == pending->iteration;
    rc = count_files(self, pending->checkpoint, err);
    return rc ? rc : retire(self, pending->iteration, err);
}

/* Publishes the saves that have ended. */
static int settle(struct run *self, struct cb_err *err)
{
    uint32_t under_way = engine_under_way(self->engine);
    int rc = 0;
    while (self->pending_count > under_way && !rc) {
        rc = publish_pending(self, &self->pending[self->pending_first], err);
        self->pending_first = (self->pending_first + 1) % RUN_PENDING;
        self->pending_count--;
    }
    return rc;
}

static struct pending_save *newest_pending(struct run *self)
{
    return &self->pending[(self->pending_first + self->pending_count - 1) % RUN_PENDING];
}

static struct pending_save *add_pending(struct run *self, uint32_t iteration)
{
    self->pending_count++;
    struct pending_save *pending = newest_pending(self);
    *pending = (struct pending_save){.iteration = iteration, .interference_fraction = NAN};
    snprintf(pending->checkpoint, sizeof pending->checkpoint, "%s", self->checkpoint);
    pending->sample = (struct sample){.op = OP_SAVE, .iteration = iteration};
    pending->sample.flags = iteration < self->warmup ? SAMPLE_WARMUP : 0;
    for (int i = 0; i < METRIC_SAMPLE_COUNT; i++)
        pending->sample.values[i] = NAN;
    return pending;
}

/* Ranks may learn of a failure in different calls; they agree afterwards, outside of the timed part. */
static int save_behind(struct run *self, uint32_t iteration, struct cb_err *err)
{
    struct pending_save *pending = add_pending(self, iteration);
    struct cb_err unheard;
    int rc = save_once(self, iteration, &pending->sample, err);
    if (rc)
        self->pending_count--; /* it never began, because an earlier save had failed */
    int settled = settle(self, rc ? &unheard : err);
    return run_join(self, rc ? rc : settled, err);
}

static int wait_for_saves(struct run *self, struct cb_err *err)
{
    struct cb_err unheard;
    if (!self->async)
        return 0;
    int rc = engine_wait(self->engine, run_deadline(self), err);
    int settled = settle(self, rc ? &unheard : err);
    return run_join(self, rc ? rc : settled, err);
}

static int save_step(struct run *self, uint32_t iteration, struct cb_err *err)
{
    char next[FOLDER_NAME_BYTES];
    int rc = 0;
    if ((self->target->borrowed || self->spoiled) && iteration > 0 && self->loads)
        rc = state_set_values(&self->own, &self->payload, err);
    self->spoiled = false;
    if (self->on_device)
        rc = run_join(self, rc, err);
    if (rc)
        return rc;
    folder_checkpoint_name(&self->folder, self->experiment, iteration, next);
    self->checkpoint_complete = false;
    rc = make_room(self, next, err); /* last, since in a memory file system the new checkpoint reuses its pages */
    if (rc)
        return rc;
    snprintf(self->checkpoint, sizeof self->checkpoint, "%s", next);
    self->checkpoint_iteration = iteration;
    return self->async ? save_behind(self, iteration, err) : save_here(self, iteration, err);
}

/* The gap until the next iteration, in place of training. */
static int gap_step(struct run *self, struct cb_err *err)
{
    double fraction;
    if (self->gap.gap_ns == 0)
        return 0;
    int rc = compute_gap_pass(&self->gap, self->engine, self->comm, self->page, &fraction, err);
    if (self->pending_count > 0)
        newest_pending(self)->interference_fraction = fraction;
    return run_join(self, rc, err);
}

static int verify_step(struct run *self, uint32_t iteration, struct cb_err *err)
{
    struct sample *sample = NULL;
    if (self->verify == VERIFY_NONE)
        return 0;
    struct verify_job job = {.mode = self->verify,
                             .payload = self->payload,
                             .store = self->folder.plain,
                             .path = self->checkpoint,
                             .iteration = iteration};
    int rc = begin_sample(self, OP_VERIFY, iteration, &sample, err);
    if (rc)
        return rc;
    rc = verify_state(&job, self->target, self->page, sample, err);
    return run_join(self, end_sample(self, sample, rc), err);
}

static int make_cold(struct run *self, struct coldness *coldness, struct cb_err *err)
{
    *coldness = (struct coldness){.resident_fraction = NAN};
    if (!self->cold || !self->folder.path)
        return 0;
    int rc = drop_cache(self->comm, self->folder.plain, self->checkpoint, run_deadline(self), coldness, err);
    return run_join(self, rc, err);
}

/* A device may fail on one rank alone, so the ranks agree. */
static int poison_target(struct run *self, struct cb_err *err)
{
    int rc = state_set_poison(self->target, err);
    return self->on_device ? run_join(self, rc, err) : rc;
}

/* The timed load, with the reads of load.dataset beside it. A load fails on all ranks; *beside is a failure of these
 * reads on this rank alone, which the others still have to hear of. */
static int load_timed(struct run *self, uint32_t iteration, struct sample *sample, int *beside, struct cb_err *err)
{
    struct cb_err unheard;
    int rc = dataset_reads_start(self, err);
    if (!rc)
        rc = load_once(self, iteration, sample, err);
    *beside = dataset_reads_end(self, sample, rc ? &unheard : err);
    end_sample(self, sample, rc ? rc : *beside);
    return rc;
}

static int load_step(struct run *self, uint32_t iteration, struct cb_err *err)
{
    struct coldness coldness;
    struct sample *sample = NULL;
    struct agreement moved;
    int beside, rc = wait_for_saves(self, err); /* loads the checkpoint that was saved last */
    if (!rc)
        rc = dataset_reads_prepare(self, err);
    if (!rc)
        rc = evict_cache_pass(self, err);
    if (!rc)
        rc = make_cold(self, &coldness, err);
    if (!rc)
        rc = begin_sample(self, OP_LOAD, iteration, &sample, err);
    if (!rc)
        rc = poison_target(self, err);
    if (rc)
        return rc;
    sample->flags |= coldness.flags;
    sample->values[METRIC_RESIDENT_FRACTION] = coldness.resident_fraction;
    rc = load_timed(self, iteration, sample, &beside, err);
    if (rc)
        return rc;
    double bytes = sample->values[METRIC_BYTES_MOVED];
    rc = agree_number(self->comm, beside, isnan(bytes) ? 0 : (uint64_t)bytes, run_deadline(self), &moved, err);
    if (rc)
        return rc;
    self->load_bytes = moved.sum;
    return verify_step(self, iteration, err);
}

static int iterate(struct run *self, uint32_t iteration, struct cb_err *err)
{
    int rc = 0;
    atomic_store_explicit(&self->page->iteration, iteration, memory_order_relaxed);
    if (self->saves)
        rc = save_step(self, iteration, err);
    if (!rc && self->loads)
        rc = load_step(self, iteration, err);
    return rc ? rc : gap_step(self, err);
}

/* --- on_error=continue --- */

/* What a rank adds to the agreement on a failed iteration. */
#define FAILED_IN_STORE 1
#define FAILED_OTHERWISE (UINT64_C(1) << 32) /* more than all ranks together that failed in the store */

#define NOTED_FAILURES 10 /* limit of reasons that a rank keeps, since they fill its status page */

/* Only failures in the store may be passed over: wrong bytes, a lack of memory and our own bugs would recur, or hide
 * what matters. A load fails with CB_ERR_CORRUPT whatever failed its items; the status page has the cause. */
static uint64_t failure_number(const struct run *self, int code)
{
    bool wrong = atomic_load(&self->page->wrong_bytes) > 0;
    if (code && !comm_can_end(self->comm)) /* stale messages would be taken for those of the next load */
        return FAILED_OTHERWISE;
    switch (code) {
    case CB_ERR_CORRUPT:
        return wrong || atomic_load(&self->page->failure_code) == 0 ? FAILED_OTHERWISE : FAILED_IN_STORE;
    case 0:
    case CB_ERR_ABORTED: /* because of another rank, or on request: then no rank failed in the store */
        return 0;
    case CB_ERR_SYSTEM:
    case CB_ERR_NO_SPACE:
    case CB_ERR_NOT_FOUND:
    case CB_ERR_TIMEOUT:
        return FAILED_IN_STORE;
    default:
        return FAILED_OTHERWISE;
    }
}

/* All ranks agree on how an iteration ended, since one of them may have failed alone. Returns 0 with *failed if the run
 * can continue without it. */
static int judge_iteration(struct run *self, int code, bool *failed, struct cb_err *err)
{
    struct agreement agreement;
    struct cb_err unheard;
    *failed = false;
    int rc =
        comm_agree(self->comm, code, failure_number(self, code), run_deadline(self), &agreement, code ? &unheard : err);
    if (rc || agreement.code == 0)
        return code ? code : rc;
    *failed = agreement.sum > 0 && agreement.sum < FAILED_OTHERWISE;
    if (*failed)
        return 0;
    return code ? code
                : cb_fail(err, CB_ERR_ABORTED, "stopped because rank %u failed (%s)", agreement.failed_rank,
                          cb_code_name(agreement.code));
}

/* Removes what a failed save left, so that it neither fills the store nor is overwritten by the next one. */
static int discard_checkpoint(struct run *self, uint32_t iteration, struct cb_err *err)
{
    if (!self->saves || self->checkpoint_complete)
        return 0;
    bool failed; /* by the store, which may still be away: the next save removes it */
    int rc = remove_checkpoint(self, self->checkpoint, iteration, err);
    rc = judge_iteration(self, rc, &failed, err);
    if (!failed)
        self->checkpoint[0] = '\0';
    return rc;
}

/* Counts a failed iteration; ranks on which it failed also report why. */
static void note_failure(struct run *self, uint32_t iteration, int code, const struct cb_err *why)
{
    bool measured = iteration >= self->warmup, noted = code && code != CB_ERR_ABORTED;
    char text[sizeof why->message + 64];
    self->failed += measured ? 1 : 0;
    if (measured && self->first_failure.code == 0)
        self->first_failure = *why;
    snprintf(text, sizeof text, "%s %u: %s", measured ? "iteration" : "warm-up",
             measured ? iteration - self->warmup + 1 : iteration + 1, why->message);
    self->noted += noted ? 1 : 0;
    status_page_pass_over(self->page, noted && self->noted <= NOTED_FAILURES ? text : NULL);
}

/* Collective, after each iteration: decides whether the run continues after `code`. */
static int end_iteration(struct run *self, uint32_t iteration, int code, struct cb_err *err)
{
    struct cb_err why = *err;
    bool failed;
    self->measured += iteration >= self->warmup ? 1 : 0;
    int rc = judge_iteration(self, code, &failed, err);
    if (!rc && failed) {
        note_failure(self, iteration, code, &why);
        self->spoiled = true;
        rc = discard_checkpoint(self, iteration, err);
    }
    if (self->measured > 0)
        self->page->run_values[METRIC_FAILED_FRACTION] = (double)self->failed / self->measured;
    return rc;
}

/* A run in which no iteration passed has measured nothing. */
static int check_failures(const struct run *self, struct cb_err *err)
{
    if (self->failed == 0 || self->failed < self->measured)
        return 0;
    return cb_fail(err, self->first_failure.code, "every one of %u iterations failed; the first: %s", self->failed,
                   self->first_failure.message);
}

/* A rank's vote before an iteration; the largest vote counts. */
enum vote { VOTE_ENOUGH, VOTE_MORE, VOTE_FULL, VOTE_STOP };

/* Rank 0 decides for all, by its clock and its page (no other page is fuller). */
static enum vote vote_on(const struct run *self, uint32_t iteration, uint64_t end_ns)
{
    const struct status_page *page = self->page;
    if (atomic_load_explicit(&page->stop, memory_order_relaxed) != STOP_NONE)
        return VOTE_STOP;
    if (comm_rank(self->comm) != 0)
        return VOTE_ENOUGH;
    if (iteration < self->warmup + self->iterations)
        return VOTE_MORE;
    if (clock_monotonic_ns() >= end_ns)
        return VOTE_ENOUGH;
    uint32_t samples = atomic_load_explicit(&page->sample_count, memory_order_relaxed);
    return samples + SAMPLES_IN_RESERVE > page->sample_capacity ? VOTE_FULL : VOTE_MORE;
}

/* Whether all ranks continue: while iterations or time are left, unless a rank was requested to stop. */
static int decide(struct run *self, uint32_t iteration, uint64_t end_ns, bool *more, struct cb_err *err)
{
    struct agreement votes;
    uint32_t wanted = self->warmup + self->iterations;
    int rc = agree_number(self->comm, 0, vote_on(self, iteration, end_ns), run_deadline(self), &votes, err);
    if (rc)
        return rc;
    *more = votes.max == VOTE_MORE;
    if (votes.max == VOTE_STOP) {
        char text[64];
        snprintf(text, sizeof text, "on request, after %u of %u iterations", iteration, wanted);
        status_page_add_fact(self->page, "stopped", text);
    } else if (votes.max == VOTE_FULL) {
        status_page_add_fact(self->page, "stopped", "the status page is full: a shorter duration measures all of it");
    }
    return 0;
}

static int iterate_all(struct run *self, struct cb_err *err)
{
    uint64_t duration_ns = experiment_u64(self->experiment, OPT_DURATION), end_ns = 0;
    bool more = true, goes_on = experiment_is(self->experiment, OPT_ON_ERROR, "continue");
    for (uint32_t iteration = 0;; iteration++) {
        if (iteration == self->warmup)
            end_ns = clock_monotonic_ns() + duration_ns;
        int rc = decide(self, iteration, end_ns, &more, err);
        if (rc || !more)
            return rc;
        rc = iterate(self, iteration, err);
        if (goes_on)
            rc = end_iteration(self, iteration, rc, err);
        if (rc)
            return rc;
    }
}

/* ops=save: another rank reads the checkpoint back, past the page cache, to verify it. This is not a measured load, so
 * its only sample is that of the verification. */
static int verify_saved(struct run *self, struct cb_err *err)
{
    if (self->loads || self->verify == VERIFY_NONE || !self->checkpoint[0] || !self->checkpoint_complete)
        return 0;
    struct coldness coldness;
    struct sample unmeasured = {.op = OP_LOAD, .iteration = self->checkpoint_iteration, .flags = SAMPLE_WARMUP};
    int rc = drop_cache(self->comm, self->folder.plain, self->checkpoint, run_deadline(self), &coldness, err);
    rc = run_join(self, rc, err);
    if (!rc)
        rc = poison_target(self, err);
    if (rc)
        return rc;
    rc = load_once(self, self->checkpoint_iteration, &unmeasured, err);
    return rc ? rc : verify_step(self, self->checkpoint_iteration, err);
}

static int record_files(struct run *self, struct cb_err *err)
{
    int rc = 0;
    if (comm_rank(self->comm) == 0)
        rc = folder_record(&self->folder, self->experiment, self->folder_path, self->attempt, err);
    return run_join(self, rc, err);
}

static int clean_up(struct run *self, struct cb_err *err)
{
    int rc = 0;
    if (!self->saves || (self->keep && !self->folder.overwrite))
        return 0;
    if (self->keep) { /* checkpoints of an earlier run with another folder= */
        if (comm_rank(self->comm) == 0 && self->checkpoint_complete)
            rc = folder_clear_others(&self->folder, self->checkpoint, err);
        return run_join(self, rc, err);
    }
    rc = remove_checkpoint(self, self->checkpoint, self->checkpoint_iteration, err);
    if (!rc && comm_rank(self->comm) == 0)
        rc = folder_clear(&self->folder, err); /* the other of two rotating slots */
    return run_join(self, rc, err);
}

static int leave(struct run *self, struct cb_err *err)
{
    int rc = comm_rank(self->comm) == 0 && self->saves ? folder_leave(&self->folder, err) : 0;
    return run_join(self, rc, err);
}

int run_execute(struct run *self, struct cb_err *err)
{
    self->page->run_values[METRIC_CHECKPOINT_BYTES] = (double)layout_total_bytes(self->layout);
    int rc = 0;
    if (self->gap.compute) /* on all cores simultaneously, as in a gap */
        rc = run_join(self, compute_gap_calibrate(&self->gap, self->comm, self->page, err), err);
    if (!rc)
        rc = iterate_all(self, err);
    if (!rc)
        rc = check_failures(self, err);
    if (!rc)
        rc = wait_for_saves(self, err);
    if (!rc)
        rc = verify_saved(self, err);
    if (!rc)
        rc = scratch_files_finish(self, err);
    if (!rc)
        rc = record_files(self, err);
    if (!rc)
        rc = clean_up(self, err);
    if (!rc)
        rc = run_baseline(self, err);
    return rc ? rc : leave(self, err);
}

static const char *coldness_method(const struct run *self)
{
    if (!self->loads)
        return "no loads";
    if (!self->cold)
        return "not asked for";
    if (!self->folder.path)
        return "no page cache";
    if (!store_capabilities(self->folder.plain)->page_cache)
        return "this machine caches nothing of it; whether the server has it in memory is not known";
    return "this machine's page cache dropped (fsync, POSIX_FADV_DONTNEED) and looked at (mincore) before each load; "
           "caches of devices and servers are not reached";
}

void run_add_facts(struct run *self)
{
    bool native = self->experiment && experiment_is(self->experiment, OPT_ENGINE, "native");
    if (self->store && native)
        status_page_add_fact(self->page, "io.used",
                             store_describe(self->async_store ? self->async_store : self->store));
    gds_note(&self->gds, self->page);
    if (!self->layout || !self->store)
        return;
    status_page_add_fact(self->page, "verify",
                         self->raw ? "none (raw bytes have no tensors)"
                         : self->engine && experiment_is(self->experiment, OPT_ENGINE, "command")
                             ? "none (the command holds the state itself)"
                             : verify_mode_name(self->verify));
    if (!self->loads && self->verify != VERIFY_NONE)
        status_page_add_fact(self->page, "verify.scope", "the last checkpoint, read back after all timing");
    status_page_add_fact(self->page, "coldness", coldness_method(self));
    if (self->failed > 0) {
        char text[64];
        snprintf(text, sizeof text, "%u of %u iterations failed (%.1f %%)", self->failed, self->measured,
                 100.0 * self->failed / self->measured);
        status_page_add_fact(self->page, STATUS_FACT_FAILED, text);
    }
    if (self->saves && self->keep && self->checkpoint_complete)
        status_page_add_fact(self->page, "checkpoint", self->checkpoint);
    if (!self->saves)
        status_page_add_fact(self->page, "checkpoint", self->checkpoint);
}
