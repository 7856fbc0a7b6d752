/* Plans of FSDP: the items of most ranks follow from another rank's, so plans take little memory at any scale, and say
 * the same as if each rank's items were planned. This program's own malloc counts the memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "ckpt/format/catalogue.h"
#include "ckpt/format/format.h"
#include "ckpt/load/load_need.h"
#include "ckpt/plan/plan_internal.h"
#include "ckpt/stored/stored_blocks.h"
#include "core/units.h"
#include "setup/memory_estimate.h"
#include "tests/unit/layout_words.h"
#include "tests/unit/malloc_peak.h"
#include "tests/unit/random_layouts.h"
#include "tests/unit/store_testing.h"

static int write_list(void **state)
{
    (void)state;
    return write_list_with("- {name: q, shape: 64x30, layer: 0, tp_dim: 0}\n"
                           "- {name: w, shape: 37x40, layer: 1, tp_dim: 1}\n");
}

static void check_same_items(const struct plan *plan, const struct plan *whole)
{
    for (uint32_t rank = 0; rank < whole->world_size; rank++) {
        assert_int_equal(plan_rank_items(plan, rank), plan_rank_items(whole, rank));
        for (size_t i = 0; i < plan_rank_items(whole, rank); i++) {
            struct plan_item a = plan_item_at(plan, rank, i), b = plan_item_at(whole, rank, i);
            assert_int_equal(a.tensor, b.tensor);
            assert_int_equal(a.file, b.file);
            assert_int_equal(a.offset, b.offset);
            assert_int_equal(a.length, b.length);
            assert_int_equal(a.payload_offset, b.payload_offset);
            assert_int_equal(a.payload_bytes, b.payload_bytes);
            assert_true(region_equal(&a.region, &b.region));
        }
    }
}

static void check_same_files(const struct plan *plan, const struct plan *whole)
{
    assert_int_equal(plan->file_count, whole->file_count);
    for (uint32_t i = 0; i < whole->file_count; i++) {
        char a[PLAN_NAME_BYTES], b[PLAN_NAME_BYTES];
        plan_file_name(plan, i, a);
        plan_file_name(whole, i, b);
        assert_string_equal(a, b);
        assert_int_equal(plan_file_length(plan, i), plan_file_length(whole, i));
    }
}

static void check_same_figures(const struct plan *plan, const struct plan *whole)
{
    assert_int_equal(plan->item_count, whole->item_count);
    assert_int_equal(plan->payload_bytes, whole->payload_bytes);
    assert_int_equal(plan->rank_bytes_min, whole->rank_bytes_min);
    assert_int_equal(plan->rank_bytes_median, whole->rank_bytes_median);
    assert_int_equal(plan->rank_bytes_max, whole->rank_bytes_max);
    assert_int_equal(plan->bound_bytes, whole->bound_bytes);
}

static void check_same_metadata(const struct words *words, const struct plan *plan, const struct plan *whole)
{
    struct buf a, b;
    struct metadata_sink to_a = metadata_sink_to(&a), to_b = metadata_sink_to(&b), measured = {.write = NULL};
    struct cb_err err;
    buf_init(&a, UINT64_C(1) << 28);
    buf_init(&b, UINT64_C(1) << 28);
    assert_int_equal(format_write_metadata(plan->options.format, words->layout, plan, "/ck", 7, &to_a, &err), 0);
    assert_int_equal(format_write_metadata(plan->options.format, words->layout, whole, "/ck", 7, &to_b, &err), 0);
    assert_int_equal(format_write_metadata(plan->options.format, words->layout, plan, "/ck", 7, &measured, &err), 0);
    assert_int_equal(a.len, b.len);
    assert_memory_equal(a.data, b.data, a.len);
    assert_int_equal(measured.bytes, a.len);
    buf_release(&a);
    buf_release(&b);
}

/* Random meshes over models of awkward and of regular shapes. */
static void derived_items_are_those_that_each_rank_would_plan(void **state)
{
    (void)state;
    uint64_t seed = 88172645463325252u;
    int derived = 0;
    for (int round = 0; round < 400; round++) {
        char text[512];
        snprintf(text, sizeof text, "model=%s %s %s %s %s %s %s %s %s",
                 PICK(&seed, list_path, "gpt2-tiny", "gpt2-tiny"), PICK(&seed, "dp=4", "dp=8", "dp=12", "dp=32"),
                 PICK(&seed, "tp=1", "tp=2", "tp=3"), PICK(&seed, "pp=1", "pp=2"), PICK(&seed, "ep=1", "ep=2"),
                 PICK(&seed, "sharding=full", "sharding=full", "sharding=hybrid(2)", "sharding=hybrid(4)"),
                 PICK(&seed, "save.dedup=balanced", "save.dedup=lowest_rank", "save.dedup=none"),
                 PICK(&seed, "io.files=rank", "io.files=2", "io.files=item", "io.files=shared"),
                 PICK(&seed, "format=dcp", "format=raw", "format=raw io.fanout=3"));
        struct words words;
        struct plan_options options;
        struct plan *plan, *whole;
        struct cb_err err = {0};
        int code = words_make(&words, text, &err);
        if (!code) {
            assert_int_equal(plan_options_read(words.experiment, 64, &options, &err), 0);
            assert_int_equal(plan_compute(words.layout, &options, &plan, &err), 0);
            assert_int_equal(planner_run(words.layout, &options, true, &whole, &err), 0);
            derived += plan->pattern_count < plan->world_size;
            check_same_items(plan, whole);
            check_same_files(plan, whole);
            check_same_figures(plan, whole);
            check_same_metadata(&words, plan, whole);
            plan_free(plan);
            plan_free(whole);
        } else {
            assert_int_equal(code, CB_ERR_USAGE); /* a layout that cannot be, as tp=3 of two heads */
        }
        words_release(&words);
    }
    assert_in_range(derived, 50, 400);
}

