/* The defaults of the s3.* keys, for programs that open a store without an experiment. */
#include "store/s3/s3_options.h"

#include "core/clock.h"

const struct s3_options s3_options_default = {
    .path_style = -1,
    .checksum = S3_CHECKSUM_AUTO,
    .part_bytes = UINT64_C(8) << 20,
    .loops = 1,
    .stall_ns = 20 * NS_PER_S,
    .deadline_ns = 300 * NS_PER_S,
};
