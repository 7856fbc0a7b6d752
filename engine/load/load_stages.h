/* Inside loading. A load fills targets, regions of tensors that lie in memory, through items: stored chunks that are read.
 * It has three stages, with a struct and files of its own each:
 *
 * plan      load_items.c, load_gaps.c                     what is needed, and from where
 * io        load_pass.c                                   which requests of a pass read it
 * complete  load_complete.c, load_unpack.c, load_place.c  what has been read is checked, decompressed and placed
 *
 * load_read.c goes through them; load_exchange.c does so for each stage of an exchange; load.c is on top. */
#ifndef ENGINE_LOAD_LOAD_STAGES_H
#define ENGINE_LOAD_LOAD_STAGES_H

#include "ckpt/load/load_plan.h"
#include "engine/exchange/exchange.h"
#include "engine/native.h"
#include "engine/pinned.h"
#include "engine/save/bounce_ring.h"
#include "engine/strided.h"

/* A value that is no tensor is read whole; a longer one is none of what PyTorch's planner stores so. */
#define LOAD_VALUE_MAX_BYTES (UINT64_C(64) * 1024 * 1024)
/* Enough for the header of what PyTorch writes; one that is longer is read again. */
#define LOAD_FIRST_PROBE_BYTES 8192
/* What is decompressed at once. */
#define LOAD_STEP_BYTES (UINT64_C(1) << 20)

enum load_item_state {
    ITEM_EXPECTED, /* laid out as our writer does it; the header will tell */
    ITEM_PROBE,    /* only its header is read */
    ITEM_KNOWN,    /* its header has been parsed */
    ITEM_DONE,
    ITEM_FAILED,
};

enum load_mode { LOAD_ALONE, LOAD_BROADCAST, LOAD_SPLIT };

struct load_item {
    uint32_t chunk;
    uint32_t first_read, read_count; /* no reads: a bytes item */
    enum load_item_state state;
    struct stored_payload payload;
    uint64_t probe_bytes;
    bool again;                    /* the header says that this pass read the wrong bytes */
    struct stored_trailer trailer; /* where this pass reads it; checksum=none stores 0 */
    bool bad_trailer;
    void *value;                               /* of a bytes item: all of it, once read; owned */
    struct unpacking *unpacking;               /* of a compressed item: what came of it so far; owned */
    uint64_t taken;                            /* of a compressed item: bytes that have been decompressed, */
    uint64_t window_at, in_window;             /* and those that follow, in this pass */
    size_t first_part, part_count, parts_left; /* of the pass under way */
};

struct window {
    char *memory; /* NULL where nothing is compressed */
    uint64_t bytes, used;
    char *step; /* what is decompressed at once: on a device pinned, else owned */
};

struct load_planned {
    enum load_mode mode;
    bool chooses; /* load.exchange=auto, before its first load */
    uint64_t gap_bytes, waste_percent;
    uint64_t waste_left; /* bytes that may still be read for nothing, see load.waste */
    bool ran_out;        /* it kept runs apart that load.gap would have joined */
    struct stored_checkpoint *checkpoint;
    /* the targets: what is filled, and where each lies */
    const struct piece *pieces;
    void *const *memory;
    size_t piece_count;
    bool wants_values; /* the small ones that are no tensors are read with them */
    struct load_plan *wanted;
    struct mapping *mappings; /* one a read */
    bool *in_one;             /* one a read: its runs are read as one range */
    struct load_item *items;  /* by file and offset */
    size_t item_count;
};

struct load_io {
    struct io_schedule schedule; /* of the pass */
    uint32_t *files;             /* file of the checkpoint for each file of the schedule */
    struct bounce_ring *ring;    /* NULL where the state is in this machine's memory */
    struct window window;        /* compressed items are read to it */
    struct pinned bounce;        /* of what is decompressed: kept */
};

struct load_completion {
    struct buf frame;          /* what our writer would have written, or a value */
    int copy_code;             /* a copy to the device that could not be queued, */
    struct cb_err copy_err;    /* and why */
    uint64_t *arrived;         /* one a read: bytes in place of which the exchange does not yet know */
    struct exchange *exchange; /* NULL where each rank reads all that it needs */
    size_t failures, item_total;
    char first_failure[512];
};

