/* Shared by the files of a save: what they keep from one save to the next.
 *
 * save_prepare.c  the plan, its cache, and the schedule made from it
 * write_frames.c  composes the bytes of a request
 * save_copies.c   the copies from the state that a request needs
 * bounce_ring.c   slots of pinned memory between the store and a device
 * bounce_save.c   saves through these slots: copies some while others are written
 * staging.c       staging memory, and copying the state into it
 * async_save.c    asynchronous saves
 * native_save.c   writes a checkpoint, from making its folder to the commit marker */
#ifndef ENGINE_SAVE_NATIVE_SAVE_H
#define ENGINE_SAVE_NATIVE_SAVE_H

#include <semaphore.h>

#include "engine/native.h"

/* The payload of one of this rank's items. */
struct source {
    struct item_frame frame;
    const char *memory;      /* its first byte, or the piece's if it is mapped; NULL for bytes items */
    struct mapping *mapping; /* NULL if contiguous */
    uint32_t crc;            /* of the payload so far */
};

/* Requests that are staged together. If not all requests fit into an area, rounds alternate between its halves. */
struct round {
    size_t first_request, end_request;
    size_t first_copy, end_copy; /* in the list of each area */
};

/* Staging memory of one save in flight, and the copies from the state that fill it. */
struct area {
    char *memory;
    struct device_copy *copies;
};

/* A request's image is its bytes as they will be in the file. */
struct staging {
    struct area *areas; /* one for each save in flight (save.inflight) */
    uint32_t area_count;
    uint64_t area_bytes;   /* of each */
    uint64_t mapped_bytes; /* as allocated; reused while it is enough */
    uint64_t *image_at;    /* of each request, in its area */
    uint32_t *round_of;    /* of each request */
    struct round *rounds;
    size_t round_count, copy_count;
};

/* Copies whose `to` is an offset; the base address is known later. */
struct copy_list {
    struct device_copy *copies;
    size_t count, capacity;
    size_t first; /* earlier copies are not merged with new ones */
};

/* The copies of each request, for a synchronous save of a state on a device. */
struct bounce_save {
    struct copy_list list;
    size_t *first_copy; /* of each request, and the end */
    size_t next;        /* the next request to copy, in the current save */
};

struct native_save {
    struct native_engine *engine;
    struct plan_key key;
    uint64_t layout_number;  /* of the layout with this key, see struct engine_options; or 0 */
    struct plan *plan;       /* NULL before the first save, and if planning failed */
    struct plan_item *items; /* of this rank; none for a rank beyond the saved layout */
    size_t item_count;
    const struct layout *layout; /* of the current state */
    bool staged;                 /* the schedule uses staging areas and the back lane */
    bool bounces;                /* the schedule uses the bounce ring; if neither, the state's memory */
    bool skips_host;             /* the store writes device memory itself; the ring has only what surrounds it */
    bool schedule_ready;
    struct io_schedule schedule;
    struct source *sources; /* of this rank's items */
    size_t source_count;
    uint32_t *files;             /* the plan's file for each file of the schedule */
    struct store_object *shared; /* io.files=shared: from the moment it is opened until the data path has it */
    uint32_t copy;               /* the copy of the files being written, see copies= */
    void **memory;               /* the state's addresses in the schedule */
    size_t piece_count;
    uint64_t payload_bytes; /* tensor bytes that this rank saves */
    uint64_t copied_bytes;  /* bytes that one staged or bounced save copies */
    struct staging staging;
    struct bounce_save bounce;
    struct buf frame;                   /* the header, trailer or bytes item being composed */
    struct native_operation *operation; /* the save being written */
    struct native_job *job;             /* its job if it is staged; else NULL */
};

