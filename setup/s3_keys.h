/* The s3.* keys of an experiment, read into the options of an S3 store. */
#ifndef SETUP_S3_KEYS_H
#define SETUP_S3_KEYS_H

#include "core/err.h"
#include "run/experiment.h"
#include "store/s3/s3_options.h"

/* CB_ERR_USAGE for a text that is too long, and for a client certificate without its key or a key without certificate. */
int s3_keys_read(const struct experiment *experiment, struct s3_options *options, struct cb_err *err) CB_MUST_CHECK;

#endif
