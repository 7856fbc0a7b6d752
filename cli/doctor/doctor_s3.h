/* Checks of an S3 store: credentials, addresses, clock, latency and permissions. */
#ifndef CLI_DOCTOR_DOCTOR_S3_H
#define CLI_DOCTOR_DOCTOR_S3_H

#include <stdbool.h>

#include "core/err.h"
#include "run/experiment.h"

/* Called for each result as it arrives: name, whether it is fine, what was found, advice. */
typedef void (*doctor_s3_fn)(void *context, const char *name, bool fine, const char *found, const char *advice);

/* `uri` is s3://BUCKET/PREFIX. Writes and removes one small object below the prefix. */
void doctor_s3_check(const char *uri, const struct experiment *experiment, doctor_s3_fn report, void *context);

#endif
