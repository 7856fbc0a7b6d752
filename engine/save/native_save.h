/* Inside saving: what is kept from one save to the next, and the steps that native_save*.c share.
 *
 * save_prepare.c  the plan and its cache, and the schedule made from it
 * write_frames.c  the bytes of a request
 * save_copies.c   the copies from the state that a request needs
 * bounce_ring.c     a few slots of pinned memory between the store and a device
 * bounce_save.c  saving through them: what is in flight is copied while the rest is written
 * staging.c    staging memory, and the copy of the state into it
 * async_save.c   asynchronous saves
 * native_save.c  from making the place to the marker */
#ifndef ENGINE_SAVE_NATIVE_SAVE_H
#define ENGINE_SAVE_NATIVE_SAVE_H

#include <semaphore.h>

#include "engine/native.h"

/* Where the payload of one of this rank's items lies. */
struct source {
    struct item_frame frame;
    const char *memory;      /* of its first byte, or of the piece where it is mapped; NULL for bytes items */
    struct mapping *mapping; /* NULL where contiguous */
    uint32_t crc;            /* of the payload so far */
};

/* Requests that are staged together. Rounds take turns between the halves of an area; where all fits
 * there is one. */
struct round {
    size_t first_request, end_request;
    size_t first_copy, end_copy; /* of each area's list */
};

/* Staging memory of one save in flight, and the copies that fill it from the state as it lies now. */
struct area {
    char *memory;
    struct device_copy *copies;
};

/* A request's image is its bytes as they will lie in the file. */
struct staging {
    struct area *areas; /* save.inflight of them */
    uint32_t area_count;
    uint64_t area_bytes;   /* of each */
    uint64_t mapped_bytes; /* as allocated: kept while it is enough */
    uint64_t *image_at;    /* of each request, in its area */
    uint32_t *round_of;    /* of each request */
    struct round *rounds;
    size_t round_count, copy_count;
};

/* `to` counts from a place that is known later. */
struct copy_list {
    struct device_copy *copies;
    size_t count, capacity;
    size_t first; /* copies before it are never made longer */
};

/* The copies of each request, where the state is on a device and the caller waits for the save. */
struct bounce_save {
    struct copy_list list;
    size_t *first_copy; /* of each request, and one more */
    size_t next;        /* request to be copied next, of the save under way */
};

struct native_save {
    struct native_engine *engine;
    struct plan_key key;
    struct plan *plan;           /* NULL before the first save, and after a failure to make one */
    const struct layout *layout; /* of the state under way */
    bool staged;                 /* what the schedule is made for: staging areas and the back lane, */
    bool bounces;                /* or the bounce ring; neither: in place */
    bool schedule_ready;
    struct io_schedule schedule;
    struct source *sources; /* of items first_item[rank] … */
    size_t source_count;
    uint32_t *files; /* file of the plan for each file of the schedule */
    uint32_t copy;   /* of them, that is being written */
    void **memory;   /* the state's addresses that the schedule was made for */
    size_t piece_count;
    uint64_t payload_bytes; /* of tensors */
    uint64_t copied_bytes;  /* by one save that is staged or bounced */
    struct staging staging;
    struct bounce_save bounce;
    struct buf frame;                   /* a header, payload of a bytes item, or trailer being composed */
    struct buf metadata;                /* rank 0's */
    struct native_operation *operation; /* whose data is being written */
    struct native_job *job;             /* the same where it is staged; else NULL */
};

/* One asynchronous save, under way or ended. */
struct native_job {
    struct native_operation operation; /* its path and options point here: */
    char path[PATH_MAX];
    struct engine_options options;
    struct native_save *save;
    struct timeline front; /* of the caller, until the stall's end */
    double stall_wait_s;
    uint32_t area;
    int code; /* of preparing it; then of all of it */
    struct cb_err err;
    struct cb_err stage_err; /* of the caller's copy, once it began to be written */
    _Atomic bool stage_failed;
    bool queued, handed_over;        /* under the lock: the thread may take it; the caller has gone on */
    sem_t staged_more, written_more; /* posted after each round */
    _Atomic uint32_t rounds_staged;  /* by the caller */
    _Atomic uint32_t rounds_written; /* the first so many are written */
    _Atomic bool gave_up;            /* the thread failed: nothing will be written any more */
    size_t left_in_round[2];         /* requests not yet written, of the two newest rounds */
};

/* save_prepare.c */
int native_save_make(struct native_engine *engine, struct cb_err *err) CB_MUST_CHECK;
/* Plan and schedule for the operation's state; from the cache where its key is the same. `idle` is called
 * before anything is replaced that a save under way may use. */
int native_prepare(struct native_operation *operation, bool staged,
                   int (*idle)(struct native_engine *, struct cb_err *), struct cb_err *err) CB_MUST_CHECK;
const struct plan_item *native_item(const struct native_save *self, uint32_t source);

/* write_frames.c. Payload first, then frames: a staged request has its payload already. */
int write_frames(void *context, const struct io_request *request, char *image, struct cb_err *err) CB_MUST_CHECK;

/* save_copies.c: adds those of request `number`, whose image begins `at` bytes from that place. */
int native_copies_add(struct native_save *self, size_t number, uint64_t at, struct copy_list *list,
                      struct cb_err *err) CB_MUST_CHECK;

/* bounce_save.c */
int bounce_save_build(struct native_save *self, struct device *device, struct cb_err *err) CB_MUST_CHECK;
void bounce_save_release(struct native_save *self);
/* Around transfer_run with the hooks: `rc` is what came of it. */
void bounce_save_begin(struct native_save *self);
int bounce_save_end(struct native_save *self, int rc, struct cb_err *err) CB_MUST_CHECK;
int bounce_save_ready(void *context, size_t request, uint64_t until_ns, bool *ready, struct cb_err *err) CB_MUST_CHECK;
char *bounce_save_place(void *context, size_t request);
void bounce_save_written(void *context, size_t request);
bool bounce_save_meanwhile(void *context);

/* staging.c */
int native_staging_build(struct native_save *self, struct cb_err *err) CB_MUST_CHECK;
void native_staging_release(struct native_save *self);
/* Copies the state into the job's area. `start` is called once the first round is staged and others follow. */
int native_stage(struct native_job *job, void (*start)(struct native_job *job), struct cb_err *err) CB_MUST_CHECK;
int native_staged_ready(void *context, size_t request, uint64_t until_ns, bool *ready,
                        struct cb_err *err) CB_MUST_CHECK;
char *native_staged_place(void *context, size_t request);
void native_staged_written(void *context, size_t request);

/* native_save.c: from making the place to the marker, on the operation's lane. `job` is NULL where
 * nothing is staged; `code` is what the operation came to on this rank before. */
int native_persist(struct native_operation *operation, struct native_job *job, int code,
                   struct cb_err *err) CB_MUST_CHECK;

/* async_save.c */
int async_save_make(struct native_engine *engine, struct cb_err *err) CB_MUST_CHECK;
int async_save_run(struct native_operation *operation, struct cb_err *err) CB_MUST_CHECK;
/* Waits until at most `left` saves are under way; tells a failure that was not told. */
int async_save_wait(struct native_engine *engine, uint32_t left, uint64_t deadline_ns,
                    struct cb_err *err) CB_MUST_CHECK;
uint32_t async_save_under_way(struct native_engine *engine);
bool async_save_stop(struct native_engine *engine) CB_MUST_CHECK;
void async_save_free(struct native_engine *engine);

#endif
