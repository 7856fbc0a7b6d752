/* Inside verification: what verify.c (the whole, shares, threads) and verify_item.c (one item) share. */
#ifndef CKPT_STORED_VERIFY_INTERNAL_H
#define CKPT_STORED_VERIFY_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "ckpt/format/format.h"
#include "ckpt/payload.h"
#include "ckpt/stored/verify.h"
#include "store/store.h"

struct file_state {
    uint64_t length;
    bool known, there;
};

/* What threads share: items in the order in which they lie in the files, and the next to look at. */
struct shared {
    const struct stored_chunk **places;
    size_t count;
    atomic_size_t next;
    pthread_mutex_t lock; /* reports, the sum of results, what follows */
    int code;             /* the first failure */
    struct cb_err failure;
    atomic_bool stopped; /* by job->watch: nothing more is looked at or reported */
};

struct verifier {
    const struct verify_job *job;
    struct shared *shared;
    struct store *store;
    verify_problem_fn report;
    void *context;
    struct verify_result *result;
    struct stored_checkpoint *checkpoint;
    struct file_state *files;
    struct store_object *object; /* the file that is open */
    uint32_t open_file;
    bool has_seed, has_kind;
    bool guesses; /* the seed is one that the checkpoint does not store: zeros prove nothing */
    uint64_t seed;
    enum payload_kind kind;
    unsigned char *block;
    unsigned char *window; /* of a store where every read is a request to a server, else NULL: bytes of the open file */
    uint64_t window_offset, window_bytes;
    struct buf plain; /* a value that was compressed */
    bool stuck;       /* a read did not end: its memory and the store must stay */
    struct cb_err *err;
};

CB_PRINTF(6, 7)
void verify_report(struct verifier *self, enum verify_problem_kind kind, const char *file, const char *tensor,
                   uint64_t offset, const char *format, ...);
/* A store and memory of this verifier's own. */
int verify_open(struct verifier *self) CB_MUST_CHECK;
void verify_close(struct verifier *self);
/* What is known of a file; asks the store the first time. */
const struct file_state *verify_file(struct verifier *self, uint32_t file);
/* The seed that the checkpoint stores, where none is given. */
void verify_find_seed(struct verifier *self);
/* Looks for an item with values of ours before any is judged: the first one may be the damaged one. */
void verify_find_kind(struct verifier *self, const struct stored_chunk **order, size_t count);
/* All of one item: length, header, payload, checksum, values. */
void verify_item(struct verifier *self, const struct stored_chunk *chunk);

#endif