static void a_plan_of_16384_fsdp_ranks_takes_less_than_16_mib(void **state)
{
    (void)state;
    static const char *const cases[] = {"model=llama3-70b sharding=full ranks=1024",
                                        "model=llama3-405b sharding=full ranks=16384",
                                        "model=llama3-405b sharding=hybrid(1024) ranks=16384"};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct words words;
        struct plan_options options;
        struct plan *plan;
        struct cb_err err = {0};
        assert_int_equal(words_make(&words, cases[i], &err), 0);
        assert_int_equal(plan_options_read(words.experiment, 4096, &options, &err), 0);
        malloc_peak_start();
        assert_int_equal(plan_compute(words.layout, &options, &plan, &err), 0);
        uint64_t peak = malloc_peak_end();
        if (peak > 16 * MIB)
            fail_msg("%s: %llu bytes", cases[i], (unsigned long long)peak);
        size_t planned = plan->patterns[plan->pattern_count].first_item;
        if (planned > 8 * layout_tensor_count(words.layout))
            fail_msg("%s: %zu items were planned for %zu", cases[i], planned, plan->item_count);
        plan_free(plan);
        words_release(&words);
    }
}

static int count_bytes(void *longest, const void *bytes, size_t len, struct cb_err *err)
{
    uint64_t *most = longest;
    (void)bytes, (void)err;
    *most = len > *most ? len : *most;
    return 0;
}

/* Written to a sink that keeps nothing. */
static void metadata_is_never_in_memory_as_a_whole_and_its_length_is_measured(void **state)
{
    (void)state;
    static const char *const cases[] = {"format=dcp", "format=dcp tp=4", "format=raw"};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct words words;
        struct plan_options options;
        struct plan *plan;
        struct cb_err err = {0};
        char text[128];
        uint64_t longest = 0;
        struct metadata_sink sink = {.write = count_bytes, .context = &longest}, measured = {.write = NULL};
        snprintf(text, sizeof text, "model=llama3-8b ranks=256 sharding=full %s", cases[i]);
        assert_int_equal(words_make(&words, text, &err), 0);
        assert_int_equal(plan_options_read(words.experiment, 4096, &options, &err), 0);
        assert_int_equal(plan_compute(words.layout, &options, &plan, &err), 0);
        malloc_peak_start();
        assert_int_equal(format_write_metadata(options.format, words.layout, plan, "/ck", 7, &sink, &err), 0);
        assert_true(malloc_peak_end() < 6 * MIB);
        assert_true(sink.bytes > 10 * MIB);
        assert_true(longest < 2 * MIB);
        assert_int_equal(format_write_metadata(options.format, words.layout, plan, "/ck", 7, &measured, &err), 0);
        assert_int_equal(measured.bytes, sink.bytes);
        plan_free(plan);
        words_release(&words);
    }
}

static int read_piece(void *context, uint64_t offset, void *memory, uint64_t bytes, struct cb_err *err)
{
    const struct buf *metadata = context;
    (void)err;
    assert_true(offset % 4096 == 0 && offset + bytes <= metadata->len);
    memcpy(memory, metadata->data + offset, bytes);
    return 0;
}

/* Like rank 0, which also receives what it passes on. */
static int receive_block(void *receiver, const void *block, size_t len, struct cb_err *err)
{
    return stored_block_read(receiver, block, len, err);
}

