/* A literal from any text; what is accepted comes back from its pickle, and that literal is stable. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/format/literal.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

/* The literal that a pickle of ours gives. */
static void read_back(const struct buf *pickled, struct buf *literal)
{
    struct pickle *pickle;
    struct cb_err err;
    if (pickle_read("fuzz", pickled->data, pickled->len, &pickle, &err) ||
        literal_from_pickle(pickle, pickle_root(pickle), literal, &err))
        abort();
    pickle_free(pickle);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct buf first, second, pickled, again;
    struct cb_err err = {0};
    char *text = malloc(len + 1);
    if (!text)
        abort();
    memcpy(text, bytes, len);
    text[len] = '\0';
    buf_init(&first, 1u << 20);
    buf_init(&second, 1u << 20);
    buf_init(&pickled, 1u << 20);
    buf_init(&again, 1u << 20);
    if (literal_to_pickle(text, &pickled, &err) == 0) {
        read_back(&pickled, &first);
        if (literal_to_pickle(first.data, &again, &err))
            abort();
        read_back(&again, &second);
        if (strcmp(first.data, second.data) != 0)
            abort();
    } else if (err.message[0] == '\0') {
        abort();
    }
    buf_release(&first);
    buf_release(&second);
    buf_release(&pickled);
    buf_release(&again);
    free(text);
    return 0;
}
