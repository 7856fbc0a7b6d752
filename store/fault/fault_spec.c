/* Parses the SPEC of a fault store, from one table of keys. */
#include "store/fault/fault_spec.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/units.h"
#include "store/kind.h"

#define MAX_TEXT 256

struct name_value {
    const char *name;
    int value;
};

static const struct name_value operations[] = {
    {"write", FAULT_WRITE},     {"read", FAULT_READ},     {"finish", FAULT_FINISH},
    {"publish", FAULT_PUBLISH}, {"create", FAULT_CREATE}, {"sync_folder", FAULT_SYNC_FOLDER},
};

static const struct name_value errors[] = {
    {"EIO", EIO},       {"ENOSPC", ENOSPC}, {"EDQUOT", EDQUOT},   {"EROFS", EROFS},         {"EACCES", EACCES},
    {"EPERM", EPERM},   {"ESTALE", ESTALE}, {"ENXIO", ENXIO},     {"ENODEV", ENODEV},       {"ETIMEDOUT", ETIMEDOUT},
    {"ENOMEM", ENOMEM}, {"EFBIG", EFBIG},   {"ENOLINK", ENOLINK}, {"EREMOTEIO", EREMOTEIO},
};

static int look_up(const struct name_value *table, size_t count, const char *name, int *value)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(table[i].name, name) == 0) {
            *value = table[i].value;
            return 0;
        }
    return CB_ERR_USAGE;
}

static int parse_error(const char *text, int *value, struct cb_err *err)
{
    if (look_up(errors, sizeof(errors) / sizeof(errors[0]), text, value) == 0)
        return 0;
    return cb_fail(err, CB_ERR_USAGE, "'%s' is no error that a store can have, as EIO, ENOSPC, EROFS, ESTALE", text);
}

/* "write|read" -> bits; only those in `allowed` are valid. */
static int parse_operations(char *text, unsigned allowed, unsigned *bits, struct cb_err *err)
{
    unsigned found = 0;
    char *save = NULL;
    for (char *name = strtok_r(text, "|", &save); name; name = strtok_r(NULL, "|", &save)) {
        int value = 0;
        if (look_up(operations, sizeof(operations) / sizeof(operations[0]), name, &value) != 0 ||
            !((unsigned)value & allowed))
            return cb_fail(err, CB_ERR_USAGE, "'%s' cannot stand here; known are %s", name,
                           allowed & FAULT_CREATE ? "create|publish|sync_folder|finish" : "write|read|finish|publish");
        found |= (unsigned)value;
    }
    if (!found)
        return cb_fail(err, CB_ERR_USAGE, "the list of operations is empty");
    *bits = found;
    return 0;
}

/* "N", at least 1. */
static int parse_ordinal(const char *text, uint64_t *value, struct cb_err *err)
{
    int rc = units_parse_u64(text, value, err);
    if (!rc && *value == 0)
        rc = cb_fail(err, CB_ERR_USAGE, "counts start at 1");
    return rc;
}

/* Removes "/ERRNO" from the end and parses it; EIO if it is absent. */
static int cut_error(char *text, int *value, struct cb_err *err)
{
    char *slash = strchr(text, '/');
    *value = EIO;
    if (!slash)
        return 0;
    *slash = 0;
    return parse_error(slash + 1, value, err);
}

static int parse_rank(const char *text, struct fault_spec *spec, struct cb_err *err)
{
    uint64_t rank;
    int rc = units_parse_u64(text, &rank, err);
    if (!rc && rank > UINT32_MAX)
        rc = cb_fail(err, CB_ERR_USAGE, "there is no such rank");
    if (!rc) {
        spec->has_rank = true;
        spec->rank = (uint32_t)rank;
    }
    return rc;
}

static int parse_bandwidth(const char *text, uint64_t *bytes_per_s, struct cb_err *err)
{
    int rc = units_parse_rate(text, bytes_per_s, err);
    return !rc && *bytes_per_s == 0 ? cb_fail(err, CB_ERR_USAGE, "nothing would ever move") : rc;
}

