/* Estimates the memory and the store space that a run requires. */
#include "setup/memory_estimate.h"

#include "core/units.h"
#include "run/workload_kind.h"
#include "store/kind.h"

#include <stdbool.h>
#include <string.h>

#define TENSOR_OVERHEAD_BYTES 8192 /* headers and padding of a tensor's items */
/* The baseline has one file per rank, as large as its share of a checkpoint up to this limit. The baseline measures the
 * store, not another checkpoint, and the rate hardly changes after some seconds of writing. */
#define BASELINE_BOUND_BYTES (UINT64_C(2) << 30)

/* Memory for reading metadata: a multiple of its bytes if it is short, and no more than this if it is read in pieces:
 * tests/unit/test_plan_scale.c. */
#define METADATA_TIMES 7
#define METADATA_MOST_BYTES (UINT64_C(96) << 20)

/* load.dataset: a rank's file has what it reads in this time; then it begins anew. */
#define DATASET_SECONDS 10
/* Reads a second, unless io.block is smaller: many small ones, so that the pace is even during a short load. */
#define DATASET_READS_PER_S 64
#define DATASET_ALIGNMENT 4096

static uint64_t checkpoint_bytes(const struct layout *layout, const struct experiment *experiment)
{
    uint64_t bytes = 0;
    if (experiment_is(experiment, OPT_SAVE_DEDUP, "none")) {
        struct layout_sizes sizes;
        layout_sizes_init(&sizes, layout);
        for (uint32_t rank = 0; rank < layout_world_size(layout); rank++)
            bytes += layout_sizes_of(&sizes, rank);
        layout_sizes_release(&sizes);
    } else {
        bytes = layout_total_bytes(layout);
    }
    return bytes + layout_tensor_count(layout) * TENSOR_OVERHEAD_BYTES;
}

uint64_t estimate_baseline_bytes(const struct layout *layout)
{
    uint32_t size = layout_world_size(layout);
    uint64_t share = (layout_total_bytes(layout) + size - 1) / size;
    return share < BASELINE_BOUND_BYTES ? share : BASELINE_BOUND_BYTES;
}

uint64_t estimate_dataset_block_bytes(const struct experiment *experiment)
{
    uint64_t rate = experiment_u64(experiment, OPT_LOAD_DATASET), most = experiment_u64(experiment, OPT_IO_BLOCK);
    uint64_t block = (rate / DATASET_READS_PER_S + DATASET_ALIGNMENT - 1) / DATASET_ALIGNMENT * DATASET_ALIGNMENT;
    if (rate > 0 && block == 0)
        block = DATASET_ALIGNMENT;
    return block < most ? block : most;
}

uint64_t estimate_dataset_file_bytes(const struct experiment *experiment)
{
    uint64_t rate = experiment_u64(experiment, OPT_LOAD_DATASET), block = estimate_dataset_block_bytes(experiment);
    return block == 0 ? 0 : (rate * DATASET_SECONDS + block - 1) / block * block;
}

uint64_t estimate_dataset_memory_bytes(const struct experiment *experiment)
{
    return estimate_dataset_block_bytes(experiment) * experiment_u64(experiment, OPT_IO_DEPTH);
}

/* How many checkpoints exist at the same time: the kept ones and those being written. */
static uint64_t checkpoint_count(const struct experiment *experiment)
{
    bool async = experiment_bool(experiment, OPT_SAVE_ASYNC);
    uint64_t keep_last = experiment_u64(experiment, OPT_KEEP_LAST);
    if (experiment_is(experiment, OPT_FOLDER, "rotate"))
        return 2;
    if (experiment_is(experiment, OPT_FOLDER, "overwrite") || (!async && keep_last == 0))
        return 1;
    return (keep_last > 0 ? keep_last : 1) + (async ? experiment_u64(experiment, OPT_SAVE_INFLIGHT) : 1);
}

uint64_t estimate_staging_bytes(const struct layout_pair *layouts, const struct experiment *experiment)
{
    if (!experiment_bool(experiment, OPT_SAVE_ASYNC) || experiment_is(experiment, OPT_OPS, "load"))
        return 0;
    uint64_t asked = experiment_u64(experiment, OPT_SAVE_STAGING_BYTES);
    uint64_t shard = checkpoint_bytes(layouts->saved, experiment) / layout_world_size(layouts->saved);
    return (asked > 0 && asked < shard ? asked : shard) * experiment_u64(experiment, OPT_SAVE_INFLIGHT);
}

