/* Loading: after a pass. Looks at values, takes what came of compressed items, and says what is still open. */
#include "ckpt/stored/unpack.h"
#include "engine/load/native_load.h"

static int unpack_value(const struct native_load *self, const struct load_item *item, struct buf *plain,
                        struct cb_err *err)
{
    buf_init(plain, 2 * LOAD_VALUE_MAX_BYTES);
    return unpack_zstd(native_load_tensor(self, item)->fqn, item->value, native_load_chunk(self, item)->length, plain,
                       err);
}

/* Parsing a value allocates, so it is kept until the pass is over. */
static void check_value(struct native_load *self, struct load_item *item)
{
    struct cb_err err;
    struct buf plain = {.data = item->value, .len = native_load_chunk(self, item)->length};
    bool compressed = native_load_chunk(self, item)->compressed;
    buf_clear(&self->frame);
    int rc = compressed ? unpack_value(self, item, &plain, &err) : 0;
    if (!rc)
        rc = format_parse_bytes_payload(self->checkpoint->format, native_load_tensor(self, item)->fqn, plain.data,
                                        plain.len, &self->frame, &err);
    if (compressed)
        buf_release(&plain);
    if (rc && rc != CB_ERR_UNSUPPORTED) /* a kind of value that only Python knows is none of our business */
        native_load_fail_item(self, item, rc, err.message);
    else
        item->state = ITEM_DONE;
}

/* An item that was not read to its end because it failed keeps nothing. */
static int take_packed(struct native_load *self, struct load_item *item, bool *again, struct cb_err *err)
{
    int rc = item->in_window > 0 ? native_load_unpack(self, item, err) : 0;
    *again = *again || native_load_is_open(item);
    return rc;
}

int native_load_after_pass(struct native_load *self, bool *again, struct cb_err *err)
{
    int rc = 0;
    *again = false;
    for (size_t i = 0; i < self->item_count && !rc; i++) {
        struct load_item *item = &self->items[i];
        if (item->state == ITEM_FAILED)
            native_load_forget_unpacking(item);
        if (!native_load_is_open(item))
            continue;
        if (item->value)
            check_value(self, item);
        else if (native_load_is_packed(self, item))
            rc = take_packed(self, item, again, err);
        else
            *again = true;
    }
    return rc;
}
