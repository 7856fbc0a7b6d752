/* Writes DCP: stored items and .metadata.
 *
 * Called for every item of plans of up to millions of items, so it appends opcodes to memory reserved once per item,
 * and names of classes and keys are written once and then fetched from the pickle's memo. */
#include <assert.h>
#include <string.h>

#include "ckpt/format/dcp.h"
#include "ckpt/format/item_groups.h"
#include "ckpt/format/literal.h"
#include "ckpt/format/metadata_sink.h"
#include "ckpt/format/pickle.h"
#include "ckpt/format/save_id.h"
#include "ckpt/format/zip.h"
#include "core/alloc.h"

#define MAX_ITEM_PICKLE 512
#define MAX_LITERAL 65536
#define ANY_SAVE_ID 1 /* all ids have the same length */
#define PICKLE_HEAD 2 /* PROTO and its number, before the value; STOP comes after it */

static char *put(char *at, const char *text)
{
    size_t len = strlen(text);
    memcpy(at, text, len);
    return at + len;
}

/* The data.pkl of a contiguous tensor, protocol 2. Returns its length. */
static size_t tensor_pickle(const struct state_tensor *tensor, const struct region *region, char bytes[MAX_ITEM_PICKLE])
{
    const char *storage = dtype_torch_storage(tensor->dtype);
    uint64_t stride[CKPT_MAX_DIMS], elements = region_elements(region), step = 1;
    for (uint32_t i = region->dims; i-- > 0;) {
        stride[i] = step;
        step *= region->size[i] ? region->size[i] : 1;
    }
    char *at = put(bytes, storage ? "\x80\x02"
                                    "ctorch._utils\n_rebuild_tensor_v2\n((X\x07"
                                  : "\x80\x02"
                                    "ctorch._utils\n_rebuild_tensor_v3\n((X\x07");
    memcpy(at, "\0\0\0storage", 10);
    at = put(at + 10, storage ? "ctorch\n" : "ctorch.storage\n");
    at = put(at, storage ? storage : "UntypedStorage");
    memcpy(at,
           "\nX\1\0\0\0"
           "0X\3\0\0\0cpu",
           15);
    at = pickle_put_int(at + 15, storage ? elements : elements * dtype_bytes(tensor->dtype));
    memcpy(at, "tQK\0", 4); /* TUPLE, BINPERSID, storage offset 0 */
    at = pickle_put_ints(at + 4, region->size, region->dims);
    at = pickle_put_ints(at, stride, region->dims);
    at = put(at, "\x89"
                 "ccollections\nOrderedDict\n)R"); /* no gradient, no hooks */
    if (!storage)
        at = put(put(put(at, "ctorch\n"), dtype_torch_name(tensor->dtype)), "\n");
    at = put(at, "tR.");
    assert(at <= bytes + MAX_ITEM_PICKLE);
    return (size_t)(at - bytes);
}

int dcp_bytes_payload(const struct state_tensor *tensor, uint64_t save_id, struct buf *out, struct cb_err *err)
{
    if (tensor->blob) {
        char *blob = buf_extend(out, tensor->blob_bytes);
        if (blob) {
            memcpy(blob, tensor->blob, tensor->blob_bytes);
            zip_replace_save_id(blob, tensor->blob_bytes, save_id);
        }
        return buf_check(out, "a bytes item", err);
    }
    struct buf pickle;
    buf_init(&pickle, MAX_LITERAL);
    int code = literal_to_pickle(tensor->literal, &pickle, err);
    if (code) {
        cb_context(err, "%s", tensor->fqn);
        goto out;
    }
    char *at = buf_extend(out, zip_plain_bytes(pickle.len, save_id));
    code = buf_check(out, "a bytes item", err);
    if (!code)
        zip_put_plain(at, pickle.data, pickle.len, save_id);
out:
    buf_release(&pickle);
    return code;
}

