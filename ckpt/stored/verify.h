/* Verifying a stored checkpoint, ours or PyTorch's: is it complete, does every element of every tensor
 * come from exactly one chunk, are files as long as they must be, do checksums hold, and, where it is
 * one of ours, are the values those that the seed gives. Reads through a store, in bounded memory. */
#ifndef CKPT_STORED_VERIFY_H
#define CKPT_STORED_VERIFY_H

#include <stdbool.h>
#include <stdint.h>

#include "ckpt/stored/stored.h"
#include "core/buf.h"
#include "core/err.h"
#include "store/store.h"

enum verify_problem_kind {
    VERIFY_INCOMPLETE, /* no marker, or none that can be read */
    VERIFY_MISSING,    /* a file, or elements that no chunk has */
    VERIFY_SHORT,      /* a file ends before an item does */
    VERIFY_TWICE,      /* elements that two chunks have */
    VERIFY_CORRUPT,    /* an item, its checksum or its values */
    VERIFY_EMPTY,      /* whole, but there is neither a tensor nor a value in it */
};

struct verify_problem {
    enum verify_problem_kind kind;
    const char *file;   /* NULL where it is about none */
    const char *tensor; /* NULL where it is about none */
    uint64_t offset;    /* in the file */
    char text[512];     /* a sentence that names them */
};
/* Called by one thread at a time. */
typedef void (*verify_problem_fn)(void *context, const struct verify_problem *problem);

struct verify_result {
    const char *format; /* "dcp"; NULL where the marker cannot be read */
    struct stored_counts counts;
    uint64_t payload_bytes;  /* read */
    uint64_t right_bytes;    /* of them, in items that were compared with something and have nothing wrong */
    uint64_t checksums;      /* items whose checksum was compared */
    uint64_t values_checked; /* items whose values were recomputed */
    uint64_t unproven;       /* items with a payload for which neither could be done */
    const char *values;      /* "weights", "random", "zero"; NULL where they are none of ours */
    uint64_t problems;
    uint64_t share_items, share_bytes;       /* of this part, as the metadata has them */
    uint64_t store_bytes, requests, read_ns; /* read of the store; the time of all threads waiting for it */
    uint32_t threads;                        /* that looked at items */
};

const char *verify_problem_name(enum verify_problem_kind kind); /* "short" */
/* How far the contents were proven, of figures of a result or of sums of results: "checked", or "not checked", of which
 * items, and why. Without that a checkpoint may be complete, but is not verified. */
#define VERIFY_CONTENTS_BYTES 96
char *verify_contents(const char *format, uint64_t unproven, uint64_t proven, char text[VERIFY_CONTENTS_BYTES]);

struct verify_job {
    const char *place; /* as store_open takes it: the checkpoint's folder */
    const char *file;  /* one safetensors file in it that is all, or "" */
    const uint64_t *seed;
    uint32_t threads; /* at most; few bytes are looked at by one, so that what is wrong comes in order */
    /* Where several divide the work, each calls with its own number and all find everything together, each thing
     * once: files and tensors in turn, items in runs of about as many bytes. 0 of 0 is all of it. */
    uint32_t part, parts;
    const struct buf *metadata;        /* as collect_metadata gives it, where it has been read; else NULL */
    const uint64_t *likely_seed;       /* where the checkpoint stores none: values that it explains are compared */
    const struct store_options *store; /* its rank, folder and S3 keys; NULL: defaults */
    /* May be NULL. Called by one thread at a time, at least every 100 ms, with the bytes read since; a failure ends
     * the verification with it. */
    int (*watch)(void *context, uint64_t bytes, struct cb_err *err);
    void *watch_context;
};

/* `seed` NULL takes the one that the
 * checkpoint stores. Fails only where it cannot go on (no store, no memory); all that is wrong with the
 * checkpoint goes to `report`. */
int verify_checkpoint(const struct verify_job *job, verify_problem_fn report, void *context,
                      struct verify_result *result, struct cb_err *err) CB_MUST_CHECK;

#endif
