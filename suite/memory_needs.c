/* How much memory the suite requires on a machine, checked before any is allocated: if the kernel kills a rank,
 * nothing is measured. */
#include <stdio.h>
#include <string.h>

#include "core/memory.h"
#include "core/units.h"
#include "setup/open_store.h"
#include "suite/suite.h"

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

int suite_check_memory(struct suite *self, struct cb_err *err)
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
