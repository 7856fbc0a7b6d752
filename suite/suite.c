/* The suite: its repetitions, the order of its sections, and the memory that they require. */
#include "suite/suite.h"

#include <stdio.h>
#include <string.h>

#include "comm/agree.h"
#include "core/clock.h"
#include "core/memory.h"
#include "core/units.h"
#include "setup/open_store.h"

struct section {
    const char *name;
    int (*run)(struct suite *self, struct sample *sample, bool last, struct cb_err *err);
};

static const struct section sections[] = {
    {"net", suite_net}, {"storage", suite_storage}, {"cpu", suite_cpu}, {"memory", suite_memory}, {"gpu", suite_gpu}};
#define SECTION_COUNT (sizeof sections / sizeof *sections)

static int repeat_once(struct suite *self, uint32_t iteration, bool warmup, bool last, struct cb_err *err)
{
    struct sample *sample = status_page_begin_sample(self->page);
    if (!sample)
        return cb_fail(err, CB_ERR_INTERNAL, "the status page has no room for another sample");
    sample->op = OP_SUITE;
    sample->iteration = iteration;
    sample->flags = warmup ? SAMPLE_WARMUP : 0;
    atomic_store_explicit(&self->page->iteration, iteration, memory_order_relaxed);
    uint64_t start_ns = clock_monotonic_ns();
    int rc = 0;
    for (size_t i = 0; i < SECTION_COUNT && !rc; i++) {
        if (!suite_wants(self->experiment, sections[i].name))
            continue;
        status_page_enter(self->page, OP_SUITE, STATE_OTHER, clock_monotonic_ns());
        rc = sections[i].run(self, sample, last, err);
        if (!rc)
            rc = suite_join(self, 0, err);
    }
    sample->values[METRIC_OP_S] = (double)(clock_monotonic_ns() - start_ns) / 1e9;
    if (rc)
        sample->flags |= SAMPLE_FAILED;
    status_page_publish_sample(self->page);
    return rc;
}

static int repeat_all(struct suite *self, struct cb_err *err)
{
    uint32_t warmup = (uint32_t)experiment_u64(self->experiment, OPT_WARMUP);
    uint32_t all = warmup + (uint32_t)experiment_u64(self->experiment, OPT_ITERATIONS);
    int rc = 0;
    for (uint32_t i = 0; i < all && !rc; i++) {
        struct agreement stop;
        bool wanted = atomic_load_explicit(&self->page->stop, memory_order_relaxed) != STOP_NONE;
        rc = agree_number(self->comm, 0, wanted, suite_deadline(self), &stop, err);
        if (!rc && stop.max) {
            status_page_add_fact(self->page, "stopped", "on request, before all repetitions were done");
            break;
        }
        if (!rc)
            rc = repeat_once(self, i, i < warmup, i + 1 == all, err);
    }
    return rc;
}

/* --- memory --- */

/* One section's memory on a rank, and the keys that determine it. */
struct need {
    uint64_t bytes;
    const char *section, *keys;
};

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Blocks in flight: of one file, or of several at once. */
static uint64_t storage_bytes(const struct experiment *experiment)
{
    uint64_t file = suite_file_bytes(experiment), block = store_block_bytes(experiment);
    uint64_t depth = smaller(experiment_u64(experiment, OPT_IO_DEPTH), SUITE_DEPTH_MOST);
    uint64_t one = depth * smaller(block, file), workers = suite_workers(experiment),
             many = workers * smaller(block, file / workers);
    return one > many ? one : many;
}

/* Three matrices: large ones on the first rank of a node, small ones on all. */
static uint64_t matrix_bytes(const struct suite *self)
{
    uint64_t rows = experiment_u64(self->experiment, OPT_SUITE_GEMM_SIZE);
    if (self->nodes.local_rank > 0)
        rows = smaller(rows, SUITE_NODE_GEMM_SIZE);
    return 3 * rows * rows * sizeof(double);
}

static struct need largest_need(const struct suite *self)
{
    const struct experiment *experiment = self->experiment;
    const struct need needs[] = {
        {comm_size(self->comm) > 1 ? 2 * experiment_u64(experiment, OPT_SUITE_MESSAGE_BYTES) : 0, "net",
         "suite.message_bytes"},
        {storage_bytes(experiment), "storage", "io.block, io.depth, s3.part_size or suite.storage_workers"},
        {matrix_bytes(self), "cpu", "suite.gemm_size"},
        {3 * suite_array_bytes(self), "memory", "ranks on a machine"},
    };
    struct need most = {0};
    for (size_t i = 0; i < sizeof needs / sizeof *needs; i++)
        if (suite_wants(experiment, needs[i].section) && needs[i].bytes > most.bytes)
            most = needs[i];
    return most;
}

