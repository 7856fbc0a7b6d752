/* Writes one file of a conversion. Private to ckpt/convert/. */
#ifndef CKPT_CONVERT_CONVERT_FILE_H
#define CKPT_CONVERT_CONVERT_FILE_H

#include "ckpt/convert/convert.h"
#include "ckpt/stored/stored_read.h"

#define CONVERT_BLOCKS 3 /* one is filled while the others are written */

/* Whether to continue: see convert_job.watch. On a failure without a message, another thread has the reason. */
struct convert_watch {
    int (*check)(void *context, struct cb_err *err);
    void *context;
};

struct convert_writer;

/* Blocks of at most `block_bytes` each, or of a part if the store requires parts; `store` is the target's, of depth
 * CONVERT_BLOCKS or more. */
int convert_writer_new(struct store *store, uint64_t block_bytes, const struct convert_watch *watch,
                       struct convert_writer **writer, struct cb_err *err) CB_MUST_CHECK;
void convert_writer_free(struct convert_writer *self);

/* Writes file `file` of the plan completely and finishes it; *crc is the CRC-32C of its bytes. */
int convert_file(struct convert_writer *self, const struct convert_job *job, uint64_t save_id,
                 struct stored_reader *reader, uint32_t file, uint32_t *crc, struct cb_err *err) CB_MUST_CHECK;

#endif
