/* Chooses the item of each file whose first bytes have the save id. */
#include "ckpt/stored/save_places.h"

#include "ckpt/format/format_ops.h"
#include "ckpt/format/save_id.h"
#include "core/alloc.h"

/* Prefers a tensor to a value, which may be another program's; else takes the first item. */
static bool is_better(const struct save_place *place, const struct stored_chunk *chunk, bool is_value)
{
    if (place->bytes == 0 || place->is_value != is_value)
        return place->bytes == 0 || place->is_value;
    return chunk->offset < place->offset;
}

int save_places_of(const struct stored_checkpoint *checkpoint, struct save_place **places, struct cb_err *err)
{
    struct save_place *made = calloc(checkpoint->file_count + 1, sizeof *made);
    bool has_header = format_ops_of(checkpoint->format)->has_file_headers;
    if (!made)
        return alloc_fail(err, "for %zu files", checkpoint->file_count);
    *places = made;
    if (!checkpoint->save_id)
        return 0;
    for (size_t i = 0; i < checkpoint->file_count && has_header; i++)
        made[i] = (struct save_place){.bytes = SAVE_ID_FRONT_BYTES};
    for (size_t i = 0; i < checkpoint->chunk_count && !has_header; i++) {
        const struct stored_chunk *chunk = &checkpoint->chunks[i];
        struct save_place *place = &made[chunk->file];
        bool is_value = checkpoint->tensors[chunk->tensor].is_bytes;
        uint64_t bytes = chunk->length < SAVE_ID_FRONT_BYTES ? chunk->length : SAVE_ID_FRONT_BYTES;
        if (!chunk->compressed && bytes > 0 && is_better(place, chunk, is_value))
            *place = (struct save_place){chunk->offset, (uint32_t)bytes, is_value};
    }
    return 0;
}
