/* Inside an exchange: the blocks of a stage in their order, what this rank reads of them and where it goes, and what is
 * the same whichever way they travel. Allocates only in exchange_window_init. One thread. */
#ifndef ENGINE_EXCHANGE_EXCHANGE_WINDOW_H
#define ENGINE_EXCHANGE_EXCHANGE_WINDOW_H

#include "engine/exchange/exchange.h"

#define EXCHANGE_NO_BLOCK SIZE_MAX /* instead of a block's index */
/* Blocks of a group whose numbers are so far apart share a tag; a rank does not open the later one before it has
 * done with the earlier one, so that messages of one tag keep their order. */
#define EXCHANGE_TAGS_A_CODE (COMM_TAGS / SHARE_CODES)
#define EXCHANGE_PAGE_BYTES 4096 /* what blocks pass through begins at a multiple of it */

struct exchange_window {
    struct exchange_setup setup;
    bool all_in_transit;  /* the state is where neither a store reads to nor messages come to */
    char *transit;        /* lent by the owner before the first stage: parts of a stage that are not all this rank's */
    struct piece *pieces; /* targets of the stage */
    void **memory;
    size_t *block_of; /* of a target; EXCHANGE_NO_BLOCK where it is this rank's alone */
    size_t target_count;
    size_t *target_of; /* of a block's first part, where this rank reads it */
    uint64_t *landed;  /* bytes of each block */
    size_t next, end;  /* blocks of the stage that are not yet open; the owner moves `next` on */
    bool reading_done;
};

int exchange_window_init(struct exchange_window *self, const struct exchange_setup *setup, bool all_in_transit,
                         struct cb_err *err) CB_MUST_CHECK;
/* Also after a failed init. */
void exchange_window_release(struct exchange_window *self);

/* --- stages --- */

/* All blocks of the stage before have been opened and are done. */
struct exchange_targets exchange_window_begin_stage(struct exchange_window *self, uint32_t stage);
/* So many more bytes of a target are in place. */
void exchange_window_landed(struct exchange_window *self, uint32_t target, uint64_t bytes);
/* All of a block that this rank reads is in place, or all that ever will be. */
bool exchange_window_has_landed(const struct exchange_window *self, size_t index);

/* --- a block --- */

const struct share_block *exchange_block(const struct exchange_window *self, size_t index);
const struct share_group *exchange_group(const struct exchange_window *self, const struct share_block *block);
const struct share_part *exchange_part(const struct exchange_window *self, const struct share_block *block, size_t i);
/* This rank reads it. */
bool exchange_is_reader(const struct exchange_window *self, const struct share_block *block);
/* What this rank reads of it goes to memory of the exchange, and from there to those that need it. */
bool exchange_in_transit(const struct exchange_window *self, const struct share_block *block);
/* Where it lies in the state if it is one contiguous range of every rank's, and travels from there to there; else NULL. */
char *exchange_direct(const struct exchange_window *self, const struct share_block *block);
/* Where this rank, its reader, has read part `i` of it to. */
char *exchange_read_to(const struct exchange_window *self, const struct share_block *block, size_t i);
uint32_t exchange_rank_of(const struct exchange_window *self, const struct share_group *group, uint32_t member);
/* The longest block that is not direct, in whole pages: what its buffer must hold. */
uint64_t exchange_longest_buffered(const struct exchange_window *self);

/* --- a part of it --- */

const struct state_tensor *exchange_tensor(const struct exchange_window *self, const struct share_part *part);
size_t exchange_element_bytes(const struct exchange_window *self, const struct share_part *part);
uint64_t exchange_part_bytes(const struct exchange_window *self, const struct share_part *part);
/* The piece of this rank's state that it lies in. */
const struct piece *exchange_piece(const struct exchange_window *self, const struct share_part *part, char **memory);

/* --- an exchange, whichever way its blocks travel --- */

struct exchange_ops {
    bool (*turn)(struct exchange *exchange);                 /* whether anything got further */
    bool (*is_travelling)(const struct exchange *exchange);  /* an open block waits for others, not for its reader */
    size_t (*oldest_block)(const struct exchange *exchange); /* that is not done; EXCHANGE_NO_BLOCK: none is open */
    void (*abandon)(struct exchange *exchange);              /* ends what is under way */
    void (*release)(struct exchange *exchange);
    const char *travels; /* what a block is: "exchanged between devices" */
    const char *context; /* of failures; NULL: none */
};

/* The struct of each way begins with it. */
struct exchange {
    struct exchange_window window;
    const struct exchange_ops *ops;
    uint32_t open; /* blocks under way */
    bool failed;
    struct cb_err err; /* why it failed */
    uint64_t copied;
};

void exchange_fail(struct exchange *self);

#endif