int estimate_check_staging(const struct layout_pair *layouts, const struct experiment *experiment, struct cb_err *err)
{
    bool saves = !experiment_is(experiment, OPT_OPS, "load") && experiment_is(experiment, OPT_ENGINE, "native");
    const char *files = experiment_text(experiment, OPT_IO_FILES);
    bool one_file = strcmp(files, "rank") == 0 || strcmp(files, "shared") == 0;
    enum option_id key =
        store_uri_of(experiment_text(experiment, OPT_STORE)).kind->is_objects ? OPT_S3_PART_SIZE : OPT_IO_BLOCK;
    uint64_t limit = experiment_u64(experiment, OPT_SAVE_STAGING_BYTES), request = experiment_u64(experiment, key);
    uint64_t share =
        layout_total_bytes(layouts->saved) / layout_world_size(layouts->saved); /* a rank has at least it */
    char have[32], need[32];
    if (!saves || !one_file || !experiment_bool(experiment, OPT_SAVE_ASYNC) || limit == 0 || limit >= 2 * request ||
        share <= limit || share < request)
        return 0;
    return cb_fail(err, CB_ERR_USAGE, "save.staging_bytes=%s is too little: two requests of %s need %s",
                   units_format_bytes((double)limit, have), option_row(key)->name,
                   units_format_bytes(2 * (double)request, need));
}

uint64_t estimate_store_bytes(const struct layout_pair *layouts, const struct experiment *experiment)
{
    if (experiment_is(experiment, OPT_OPS, "load"))
        return 0;
    uint64_t saved = checkpoint_count(experiment) * checkpoint_bytes(layouts->saved, experiment) *
                         experiment_u64(experiment, OPT_COPIES) +
                     experiment_u64(experiment, OPT_LOAD_EVICT) +
                     estimate_dataset_file_bytes(experiment) * layouts->ranks;
    if (!experiment_bool(experiment, OPT_BASELINE))
        return saved;
    uint64_t baseline = estimate_baseline_bytes(layouts->saved) * layouts->ranks;
    bool keeps = experiment_is(experiment, OPT_KEEP, "auto") ? experiment_is(experiment, OPT_OPS, "save")
                                                             : experiment_is(experiment, OPT_KEEP, "true");
    if (keeps) /* else it is removed before the baseline */
        return saved + baseline;
    return saved > baseline ? saved : baseline;
}

/* A load, or a verification of what was saved. */
static bool reads_back(const struct experiment *experiment)
{
    return !workload_kind_of(experiment)->is_raw &&
           (!experiment_is(experiment, OPT_OPS, "save") || !experiment_is(experiment, OPT_VERIFY, "none"));
}

uint64_t estimate_metadata_memory_bytes(const struct experiment *experiment, uint64_t metadata_bytes)
{
    bool is_ours = experiment_is(experiment, OPT_ENGINE, "native");
    if (!is_ours || !reads_back(experiment))
        return 0;
    return metadata_bytes < METADATA_MOST_BYTES / METADATA_TIMES ? metadata_bytes * METADATA_TIMES
                                                                 : METADATA_MOST_BYTES;
}

static uint64_t rank_bytes(struct layout_sizes *sizes, uint64_t rank)
{
    return rank < layout_world_size(sizes->layout) ? layout_sizes_of(sizes, (uint32_t)rank) : 0;
}

uint64_t estimate_memory_bytes(const struct layout_pair *layouts, const struct experiment *experiment,
                               uint64_t *largest)
{
    bool saves = !experiment_is(experiment, OPT_OPS, "load"), loads = reads_back(experiment);
    uint64_t size = layout_world_size(layouts->loaded), shift = experiment_u64(experiment, OPT_LOAD_SHIFT) % size;
    uint64_t sum = 0, staging = experiment_u64(experiment, OPT_IO_BLOCK) * experiment_u64(experiment, OPT_IO_DEPTH);
    bool on_device = experiment_is(experiment, OPT_DEVICE, "cuda");
    if (on_device)
        staging *= 2; /* as many requests are being copied as are in flight */
    staging += estimate_staging_bytes(layouts, experiment) + estimate_dataset_memory_bytes(experiment);
    *largest = 0;
    if (experiment_is(experiment, OPT_ENGINE, "command"))
        return 0;
    struct layout_sizes saved, loaded;
    layout_sizes_init(&saved, layouts->saved);
    layout_sizes_init(&loaded, layouts->loaded);
    for (uint64_t rank = 0; rank < layouts->ranks; rank++) {
        uint64_t own = saves ? rank_bytes(&saved, rank) : 0;
        uint64_t target = loads && rank < size ? rank_bytes(&loaded, (rank + shift) % size) : 0;
        uint64_t bytes = (on_device ? 0 : own > target ? own : target) + staging;
        sum += bytes;
        *largest = bytes > *largest ? bytes : *largest;
    }
    layout_sizes_release(&saved);
    layout_sizes_release(&loaded);
    return sum;
}