static int bytes_frame(const struct state_tensor *tensor, struct item_frame *frame, struct cb_err *err)
{
    struct buf payload;
    if (tensor->blob_bytes > 0) {
        *frame = (struct item_frame){.payload_bytes = tensor->blob_bytes};
        return 0;
    }
    buf_init(&payload, 2 * MAX_LITERAL);
    int code = dcp_bytes_payload(tensor, ANY_SAVE_ID, &payload, err);
    if (!code)
        *frame = (struct item_frame){.payload_bytes = payload.len};
    buf_release(&payload);
    return code;
}

int dcp_item_frame(const struct state_tensor *tensor, const struct region *region, uint64_t item_offset,
                   uint32_t alignment, struct item_frame *frame, struct cb_err *err)
{
    if (tensor->kind == KIND_BYTES)
        return bytes_frame(tensor, frame, err);
    if (alignment == 0 || alignment > ZIP_MAX_ALIGNMENT || (alignment & (alignment - 1)) != 0)
        return cb_fail(err, CB_ERR_USAGE, "payloads cannot be aligned to %u bytes: a power of two up to %u", alignment,
                       ZIP_MAX_ALIGNMENT);
    char pickle[MAX_ITEM_PICKLE];
    size_t pickle_bytes = tensor_pickle(tensor, region, pickle);
    uint64_t payload_bytes = region_elements(region) * dtype_bytes(tensor->dtype);
    frame->header_bytes = zip_header_bytes(pickle_bytes, payload_bytes, item_offset, alignment);
    frame->payload_bytes = payload_bytes;
    frame->trailer_bytes = zip_trailer_bytes(payload_bytes);
    return 0;
}

int dcp_item_header(const struct state_tensor *tensor, const struct plan_item *item, uint64_t save_id, struct buf *out,
                    struct cb_err *err)
{
    uint64_t header_bytes = item->payload_offset - item->offset;
    if (header_bytes == 0)
        return 0; /* a bytes item */
    char pickle[MAX_ITEM_PICKLE];
    size_t pickle_bytes = tensor_pickle(tensor, &item->region, pickle);
    char *at = buf_extend(out, header_bytes);
    if (at)
        zip_put_header(at, pickle, pickle_bytes, item->payload_bytes, (uint32_t)header_bytes, save_id);
    return buf_check(out, "an item's header", err);
}

int dcp_item_trailer(const struct state_tensor *tensor, const struct plan_item *item, uint64_t save_id, uint32_t crc,
                     struct buf *out, struct cb_err *err)
{
    uint64_t header_bytes = item->payload_offset - item->offset;
    if (header_bytes == 0)
        return 0;
    char pickle[MAX_ITEM_PICKLE];
    size_t pickle_bytes = tensor_pickle(tensor, &item->region, pickle);
    char *at = buf_extend(out, zip_trailer_bytes(item->payload_bytes));
    if (at)
        zip_put_trailer(at, pickle, pickle_bytes, item->payload_bytes, (uint32_t)header_bytes, crc, save_id);
    return buf_check(out, "an item's trailer", err);
}

bool dcp_expect_payload(const struct stored_tensor *tensor, const struct region *region, uint64_t item_length,
                        struct stored_payload *payload)
{
    uint64_t bytes = region_elements(region) * dtype_bytes(tensor->dtype), trailer = zip_trailer_bytes(bytes);
    if (tensor->is_bytes || item_length < bytes || item_length - bytes <= trailer)
        return false;
    *payload = (struct stored_payload){
        .offset = item_length - bytes - trailer, .bytes = bytes, .contiguous = true, .whole = true};
    uint64_t step = 1;
    for (uint32_t i = region->dims; i-- > 0;) {
        payload->stride[i] = step;
        step *= region->size[i] ? region->size[i] : 1;
    }
    return true;
}

/* --- .metadata --- */

