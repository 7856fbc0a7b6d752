/* Decompression by zstd. */
#include "ckpt/stored/unpack.h"

#include <stdlib.h>

#ifdef HAVE_ZSTD
#include <zstd.h>

#define STEP_BYTES (1u << 20)

struct unpack_stream {
    ZSTD_DStream *stream;
    size_t wanted; /* 0 at the end of a frame */
};

int unpack_stream_new(const char *fqn, struct unpack_stream **stream, struct cb_err *err)
{
    struct unpack_stream *self = calloc(1, sizeof *self);
    if (self)
        self->stream = ZSTD_createDStream();
    if (!self || !self->stream) {
        free(self);
        return cb_fail(err, CB_ERR_MEMORY, "%s: no memory to decompress", fqn);
    }
    self->wanted = 1;
    *stream = self;
    return 0;
}

void unpack_stream_free(struct unpack_stream *self)
{
    if (!self)
        return;
    ZSTD_freeDStream(self->stream);
    free(self);
}

int unpack_stream_take(struct unpack_stream *self, const char *fqn, const void *bytes, size_t len, size_t *used,
                       void *out, size_t room, size_t *made, struct cb_err *err)
{
    ZSTD_inBuffer in = {bytes, len, 0};
    ZSTD_outBuffer to = {out, room, 0};
    if (len == 0 && self->wanted == 0)
        return 0; /* it would look like the start of another frame */
    size_t wanted = ZSTD_decompressStream(self->stream, &to, &in);
    if (ZSTD_isError(wanted))
        return cb_fail(err, CB_ERR_CORRUPT, "%s: what is compressed is damaged: %s", fqn, ZSTD_getErrorName(wanted));
    self->wanted = wanted;
    *used += in.pos;
    *made += to.pos;
    return 0;
}

bool unpack_stream_is_whole(const struct unpack_stream *self)
{
    return self->wanted == 0;
}

/* One step of at most STEP_BYTES to the end of `out`. */
static int append_step(struct unpack_stream *stream, const char *fqn, const char *bytes, size_t len, size_t *used,
                       struct buf *out, struct cb_err *err)
{
    size_t before = out->len, made = 0, room = out->max - before < STEP_BYTES ? out->max - before : STEP_BYTES;
    void *place = buf_extend(out, room > 0 ? room : 1); /* without space it fails with that error */
    int code = buf_check(out, fqn, err);
    if (code)
        return code;
    size_t at = *used;
    code = unpack_stream_take(stream, fqn, bytes + at, len - at, used, place, room, &made, err);
    out->len = before + made;
    if (!code && made == 0 && *used == at && !unpack_stream_is_whole(stream))
        code = cb_fail(err, CB_ERR_CORRUPT, "%s: what is compressed is cut off", fqn);
    return code;
}

int unpack_zstd(const char *fqn, const void *bytes, size_t len, struct buf *out, struct cb_err *err)
{
    struct unpack_stream *stream = NULL;
    size_t begin = out->len, used = 0;
    int code = unpack_stream_new(fqn, &stream, err);
    while (!code && (used < len || !unpack_stream_is_whole(stream)))
        code = append_step(stream, fqn, bytes, len, &used, out, err);
    unpack_stream_free(stream);
    if (code)
        out->len = begin;
    return code;
}
#else
static int refuse(const char *fqn, struct cb_err *err)
{
    return cb_fail(err, CB_ERR_UNSUPPORTED,
                   "%s is compressed, and this build has no libzstd: install libzstd-dev and build again", fqn);
}

int unpack_zstd(const char *fqn, const void *bytes, size_t len, struct buf *out, struct cb_err *err)
{
    (void)bytes, (void)len, (void)out;
    return refuse(fqn, err);
}

int unpack_stream_new(const char *fqn, struct unpack_stream **stream, struct cb_err *err)
{
    (void)stream;
    return refuse(fqn, err);
}

void unpack_stream_free(struct unpack_stream *self)
{
    (void)self;
}

int unpack_stream_take(struct unpack_stream *self, const char *fqn, const void *bytes, size_t len, size_t *used,
                       void *out, size_t room, size_t *made, struct cb_err *err)
{
    (void)self, (void)bytes, (void)len, (void)used, (void)out, (void)room, (void)made;
    return refuse(fqn, err);
}

bool unpack_stream_is_whole(const struct unpack_stream *self)
{
    (void)self;
    return false;
}
#endif
