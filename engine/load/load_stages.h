/* The stages of a load. A load fills targets, which are regions of tensors in memory, by reading items, which are
 * stored chunks. Each stage has its own struct and files:
 *
 * plan      load_items.c, load_gaps.c                     which items are needed, and where they are stored
 * io        load_pass.c                                   the requests that read them, in one or more passes
 * complete  load_complete.c, load_unpack.c, load_place.c  checks, decompresses and places what was read
 *
 * load_read.c runs the stages, load_exchange.c runs them for each stage of an exchange, and load.c calls either. */
#ifndef ENGINE_LOAD_LOAD_STAGES_H
#define ENGINE_LOAD_LOAD_STAGES_H

#include "ckpt/load/load_plan.h"
#include "engine/exchange/exchange.h"
#include "engine/native.h"
#include "engine/pinned.h"
#include "engine/save/bounce_ring.h"
#include "engine/strided.h"

/* A value that is not a tensor is read as a whole. PyTorch's planner stores no longer ones. */
#define LOAD_VALUE_MAX_BYTES (UINT64_C(64) * 1024 * 1024)
/* Enough for the headers that PyTorch writes; a longer header is read again. */
#define LOAD_FIRST_PROBE_BYTES 8192
/* The output of one step of decompression. */
#define LOAD_STEP_BYTES (UINT64_C(1) << 20)

enum load_item_state {
    ITEM_EXPECTED, /* assumed to have our writer's layout, until the header has been parsed */
    ITEM_PROBE,    /* this pass reads only its header */
    ITEM_KNOWN,    /* its header has been parsed */
    ITEM_DONE,
    ITEM_FAILED,
};

enum load_mode { LOAD_ALONE, LOAD_BROADCAST, LOAD_SPLIT };

struct load_item {
    uint32_t chunk;
    uint32_t first_read, read_count; /* read_count 0: a bytes item */
    enum load_item_state state;
    struct stored_payload payload;
    uint64_t probe_bytes;
    bool again;                    /* the header showed that this pass read the wrong bytes */
    struct stored_trailer trailer; /* if this pass reads the trailer; checksum=none stores 0 */
    bool bad_trailer;
    void *value;                               /* of a bytes item: its content once read; owned */
    struct unpacking *unpacking;               /* of a compressed item: state of decompression; owned */
    uint64_t taken;                            /* of a compressed item: bytes decompressed so far */
    uint64_t window_at, in_window;             /* of a compressed item: its next bytes, read in this pass */
    size_t first_part, part_count, parts_left; /* in the current pass */
};

struct window {
    char *memory; /* NULL if no item is compressed */
    uint64_t bytes, used;
    char *step; /* output of one step of decompression; pinned for a device, else owned */
};

struct load_planned {
    enum load_mode mode;
    bool chooses; /* load.exchange=auto, and this is the first load */
    uint64_t gap_bytes, waste_percent;
    uint64_t waste_left; /* unneeded bytes that may still be read, see load.waste */
    bool ran_out;        /* reads were not merged although load.gap would allow it */
    struct stored_checkpoint *checkpoint;
    /* the targets and their memory */
    const struct piece *pieces;
    void *const *memory;
    size_t piece_count;
    bool wants_values; /* also read the values that are not tensors */
    struct load_plan *wanted;
    struct mapping *mappings; /* of each read */
    bool *in_one;             /* of each read: its runs are read as one range */
    struct load_item *items;  /* by file and offset */
    size_t item_count;
};

struct load_io {
    struct io_schedule schedule; /* of the current pass */
    uint32_t *files;             /* the checkpoint's file for each file of the schedule */
    struct bounce_ring *ring;    /* NULL if the state is in host memory */
    struct window window;        /* buffer for compressed items */
    struct pinned bounce;        /* buffer for decompressed bytes; reused */
};

struct load_completion {
    struct buf frame;          /* the bytes that our writer would have written, or a value */
    int copy_code;             /* the first copy to the device that could not be queued, */
    struct cb_err copy_err;    /* and the reason */
    uint64_t *arrived;         /* of each read: bytes in place that have not been reported to the exchange */
    struct exchange *exchange; /* NULL if each rank reads everything it needs */
    size_t failures, item_total;
    char first_failure[512];
};

/* How ranks exchange what they read; used only by load_exchange.c. */
struct load_sharing {
    struct load_share *share;
    struct pinned transit; /* reused buffer */
    struct device_groups groups;
    uint64_t block_bytes; /* of what is sent at once */
    bool shares_device;   /* two ranks share a device, so ranks exchange through host memory */
    bool told_path;       /* the status page reports how ranks exchange */
};

