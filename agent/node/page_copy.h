/* A status page on another node: what changed there since the last look, and the copy that it makes here.
 *
 * The node keeps what it has sent of each page; the copy at the head is a page of its own, in memory that
 * is used only where something was written. Only what ranks write travels. Samples come before the count
 * that publishes them, so a copy is as consistent as a page at any time, whenever the node dies. */
#ifndef AGENT_NODE_PAGE_COPY_H
#define AGENT_NODE_PAGE_COPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "run/status_page.h"

/* For the head. Freed with page_copy_free. */
int page_copy_new(uint32_t rank, uint32_t world_size, uint32_t sample_capacity, struct status_page **copy,
                  struct cb_err *err) CB_MUST_CHECK;
void page_copy_free(struct status_page *copy);

/* CB_ERR_FORMAT for bytes that are not a rank's to write. */
int page_copy_apply(struct status_page *copy, uint64_t offset, const void *bytes, size_t len,
                    struct cb_err *err) CB_MUST_CHECK;

/* For the node. `offset_ns` is what its monotonic clock is ahead of the head's: times on the copy are the
 * head's. */
struct page_sender;
int page_sender_new(const struct status_page *page, int64_t offset_ns, struct page_sender **sender,
                    struct cb_err *err) CB_MUST_CHECK;
void page_sender_free(struct page_sender *self);

/* Calls `send` for every part that has changed. What is large is looked at only where the small part says
 * that it may have changed, or with `all`. Stops at the first failure. */
typedef int (*page_send_fn)(void *context, uint64_t offset, const void *bytes, size_t len, struct cb_err *err);
int page_sender_send(struct page_sender *self, bool all, page_send_fn send, void *context,
                     struct cb_err *err) CB_MUST_CHECK;

#endif
