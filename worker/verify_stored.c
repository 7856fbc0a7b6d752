/* workload=verify: ranks share the items of a stored checkpoint and check them with ckpt/stored/verify.h. */
#include "worker/verify_stored.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "ckpt/stored/read_metadata.h"
#include "ckpt/stored/resolve_checkpoint.h"
#include "ckpt/stored/verify.h"
#include "comm/agree.h"
#include "core/clock.h"
#include "engine/device_plugin.h"
#include "engine/share_stored.h"
#include "engine/timeline.h"
#include "setup/s3_keys.h"

#define PLACE_BYTES 4096
#define FACT_BYTES 512
#define GRACE_NS (10 * NS_PER_S) /* extra time for a late rank to report its reason */

struct verification {
    const struct verify_stored_setup *setup;
    struct s3_options s3;
    struct store_options options;
    char place[PLACE_BYTES];              /* of the checkpoint, as for store_open */
    struct stored_checkpoint *checkpoint; /* NULL if its metadata cannot be read */
    uint64_t deadline_ns, meeting_ns;     /* of this rank's own work; of all ranks */
    struct timeline timeline;
    struct verify_result result;
};

/* --- preparation on all ranks --- */

/* Finds the checkpoint: the store itself, or the one that suffix= names in it; for a run's folder its newest
 * checkpoint. An incomplete checkpoint is checked too. For rank 0. */
static int find_checkpoint(struct verification *self, const char *uri, struct store *store, struct cb_err *err)
{
    const char *suffix = experiment_text(self->setup->experiment, OPT_SUFFIX);
    char name[PLACE_BYTES], called[PLACE_BYTES];
    uint64_t of = 0;
    int called_bytes = snprintf(called, sizeof called, "%s%s%s", uri, *suffix ? "/" : "", suffix);
    if (called_bytes >= (int)sizeof called)
        return cb_fail(err, CB_ERR_USAGE, "the name %.100s… is too long", uri);
    int rc = resolve_checkpoint(store, suffix, called, name, sizeof name, &of, err);
    if (rc == CB_ERR_NOT_FOUND) {
        rc = 0;
        snprintf(name, sizeof name, "%s", suffix);
    }
    int bytes = snprintf(self->place, sizeof self->place, "%s%s%s", uri, *name ? "/" : "", name);
    if (!rc && bytes >= (int)sizeof self->place)
        rc = cb_fail(err, CB_ERR_USAGE, "the name %.100s… is too long", uri);
    return rc;
}

/* If metadata cannot be read, verify_checkpoint reports that as a finding. *inside is the store of the checkpoint, to be
 * freed after them. */
static int open_metadata(struct verification *self, struct store **inside, struct metadata *metadata, bool *readable,
                         struct cb_err *err)
{
    const char *uri = experiment_text(self->setup->experiment, OPT_STORE);
    struct store *store = NULL;
    struct cb_err unused;
    int rc = store_open(uri, &self->options, &store, err);
    if (!rc)
        rc = find_checkpoint(self, uri, store, err);
    *readable = !rc && store_open(self->place, &self->options, inside, &unused) == 0 &&
                metadata_open(metadata, *inside, "", &unused) == 0;
    if (store)
        store_free(store);
    return rc;
}

static int share_metadata(struct verification *self, struct cb_err *err)
{
    struct comm *comm = self->setup->comm;
    struct agreement readable;
    struct store *inside = NULL;
    struct metadata metadata = {0};
    bool is_first = comm_rank(comm) == 0, can_read = false;
    int rc = is_first ? open_metadata(self, &inside, &metadata, &can_read, err) : 0;
    timeline_enter(&self->timeline, STATE_EXCHANGE);
    rc = agree_number(comm, rc, can_read, self->meeting_ns, &readable, err);
    if (!rc)
        rc = comm_broadcast(comm, self->place, sizeof self->place, self->meeting_ns, err);
    if (!rc && readable.sum > 0) {
        rc = share_stored(comm, &metadata, NULL, NULL, self->meeting_ns, &self->checkpoint, err);
        if ((is_first && comm_can_end(comm)) || rc == CB_ERR_FORMAT || rc == CB_ERR_UNSUPPORTED)
            rc = 0; /* no rank can read them */
    }
    metadata_close(&metadata);
    if (inside)
        store_free(inside);
    return rc;
}

