/* Checks the layout and plan options of an experiment, and reads them. */
#include "setup/checkpoint_options.h"

#include <stdio.h>
#include <string.h>

#include "ckpt/format/format.h"
#include "ckpt/format/format_ops.h"
#include "core/units.h"
#include "store/kind.h"

struct layout_options layout_options_of(const struct experiment *experiment)
{
    return (struct layout_options){
        .ranks = experiment_u64(experiment, OPT_RANKS),
        .dp = experiment_u64(experiment, OPT_DP),
        .tp = experiment_u64(experiment, OPT_TP),
        .pp = experiment_u64(experiment, OPT_PP),
        .ep = experiment_u64(experiment, OPT_EP),
        .zero = experiment_u64(experiment, OPT_ZERO),
        .mesh = experiment_text(experiment, OPT_MESH),
        .sharding = experiment_text(experiment, OPT_SHARDING),
        .pp_split = experiment_text(experiment, OPT_PP_SPLIT),
        .state = experiment_text(experiment, OPT_STATE),
        .seed = experiment_text(experiment, OPT_SEED),
    };
}

/* NULL if the key says that a load uses the layout of the save. */
static const char *given(const struct experiment *experiment, enum option_id id)
{
    const char *text = experiment_text(experiment, id);
    return strcmp(text, option_row(id)->fallback) == 0 ? NULL : text;
}

struct layout_pair_options layout_pair_options_of(const struct experiment *experiment)
{
    const char *zero = given(experiment, OPT_LOAD_ZERO);
    return (struct layout_pair_options){
        .save = layout_options_of(experiment),
        .load =
            {
                .dp = experiment_u64(experiment, OPT_LOAD_DP),
                .tp = experiment_u64(experiment, OPT_LOAD_TP),
                .pp = experiment_u64(experiment, OPT_LOAD_PP),
                .ep = experiment_u64(experiment, OPT_LOAD_EP),
                .zero = zero ? (uint64_t)(*zero - '0') : LAYOUT_AS_SAVED,
                .mesh = given(experiment, OPT_LOAD_MESH),
                .sharding = given(experiment, OPT_LOAD_SHARDING),
                .pp_split = given(experiment, OPT_LOAD_PP_SPLIT),
                .state = given(experiment, OPT_LOAD_STATE),
            },
        .loads_only = experiment_is(experiment, OPT_OPS, "load"),
    };
}

static int read_files(const char *text, struct plan_options *options, struct cb_err *err)
{
    uint64_t count = 0;
    options->files_per_rank = 1;
    if (strcmp(text, "item") == 0) {
        options->files = FILES_PER_ITEM;
    } else if (strcmp(text, "shared") == 0) {
        options->files = FILES_SHARED;
    } else if (strcmp(text, "rank") == 0) {
        options->files = FILES_PER_RANK;
    } else if (units_parse_u64(text, &count, NULL) == 0 && count >= 1 && count <= 65536) {
        options->files = FILES_PER_RANK;
        options->files_per_rank = (uint32_t)count;
    } else {
        return cb_fail(err, CB_ERR_USAGE,
                       "io.files=%s is not rank, item, shared or a number of files a rank up to 65536", text);
    }
    return 0;
}

/* Rejects what safetensors cannot represent: holes in a file, a name twice in a file, one part in two files. */
static int check_safetensors(const struct plan_options *options, struct cb_err *err)
{
    if (!format_ops_of(options->format)->has_file_headers)
        return 0;
    if (options->files == FILES_SHARED)
        return cb_fail(err, CB_ERR_USAGE,
                       "io.files=shared needs format=dcp or raw: ranks that share a file of %s "
                       "would need holes between their parts, which it cannot have",
                       format_name(options->format));
    if (options->dedup == DEDUP_NONE)
        return cb_fail(err, CB_ERR_USAGE, "save.dedup=none needs format=dcp or raw: %s cannot store a part twice",
                       format_name(options->format));
    return 0;
}

static int check_list(const char *list, struct cb_err *err)
{
    for (const char *name = list;; name++) {
        size_t len = strcspn(name, "+");
        if (len == 0 || name[0] == '.' || memchr(name, '/', len))
            return cb_fail(err, CB_ERR_USAGE,
                           "s3.prefixes=%s: s3.prefix_strategy=round_robin needs names for its folders, as a+b+c",
                           list);
        name += len;
        if (!*name)
            return 0;
    }
}

static int read_prefix(const struct experiment *experiment, struct plan_options *options, struct cb_err *err)
{
    const char *list = experiment_text(experiment, OPT_S3_PREFIXES);
    if (!store_uri_of(experiment_text(experiment, OPT_STORE))
             .kind->is_objects) /* other stores do not partition by name */
        return 0;
    options->prefix = experiment_is(experiment, OPT_S3_PREFIX_STRATEGY, "round_robin") ? PREFIX_ROUND_ROBIN
                      : experiment_is(experiment, OPT_S3_PREFIX_STRATEGY, "binary")    ? PREFIX_BINARY
                      : experiment_is(experiment, OPT_S3_PREFIX_STRATEGY, "hex")       ? PREFIX_HEX
                                                                                       : PREFIX_NONE;
    if (options->prefix == PREFIX_NONE)
        return 0;
    if (!format_ops_of(options->format)->has_folders)
        return cb_fail(err, CB_ERR_USAGE,
                       "s3.prefix_strategy needs format=dcp or raw: others keep their files in one folder");
    if (options->fanout > 0)
        return cb_fail(err, CB_ERR_USAGE, "s3.prefix_strategy and io.fanout both name the folders of files: use one");
    if (options->prefix != PREFIX_ROUND_ROBIN)
        return 0;
    if (strlen(list) >= sizeof options->prefixes)
        return cb_fail(err, CB_ERR_USAGE, "s3.prefixes is too long (%zu bytes)", strlen(list));
    snprintf(options->prefixes, sizeof options->prefixes, "%s", list);
    return check_list(list, err);
}

int plan_options_read(const struct experiment *experiment, uint32_t payload_alignment, struct plan_options *options,
                      struct cb_err *err)
{
    struct plan_options read = {.payload_alignment = payload_alignment};
    int code = read_files(experiment_text(experiment, OPT_IO_FILES), &read, err);
    if (code)
        return code;
    if (!format_find(experiment_text(experiment, OPT_FORMAT), &read.format))
        return cb_fail(err, CB_ERR_INTERNAL, "format=%s is an option's choice but no format",
                       experiment_text(experiment, OPT_FORMAT));
    read.fanout = (uint32_t)experiment_u64(experiment, OPT_IO_FANOUT);
    read.dedup = experiment_is(experiment, OPT_SAVE_DEDUP, "none")          ? DEDUP_NONE
                 : experiment_is(experiment, OPT_SAVE_DEDUP, "lowest_rank") ? DEDUP_LOWEST_RANK
                                                                            : DEDUP_BALANCED;
    code = check_safetensors(&read, err);
    if (!code)
        code = read_prefix(experiment, &read, err);
    if (code)
        return code;
    *options = read;
    return 0;
}
