/* Opens the store of an experiment, with the options from its keys. */
#ifndef SETUP_OPEN_STORE_H
#define SETUP_OPEN_STORE_H

#include <stdint.h>

#include "core/err.h"
#include "run/experiment.h"
#include "run/status_page.h"
#include "store/s3/s3_options.h"
#include "store/store.h"

/* Reads the options of a store from the io.* and s3.* keys. They borrow `s3`, which receives the latter. */
int store_options_read(const struct experiment *experiment, uint32_t rank, struct s3_options *s3,
                       struct store_options *options, struct cb_err *err) CB_MUST_CHECK;

/* Opens a store for data for the rank of this status page; it belongs to one thread. `pages_folder` is node-local and
 * shared by the ranks of a node. The caller closes it with store_close. Not collective. */
int open_store(const struct experiment *experiment, const struct status_page *page, const char *pages_folder,
               struct store **store, struct cb_err *err) CB_MUST_CHECK;

/* The same with another queue depth, and with or without O_DIRECT; store_direct_of returns the setting of io.direct. */
int open_store_with(const struct experiment *experiment, const struct status_page *page, const char *pages_folder,
                    enum store_direct direct, uint32_t depth, struct store **store, struct cb_err *err) CB_MUST_CHECK;
enum store_direct store_direct_of(const struct experiment *experiment);

/* Also for requests of the memory of a device: store_options.device_files. */
int open_store_for_device(const struct experiment *experiment, const struct status_page *page, const char *pages_folder,
                          struct device_files *files, struct store **store, struct cb_err *err) CB_MUST_CHECK;

/* Bytes of one request: io.block, or s3.part_size for a bucket. */
uint64_t store_block_bytes(const struct experiment *experiment);

#endif