/* --- checking --- */

static void report(void *context, const struct verify_problem *problem)
{
    struct verification *self = context;
    char line[sizeof problem->text + 32];
    snprintf(line, sizeof line, "%s: %s", verify_problem_name(problem->kind), problem->text);
    status_page_add_failure(self->setup->page, CB_ERR_CORRUPT, line);
    self->setup->tell(line);
}

static int watch(void *context, uint64_t bytes, struct cb_err *err)
{
    struct verification *self = context;
    struct status_page *page = self->setup->page;
    uint64_t now_ns = clock_monotonic_ns();
    if (bytes > 0) {
        atomic_fetch_add_explicit(&page->bytes_done, bytes, memory_order_relaxed);
        atomic_store_explicit(&page->progress_ns, now_ns, memory_order_relaxed);
    }
    if (now_ns > self->deadline_ns)
        return cb_fail(err, CB_ERR_TIMEOUT, "verifying %s did not end in time: timeout.op is the time it has",
                       self->place);
    return comm_check(self->setup->comm, err);
}

/* Moves the average reading time of the threads from state serialize to state io. */
static void divide_time(struct verification *self)
{
    uint64_t *spent_ns = self->timeline.spent_ns, waited_ns = 0;
    if (self->result.threads > 0)
        waited_ns = self->result.read_ns / self->result.threads;
    if (waited_ns > spent_ns[STATE_SERIALIZE])
        waited_ns = spent_ns[STATE_SERIALIZE];
    spent_ns[STATE_SERIALIZE] -= waited_ns;
    spent_ns[STATE_IO] += waited_ns;
}

static int look(struct verification *self, struct cb_err *err)
{
    const struct experiment *experiment = self->setup->experiment;
    uint64_t seed = experiment_u64(experiment, OPT_SEED);
    uint32_t rank = comm_rank(self->setup->comm);
    struct verify_job job = {
        .place = self->place,
        .file = "",
        .likely_seed = &seed,
        .threads = (uint32_t)experiment_u64(experiment, OPT_IO_DEPTH),
        .part = rank,
        .parts = comm_size(self->setup->comm),
        .checkpoint = self->checkpoint,
        .store = &self->options,
        .watch = watch,
        .watch_context = self,
    };
    timeline_enter(&self->timeline, STATE_SERIALIZE);
    if (!job.checkpoint && rank > 0)
        return 0; /* nothing to divide: rank 0 reports it */
    return verify_checkpoint(&job, report, self, &self->result, err);
}

/* --- results --- */

