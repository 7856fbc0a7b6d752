/* Decompression by zstd: as a whole, or following one item. */
#include "ckpt/stored/unpack.h"

#include <stdlib.h>
#include <string.h>

#include "core/hash.h"

#define STEP_BYTES ((size_t)1 << 20)
/* Limit of the bytes around a payload: PyTorch's own, and gaps that strides may leave. */
#define FRAME_BYTES (UINT64_C(64) << 20)

#ifdef HAVE_ZSTD
#include <zstd.h>

int unpack_stream_open(struct unpack_stream *self, const char *fqn, struct cb_err *err)
{
    *self = (struct unpack_stream){ZSTD_createDStream(), 1};
    return self->zstd ? 0 : cb_fail(err, CB_ERR_MEMORY, "%s: no memory to decompress", fqn);
}

void unpack_stream_close(struct unpack_stream *self)
{
    ZSTD_freeDStream(self->zstd);
}

int unpack_stream_take(struct unpack_stream *self, const char *fqn, const void *bytes, size_t len, size_t *used,
                       void *out, size_t room, size_t *made, struct cb_err *err)
{
    ZSTD_inBuffer in = {bytes, len, 0};
    ZSTD_outBuffer to = {out, room, 0};
    if (len == 0 && self->wanted == 0)
        return 0; /* it would look like the start of another frame */
    size_t wanted = ZSTD_decompressStream(self->zstd, &to, &in);
    if (ZSTD_isError(wanted))
        return cb_fail(err, CB_ERR_CORRUPT, "%s: what is compressed is damaged: %s", fqn, ZSTD_getErrorName(wanted));
    self->wanted = wanted;
    *used += in.pos;
    *made += to.pos;
    return 0;
}
#else
int unpack_stream_open(struct unpack_stream *self, const char *fqn, struct cb_err *err)
{
    *self = (struct unpack_stream){NULL, 1};
    return cb_fail(err, CB_ERR_UNSUPPORTED,
                   "%s is compressed, and this build has no libzstd: install libzstd-dev and build again", fqn);
}

void unpack_stream_close(struct unpack_stream *self)
{
    (void)self;
}

int unpack_stream_take(struct unpack_stream *self, const char *fqn, const void *bytes, size_t len, size_t *used,
                       void *out, size_t room, size_t *made, struct cb_err *err)
{
    (void)self, (void)bytes, (void)len, (void)used, (void)out, (void)room, (void)made;
    return cb_fail(err, CB_ERR_UNSUPPORTED, "%s is compressed", fqn);
}
#endif

int unpack_zstd(const char *fqn, const void *bytes, size_t len, struct buf *out, struct cb_err *err)
{
    struct unpack_stream stream;
    size_t begin = out->len, used = 0;
    int code = unpack_stream_open(&stream, fqn, err);
    while (!code && (used < len || stream.wanted > 0)) { /* a step at the end of `out` */
        size_t before = out->len, at = used, made = 0;
        size_t room = out->max - before < STEP_BYTES ? out->max - before : STEP_BYTES;
        void *place = buf_extend(out, room > 0 ? room : 1); /* without space it fails with that error */
        code = buf_check(out, fqn, err);
        if (code)
            break;
        code = unpack_stream_take(&stream, fqn, (const char *)bytes + at, len - at, &used, place, room, &made, err);
        out->len = before + made;
        if (!code && made == 0 && used == at && stream.wanted > 0)
            code = cb_fail(err, CB_ERR_CORRUPT, "%s: what is compressed is cut off", fqn);
    }
    unpack_stream_close(&stream);
    if (code)
        out->len = begin;
    return code;
}

struct unpack_item {
    enum plan_format format;
    const struct stored_tensor *tensor;
    const struct region *region;
    struct unpack_stream stream;
    char *step;
    char head[ITEM_MAX_HEADER], tail[ITEM_MAX_TRAILER]; /* the first and the last bytes so far */
    size_t head_bytes, tail_bytes;
    uint64_t bytes; /* decompressed so far */
    uint64_t most;  /* the expected total */
    bool is_known;  /* the header has been parsed, which locates the payload */
    struct stored_payload payload;
    uint32_t crc; /* checksum of the payload so far */
};