struct native_load {
    struct native_operation *operation; /* the current load */
    struct load_planned plan;
    struct load_io io;
    struct load_completion complete;
    struct load_sharing sharing;
    bool told_extra; /* the status page reports what was not loaded */
    bool told_gaps;  /* the status page reports why there are many requests */
};

static inline const struct stored_chunk *native_load_chunk(const struct native_load *self, const struct load_item *item)
{
    return &self->plan.checkpoint->chunks[item->chunk];
}

static inline const struct stored_tensor *native_load_tensor(const struct native_load *self,
                                                             const struct load_item *item)
{
    return &self->plan.checkpoint->tensors[native_load_chunk(self, item)->tensor];
}

/* Whether it is a compressed tensor. Values may be compressed too, but they are short. */
static inline bool native_load_is_packed(const struct native_load *self, const struct load_item *item)
{
    return item->read_count > 0 && native_load_chunk(self, item)->compressed;
}

/* The mapping to memory for a read of an item whose strides are not row-major. */
static inline struct strided native_load_strided(const struct native_load *self, const struct load_item *item,
                                                 uint32_t read)
{
    struct strided strided;
    const struct mapping *mapping = &self->plan.mappings[read];
    strided_init(&strided, &item->payload, &mapping->stored, &mapping->held, &mapping->common, mapping->element_bytes);
    return strided;
}

static inline bool native_load_is_open(const struct load_item *item)
{
    return item->state != ITEM_DONE && item->state != ITEM_FAILED;
}

/* load_report.c: adds a line to the status page; the load continues. */
void native_load_fail(struct native_load *self, int code, const char *text);
/* The name of the checkpoint's file, in the copy that this rank reads. */
int native_load_file_name(const struct native_load *self, uint32_t file, char name[PATH_MAX],
                          struct cb_err *err) CB_MUST_CHECK;
void native_load_fail_item(struct native_load *self, struct load_item *item, int code, const char *why);

/* --- plan --- */

/* load_items.c: makes items from the plan of the targets, one for each chunk to read. */
int native_load_make_items(struct native_load *self, struct cb_err *err) CB_MUST_CHECK;
void native_load_forget_items(struct native_load *self);

/* load_gaps.c: decides which reads to merge, within the limit of unneeded bytes. */
int native_load_choose_gaps(struct native_load *self, struct cb_err *err) CB_MUST_CHECK;

/* --- io --- */

/* load_pass.c: allocates what all passes need. Compressed items are read through a window, in order: a pass reads
 * several of them, or a part of one. */
int native_load_reserve_io(struct native_load *self, struct cb_err *err) CB_MUST_CHECK;
void native_load_release_io(struct native_load *self);
/* Builds the schedule of the next pass from the open items. */
int native_load_build_pass(struct native_load *self, struct cb_err *err) CB_MUST_CHECK;

/* --- complete --- */

/* load_complete.c: runs a pass and places what it reads. */
int native_load_run_pass(struct native_load *self, struct cb_err *err) CB_MUST_CHECK;
/* Checks values and decompresses what was read; *again is true if another pass is needed. */
int native_load_after_pass(struct native_load *self, bool *again, struct cb_err *err) CB_MUST_CHECK;

/* load_unpack.c: decompresses what this pass has read of an item. Errors fail the item, except errors of the device,
 * which fail the load. */
int native_load_unpack(struct native_load *self, struct load_item *item, struct cb_err *err) CB_MUST_CHECK;
void native_load_forget_unpacking(struct load_item *item);

/* load_place.c: copies payload bytes [begin, begin + len) of an item to the targets. Copies to a device are queued;
 * copy_code reports a failure to queue them. */
void native_load_place(struct native_load *self, struct load_item *item, uint64_t begin, const char *bytes,
                       uint64_t len);
/* Reports to the exchange that an item's bytes are right, or (false) that they will be read again. */
void native_load_settle(struct native_load *self, const struct load_item *item, bool right);

/* --- all of them --- */

/* load_read.c: runs the three stages for the targets. Failed items are counted in `failures`; it fails only if it
 * cannot continue. */
int native_load_read(struct native_load *self, struct cb_err *err) CB_MUST_CHECK;
void native_load_forget(struct native_load *self);

/* load_exchange.c: loads with an exchange, in which one rank reads what several ranks need. Starts with an agreement on
 * `code`, the result of planning. */
int native_load_exchange(struct native_load *self, int code, struct cb_err *err) CB_MUST_CHECK;
/* Ends the exchange after a load; `failed` if any rank failed. */
void native_load_end_exchange(struct native_load *self, bool failed);

/* load_auto.c: chooses the mode of later loads after the first one, and explains it on the status page. Collective. */
int native_load_choose(struct native_load *self, struct cb_err *err) CB_MUST_CHECK;

#endif