/* Texts that come again and again: written and memoized at the first use. Classes are pushed by module and name. */
enum constant {
    C_MODULE_METADATA,
    C_MODULE_TORCH,
    K_PROPERTIES,
    K_SIZE,
    K_CHUNKS,
    K_OFFSETS,
    K_SIZES,
    K_FQN,
    K_INDEX,
    K_OFFSET,
    K_RELATIVE_PATH,
    K_LENGTH,
    P_MODEL,
    P_OPTIMIZER,
    P_STATE,
    P_PARAM_GROUPS,
    P_TRAIN,
    P_MASTER,
    P_EXP_AVG,
    P_EXP_AVG_SQ,
    CONSTANT_TEXTS,
    G_TENSOR = CONSTANT_TEXTS,
    G_PROPERTIES,
    G_BYTES,
    G_CHUNK,
    G_INDEX,
    G_INFO,
    G_TORCH_SIZE,
    CONSTANT_COUNT,
};

static const char *const constant_text[CONSTANT_COUNT] = {
    [C_MODULE_METADATA] = "torch.distributed.checkpoint.metadata",
    [C_MODULE_TORCH] = "torch",
    [K_PROPERTIES] = "properties",
    [K_SIZE] = "size",
    [K_CHUNKS] = "chunks",
    [K_OFFSETS] = "offsets",
    [K_SIZES] = "sizes",
    [K_FQN] = "fqn",
    [K_INDEX] = "index",
    [K_OFFSET] = "offset",
    [K_RELATIVE_PATH] = "relative_path",
    [K_LENGTH] = "length",
    [P_MODEL] = "model",
    [P_OPTIMIZER] = "optimizer",
    [P_STATE] = "state",
    [P_PARAM_GROUPS] = "param_groups",
    [P_TRAIN] = "train",
    [P_MASTER] = "master",
    [P_EXP_AVG] = "exp_avg",
    [P_EXP_AVG_SQ] = "exp_avg_sq",
    [G_TENSOR] = "TensorStorageMetadata",
    [G_PROPERTIES] = "TensorProperties",
    [G_BYTES] = "BytesStorageMetadata",
    [G_CHUNK] = "ChunkStorageMetadata",
    [G_INDEX] = "MetadataIndex",
    [G_INFO] = "_StorageInfo",
    [G_TORCH_SIZE] = "Size",
};

#define NOT_YET UINT32_MAX
#define FLUSH_BYTES ((size_t)1 << 20)    /* passed to the sink at once */
#define MOST_BUFFERED (64 * FLUSH_BYTES) /* a name or a path can be long */
#define WIDE_MEMO 256                    /* memo numbers from this one on have equally long opcodes */
#define BATCH 1000                       /* pairs between MARK and SETITEMS, as Python does */

struct writer {
    struct metadata_sink *sink;
    struct buf out; /* not yet passed to the sink */
    char *at;       /* in memory reserved in `out` */
    const struct layout *layout;
    const struct plan *plan;
    uint32_t memo_count;
    uint32_t constants[CONSTANT_COUNT]; /* memo of each */
    uint32_t properties[DTYPE_COUNT];   /* memo of the state of TensorProperties */
    uint32_t layout_memo, format_memo;  /* torch.strided and the memory format */
    uint32_t *fqns, *files;             /* memo of each tensor's name and file's name */
    size_t files_known;                 /* files that have a memo … */
    uint32_t first_file;                /* … and the first of them */
    struct item_groups groups;
    int code; /* of the first failure */
    struct cb_err *err;
};

static bool select_tensor(struct writer *self, uint32_t tensor)
{
    /* The length of a file's memo depends on the order of the first 256. */
    self->groups.any_order =
        !self->sink->write && self->plan->options.dedup != DEDUP_NONE && self->memo_count >= WIDE_MEMO;
    if (!self->code)
        self->code = item_groups_select(&self->groups, tensor, self->err);
    return self->code == 0;
}

static void flush(struct writer *self)
{
    if (!self->code)
        self->code = buf_check(&self->out, "the metadata of the checkpoint", self->err);
    if (!self->code)
        self->code = metadata_sink_put(self->sink, self->out.data, self->out.len, self->err);
    buf_clear(&self->out);
}

