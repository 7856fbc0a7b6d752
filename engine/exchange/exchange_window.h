/* Shared by both exchanges: the blocks of a stage in order, which of them this rank reads, and their destinations.
 * Allocates only in exchange_window_init. One thread. */
#ifndef ENGINE_EXCHANGE_EXCHANGE_WINDOW_H
#define ENGINE_EXCHANGE_EXCHANGE_WINDOW_H

#include "engine/exchange/exchange.h"

#define EXCHANGE_NO_BLOCK SIZE_MAX /* instead of a block's index */
/* Blocks of a group whose numbers are far apart share a tag. A rank opens the later one only when it has finished the
 * earlier one, so that messages with one tag stay in order. */
#define EXCHANGE_TAGS_A_CODE (COMM_TAGS / SHARE_CODES)
#define EXCHANGE_PAGE_BYTES 4096 /* alignment of a block in the buffer */

struct exchange_window {
    struct exchange_setup setup;
    bool all_in_transit;  /* neither the store nor messages can write to the state's memory directly */
    char *transit;        /* buffer, set by the owner before the first stage, for blocks that pass through this rank */
    struct piece *pieces; /* targets of the stage */
    void **memory;
    size_t *block_of; /* block of a target; EXCHANGE_NO_BLOCK if only this rank needs it */
    size_t target_count;
    size_t *target_of; /* target of a block's first part, if this rank reads the block */
    uint64_t *landed;  /* bytes read of each block */
    size_t next, end;  /* blocks of the stage that are not yet open; the owner advances `next` */
    bool reading_done;
};

int exchange_window_init(struct exchange_window *self, const struct exchange_setup *setup, bool all_in_transit,
                         struct cb_err *err) CB_MUST_CHECK;
/* May also be called after a failed init. */
void exchange_window_release(struct exchange_window *self);

/* --- stages --- */

/* All blocks of the previous stage must be done. */
struct exchange_targets exchange_window_begin_stage(struct exchange_window *self, uint32_t stage);
/* Reports `bytes` more of a target as in place. */
void exchange_window_landed(struct exchange_window *self, uint32_t target, uint64_t bytes);
/* Whether all bytes of the block that this rank reads are in place, or no more will come. */
bool exchange_window_has_landed(const struct exchange_window *self, size_t index);

/* --- a block --- */

const struct share_block *exchange_block(const struct exchange_window *self, size_t index);
const struct share_group *exchange_group(const struct exchange_window *self, const struct share_block *block);
const struct share_part *exchange_part(const struct exchange_window *self, const struct share_block *block, size_t i);
/* Whether this rank reads the block. */
bool exchange_is_reader(const struct exchange_window *self, const struct share_block *block);
/* Whether the block is read into a buffer of the exchange instead of into the state. */
bool exchange_in_transit(const struct exchange_window *self, const struct share_block *block);
/* The block's address in the state, if it is one contiguous range on every rank and needs no buffer; else NULL. */
char *exchange_direct(const struct exchange_window *self, const struct share_block *block);
/* Where this rank, the block's reader, has stored part `i`. */
char *exchange_read_to(const struct exchange_window *self, const struct share_block *block, size_t i);
uint32_t exchange_rank_of(const struct exchange_window *self, const struct share_group *group, uint32_t member);
/* The size of the longest block that needs a buffer, in whole pages. */
uint64_t exchange_longest_buffered(const struct exchange_window *self);

/* --- a part of it --- */

const struct state_tensor *exchange_tensor(const struct exchange_window *self, const struct share_part *part);
size_t exchange_element_bytes(const struct exchange_window *self, const struct share_part *part);
uint64_t exchange_part_bytes(const struct exchange_window *self, const struct share_part *part);
/* The piece of this rank's state that contains the part. */
const struct piece *exchange_piece(const struct exchange_window *self, const struct share_part *part, char **memory);

/* --- used by both exchanges --- */

struct exchange_ops {
    bool (*turn)(struct exchange *exchange);                 /* makes progress; false if nothing moved */
    bool (*is_travelling)(const struct exchange *exchange);  /* an open block waits for ranks other than its reader */
    size_t (*oldest_block)(const struct exchange *exchange); /* the oldest open block, or EXCHANGE_NO_BLOCK */
    void (*abandon)(struct exchange *exchange);              /* cancels everything in flight */
    void (*release)(struct exchange *exchange);
    const char *travels; /* for messages about a block: "exchanged between devices" */
    const char *context; /* put before error messages; may be NULL */
};

/* First member of each implementation's struct. */
struct exchange {
    struct exchange_window window;
    const struct exchange_ops *ops;
    uint32_t open; /* blocks in flight */
    bool failed;
    struct cb_err err; /* the reason of the failure */
    uint64_t copied;
};

void exchange_fail(struct exchange *self);

#endif
