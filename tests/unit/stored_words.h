/* For tests: the checkpoint that a layout of words would leave, without writing one. */
#ifndef TESTS_UNIT_STORED_WORDS_H
#define TESTS_UNIT_STORED_WORDS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "ckpt/format/format.h"
#include "core/buf.h"
#include "tests/unit/layout_words.h"

/* What a save of this layout leaves on disk, as its metadata says. */
static inline struct stored_checkpoint *words_store(const struct words *words, enum plan_format format)
{
    struct cb_err err;
    struct plan_options options = {.files_per_rank = 1, .payload_alignment = 64, .format = format};
    struct plan *plan;
    struct buf bytes;
    struct metadata_sink sink = metadata_sink_to(&bytes);
    struct stored_checkpoint *checkpoint;
    buf_init(&bytes, 1 << 26);
    assert_int_equal(plan_compute(words->layout, &options, &plan, &err), 0);
    assert_int_equal(format_write_metadata(format, words->layout, plan, "/ck", 0, &sink, &err), 0);
    assert_int_equal(format_read_metadata("test", bytes.data, bytes.len, &checkpoint, &err), 0);
    plan_free(plan);
    buf_release(&bytes);
    return checkpoint;
}

#endif