/* Reserves `bytes`; done() returns the unused rest. */
static bool reserve(struct writer *self, size_t bytes)
{
    if (self->out.len >= FLUSH_BYTES)
        flush(self);
    self->at = self->code ? NULL : buf_extend(&self->out, bytes);
    return self->at != NULL;
}

static void done(struct writer *self)
{
    self->out.len = (size_t)(self->at - self->out.data);
}

static void op(struct writer *self, const char *opcodes)
{
    self->at = put(self->at, opcodes);
}

static void memoize(struct writer *self, uint32_t *memo)
{
    *self->at++ = '\x94';
    *memo = self->memo_count++;
}

static void push_text(struct writer *self, const char *text)
{
    self->at = pickle_put_text(self->at, text, strlen(text));
}

/* A text, or a class of torch or of the metadata module; by its memo once it has been written. */
static void push(struct writer *self, enum constant constant)
{
    uint32_t *memo = &self->constants[constant];
    if (*memo != NOT_YET) {
        self->at = pickle_put_get(self->at, *memo);
        return;
    }
    if (constant >= CONSTANT_TEXTS) {
        if (constant == G_INFO)
            push_text(self, "torch.distributed.checkpoint.filesystem");
        else
            push(self, constant == G_TORCH_SIZE ? C_MODULE_TORCH : C_MODULE_METADATA);
    }
    push_text(self, constant_text[constant]);
    if (constant >= CONSTANT_TEXTS)
        op(self, "\x93"); /* STACK_GLOBAL */
    memoize(self, memo);
}

static void push_fqn(struct writer *self, uint32_t tensor)
{
    if (self->fqns[tensor] != NOT_YET) {
        self->at = pickle_put_get(self->at, self->fqns[tensor]);
        return;
    }
    push_text(self, layout_tensor(self->layout, tensor)->fqn);
    memoize(self, &self->fqns[tensor]);
}

static void push_size(struct writer *self, const uint64_t *values, uint32_t dims)
{
    push(self, G_TORCH_SIZE);
    self->at = pickle_put_ints(self->at, values, dims);
    op(self, "\x85R"); /* TUPLE1 REDUCE */
}

static void push_properties(struct writer *self, enum dtype dtype)
{
    push(self, G_PROPERTIES);
    op(self, ")\x81");
    if (self->properties[dtype] != NOT_YET) {
        self->at = pickle_put_get(self->at, self->properties[dtype]);
        op(self, "b");
        return;
    }
    op(self, "(");
    push(self, C_MODULE_TORCH);
    push_text(self, dtype_torch_name(dtype));
    op(self, "\x93");
    if (self->layout_memo == NOT_YET) {
        push_text(self, "torch.serialization");
        push_text(self, "_get_layout");
        op(self, "\x93");
        push_text(self, "torch.strided");
        op(self, "\x85R");
        memoize(self, &self->layout_memo);
        op(self, "\x89"); /* requires_grad */
        push(self, C_MODULE_METADATA);
        push_text(self, "_MEM_FORMAT_ENCODING");
        *self->at++ = '\x93';
        memcpy(self->at, "K\0\x85R", 4);
        self->at += 4;
        memoize(self, &self->format_memo);
    } else {
        self->at = pickle_put_get(self->at, self->layout_memo);
        op(self, "\x89");
        self->at = pickle_put_get(self->at, self->format_memo);
    }
    op(self, "\x89t"); /* pin_memory */
    memoize(self, &self->properties[dtype]);
    op(self, "b");
}

static void push_chunk(struct writer *self, const struct region *region)
{
    push(self, G_CHUNK);
    op(self, ")\x81}(");
    push(self, K_OFFSETS);
    push_size(self, region->offset, region->dims);
    push(self, K_SIZES);
    push_size(self, region->size, region->dims);
    op(self, "ub");
}

#define TENSOR_ROOM 1200 /* bytes of opcodes except names, including the first use of every constant */
#define CHUNK_ROOM 600