/* How ranks exchange what they read; load_exchange.c's alone. */
struct load_sharing {
    struct load_share *share;
    struct pinned transit; /* kept */
    struct device_groups talk;
    bool shares_device; /* two ranks have one: they exchange through this machine's memory */
    bool told_path;     /* how ranks exchange has been said */
};

struct native_load {
    struct native_operation *operation; /* under way */
    struct buf metadata;
    struct load_planned plan;
    struct load_io io;
    struct load_completion complete;
    struct load_sharing sharing;
    bool told_extra; /* what the checkpoint has beyond what is loaded has been said */
    bool told_gaps;  /* and why there are many requests */
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

/* A tensor that is compressed; values are, too, but they are short. */
static inline bool native_load_is_packed(const struct native_load *self, const struct load_item *item)
{
    return item->read_count > 0 && native_load_chunk(self, item)->compressed;
}

/* How a read of an item with other strides than ours lies in memory. */
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

/* load_report.c: a line on the status page; the load continues. */
void native_load_fail(struct native_load *self, int code, const char *text);
void native_load_fail_item(struct native_load *self, struct load_item *item, int code, const char *why);

/* --- plan --- */

/* load_items.c: the plan of the targets becomes items, one for each chunk that is read. */
int native_load_make_items(struct native_load *self, struct cb_err *err) CB_MUST_CHECK;
void native_load_forget_items(struct native_load *self);

/* load_gaps.c: which reads are worth reading in one, within what may be wasted. Of all items that may be read. */
int native_load_choose_gaps(struct native_load *self, struct cb_err *err) CB_MUST_CHECK;

/* --- io --- */

/* load_pass.c: what all passes need; compressed items come through a window, some or a part of one a pass, in order. */
int native_load_reserve_io(struct native_load *self, struct cb_err *err) CB_MUST_CHECK;
void native_load_release_io(struct native_load *self);
/* What of the open items this pass reads, and where it goes. */
int native_load_build_pass(struct native_load *self, struct cb_err *err) CB_MUST_CHECK;

/* --- complete --- */

/* load_complete.c: reads a pass and takes it apart. */
int native_load_run_pass(struct native_load *self, struct cb_err *err) CB_MUST_CHECK;
/* Checks values and decompresses what has been read, and says whether another pass is needed. */
int native_load_after_pass(struct native_load *self, bool *again, struct cb_err *err) CB_MUST_CHECK;

/* load_unpack.c: decompresses what this pass has read of an item; any error but the device's fails the item. */
int native_load_unpack(struct native_load *self, struct load_item *item, struct cb_err *err) CB_MUST_CHECK;
void native_load_forget_unpacking(struct load_item *item);

/* load_place.c: puts payload bytes [begin, begin + len) of an item where they are wanted. On a device later: copy_code
 * says whether that could be queued. */
void native_load_place(struct native_load *self, struct load_item *item, uint64_t begin, const char *bytes,
                       uint64_t len);
/* What has arrived of an item is right, or (false) will be read again. For the exchange. */
void native_load_settle(struct native_load *self, const struct load_item *item, bool right);

/* --- all of them --- */

/* load_read.c: plans, reads and completes what the targets need. What is wrong with items is counted in `failures`; it
 * fails only where it cannot continue. */
int native_load_read(struct native_load *self, struct cb_err *err) CB_MUST_CHECK;
void native_load_forget(struct native_load *self);

/* load_exchange.c: what several ranks need is read by one of them. Starts with an agreement on
 * `code`, that of planning. */
int native_load_exchange(struct native_load *self, int code, struct cb_err *err) CB_MUST_CHECK;
/* After a load: `failed` on any rank. */
void native_load_end_exchange(struct native_load *self, bool failed);

/* load_auto.c: after the first load, how the next ones read; says why on the status page. Collective. */
int native_load_choose(struct native_load *self, struct cb_err *err) CB_MUST_CHECK;

#endif
