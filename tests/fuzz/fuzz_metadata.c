/* The metadata file of a checkpoint, DCP or raw, from any bytes; what is accepted must be safe to use, and the same where it
 * is read in pieces and values are dropped in between, and where it is passed on in blocks, of which a rank needs some. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "ckpt/format/format.h"
#include "ckpt/stored/stored_blocks.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

struct input {
    const uint8_t *bytes;
};

static int read_piece(void *context, uint64_t offset, void *memory, uint64_t bytes, struct cb_err *err)
{
    (void)err;
    memcpy(memory, ((const struct input *)context)->bytes + offset, bytes);
    return 0;
}

static int read_in_pieces(const uint8_t *bytes, size_t len, struct stored_checkpoint **checkpoint)
{
    struct cb_err err;
    struct input input = {bytes};
    struct byte_source source = {.len = len, .read = read_piece, .context = &input};
    struct stored_collector collector = {.name = "fuzz"};
    struct stored_sink sink = stored_collector_sink(&collector);
    int code = format_pass_metadata("fuzz", &source, &sink, &err);
    if (!code)
        code = stored_collector_take(&collector, checkpoint, &err);
    stored_collector_release(&collector);
    return code;
}

static int receive(void *context, const void *block, size_t len, struct cb_err *err)
{
    return stored_block_read(context, block, len, err);
}

static int read_in_blocks(const uint8_t *bytes, size_t len, stored_need_fn need, struct stored_checkpoint **checkpoint)
{
    struct cb_err err;
    struct byte_source source = byte_source_of(bytes, len);
    struct stored_receiver receiver = {.collector = {.name = "fuzz", .need = need}};
    struct stored_sender sender = {.put = receive, .context = &receiver};
    stored_sender_init(&sender);
    struct stored_sink sink = stored_sender_sink(&sender);
    int code = format_pass_metadata("fuzz", &source, &sink, &err);
    if (!code)
        code = stored_collector_take(&receiver.collector, checkpoint, &err);
    stored_collector_release(&receiver.collector);
    stored_sender_release(&sender);
    return code;
}

static bool is_needed(void *context, const struct stored_tensor *tensor, const struct region *box)
{
    (void)context, (void)box;
    return strlen(tensor->fqn) % 2;
}

static void compare_chunks(const struct stored_checkpoint *a, const struct stored_tensor *x,
                           const struct stored_checkpoint *b, const struct stored_tensor *y)
{
    if (x->chunk_count != y->chunk_count)
        __builtin_trap();
    for (uint32_t i = 0; i < x->chunk_count; i++) {
        const struct stored_chunk *one = &a->chunks[x->first_chunk + i], *other = &b->chunks[y->first_chunk + i];
        if (one->offset != other->offset || one->length != other->length ||
            region_compare(&one->region, &other->region) != 0 ||
            strcmp(a->files[one->file], b->files[other->file]) != 0)
            __builtin_trap();
    }
}

/* Damage in what is not needed may pass. */
static void compare_blocks(const uint8_t *bytes, size_t len, const struct stored_checkpoint *whole, stored_need_fn need)
{
    struct stored_checkpoint *part;
    if (read_in_blocks(bytes, len, need, &part)) {
        if (whole)
            __builtin_trap();
        return;
    }
    if (!whole && !need)
        __builtin_trap();
    for (size_t i = 0; whole && i < whole->tensor_count; i++) {
        const struct stored_tensor *x = &whole->tensors[i], *y = &part->tensors[i];
        if (strcmp(x->fqn, y->fqn) != 0)
            __builtin_trap();
        if (!need || need(NULL, x, NULL))
            compare_chunks(whole, x, part, y);
        else if (y->chunk_count)
            __builtin_trap();
    }
    stored_checkpoint_free(part);
}

/* Only a text that is longer than a piece may make a difference. */
static void compare(const uint8_t *bytes, size_t len, const struct stored_checkpoint *whole)
{
    struct stored_checkpoint *checkpoint;
    if (read_in_pieces(bytes, len, &checkpoint)) {
        if (whole && len <= BYTE_PIECE)
            __builtin_trap();
        return;
    }
    if (!whole || whole->tensor_count != checkpoint->tensor_count || whole->chunk_count != checkpoint->chunk_count ||
        whole->file_count != checkpoint->file_count)
        __builtin_trap();
    for (size_t i = 0; i < whole->tensor_count; i++)
        if (strcmp(whole->tensors[i].fqn, checkpoint->tensors[i].fqn) != 0)
            __builtin_trap();
    for (size_t i = 0; i < whole->chunk_count; i++)
        if (whole->chunks[i].offset != checkpoint->chunks[i].offset ||
            strcmp(whole->files[whole->chunks[i].file], checkpoint->files[checkpoint->chunks[i].file]) != 0)
            __builtin_trap();
    stored_checkpoint_free(checkpoint);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct stored_checkpoint *checkpoint;
    struct cb_err err;
    bool is_accepted = format_read_metadata("fuzz", bytes, len, &checkpoint, &err) == 0;
    compare(bytes, len, is_accepted ? checkpoint : NULL);
    compare_blocks(bytes, len, is_accepted ? checkpoint : NULL, NULL);
    compare_blocks(bytes, len, is_accepted ? checkpoint : NULL, is_needed);
    if (!is_accepted)
        return 0;
    for (size_t i = 0; i < checkpoint->tensor_count; i++) {
        const struct stored_tensor *tensor = &checkpoint->tensors[i];
        if (stored_checkpoint_find(checkpoint, tensor->fqn) != tensor)
            __builtin_trap();
        struct region whole = region_whole(tensor->dims, tensor->shape);
        for (uint32_t k = 0; k < tensor->chunk_count; k++) {
            const struct stored_chunk *chunk = &checkpoint->chunks[tensor->first_chunk + k];
            if (chunk->tensor != i || chunk->file >= checkpoint->file_count || !region_contains(&whole, &chunk->region))
                __builtin_trap();
            const char *file = checkpoint->files[chunk->file]; /* "a.../b" is a name like others */
            if (strncmp(file, "../", 3) == 0 || strstr(file, "/../") || file[0] == '/')
                __builtin_trap();
        }
    }
    stored_checkpoint_free(checkpoint);
    return 0;
}
