#include "setup/open_store.h"

#include <assert.h>

#include "setup/s3_keys.h"
#include "store/kind.h"

enum store_direct store_direct_of(const struct experiment *experiment)
{
    return experiment_is(experiment, OPT_IO_DIRECT, "auto")   ? STORE_DIRECT_AUTO
           : experiment_is(experiment, OPT_IO_DIRECT, "true") ? STORE_DIRECT_YES
                                                              : STORE_DIRECT_NO;
}

int store_options_read(const struct experiment *experiment, uint32_t rank, struct s3_options *s3,
                       struct store_options *options, struct cb_err *err)
{
    *options = (struct store_options){
        .use_io_uring = experiment_is(experiment, OPT_IO_ENGINE, "io_uring"),
        .direct = store_direct_of(experiment),
        .depth = (uint32_t)experiment_u64(experiment, OPT_IO_DEPTH),
        .threads = (uint32_t)experiment_u64(experiment, OPT_IO_THREADS),
        .durable = experiment_bool(experiment, OPT_IO_FSYNC),
        .rank = rank,
        .s3 = s3,
    };
    return s3_keys_read(experiment, s3, err);
}

static int open_it(const struct experiment *experiment, const struct status_page *page, const char *pages_folder,
                   enum store_direct direct, uint32_t depth, struct device_files *files, struct store **store,
                   struct cb_err *err)
{
    struct s3_options s3;
    struct store_options options;
    int rc = store_options_read(experiment, page->rank, &s3, &options, err);
    options.time_origin_ns = page->time_origin_ns;
    options.direct = direct;
    options.depth = depth;
    options.shared_folder = pages_folder;
    options.device_files = files;
    return rc ? rc : store_open(experiment_text(experiment, OPT_STORE), &options, store, err);
}

int open_store_with(const struct experiment *experiment, const struct status_page *page, const char *pages_folder,
                    enum store_direct direct, uint32_t depth, struct store **store, struct cb_err *err)
{
    return open_it(experiment, page, pages_folder, direct, depth, NULL, store, err);
}

int open_store_for_device(const struct experiment *experiment, const struct status_page *page, const char *pages_folder,
                          struct device_files *files, struct store **store, struct cb_err *err)
{
    uint32_t depth = (uint32_t)experiment_u64(experiment, OPT_IO_DEPTH);
    return open_it(experiment, page, pages_folder, store_direct_of(experiment), depth, files, store, err);
}

int open_store(const struct experiment *experiment, const struct status_page *page, const char *pages_folder,
               struct store **store, struct cb_err *err)
{
    return open_store_for_device(experiment, page, pages_folder, NULL, store, err);
}

uint64_t store_block_bytes(const struct experiment *experiment)
{
    enum option_id id = OPT_IO_BLOCK;
    int rc = option_find(store_uri_of(experiment_text(experiment, OPT_STORE)).kind->block_option, &id, NULL);
    assert(rc == 0);
    (void)rc;
    return experiment_u64(experiment, id);
}