/* Checked before any memory is allocated: if the kernel kills a rank, nothing is measured. CB_ERR_MEMORY, on all ranks, if a
 * machine has less memory than its ranks require. */
static int check_memory(struct suite *self, struct cb_err *err)
{
    struct agreement agreement;
    struct need most = largest_need(self);
    uint64_t available = 0;
    char need[32], mine[32], have[32];
    int rc = comm_agree_local(self->comm, 0, most.bytes, suite_deadline(self), &agreement, err);
    if (!rc)
        rc = memory_available(&available, err);
    if (!rc && agreement.sum > available)
        rc = cb_fail(
            err, CB_ERR_MEMORY,
            "the suite needs %s of memory on this rank's machine (%s of section %s for this rank), but only %s is "
            "free: less of %s, or suite.only without %s",
            units_format_bytes((double)agreement.sum, need), units_format_bytes((double)most.bytes, mine), most.section,
            units_format_bytes((double)available, have), most.keys, most.section);
    return suite_join(self, rc, err);
}

/* --- a run --- */

/* "suite.node.NAME" = its lowest rank. That rank reports it, since no rank has space for the names of all nodes. */
static void note_node(struct suite *self)
{
    char key[NODE_NAME_BYTES + 32], rank[16];
    snprintf(key, sizeof key, "suite.node.%s", self->nodes.names[self->nodes.mine]);
    snprintf(rank, sizeof rank, "%u", comm_rank(self->comm));
    if (self->nodes.local_rank == 0)
        status_page_add_fact(self->page, key, rank);
}

static int prepare(struct suite *self, struct cb_err *err)
{
    if (sched_getaffinity(0, sizeof self->allowed, &self->allowed))
        CPU_ZERO(&self->allowed);
    int rc = device_place_apply(self->comm, "/sys", NULL, experiment_is(self->experiment, OPT_AFFINITY, "auto"),
                                self->page, suite_deadline(self), err);
    if (!rc)
        rc = nodes_init(&self->nodes, self->comm, suite_deadline(self), err);
    if (rc)
        return rc;
    note_node(self);
    struct cb_err why;
    self->has_blas = suite_wants(self->experiment, "cpu") && blas_open(&self->blas, &why) == 0;
    if (suite_wants(self->experiment, "cpu") && !self->has_blas)
        suite_skip(self, "gemm", why.message);
    else if (self->has_blas)
        status_page_add_fact(self->page, "blas", self->blas.name);
    if (suite_names(self->experiment, "storage") && !suite_wants(self->experiment, "storage"))
        suite_skip(self, "storage", "the store keeps nothing that could be read");
    rc = check_memory(self, err);
    if (!rc && suite_wants(self->experiment, "gpu"))
        rc = suite_gpu_open(self, err);
    if (!rc && suite_wants(self->experiment, "storage"))
        rc = suite_storage_open(self, err);
    return rc;
}

int suite_run(struct comm *comm, struct status_page *page, const struct experiment *experiment,
              const char *pages_folder, const char *run_folder, uint32_t attempt, struct cb_err *err)
{
    struct suite suite = {.comm = comm,
                          .page = page,
                          .experiment = experiment,
                          .pages_folder = pages_folder,
                          .run_folder = run_folder,
                          .attempt = attempt,
                          .section_timeout_ns = experiment_u64(experiment, OPT_TIMEOUT_OP)};
    const char *name = strrchr(run_folder, '/');
    snprintf(suite.run, sizeof suite.run, "%s", name ? name + 1 : run_folder);
    int rc = prepare(&suite, err);
    if (!rc)
        rc = repeat_all(&suite, err);
    if (!rc)
        rc = suite_judge(&suite, err);
    if (suite.direct) {
        struct cb_err later;
        int closed = suite_storage_close(&suite, rc ? &later : err);
        rc = rc ? rc : closed;
    }
    suite_gpu_close(&suite);
    if (suite.has_blas)
        blas_close(&suite.blas);
    nodes_release(&suite.nodes);
    return rc;
}
