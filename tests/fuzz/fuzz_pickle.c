/* A pickle from any bytes; what comes out is written as a literal, and that read back. */
#include <stddef.h>
#include <stdint.h>

#include "ckpt/format/literal.h"
#include "ckpt/format/pickle.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct pickle *pickle;
    struct cb_err err;
    if (pickle_read("fuzz", bytes, len, &pickle, &err))
        return 0;
    struct buf literal, again;
    buf_init(&literal, 65536);
    buf_init(&again, 65536);
    if (literal_from_pickle(pickle, pickle_root(pickle), &literal, &err) == 0)
        (void)!literal_to_pickle(literal.data, &again, &err);
    buf_release(&literal);
    buf_release(&again);
    pickle_free(pickle);
    return 0;
}
