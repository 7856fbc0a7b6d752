/* Copies a status page from another node: the node sends what has changed since the last scan, the head applies it.
 *
 * The node remembers what it has sent of each page; the head's copy is a page of its own, whose memory is used only
 * where something was written. Only fields that ranks write are sent. Samples are sent before the count that
 * publishes them, so the copy is always as consistent as a page, whenever the node dies. */
#ifndef AGENT_NODE_PAGE_COPY_H
#define AGENT_NODE_PAGE_COPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "run/status_page.h"

/* For the head. Free with status_page_close. */
int page_copy_new(uint32_t rank, uint32_t world_size, uint32_t sample_capacity, struct status_page **copy,
                  struct cb_err *err) CB_MUST_CHECK;

/* CB_ERR_FORMAT for bytes outside the fields that ranks write. */
int page_copy_apply(struct status_page *copy, uint64_t offset, const void *bytes, size_t len,
                    struct cb_err *err) CB_MUST_CHECK;

/* For the node. `offset_ns` is how far its monotonic clock is ahead of the head's: times on the copy use the head's
 * clock. */
struct page_sender;
int page_sender_new(const struct status_page *page, int64_t offset_ns, struct page_sender **sender,
                    struct cb_err *err) CB_MUST_CHECK;
void page_sender_free(struct page_sender *self);

/* Calls `send` for every part that has changed. Large parts are compared only if the small part indicates a change,
 * or if `all` is set. Stops at the first failure. */
typedef int (*page_send_fn)(void *context, uint32_t rank, uint64_t offset, const void *bytes, size_t len,
                            struct cb_err *err);
int page_sender_send(struct page_sender *self, bool all, page_send_fn send, void *context,
                     struct cb_err *err) CB_MUST_CHECK;

#endif