static void pass_metadata_on(const struct words *words, struct buf *metadata, uint64_t *memory, size_t *kept)
{
    struct cb_err err = {0};
    struct load_need need;
    struct piece *pieces = NULL;
    size_t count = 0;
    struct stored_checkpoint *checkpoint;
    struct byte_source source = {.len = metadata->len, .read = read_piece, .context = metadata};
    assert_int_equal(layout_pieces(words->layout, 5, &pieces, &count, &err), 0);
    assert_int_equal(load_need_init(&need, words->layout, pieces, count, false, &err), 0);
    malloc_peak_start();
    struct stored_receiver receiver = {.collector = {.name = "it", .need = load_need_of, .context = &need}};
    struct stored_sender sender = {.put = receive_block, .context = &receiver};
    stored_sender_init(&sender);
    struct stored_sink sink = stored_sender_sink(&sender);
    int code = format_pass_metadata("it", &source, &sink, &err);
    if (code)
        fail_msg("%s", err.message);
    assert_int_equal(stored_collector_take(&receiver.collector, &checkpoint, &err), 0);
    *memory = malloc_peak_end();
    *kept = checkpoint->chunk_count;
    stored_sender_release(&sender);
    stored_collector_release(&receiver.collector);
    stored_checkpoint_free(checkpoint);
    load_need_release(&need);
    free(pieces);
}

static void make_metadata(const char *text, struct words *words, struct buf *metadata)
{
    struct plan_options options;
    struct plan *plan;
    struct metadata_sink sink = metadata_sink_to(metadata);
    struct cb_err err = {0};
    buf_init(metadata, 400 * MIB);
    assert_int_equal(words_make(words, text, &err), 0);
    assert_int_equal(plan_options_read(words->experiment, 4096, &options, &err), 0);
    assert_int_equal(plan_compute(words->layout, &options, &plan, &err), 0);
    assert_int_equal(format_write_metadata(options.format, words->layout, plan, "/ck", 7, &sink, &err), 0);
    plan_free(plan);
}

/* As `plan` says, and as a run is refused for the lack of. */
static void metadata_of_any_length_are_passed_on_in_the_memory_that_is_estimated(void **state)
{
    (void)state;
    static const char *const cases[] = {"format=dcp", "format=raw", "format=dcp+safetensors"};
    static const uint32_t ranks[] = {16, 640};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t memory[2], lengths[2];
        size_t kept[2];
        for (size_t k = 0; k < 2; k++) {
            struct words words;
            struct buf metadata;
            char text[128];
            snprintf(text, sizeof text, "model=llama3-8b ranks=%u sharding=full %s", ranks[k], cases[i]);
            make_metadata(text, &words, &metadata);
            lengths[k] = metadata.len;
            pass_metadata_on(&words, &metadata, &memory[k], &kept[k]);
            if (memory[k] > estimate_metadata_memory_bytes(words.experiment, metadata.len))
                fail_msg("%s: %.1f MiB for %.1f", text, (double)memory[k] / MIB, (double)metadata.len / MIB);
            buf_release(&metadata);
            words_release(&words);
        }
        assert_true(lengths[1] > 25 * MIB && kept[0] == kept[1]);
        if (memory[1] > 40 * MIB)
            fail_msg("%s: %.1f MiB for %.1f", cases[i], (double)memory[1] / MIB, (double)lengths[1] / MIB);
    }
}

/* As `ckptbench convert` makes of a value that long. */
static void a_value_that_is_longer_than_a_piece_is_read_in_pieces(void **state)
{
    (void)state;
    struct cb_err err = {0};
    size_t len = 2 * BYTE_PIECE + 12345;
    char *literal = malloc(len + 1), name[] = "train.log";
    memset(literal, 'a', len);
    literal[0] = literal[len - 1] = '\'';
    literal[len] = '\0';
    struct stored_tensor value = {.fqn = name, .is_bytes = true, .dtype = DTYPE_U8, .literal = literal};
    struct stored_checkpoint one = {
        .format = PLAN_DCP_SAFETENSORS, .tensors = &value, .tensor_count = 1, .save_id = 7, .marked = true};
    struct buf metadata;
    buf_init(&metadata, 64 * MIB);
    assert_int_equal(catalogue_write(&one, &metadata, &err), 0);
    struct byte_source source = {.len = metadata.len, .read = read_piece, .context = &metadata};
    struct stored_collector collector = {.name = "it"};
    struct stored_sink sink = stored_collector_sink(&collector);
    struct stored_checkpoint *read;
    if (format_pass_metadata("it", &source, &sink, &err))
        fail_msg("%s", err.message);
    assert_int_equal(stored_collector_take(&collector, &read, &err), 0);
    assert_string_equal(read->tensors[0].literal, literal);
    stored_checkpoint_free(read);
    stored_collector_release(&collector);
    buf_release(&metadata);
    free(literal);
}

