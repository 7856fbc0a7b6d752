/* Shared by ckpt/stored/verify.c (the whole checkpoint, shares, threads), ckpt/stored/verify_save.c (save ids) and
 * ckpt/stored/verify_item.c (one item). */
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

/* Shared by the threads: items in storage order, and the next one to check. */
struct shared {
    const struct stored_chunk **places;
    size_t count;
    atomic_size_t next;
    pthread_mutex_t lock; /* protects reports, the sum of results, and the members below */
    int code;             /* the first failure */
    struct cb_err failure;
    atomic_bool stopped; /* job->watch failed: nothing more is checked or reported */
};

struct verifier {
    const struct verify_job *job;
    struct shared *shared;
    struct store *store;
    verify_problem_fn report;
    void *context;
    struct verify_result *result;
    const struct stored_checkpoint *checkpoint; /* the job's, or */
    struct stored_checkpoint *read;             /* NULL if it is the job's */
    struct file_state *files;
    struct store_object *object; /* the file that is open */
    uint32_t open_file;
    bool has_seed, has_kind;
    bool guesses; /* the seed is not stored in the checkpoint: zeros prove nothing */
    uint64_t seed;
    enum payload_kind kind;
    unsigned char *block;
    unsigned char
        *window; /* for a store where every read is a request to a server: buffered bytes of the open file; else NULL */
    uint64_t window_offset, window_bytes;
    struct buf plain; /* a value that was compressed */
    bool stuck;       /* a read did not end: its memory and the store must not be freed */
    struct cb_err *err;
};

CB_PRINTF(6, 7)
void verify_report(struct verifier *self, enum verify_problem_kind kind, const char *file, const char *tensor,
                   uint64_t offset, const char *format, ...);
/* Opens a verifier's own store, and allocates its own memory. */
int verify_open(struct verifier *self) CB_MUST_CHECK;
void verify_close(struct verifier *self);
/* Whether file or tensor `number` belongs to this part: they are dealt out in turn, items in runs within one file. */
static inline bool verify_is_mine(const struct verify_job *job, size_t number)
{
    return job->parts < 2 || number % job->parts == job->part;
}
/* Reads bytes of a file that has no items, or whose items are not being read yet. */
int verify_read_front(struct verifier *self, const char *name, uint64_t offset, void *memory,
                      uint64_t bytes) CB_MUST_CHECK;
/* Checks that files and their copies belong to the save of the checkpoint. */
int verify_saves(struct verifier *self) CB_MUST_CHECK;
/* Facts of a file; queries the store the first time. */
const struct file_state *verify_file(struct verifier *self, uint32_t file);
/* The seed that the checkpoint stores, used if none is given. */
void verify_find_seed(struct verifier *self);
/* Looks for an item with our values before any item is judged, since the first one may be damaged. */
void verify_find_kind(struct verifier *self, const struct stored_chunk **order, size_t count);
/* Checks one item: length, header, payload, checksum, values. */
void verify_item(struct verifier *self, const struct stored_chunk *chunk);

#endif
