/* Publishes an object piece by piece: "publish_pieces STORE NAME BYTES PIECE [FAIL_AFTER]". Its bytes are a u32 that
 * counts its own place, little-endian. s3.part is 5 MiB. With FAIL_AFTER there are no more bytes after so many. Prints how
 * many bytes of memory the process needed more than before; fails as the publishing does, with its message. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "store/s3/s3_options.h"
#include "store/store.h"

struct counted {
    uint64_t bytes, piece, fail_after;
};

static int pass(void *context, store_put_fn put, void *to, struct cb_err *err)
{
    const struct counted *self = context;
    unsigned char *memory = malloc(self->piece);
    int rc = memory ? 0 : cb_fail(err, CB_ERR_MEMORY, "no memory");
    for (uint64_t at = 0; at < self->bytes && !rc; at += self->piece) {
        uint64_t len = self->bytes - at < self->piece ? self->bytes - at : self->piece;
        for (uint64_t i = 0; i < len; i++)
            memory[i] = (unsigned char)((at + i) / 4 >> (at + i) % 4 * 8);
        rc = self->fail_after > 0 && at >= self->fail_after ? cb_fail(err, CB_ERR_FORMAT, "there are no more bytes")
                                                            : put(to, memory, len, err);
    }
    free(memory);
    return rc;
}

/* Not by getrusage, which begins with what the parent had. */
static uint64_t most_memory(void)
{
    char line[256];
    unsigned long kib = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file) && sscanf(line, "VmHWM: %lu", &kib) != 1)
        ;
    if (file)
        fclose(file);
    return kib * UINT64_C(1024);
}

int main(int argc, char **argv)
{
    struct s3_options s3 = s3_options_default;
    const struct store_options options = {.depth = 8, .direct = STORE_DIRECT_NO, .durable = true, .s3 = &s3};
    struct store *store;
    struct cb_err err;
    if (argc < 5)
        return 2;
    s3.part_bytes = S3_MIN_PART_BYTES;
    s3.deadline_ns = UINT64_C(20000000000);
    struct counted counted = {strtoull(argv[3], NULL, 10), strtoull(argv[4], NULL, 10),
                              argc > 5 ? strtoull(argv[5], NULL, 10) : 0};
    int rc = store_open(argv[1], &options, &store, &err);
    if (!rc) {
        uint64_t before = most_memory();
        rc = store_publish_pieces(store, argv[2], pass, &counted, &err);
        printf("%" PRIu64 "\n", most_memory() - before);
        store_free(store);
    }
    if (rc)
        fprintf(stderr, "%s\n", err.message);
    return rc ? 1 : 0;
}
