/* The kinds of stores, and the one reader of a store's URI: "PATH", "s3://BUCKET/PREFIX" (docs/s3.md), "null:", each
 * also inside "fault:SPEC:" (docs/fault-store.md). "PATH+PATH" is one store in folders of several mounts
 * (docs/store.md). A kind is one row of the table in kind.c. */
#ifndef STORE_KIND_H
#define STORE_KIND_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"
#include "store/store.h"

/* For messages only; other code uses the kind's properties. */
#define STORE_S3 "s3://"
#define STORE_NULL "null:"
#define STORE_FAULT "fault:"

struct backend;
struct backend_ops;

struct store_kind {
    const char *name;
    const char *scheme;            /* what its URIs begin with; "" for a path */
    const struct backend_ops *ops; /* NULL if not in this build; open reports why */
    bool is_path;                  /* a folder of a file system of this machine */
    bool is_mounts;                /* folders of several: see store_next_mount */
    bool is_objects;               /* whole objects in a bucket: no folders, no page cache; the s3.* keys apply */
    bool keeps_data;               /* what was written can be read back */
    const char *block_option;      /* key with the size of one request */

    /* `where` is the URI without the scheme. May start threads; must not leave any behind on failure. */
    int (*open)(const char *where, const struct store_options *options, struct backend **backend, struct cb_err *err);
    /* Rejects a malformed URI of this kind. NULL: open checks it. */
    int (*check)(const char *uri, struct cb_err *err);
    /* Aborts the unfinished uploads of killed processes below `folder`, and counts them. `is_theirs` is asked about each
     * name relative to `folder`; NULL: all are. A kind that leaves nothing behind has NULL here. */
    int (*abort_leftovers)(const char *uri, const struct s3_options *options, const char *folder,
                           bool (*is_theirs)(const char *name), uint64_t *count, struct cb_err *err);
};

struct store_uri {
    const struct store_kind *kind; /* below all faults */
    const char *inner;             /* the URI below all faults; borrowed from the URI that was parsed */
    const char *plain;             /* the same, but with powercut_at if given, which must see every change */
    bool has_faults;
};

/* CB_ERR_USAGE for a fault store without a store, and for an unknown scheme; the message does not contain the URI. */
int store_uri_parse(const char *uri, struct store_uri *parsed, struct cb_err *err) CB_MUST_CHECK;

/* The same for a URI that was checked before; for a malformed one, a kind without any property. */
struct store_uri store_uri_of(const char *uri);

/* Takes the first folder from the rest of "PATH+PATH…" and moves `rest` behind it, to NULL after the last. A '+' joins
 * folders if '/', './' or '../' follows it, no other '+' stands before it, and there is no folder whose name it ends. */
int store_next_mount(const char **rest, char path[PATH_MAX], struct cb_err *err) CB_MUST_CHECK;

/* Rejects unknown faults. */
int store_uri_check_faults(const char *uri, struct cb_err *err) CB_MUST_CHECK;

#endif
