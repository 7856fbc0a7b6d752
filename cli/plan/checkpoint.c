/* Opens the store of one checkpoint. */
#include "cli/plan/checkpoint.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/stored/resolve_checkpoint.h"

#define DEPTH 4

static int open_to_read(const char *place, struct store **store, struct cb_err *err)
{
    struct store_options options = {.direct = STORE_DIRECT_NO, .depth = DEPTH, .threads = 1, .read_only = true};
    return store_open(place, &options, store, err);
}

int checkpoint_open(const char *place, struct store **store, char opened[CHECKPOINT_NAME_BYTES],
                    char how[CHECKPOINT_HOW_BYTES], struct cb_err *nothing, struct cb_err *err)
{
    char name[CHECKPOINT_NAME_BYTES] = "", below[CHECKPOINT_NAME_BYTES];
    struct store *found;
    uint64_t of = 0;
    int rc = open_to_read(place, &found, err);
    if (rc)
        return rc;
    rc = resolve_checkpoint(found, "", place, name, sizeof name, &of, err);
    int bytes = snprintf(below, sizeof below, "%s%s%s", place, *name ? "/" : "", name);
    if (rc && rc != CB_ERR_NOT_FOUND)
        goto out;
    nothing->code = rc;
    if (rc)
        snprintf(nothing->message, sizeof nothing->message, "%s", err->message);
    *how = '\0';
    if (of == 1)
        snprintf(how, CHECKPOINT_HOW_BYTES, "the only one there");
    else if (of > 1)
        snprintf(how, CHECKPOINT_HOW_BYTES, "the last of %" PRIu64, of);
    rc = bytes < (int)sizeof below ? 0 : cb_fail(err, CB_ERR_USAGE, "the name %s/%s is too long", place, name);
    if (rc == 0 && *name) {
        store_free(found);
        found = NULL;
        rc = open_to_read(below, &found, err);
    }
out:
    if (rc) {
        store_free(found);
        return rc;
    }
    memcpy(opened, below, sizeof below);
    *store = found;
    return 0;
}