static size_t int_bytes(uint64_t value)
{
    char bytes[PICKLE_INT_MAX];
    return (size_t)(pickle_put_int(bytes, value) - bytes);
}

/* While metadata is only measured: how many items of the span, from `first` on, have entries of the same length. Rows,
 * offsets and numbers ascend, and so do the lengths of these integers. When writing: 1. */
static uint32_t count_alike(const struct writer *self, const struct item_span *span, uint32_t first, uint64_t number)
{
    uint32_t low = first, high = span->count;
    if (self->sink->write || first == 0) /* the first item also writes names */
        return 1;
    struct plan_item item = item_span_at(self->plan, span, first);
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        struct plan_item other = item_span_at(self->plan, span, middle);
        bool same = int_bytes(item.region.offset[0]) == int_bytes(other.region.offset[0]) &&
                    int_bytes(item.offset) == int_bytes(other.offset) &&
                    int_bytes(number) == int_bytes(number + middle - first);
        if (same)
            low = middle;
        else
            high = middle;
    }
    return low - first + 1;
}

static uint64_t position(const struct writer *self)
{
    return self->sink->bytes + self->out.len;
}

static void write_chunks(struct writer *self, const struct item_span *span)
{
    uint32_t alike;
    for (uint32_t k = 0; k < span->count; k += alike) {
        struct plan_item item = item_span_at(self->plan, span, k);
        alike = count_alike(self, span, k, 0);
        uint64_t begin = position(self);
        if (!reserve(self, CHUNK_ROOM))
            return;
        push_chunk(self, &item.region);
        done(self);
        self->sink->bytes += (alike - 1) * (position(self) - begin);
    }
}

static void write_tensor(struct writer *self, uint32_t index)
{
    const struct state_tensor *tensor = layout_tensor(self->layout, index);
    if (!reserve(self, TENSOR_ROOM + strlen(tensor->fqn)))
        return;
    push_fqn(self, index);
    if (tensor->kind == KIND_BYTES) {
        push(self, G_BYTES);
        op(self, ")\x81");
        done(self);
        return;
    }
    push(self, G_TENSOR);
    op(self, ")\x81}(");
    push(self, K_PROPERTIES);
    push_properties(self, tensor->dtype);
    push(self, K_SIZE);
    push_size(self, tensor->shape, tensor->dims);
    push(self, K_CHUNKS);
    op(self, "](");
    done(self);
    for (size_t i = 0; i < self->groups.span_count; i++)
        write_chunks(self, &self->groups.spans[i]);
    if (!reserve(self, 8))
        return;
    op(self, "eub");
    done(self);
}

static void write_index_and_info(struct writer *self, uint32_t tensor, uint32_t number, const struct plan_item *item)
{
    char file[PLAN_NAME_BYTES] = "";
    if (self->files[item->file] == NOT_YET)
        plan_file_name(self->plan, item->file, file);
    if (!reserve(self, CHUNK_ROOM + TENSOR_ROOM + strlen(file)))
        return;
    push(self, G_INDEX);
    op(self, ")\x81}(");
    push(self, K_FQN);
    push_fqn(self, tensor);
    push(self, K_INDEX);
    if (layout_tensor(self->layout, tensor)->kind == KIND_BYTES) {
        op(self, "N");
    } else {
        self->at = pickle_put_int(self->at, number);
        push(self, K_OFFSET);
        push_size(self, item->region.offset, item->region.dims);
    }
    op(self, "ub");
    push(self, G_INFO);
    op(self, ")\x81}(");
    push(self, K_RELATIVE_PATH);
    if (self->files[item->file] == NOT_YET) {
        push_text(self, file);
        memoize(self, &self->files[item->file]);
        if (self->files_known++ == 0)
            self->first_file = self->files[item->file];
    } else {
        self->at = pickle_put_get(self->at, self->files[item->file]);
    }
    push(self, K_OFFSET);
    self->at = pickle_put_int(self->at, item->offset);
    push(self, K_LENGTH);
    self->at = pickle_put_int(self->at, item->length);
    op(self, "ub");
    done(self);
}