/* One asynchronous save, in progress or ended. */
struct native_job {
    struct native_operation operation; /* its path and options point to the next two members */
    char path[PATH_MAX];
    struct engine_options options;
    struct native_save *save;
    struct timeline front; /* of the caller, until the end of the stall */
    double stall_wait_s;
    uint32_t area;
    int code; /* result of preparing it, later of the whole save */
    struct cb_err err;
    struct cb_err stage_err; /* why staging failed after writing had begun */
    _Atomic bool stage_failed;
    bool queued, handed_over;        /* under the lock: the thread may take the job; the caller has continued */
    sem_t staged_more, written_more; /* posted after each round */
    _Atomic uint32_t rounds_staged;  /* by the caller */
    _Atomic uint32_t rounds_written; /* by the thread, in order */
    _Atomic bool gave_up;            /* the thread failed and writes nothing more */
    size_t left_in_round[2];         /* unwritten requests of the two newest rounds */
};

/* save_prepare.c */
int native_save_make(struct native_engine *engine, struct cb_err *err) CB_MUST_CHECK;
/* Makes plan and schedule for the operation's state, or takes them from the cache if the key is the same. Calls `idle`
 * before it replaces anything that a save in progress may use. */
int native_prepare(struct native_operation *operation, bool staged,
                   int (*idle)(struct native_engine *, struct cb_err *), struct cb_err *err) CB_MUST_CHECK;

/* write_frames.c: copies payload unless it is already staged, then composes headers and trailers. */
int write_frames(void *context, const struct io_request *request, char *image, struct cb_err *err) CB_MUST_CHECK;

/* save_copies.c: adds the copies of request `number`, whose image begins at offset `at`. */
int native_copies_add(struct native_save *self, size_t number, uint64_t at, struct copy_list *list,
                      struct cb_err *err) CB_MUST_CHECK;

/* bounce_save.c */
int bounce_save_build(struct native_save *self, struct device *device, struct cb_err *err) CB_MUST_CHECK;
void bounce_save_release(struct native_save *self);
/* Call before and after transfer_run with the hooks below; `rc` is its result. */
int bounce_save_begin(struct native_save *self, struct cb_err *err) CB_MUST_CHECK;
int bounce_save_end(struct native_save *self, int rc, struct cb_err *err) CB_MUST_CHECK;
int bounce_save_ready(void *context, size_t request, uint64_t until_ns, bool *ready, struct cb_err *err) CB_MUST_CHECK;
char *bounce_save_place(void *context, size_t request);
void bounce_save_written(void *context, size_t request);
bool bounce_save_meanwhile(void *context);

/* staging.c */
int native_staging_build(struct native_save *self, struct cb_err *err) CB_MUST_CHECK;
void native_staging_release(struct native_save *self);
/* Copies the state into the job's area. Calls `start` once the first round is staged, if there are more. */
int native_stage(struct native_job *job, void (*start)(struct native_job *job), struct cb_err *err) CB_MUST_CHECK;
int native_staged_ready(void *context, size_t request, uint64_t until_ns, bool *ready,
                        struct cb_err *err) CB_MUST_CHECK;
char *native_staged_place(void *context, size_t request);
void native_staged_written(void *context, size_t request);

/* native_save.c: writes the checkpoint and commits it, on the operation's lane. `job` is NULL if nothing is staged; `code`
 * is this rank's result of the steps before. */
int native_persist(struct native_operation *operation, struct native_job *job, int code,
                   struct cb_err *err) CB_MUST_CHECK;

/* async_save.c */
int async_save_make(struct native_engine *engine, struct cb_err *err) CB_MUST_CHECK;
int async_save_run(struct native_operation *operation, struct cb_err *err) CB_MUST_CHECK;
/* Waits until at most `left` saves are in flight; returns a failure that has not been returned yet. */
int async_save_wait(struct native_engine *engine, uint32_t left, uint64_t deadline_ns,
                    struct cb_err *err) CB_MUST_CHECK;
uint32_t async_save_under_way(struct native_engine *engine);
bool async_save_stop(struct native_engine *engine) CB_MUST_CHECK;
void async_save_free(struct native_engine *engine);

#endif
