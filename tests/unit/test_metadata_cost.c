/* What reading the metadata of many items costs: memory asked for and calls for it, an item and a tensor. These stand for
 * its time: most of that is touching memory. This program's own malloc counts; under a sanitizer only results are looked at. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "ckpt/format/format.h"
#include "tests/unit/layout_words.h"

#define TENSORS 5000
#define PARTS 8
#define ITEMS (TENSORS * PARTS)

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZER_OWNS_MALLOC 1
#else
#define SANITIZER_OWNS_MALLOC 0
#endif

static bool counts;
static uint64_t calls, bytes_asked;

#if !SANITIZER_OWNS_MALLOC
static void count_call(size_t bytes)
{
    if (!counts)
        return;
    calls++;
    bytes_asked += bytes;
}

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);

void *malloc(size_t bytes)
{
    count_call(bytes);
    return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    count_call(count * bytes);
    return __libc_calloc(count, bytes);
}

void *realloc(void *memory, size_t bytes)
{
    count_call(bytes);
    return __libc_realloc(memory, bytes);
}
#endif

static char model[64];

static void write_metadata(struct buf *metadata)
{
    struct words words;
    struct plan *plan;
    struct metadata_sink sink = metadata_sink_to(metadata);
    struct cb_err err;
    char text[256];
    FILE *file = fopen(model, "w");
    assert_non_null(file);
    for (int i = 0; i < TENSORS; i++)
        fprintf(file, "- {name: layers.%d.block.weight, shape: 64x32, tp_dim: 0}\n", i);
    assert_int_equal(fclose(file), 0);
    snprintf(text, sizeof text, "model=%s state=weights tp=%d ranks=%d", model, PARTS, PARTS);
    assert_int_equal(words_make(&words, text, &err), 0);
    struct plan_options options = {.format = PLAN_DCP, .files_per_rank = 1, .payload_alignment = 64};
    assert_int_equal(plan_compute(words.layout, &options, &plan, &err), 0);
    assert_int_equal(plan->item_count, ITEMS);
    assert_int_equal(format_write_metadata(PLAN_DCP, words.layout, plan, "it", 7, &sink, &err), 0);
    plan_free(plan);
    words_release(&words);
    unlink(model);
}

static void metadata_of_many_items_takes_little_memory_and_few_calls(void **unused)
{
    (void)unused;
    struct buf metadata;
    struct stored_checkpoint *checkpoint;
    struct cb_err err;
    snprintf(model, sizeof model, "/tmp/ckptbench-cost-%d.yaml", (int)getpid());
    buf_init(&metadata, UINT64_C(1) << 30);
    write_metadata(&metadata);
    calls = bytes_asked = 0;
    counts = true;
    int code = format_read_metadata("it", metadata.data, metadata.len, &checkpoint, &err);
    counts = false;
    if (code)
        fail_msg("%s", err.message);
    assert_int_equal(checkpoint->chunk_count, ITEMS);
    assert_int_equal(checkpoint->tensor_count, TENSORS);
    for (size_t i = 0; i < checkpoint->chunk_count; i++)
        assert_true(checkpoint->chunks[i].length > 64 * 32 / PARTS * 2);
    stored_checkpoint_free(checkpoint);
    buf_release(&metadata);
    if (SANITIZER_OWNS_MALLOC)
        return;
    if (calls <= TENSORS || calls > 3 * TENSORS + 200) /* name twice and keys of each, and arrays that double */
        fail_msg("%llu calls", (unsigned long long)calls);
    if (bytes_asked / ITEMS > 1250) /* arrays that double ask for twice what they end with */
        fail_msg("%llu bytes an item", (unsigned long long)(bytes_asked / ITEMS));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(metadata_of_many_items_takes_little_memory_and_few_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
