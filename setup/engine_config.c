/* Reads an engine's options from an experiment. */
#include "setup/engine_config.h"

#include <string.h>

#include "core/units.h"
#include "setup/checkpoint_options.h"

int engine_config_read(const struct experiment *experiment, struct engine_config *config, struct cb_err *err)
{
    const char *waste = experiment_text(experiment, OPT_LOAD_WASTE);
    *config = (struct engine_config){
        .engine = experiment_text(experiment, OPT_ENGINE),
        .store = experiment_text(experiment, OPT_STORE),
        .fsync = experiment_bool(experiment, OPT_IO_FSYNC),
        .block_bytes = experiment_u64(experiment, OPT_IO_BLOCK),
        .staging_bytes = experiment_u64(experiment, OPT_SAVE_STAGING_BYTES),
        .depth = (uint32_t)experiment_u64(experiment, OPT_IO_DEPTH),
        .inflight = (uint32_t)experiment_u64(experiment, OPT_SAVE_INFLIGHT),
        .copies = (uint32_t)experiment_u64(experiment, OPT_COPIES),
        .checksum = experiment_is(experiment, OPT_CHECKSUM, "crc32"),
        .caches_plans = experiment_bool(experiment, OPT_SAVE_PLAN_CACHE),
        .replaces = !experiment_is(experiment, OPT_FOLDER, "per_iteration"),
        .load_exchange = experiment_text(experiment, OPT_LOAD_EXCHANGE),
        .load_gap_bytes = experiment_u64(experiment, OPT_LOAD_GAP),
        .load_waste_percent = ENGINE_WASTE_AUTO,
        .format = experiment_text(experiment, OPT_FORMAT),
        .dedup = experiment_text(experiment, OPT_SAVE_DEDUP),
        .torch_async = experiment_text(experiment, OPT_TORCH_ASYNC),
        .threads = (uint32_t)experiment_u64(experiment, OPT_IO_THREADS),
        .timeout_ns = experiment_u64(experiment, OPT_TIMEOUT_OP),
        .s3_endpoint = experiment_text(experiment, OPT_S3_ENDPOINT),
        .s3_region = experiment_text(experiment, OPT_S3_REGION),
        .s3_profile = experiment_text(experiment, OPT_S3_PROFILE),
        .s3_path_style = experiment_text(experiment, OPT_S3_PATH_STYLE),
        .s3_part_bytes = experiment_u64(experiment, OPT_S3_PART_SIZE),
        .command = experiment_text(experiment, OPT_COMMAND),
    };
    int rc = strcmp(waste, "auto") != 0 ? units_parse_u64(waste, &config->load_waste_percent, err) : 0;
    if (!rc && experiment_is(experiment, OPT_ENGINE, "native"))
        rc = plan_options_read(experiment, 0, &config->plan, err);
    return rc;
}