/* A component of a path: a number if it may be the index of a list, else a memoized constant or a text. */
static void push_component(struct writer *self, const char *text, size_t len, bool may_be_index)
{
    if (may_be_index && len > 0 && len < 10 && strspn(text, "0123456789") >= len) {
        self->at = pickle_put_int(self->at, strtoull(text, NULL, 10));
        return;
    }
    for (enum constant c = P_MODEL; c <= P_EXP_AVG_SQ; c++) {
        if (strlen(constant_text[c]) == len && memcmp(constant_text[c], text, len) == 0) {
            push(self, c);
            return;
        }
    }
    self->at = pickle_put_text(self->at, text, len);
}

/* The keys as the source checkpoint had them: its literal, without the pickle around it. */
static void write_given_path(struct writer *self, const char *path)
{
    struct buf pickle;
    buf_init(&pickle, MAX_LITERAL * 8);
    if (literal_to_pickle(path, &pickle, NULL) == 0)
        buf_append(&self->out, pickle.data + PICKLE_HEAD, pickle.len - PICKLE_HEAD - 1);
    else
        self->out.code = CB_ERR_MEMORY;
    buf_release(&pickle);
}

/* The keys that lead to a value in the nested dict: {"model": {name: …}, "optimizer": {"state": {name: {"exp_avg":
 * …}}, "param_groups": {…}}, "train": {…}}. */
static void write_path(struct writer *self, uint32_t tensor)
{
    const char *fqn = layout_tensor(self->layout, tensor)->fqn, *rest = fqn;
    if (!reserve(self, TENSOR_ROOM + 2 * strlen(fqn)))
        return;
    push_fqn(self, tensor);
    if (layout_tensor(self->layout, tensor)->path) {
        done(self);
        write_given_path(self, layout_tensor(self->layout, tensor)->path);
        return;
    }
    op(self, "(");
    static const struct {
        const char *prefix;
        int components;
    } prefixes[] = {{"model.", 1}, {"train.", 1}, {"optimizer.state.", 2}, {"optimizer.param_groups.", 2}};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        if (strncmp(fqn, prefixes[i].prefix, strlen(prefixes[i].prefix)) != 0)
            continue;
        for (int k = 0; k < prefixes[i].components; k++) {
            size_t len = strcspn(rest, ".");
            push_component(self, rest, len, false);
            rest += len + 1;
        }
        const char *last = strrchr(rest, '.');
        if (prefixes[i].components == 2 && last) { /* (name or index of the group, key within it) */
            push_component(self, rest, (size_t)(last - rest), true);
            rest = last + 1;
        }
        break;
    }
    push_component(self, rest, strlen(rest), false);
    op(self, "t");
    done(self);
}

static void write_opcodes(struct writer *self, const char *opcodes)
{
    buf_append_text(&self->out, opcodes);
}

static void write_key(struct writer *self, const char *key)
{
    if (!reserve(self, strlen(key) + PICKLE_TEXT_OVERHEAD))
        return;
    push_text(self, key);
    done(self);
}

/* Counts more pairs; closes a full batch of them and opens the next. */
static void batch(struct writer *self, uint64_t *pairs, uint32_t more)
{
    uint64_t full = (*pairs + more) / BATCH - *pairs / BATCH;
    *pairs += more;
    if (full > 0)
        write_opcodes(self, "u(");
    if (full > 1) /* only while measuring */
        self->sink->bytes += 2 * (full - 1);
}

/* Where the items of the selected tensor are. */
static void write_places(struct writer *self, uint32_t tensor, uint64_t *pairs)
{
    uint32_t number = 0, alike;
    for (size_t i = 0; i < self->groups.span_count; i++) {
        const struct item_span *span = &self->groups.spans[i];
        for (uint32_t k = 0; k < span->count && !self->code; k += alike, number += alike) {
            struct plan_item item = item_span_at(self->plan, span, k);
            bool names_alike = self->files_known == self->plan->file_count && self->first_file >= WIDE_MEMO;
            alike = names_alike ? count_alike(self, span, k, number) : 1;
            uint64_t begin = position(self);
            write_index_and_info(self, tensor, number, &item);
            self->sink->bytes += (alike - 1) * (position(self) - begin);
            batch(self, pairs, alike);
        }
    }
}

