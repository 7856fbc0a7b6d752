/* Owns decompression. The only file that knows zstd. */
#include "ckpt/unpack.h"

#ifdef HAVE_ZSTD
#include <zstd.h>

#define STEP_BYTES (1u << 20)

int unpack_zstd(const char *fqn, const void *bytes, size_t len, struct buf *out, struct cb_err *err)
{
    ZSTD_DStream *stream = ZSTD_createDStream();
    ZSTD_inBuffer in = {bytes, len, 0};
    size_t begin = out->len, left = 1;
    int code = stream ? 0 : cb_fail(err, CB_ERR_MEMORY, "%s: no memory to decompress", fqn);
    while (!code && (in.pos < len || left > 0)) {
        size_t before = out->len, was_at = in.pos,
               room = out->max - before < STEP_BYTES ? out->max - before : STEP_BYTES;
        void *place = buf_extend(out, room > 0 ? room : 1); /* without room it fails, and says so */
        code = buf_check(out, fqn, err);
        if (code)
            break;
        ZSTD_outBuffer to = {place, room, 0};
        left = ZSTD_decompressStream(stream, &to, &in);
        out->len = before + to.pos;
        if (ZSTD_isError(left))
            code = cb_fail(err, CB_ERR_CORRUPT, "%s: what is compressed is damaged: %s", fqn, ZSTD_getErrorName(left));
        else if (to.pos == 0 && in.pos == was_at && left > 0)
            code = cb_fail(err, CB_ERR_CORRUPT, "%s: what is compressed is cut off", fqn);
    }
    ZSTD_freeDStream(stream);
    if (code)
        out->len = begin;
    return code;
}
#else
int unpack_zstd(const char *fqn, const void *bytes, size_t len, struct buf *out, struct cb_err *err)
{
    (void)bytes, (void)len, (void)out;
    return cb_fail(err, CB_ERR_UNSUPPORTED,
                   "%s is compressed, and this build has no libzstd: install libzstd-dev and build again", fqn);
}
#endif
