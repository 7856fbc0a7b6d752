/* The key of a plan: everything that determines it, serialised and hashed. The assertions here fail to compile when a
 * struct grows, so that no member is forgotten. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/format/format.h"
#include "ckpt/plan/plan_internal.h"
#include "core/buf.h"
#include "core/hash.h"

#define KEY_VERSION 2
#define KEY_MAX_BYTES (UINT64_C(4) * 1024 * 1024 * 1024)

/* A new member must be hashed, or be shown here not to affect plans. */
static_assert(sizeof(struct plan_options) == 540, "a new option of plans belongs into the key");
static_assert(sizeof(struct mesh) == 136, "a new member of the mesh belongs into the key");

static void put(struct buf *out, uint64_t value)
{
    buf_append(out, &value, sizeof value);
}

static void put_text(struct buf *out, const char *text)
{
    size_t len = strlen(text);
    put(out, len);
    buf_append(out, text, len);
}

static int put_tensor(struct buf *out, const struct state_tensor *tensor, const struct plan_options *options,
                      struct cb_err *err)
{
    put_text(out, tensor->fqn);
    put(out, tensor->kind);
    put(out, tensor->dtype);
    put(out, tensor->model_tensor);
    put(out, tensor->file_group);
    put(out, tensor->owner);
    put(out, tensor->dims);
    buf_append(out, tensor->shape, tensor->dims * sizeof *tensor->shape);
    if (tensor->kind != KIND_BYTES)
        return 0;
    /* The value of a small object may change between saves; its length determines offsets. In safetensors the value
     * is in a file's header. */
    if (!format_has_checksums(options->format))
        put_text(out, tensor->literal);
    struct region region = {.dims = 0};
    struct item_frame frame;
    int rc = format_item_frame(options->format, tensor, &region, 0, options->payload_alignment, &frame, err);
    if (!rc) {
        put(out, frame.header_bytes);
        put(out, frame.payload_bytes);
        put(out, frame.trailer_bytes);
    }
    return rc;
}

static void put_cells(struct buf *out, const struct cell *cells, size_t count, bool ranges)
{
    put(out, cells ? count : 0);
    for (size_t i = 0; cells && i < count; i++) {
        put(out, cells[i].count);
        put(out, cells[i].elements);
        for (size_t k = 0; k < cells[i].count; k++) {
            const struct local *local = &cells[i].locals[k];
            put(out, local->tensor);
            put(out, local->region.dims);
            buf_append(out, local->region.offset, local->region.dims * sizeof *local->region.offset);
            buf_append(out, local->region.size, local->region.dims * sizeof *local->region.size);
            put(out, local->begin);
            put(out, local->row_begin);
            put(out, local->rows);
            put(out, local->tp_first);
            put(out, local->tp_count);
            if (ranges) {
                put(out, local->range.begin);
                put(out, local->range.elements);
            }
        }
    }
}

static void put_boxes(struct buf *out, const struct layout *layout)
{
    put(out, layout->box_count);
    for (size_t i = 0; i < layout->box_count; i++) {
        const struct box *box = &layout->boxes[i];
        put(out, box->tensor);
        put(out, box->region.dims);
        buf_append(out, box->region.offset, box->region.dims * sizeof *box->region.offset);
        buf_append(out, box->region.size, box->region.dims * sizeof *box->region.size);
        put(out, box->first_holder);
        put(out, box->holder_count);
    }
    buf_append(out, layout->holders, layout->holder_count * sizeof *layout->holders);
}

static void put_mesh(struct buf *out, const struct mesh *mesh)
{
    put(out, mesh->count);
    for (size_t i = 0; i < mesh->count; i++) {
        put_text(out, mesh->axes[i].name);
        put(out, mesh->axes[i].size);
        put(out, mesh->roles[i]);
    }
    for (size_t role = 0; role < AXIS_ROLES; role++) {
        put(out, mesh->size[role]);
        put(out, mesh->stride[role]);
    }
    put(out, mesh->world_size);
    put(out, mesh->zero);
}

int plan_key_of(const struct layout *layout, const struct plan_options *options, struct plan_key *key,
                struct cb_err *err)
{
    struct buf out;
    int rc = 0;
    buf_init(&out, KEY_MAX_BYTES);
    put(&out, KEY_VERSION);
    put(&out, options->dedup);
    put(&out, options->format);
    put(&out, options->files);
    put(&out, options->files_per_rank);
    put(&out, options->fanout);
    put(&out, options->prefix);
    put_text(&out, options->prefixes);
    put(&out, options->payload_alignment);
    put_mesh(&out, &layout->mesh);
    put(&out, layout->tensor_count);
    for (size_t i = 0; i < layout->tensor_count && !rc; i++)
        rc = put_tensor(&out, &layout->tensors[i], options, err);
    for (size_t kind = 0; kind < LAYOUT_KINDS; kind++)
        put(&out, layout->placement[kind]);
    size_t cells = (size_t)layout->mesh.size[AXIS_PP] * layout->mesh.size[AXIS_TP];
    bool ranges = layout->placement[KIND_WEIGHT] == PLACE_RANGES;
    put_cells(&out, layout->dense, cells, ranges);
    put_cells(&out, layout->experts, cells * layout->mesh.size[AXIS_EP], ranges);
    put_boxes(&out, layout);
    put(&out, layout->row_first);
    put(&out, layout->row_count);
    put(&out, layout->row_elements);
    if (!rc)
        rc = buf_check(&out, "the key of a plan", err);
    if (!rc) {
        hash_sha256_hex(out.data, out.len, key->hex);
        char digits[17] = "";
        memcpy(digits, key->hex, sizeof digits - 1);
        key->number = strtoull(digits, NULL, 16);
    }
    buf_release(&out);
    return rc;
}

bool plan_key_equal(const struct plan_key *a, const struct plan_key *b)
{
    return memcmp(a->hex, b->hex, sizeof a->hex) == 0;
}