/* The index of safetensors has a line a tensor. */
static void an_index_of_many_tensors_is_composed_in_pieces(void **state)
{
    (void)state;
    char path[] = "/tmp/ckptbench-many-XXXXXX.yaml", text[128];
    FILE *list = fdopen(mkstemps(path, 5), "w");
    struct words words;
    struct plan_options options;
    struct plan *plan;
    struct cb_err err = {0};
    uint64_t longest = 0;
    struct metadata_sink sink = {.write = count_bytes, .context = &longest};
    assert_non_null(list);
    for (int i = 0; i < 80000; i++)
        fprintf(list, "- {name: a.tensor.with.a.name.of.some.length.%d.weight, shape: 2}\n", i);
    assert_int_equal(fclose(list), 0);
    snprintf(text, sizeof text, "model=%s state=weights ranks=2 format=safetensors", path);
    assert_int_equal(words_make(&words, text, &err), 0);
    assert_int_equal(plan_options_read(words.experiment, 4096, &options, &err), 0);
    assert_int_equal(plan_compute(words.layout, &options, &plan, &err), 0);
    malloc_peak_start();
    assert_int_equal(format_write_metadata(options.format, words.layout, plan, "/ck", 7, &sink, &err), 0);
    assert_true(malloc_peak_end() < 4 * MIB);
    assert_true(sink.bytes > 6 * MIB);
    assert_true(longest < 3 * MIB / 2);
    plan_free(plan);
    words_release(&words);
    assert_int_equal(remove(path), 0);
}

struct composing {
    const struct words *words;
    const struct plan *plan;
};

static int pass_metadata(void *context, store_put_fn put, void *to, struct cb_err *err)
{
    const struct composing *self = context;
    struct metadata_sink sink = {.write = put, .context = to};
    return format_write_metadata(self->plan->options.format, self->words->layout, self->plan, "/ck", 7, &sink, err);
}

/* 30 MiB of it; what is needed does not grow with that. */
static void metadata_is_published_while_it_is_composed(void **state)
{
    (void)state;
    struct words words;
    struct plan_options options;
    struct plan *plan;
    struct cb_err err = {0};
    struct store_options plain = {.depth = 1, .direct = STORE_DIRECT_NO};
    struct buf composed, stored;
    struct metadata_sink sink = metadata_sink_to(&composed);
    char folder[PATH_MAX];
    testing_make_folder(folder);
    struct store *store = testing_open(folder, &plain);
    buf_init(&composed, 100 * MIB);
    buf_init(&stored, 100 * MIB);
    assert_int_equal(words_make(&words, "model=llama3-8b ranks=256 sharding=full", &err), 0);
    assert_int_equal(plan_options_read(words.experiment, 4096, &options, &err), 0);
    assert_int_equal(plan_compute(words.layout, &options, &plan, &err), 0);
    struct composing composing = {&words, plan};
    malloc_peak_start();
    assert_int_equal(store_publish_pieces(store, ".metadata", pass_metadata, &composing, &err), 0);
    assert_true(malloc_peak_end() < 6 * MIB);
    assert_int_equal(format_write_metadata(options.format, words.layout, plan, "/ck", 7, &sink, &err), 0);
    assert_int_equal(store_read_small(store, ".metadata", &stored, &err), 0);
    assert_true(stored.len > 10 * MIB);
    assert_int_equal(stored.len, composed.len);
    assert_int_equal(memcmp(stored.data, composed.data, stored.len), 0);
    store_free(store);
    buf_release(&composed);
    buf_release(&stored);
    plan_free(plan);
    words_release(&words);
    testing_remove_folder(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(derived_items_are_those_that_each_rank_would_plan, write_list, remove_list),
        cmocka_unit_test(a_plan_of_16384_fsdp_ranks_takes_less_than_16_mib),
        cmocka_unit_test(metadata_is_never_in_memory_as_a_whole_and_its_length_is_measured),
        cmocka_unit_test(metadata_of_any_length_are_passed_on_in_the_memory_that_is_estimated),
        cmocka_unit_test(a_value_that_is_longer_than_a_piece_is_read_in_pieces),
        cmocka_unit_test(an_index_of_many_tensors_is_composed_in_pieces),
        cmocka_unit_test(metadata_is_published_while_it_is_composed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
