/* Reads the s3.* keys. */
#include "setup/s3_keys.h"

#include <stdio.h>
#include <string.h>

static int copy_text(const struct experiment *experiment, enum option_id id, char *text, size_t room,
                     struct cb_err *err)
{
    const char *value = experiment_text(experiment, id);
    if (strlen(value) >= room)
        return cb_fail(err, CB_ERR_USAGE, "%s is too long (%zu bytes)", option_row(id)->name, strlen(value));
    snprintf(text, room, "%s", value);
    return 0;
}

int s3_keys_read(const struct experiment *experiment, struct s3_options *options, struct cb_err *err)
{
    struct s3_options made = {
        .path_style = experiment_is(experiment, OPT_S3_PATH_STYLE, "auto")   ? -1
                      : experiment_is(experiment, OPT_S3_PATH_STYLE, "true") ? 1
                                                                             : 0,
        .checksum = experiment_is(experiment, OPT_S3_CHECKSUM, "auto")     ? S3_CHECKSUM_AUTO
                    : experiment_is(experiment, OPT_S3_CHECKSUM, "sha256") ? S3_CHECKSUM_SHA256
                    : experiment_is(experiment, OPT_S3_CHECKSUM, "crc32c") ? S3_CHECKSUM_CRC32C
                                                                           : S3_CHECKSUM_NONE,
        .part_bytes = experiment_u64(experiment, OPT_S3_PART_SIZE),
        .attempts = (uint32_t)experiment_u64(experiment, OPT_S3_ATTEMPTS),
        .loops = (uint32_t)experiment_u64(experiment, OPT_S3_LOOPS),
        .requester_pays = experiment_bool(experiment, OPT_S3_REQUESTER_PAYS),
        .stall_ns = experiment_u64(experiment, OPT_S3_STALL),
        .deadline_ns = experiment_u64(experiment, OPT_S3_DEADLINE),
    };
    const struct {
        enum option_id id;
        char *text;
        size_t room;
    } texts[] = {
        {OPT_S3_ENDPOINT, made.endpoint, sizeof made.endpoint},
        {OPT_S3_REGION, made.region, sizeof made.region},
        {OPT_S3_PROFILE, made.profile, sizeof made.profile},
        {OPT_S3_TLS_CA, made.tls_ca, sizeof made.tls_ca},
        {OPT_S3_INTERFACE, made.interface, sizeof made.interface},
        {OPT_S3_TLS_CERT, made.tls_cert, sizeof made.tls_cert},
        {OPT_S3_TLS_KEY, made.tls_key, sizeof made.tls_key},
    };
    int rc = 0;
    for (size_t i = 0; i < sizeof texts / sizeof *texts && !rc; i++)
        rc = copy_text(experiment, texts[i].id, texts[i].text, texts[i].room, err);
    if (!rc && !made.tls_cert[0] != !made.tls_key[0])
        rc = cb_fail(err, CB_ERR_USAGE, "s3.tls.cert and s3.tls.key go together: a client certificate needs both");
    if (!rc)
        *options = made;
    return rc;
}