static int parse_until(const char *path, struct fault_spec *spec, struct cb_err *err)
{
    if (path[0] != '/')
        return cb_fail(err, CB_ERR_USAGE, "ranks run in folders of their own: write the file's whole path");
    int len = snprintf(spec->until, sizeof spec->until, "%s", path);
    return len < (int)sizeof spec->until
               ? 0
               : cb_fail(err, CB_ERR_USAGE, "the path has more than %zu characters", sizeof spec->until - 1);
}

static int parse_pair(const char *key, char *value, struct fault_spec *spec, struct cb_err *err)
{
    if (strcmp(key, "delay") == 0)
        return units_parse_duration(value, &spec->delay_ns, err);
    if (strcmp(key, "until") == 0)
        return parse_until(value, spec, err);
    if (strcmp(key, "bandwidth") == 0)
        return parse_bandwidth(value, &spec->bandwidth_bytes_per_s, err);
    if (strcmp(key, "enospc_after") == 0)
        return units_parse_bytes(value, &spec->enospc_after_bytes, err);
    if (strcmp(key, "short_write") == 0)
        return parse_ordinal(value, &spec->short_write_at, err);
    if (strcmp(key, "bit_flip") == 0)
        return parse_ordinal(value, &spec->bit_flip_at, err);
    if (strcmp(key, "stall_at") == 0)
        return parse_ordinal(value, &spec->stall_at, err);
    if (strcmp(key, "block_at") == 0)
        return parse_ordinal(value, &spec->block_at, err);
    if (strcmp(key, "powercut_at") == 0)
        return parse_ordinal(value, &spec->powercut_at, err);
    if (strcmp(key, "seed") == 0)
        return units_parse_u64(value, &spec->seed, err);
    if (strcmp(key, "rank") == 0)
        return parse_rank(value, spec, err);
    if (strcmp(key, "ops") == 0)
        return parse_operations(value, FAULT_WRITE | FAULT_READ | FAULT_FINISH | FAULT_PUBLISH, &spec->ops, err);
    int rc;
    if (strcmp(key, "error_at") == 0) {
        rc = cut_error(value, &spec->error_errno, err);
        return rc ? rc : parse_ordinal(value, &spec->error_at, err);
    }
    if (strcmp(key, "error_every") == 0) {
        rc = cut_error(value, &spec->error_errno, err);
        return rc ? rc : parse_ordinal(value, &spec->error_every, err);
    }
    if (strcmp(key, "fail") == 0) {
        rc = cut_error(value, &spec->fail_errno, err);
        return rc ? rc
                  : parse_operations(value, FAULT_CREATE | FAULT_PUBLISH | FAULT_SYNC_FOLDER | FAULT_FINISH,
                                     &spec->fail, err);
    }
    return cb_fail(
        err, CB_ERR_USAGE,
        "no such fault; known are delay, until, bandwidth, error_at, error_every, enospc_after, short_write, "
        "bit_flip, stall_at, block_at, powercut_at, seed, fail, ops, rank");
}

int fault_spec_parse(const char *text, size_t len, struct fault_spec *spec, struct cb_err *err)
{
    char copy[MAX_TEXT];
    struct fault_spec made = {.enospc_after_bytes = UINT64_MAX, .ops = FAULT_WRITE | FAULT_READ};
    struct cb_err why = {0};
    if (len == 0 || len >= sizeof(copy))
        return cb_fail(err, CB_ERR_USAGE,
                       "a fault store needs faults: " STORE_FAULT "KEY=VALUE+KEY=VALUE:STORE, as " STORE_FAULT
                       "delay=5ms:./ckpt (at most %d characters)",
                       MAX_TEXT - 1);
    memcpy(copy, text, len);
    copy[len] = 0;
    char *save = NULL;
    for (char *pair = strtok_r(copy, "+", &save); pair; pair = strtok_r(NULL, "+", &save)) {
        char *equals = strchr(pair, '=');
        if (!equals)
            return cb_fail(err, CB_ERR_USAGE, "fault '%s' has no value; write KEY=VALUE, as delay=5ms", pair);
        *equals = 0;
        char value[MAX_TEXT];
        memcpy(value, equals + 1, strlen(equals + 1) + 1);
        if (parse_pair(pair, value, &made, &why))
            return cb_fail(err, CB_ERR_USAGE, "fault %s=%s: %s", pair, equals + 1, why.message);
    }
    *spec = made;
    return 0;
}