static double cpu_seconds(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static void fill_sample(struct verification *self, struct sample *sample, double cpu_s)
{
    struct rusage usage;
    const struct verify_result *result = &self->result;
    divide_time(self);
    timeline_fill(&self->timeline, sample);
    getrusage(RUSAGE_SELF, &usage);
    sample->values[METRIC_BYTES_NEEDED] = (double)result->share_bytes;
    sample->values[METRIC_BYTES_MOVED] = (double)result->store_bytes;
    sample->values[METRIC_REQUESTS] = (double)result->requests;
    sample->values[METRIC_VERIFY_S] = sample->values[METRIC_OWN_S];
    sample->values[METRIC_VERIFIED_BYTES] = (double)result->right_bytes;
    sample->values[METRIC_CPU_S] = cpu_s;
    sample->values[METRIC_RSS_BYTES] = (double)usage.ru_maxrss * 1024;
}

/* Collective: summed over all ranks. */
static int add_up(struct verification *self, uint64_t value, uint64_t *sum, struct cb_err *err)
{
    struct agreement agreement;
    int rc = agree_number(self->setup->comm, 0, value, self->meeting_ns, &agreement, err);
    if (!rc)
        *sum = agreement.sum;
    return rc;
}

/* Summed over all ranks. */
struct sums {
    uint64_t checksums, values, problems, unproven;
};

static void add_facts(struct verification *self, const struct sums *sums)
{
    struct status_page *page = self->setup->page;
    const struct verify_result *result = &self->result;
    char text[FACT_BYTES], counts[STORED_TEXT_BYTES], contents[VERIFY_CONTENTS_BYTES];
    page->run_values[METRIC_PROBLEMS] = (double)sums->problems;
    status_page_add_fact(page, "verified.place", self->place);
    if (!result->format)
        return;
    page->run_values[METRIC_CHECKPOINT_FILES] = (double)result->counts.files;
    stored_describe(result->format, &result->counts, counts);
    status_page_add_fact(page, "verified.checkpoint", counts);
    snprintf(text, sizeof text, "%" PRIu64 " compared", sums->checksums);
    status_page_add_fact(page, "verified.checksums", text);
    if (sums->values > 0)
        snprintf(text, sizeof text, "%" PRIu64 " items recomputed", sums->values);
    else
        snprintf(text, sizeof text, "not ours: nothing to compare with");
    status_page_add_fact(page, "verified.values", text);
    status_page_add_fact(page, "verified.contents",
                         verify_contents(result->format, sums->unproven, sums->checksums + sums->values, contents));
}

/* Adds up the ranks' results on rank 0; then ranks with findings fail. */
static int conclude(struct verification *self, struct cb_err *err)
{
    struct sums sums = {0};
    int rc = add_up(self, self->result.checksums, &sums.checksums, err);
    if (!rc)
        rc = add_up(self, self->result.values_checked, &sums.values, err);
    if (!rc)
        rc = add_up(self, self->result.problems, &sums.problems, err);
    if (!rc)
        rc = add_up(self, self->result.unproven, &sums.unproven, err);
    if (rc)
        return rc;
    if (comm_rank(self->setup->comm) == 0)
        add_facts(self, &sums);
    if (self->result.problems > 0)
        rc = cb_fail(err, CB_ERR_CORRUPT, "%s: %" PRIu64 " of %" PRIu64 " findings are rank %" PRIu32 "'s", self->place,
                     self->result.problems, sums.problems, comm_rank(self->setup->comm));
    return agree(self->setup->comm, rc, self->meeting_ns, err);
}

static int verify_once(struct verification *self, struct cb_err *err)
{
    struct status_page *page = self->setup->page;
    struct sample *sample = status_page_begin_sample(page);
    if (!sample)
        return cb_fail(err, CB_ERR_INTERNAL, "the status page has no room for a sample");
    sample->op = OP_VERIFY;
    double cpu_s = cpu_seconds();
    timeline_start(&self->timeline, page, OP_VERIFY, comm_rank(self->setup->comm) == 0 ? STATE_IO : STATE_WAIT);
    atomic_store_explicit(&page->first_operation_ns, self->timeline.start_ns, memory_order_relaxed);
    int rc = share_metadata(self, err);
    if (!rc)
        rc = look(self, err);
    timeline_own_done(&self->timeline);
    timeline_enter(&self->timeline, STATE_WAIT);
    rc = agree(self->setup->comm, rc, self->meeting_ns, err);
    timeline_stop(&self->timeline);
    fill_sample(self, sample, cpu_seconds() - cpu_s);
    sample->flags = rc ? SAMPLE_FAILED : 0; /* findings are not failures of the check itself */
    status_page_publish_sample(page);
    return rc ? rc : conclude(self, err);
}

int verify_stored_run(const struct verify_stored_setup *setup, struct cb_err *err)
{
    struct verification self = {.setup = setup};
    const struct experiment *experiment = setup->experiment;
    self.deadline_ns = clock_monotonic_ns() + experiment_u64(experiment, OPT_TIMEOUT_OP);
    self.meeting_ns = self.deadline_ns + GRACE_NS;
    self.options = (struct store_options){.direct = STORE_DIRECT_NO,
                                          .depth = 1,
                                          .threads = 1,
                                          .read_only = true,
                                          .rank = comm_rank(setup->comm),
                                          .shared_folder = setup->pages_folder,
                                          .s3 = &self.s3};
    int rc = device_place_apply(setup->comm, "/sys", NULL, experiment_is(experiment, OPT_AFFINITY, "auto"), setup->page,
                                self.meeting_ns, err);
    if (!rc)
        rc = agree(setup->comm, s3_keys_read(experiment, &self.s3, err), self.meeting_ns, err);
    if (!rc)
        rc = verify_once(&self, err);
    stored_checkpoint_free(self.checkpoint);
    return rc;
}