int unpack_item_new(enum plan_format format, const struct stored_tensor *tensor, const struct region *region,
                    struct unpack_item **item, struct cb_err *err)
{
    struct unpack_item *self = calloc(1, sizeof *self);
    int code = 0;
    if (self)
        self->step = malloc(STEP_BYTES);
    if (!self || !self->step)
        code = cb_fail(err, CB_ERR_MEMORY, "%s: no memory to decompress", tensor->fqn);
    if (!code)
        code = unpack_stream_open(&self->stream, tensor->fqn, err);
    if (code) {
        unpack_item_free(self);
        return code;
    }
    self->format = format;
    self->tensor = tensor;
    self->region = region;
    self->most = region_elements(region) * dtype_bytes(tensor->dtype) + FRAME_BYTES;
    *item = self;
    return 0;
}

void unpack_item_free(struct unpack_item *self)
{
    if (!self)
        return;
    unpack_stream_close(&self->stream);
    free(self->step);
    free(self);
}

static int parse_head(struct unpack_item *self, uint64_t item_bytes, struct cb_err *err)
{
    int code = format_parse_item(self->format, self->tensor, self->region, self->head, self->head_bytes, item_bytes,
                                 &self->payload, err);
    self->is_known = code == 0;
    return code;
}

static void keep_tail(struct unpack_item *self, const char *bytes, size_t len)
{
    size_t most = sizeof self->tail, kept = len >= most ? 0 : most - len;
    if (kept > self->tail_bytes)
        kept = self->tail_bytes;
    memmove(self->tail, self->tail + self->tail_bytes - kept, kept);
    if (len > most - kept) {
        bytes += len - (most - kept);
        len = most - kept;
    }
    memcpy(self->tail + kept, bytes, len);
    self->tail_bytes = kept + len;
}

/* Updates the checksum with the part of the payload in these bytes, which begin at byte `at` of the item. */
static void add_payload(struct unpack_item *self, uint64_t at, const char *bytes, size_t len)
{
    uint64_t begin = self->payload.offset, end = begin + self->payload.bytes;
    uint64_t first = at > begin ? at : begin, last = at + len < end ? at + len : end;
    if (first < last)
        self->crc = crc32_zip(self->crc, bytes + (first - at), last - first);
}

/* The next decompressed bytes. A step is longer than a header, so the header is complete in the first one. */
static int take_plain(struct unpack_item *self, const char *bytes, size_t len, struct cb_err *err)
{
    size_t missing = sizeof self->head - self->head_bytes, more = len < missing ? len : missing;
    uint64_t at = self->bytes;
    self->bytes += len;
    if (self->bytes > self->most)
        return cb_fail(err, CB_ERR_CORRUPT, "%s: it decompresses to more than its tensor has", self->tensor->fqn);
    keep_tail(self, bytes, len);
    memcpy(self->head + self->head_bytes, bytes, more);
    self->head_bytes += more;
    if (!self->is_known && self->head_bytes == sizeof self->head) {
        int code = parse_head(self, UINT64_MAX, err);
        if (code)
            return code;
        add_payload(self, 0, self->head, self->head_bytes);
        add_payload(self, at + more, bytes + more, len - more);
    } else if (self->is_known) {
        add_payload(self, at, bytes, len);
    }
    return 0;
}

int unpack_item_take(struct unpack_item *self, const void *bytes, size_t len, struct cb_err *err)
{
    size_t used = 0;
    int code = 0;
    while (!code) {
        size_t before = used, made = 0;
        code = unpack_stream_take(&self->stream, self->tensor->fqn, (const char *)bytes + used, len - used, &used,
                                  self->step, STEP_BYTES, &made, err);
        if (!code && used == before && made == 0)
            break; /* more of the item is needed */
        if (!code)
            code = take_plain(self, self->step, made, err);
    }
    return code;
}

int unpack_item_end(struct unpack_item *self, struct unpack_result *result, struct cb_err *err)
{
    struct stored_trailer trailer = {0};
    bool was_known = self->is_known;
    if (self->stream.wanted > 0)
        return cb_fail(err, CB_ERR_CORRUPT, "%s: what is compressed is cut off", self->tensor->fqn);
    int code = parse_head(self, self->bytes, err); /* the item's length is known only now */
    if (!code && !was_known)
        add_payload(self, 0, self->head, self->head_bytes);
    if (!code)
        code = format_parse_trailer(self->format, self->tail, self->tail_bytes, &trailer, err);
    if (!code)
        code = format_check_header(&self->payload, &trailer, err);
    if (!code)
        *result = (struct unpack_result){self->payload, self->crc, trailer.crc};
    return code;
}
