/* Finds and applies differences of status pages. */
#include "agent/node/page_copy.h"

#include "core/alloc.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#define HOT_START offsetof(struct status_page, pid)    /* offset of the fields that ranks write */
#define HOT_END offsetof(struct status_page, failures) /* the small part ends here */
#define PIECE_BYTES 512                                /* bytes compared at once */
#define PART_MAX_BYTES (UINT64_C(64) << 10)            /* largest part sent at once */

int page_copy_new(uint32_t rank, uint32_t world_size, uint32_t sample_capacity, struct status_page **copy,
                  struct cb_err *err)
{
    uint64_t bytes = status_page_bytes(sample_capacity);
    void *place = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (place == MAP_FAILED)
        return cb_fail_errno(err, errno, "making room for the status page of rank %u", rank);
    *copy = place;
    status_page_fill(*copy, rank, world_size, sample_capacity);
    return 0;
}

int page_copy_apply(struct status_page *copy, uint64_t offset, const void *bytes, size_t len, struct cb_err *err)
{
    uint64_t end = status_page_bytes(copy->sample_capacity);
    if (offset < HOT_START || offset > end || len > end - offset)
        return cb_fail(err, CB_ERR_FORMAT, "%zu bytes at %llu are not for rank %u to write", len,
                       (unsigned long long)offset, copy->rank);
    memcpy((char *)copy + offset, bytes, len);
    return 0;
}

struct page_sender {
    const struct status_page *page; /* borrowed */
    int64_t offset_ns;
    struct status_page *sent; /* the state that the head has */
    struct status_page *hot;  /* the small part with times converted to the head's clock */
};

int page_sender_new(const struct status_page *page, int64_t offset_ns, struct page_sender **sender, struct cb_err *err)
{
    struct page_sender *self = calloc(1, sizeof *self);
    if (!self)
        return alloc_fail(err, "to follow rank %u", page->rank);
    self->page = page;
    self->offset_ns = offset_ns;
    int rc = page_copy_new(page->rank, page->world_size, page->sample_capacity, &self->sent, err);
    if (!rc)
        rc = page_copy_new(page->rank, page->world_size, 0, &self->hot, err);
    if (rc)
        page_sender_free(self);
    else
        *sender = self;
    return rc;
}

void page_sender_free(struct page_sender *self)
{
    if (!self)
        return;
    status_page_close(self->sent);
    status_page_close(self->hot);
    free(self);
}

/* Sends the parts of [from, end) that differ, in whole pieces. */
static int send_range(struct page_sender *self, const char *now, uint64_t from, uint64_t end, page_send_fn send,
                      void *context, struct cb_err *err)
{
    char *sent = (char *)self->sent;
    for (uint64_t at = from; at < end;) {
        uint64_t len = 0;
        while (at + len < end && len < PART_MAX_BYTES) {
            uint64_t piece = end - at - len < PIECE_BYTES ? end - at - len : PIECE_BYTES;
            if (memcmp(now + at + len, sent + at + len, piece) == 0)
                break;
            len += piece;
        }
        if (len == 0) {
            at += end - at < PIECE_BYTES ? end - at : PIECE_BYTES;
            continue;
        }
        memcpy(sent + at, now + at,
               len); /* copied first, because the rank may keep writing: what is remembered must be what is sent */
        int rc = send(context, self->page->rank, at, sent + at, len, err);
        if (rc)
            return rc;
        at += len;
    }
    return 0;
}

static uint64_t to_head_ns(const struct page_sender *self, uint64_t own_ns)
{
    if (own_ns == 0)
        return 0;
    int64_t head_ns = (int64_t)own_ns - self->offset_ns;
    return head_ns > 0 ? (uint64_t)head_ns : 1;
}

/* Copies the small part with the head's times, before the samples that it publishes are read. */
static void take_hot(const struct page_sender *self)
{
    const struct status_page *page = self->page;
    struct status_page *hot = self->hot;
    uint32_t samples = atomic_load_explicit(&page->sample_count, memory_order_acquire);
    uint32_t failures = atomic_load_explicit(&page->failure_length, memory_order_acquire);
    uint32_t facts = atomic_load_explicit(&page->facts_length, memory_order_acquire);
    memcpy((char *)hot + HOT_START, (const char *)page + HOT_START, HOT_END - HOT_START);
    atomic_store(&hot->sample_count, samples);
    atomic_store(&hot->failure_length, failures);
    atomic_store(&hot->facts_length, facts);
    atomic_store(&hot->progress_ns, to_head_ns(self, atomic_load(&hot->progress_ns)));
    atomic_store(&hot->ready_ns, to_head_ns(self, atomic_load(&hot->ready_ns)));
    atomic_store(&hot->first_operation_ns, to_head_ns(self, atomic_load(&hot->first_operation_ns)));
}

static bool has_news(const struct status_page *hot, const struct status_page *sent)
{
    return atomic_load(&hot->sample_count) != atomic_load(&sent->sample_count) ||
           atomic_load(&hot->failure_length) != atomic_load(&sent->failure_length) ||
           atomic_load(&hot->facts_length) != atomic_load(&sent->facts_length) ||
           atomic_load(&hot->phase) != atomic_load(&sent->phase);
}

int page_sender_send(struct page_sender *self, bool all, page_send_fn send, void *context, struct cb_err *err)
{
    take_hot(self);
    uint32_t samples = atomic_load(&self->hot->sample_count);
    if (samples > self->page->sample_capacity) /* the rank damaged its page: the head must see that */
        samples = self->page->sample_capacity;
    uint64_t end = offsetof(struct status_page, samples) + (uint64_t)samples * sizeof(struct sample);
    int rc = 0;
    if (all || has_news(self->hot, self->sent))
        rc = send_range(self, (const char *)self->page, HOT_END, end, send, context, err);
    return rc ? rc : send_range(self, (const char *)self->hot, HOT_START, HOT_END, send, context, err);
}