static void write_storage_meta(struct writer *self, const char *checkpoint_id, uint64_t save_id)
{
    char text[SAVE_ID_TEXT_BYTES];
    save_id_format(save_id, text);
    write_key(self, "storage_meta");
    if (!reserve(self, TENSOR_ROOM + strlen(checkpoint_id)))
        return;
    push(self, C_MODULE_METADATA);
    push_text(self, "StorageMeta");
    op(self, "\x93)\x81}(");
    push_text(self, "checkpoint_id");
    push_text(self, checkpoint_id); /* a text: a pickled Path is another class in Python 3.13 */
    push_text(self, "save_id");     /* PyTorch stores a UUID here, and never reads it */
    if (save_id)
        push_text(self, text);
    else
        op(self, "N");
    push_text(self, "load_id");
    op(self, "N");
    push_text(self, "modules");
    op(self, "]ub");
    done(self);
}

static void write_all(struct writer *self, const char *checkpoint_id, uint64_t save_id)
{
    size_t tensors = layout_tensor_count(self->layout);
    uint64_t pairs = 0;
    if (!reserve(self, TENSOR_ROOM))
        return;
    op(self, "\x80\x04");
    push(self, C_MODULE_METADATA);
    push_text(self, "Metadata");
    op(self, "\x93)\x81}(");
    push_text(self, "state_dict_metadata");
    op(self, "}(");
    done(self);
    for (uint32_t i = 0; i < tensors && select_tensor(self, i); i++) {
        write_tensor(self, i);
        batch(self, &pairs, 1);
    }
    write_opcodes(self, "u");
    write_key(self, "planner_data");
    write_opcodes(self, "}(");
    for (uint32_t i = 0; i < tensors; i++) {
        write_path(self, i);
        batch(self, &pairs, 1);
    }
    write_opcodes(self, "u");
    write_key(self, "storage_data");
    write_opcodes(self, "}(");
    for (uint32_t i = 0; i < tensors && select_tensor(self, i); i++)
        write_places(self, i, &pairs);
    write_opcodes(self, "u");
    write_storage_meta(self, checkpoint_id, save_id);
    write_key(self, "version");
    write_key(self, "1.0.0");
    write_opcodes(self, "ub.");
}

int dcp_write_metadata(const struct layout *layout, const struct plan *plan, const char *checkpoint_id,
                       uint64_t save_id, struct metadata_sink *sink, struct cb_err *err)
{
    size_t tensors = layout_tensor_count(layout);
    struct writer writer = {
        .sink = sink, .layout = layout, .plan = plan, .layout_memo = NOT_YET, .format_memo = NOT_YET, .err = err};
    memset(writer.constants, 0xff, sizeof writer.constants);
    memset(writer.properties, 0xff, sizeof writer.properties);
    int code = 0;
    buf_init(&writer.out, MOST_BUFFERED);
    writer.fqns = malloc((tensors + 1) * sizeof *writer.fqns);
    writer.files = malloc((plan->file_count + 1) * sizeof *writer.files);
    if (!writer.fqns || !writer.files) {
        code = alloc_fail(err, "for the metadata of %zu items", plan->item_count);
        goto out;
    }
    code = item_groups_init(&writer.groups, plan, tensors, err);
    if (code)
        goto out;
    memset(writer.fqns, 0xff, tensors * sizeof *writer.fqns);
    memset(writer.files, 0xff, plan->file_count * sizeof *writer.files);
    write_all(&writer, checkpoint_id, save_id);
    flush(&writer);
    code = writer.code;
out:
    buf_release(&writer.out);
    free(writer.fqns);
    free(writer.files);
    item_groups_release(&writer.groups);
    return code;
}
