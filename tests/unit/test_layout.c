/* Layouts: which rank holds which part of which tensor, in every way to write a layout down. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/unit/layout_words.h"

static struct words make(const char *text)
{
    struct words words;
    struct cb_err err = {0};
    if (words_make(&words, text, &err))
        fail_msg("%s: %s", text, err.message);
    return words;
}

/* The pieces of a rank of one state tensor. */
static size_t pieces_of(const struct layout *layout, uint32_t rank, const char *fqn, struct region *regions,
                        size_t capacity)
{
    struct piece *pieces;
    size_t count, found = 0;
    struct cb_err err = {0};
    assert_int_equal(layout_pieces(layout, rank, &pieces, &count, &err), 0);
    for (size_t i = 0; i < count; i++) {
        if (strcmp(layout_tensor(layout, pieces[i].tensor)->fqn, fqn) == 0) {
            assert_true(found < capacity);
            regions[found++] = pieces[i].region;
        }
    }
    free(pieces);
    return found;
}

static void expect_region(const struct region *region, uint32_t dims, uint64_t offset0, uint64_t size0,
                          uint64_t offset1, uint64_t size1)
{
    struct region expected = {dims, {offset0, offset1}, {size0, size1}};
    if (!region_equal(region, &expected))
        fail_msg("box [%llu+%llu, %llu+%llu], not [%llu+%llu, %llu+%llu]", (unsigned long long)region->offset[0],
                 (unsigned long long)region->size[0], (unsigned long long)region->offset[1],
                 (unsigned long long)region->size[1], (unsigned long long)offset0, (unsigned long long)size0,
                 (unsigned long long)offset1, (unsigned long long)size1);
}

static void state_has_fixed_names_in_every_layout(void **state)
{
    (void)state;
    static const char *const tensors[] = {"transformer.wte.weight",
                                          "transformer.wpe.weight",
                                          "transformer.h.0.ln_1.weight",
                                          "transformer.h.0.ln_1.bias",
                                          "transformer.h.0.attn.c_attn.weight",
                                          "transformer.h.0.attn.c_attn.bias",
                                          "transformer.h.0.attn.c_proj.weight",
                                          "transformer.h.0.attn.c_proj.bias",
                                          "transformer.h.0.ln_2.weight",
                                          "transformer.h.0.ln_2.bias",
                                          "transformer.h.0.mlp.c_fc.weight",
                                          "transformer.h.0.mlp.c_fc.bias",
                                          "transformer.h.0.mlp.c_proj.weight",
                                          "transformer.h.0.mlp.c_proj.bias",
                                          "transformer.ln_f.weight",
                                          "transformer.ln_f.bias"};
    static const char *const kinds[] = {"model.%s", "optimizer.state.%s.master", "optimizer.state.%s.exp_avg",
                                        "optimizer.state.%s.exp_avg_sq"};
    static const char *const items[] = {"optimizer.param_groups.lr",
                                        "optimizer.param_groups.betas",
                                        "optimizer.param_groups.eps",
                                        "optimizer.param_groups.weight_decay",
                                        "train.step",
                                        "train.seed"};
    static const char *const layouts[] = {"",
                                          "tp=2 dp=2",
                                          "dp=3 zero=1",
                                          "tp=4 dp=2 zero=3",
                                          "dp=4 sharding=full",
                                          "dp=4 sharding=hybrid(2)",
                                          "mesh=tp=2+dp=3"};
    enum { TENSORS = sizeof tensors / sizeof *tensors, ITEMS = sizeof items / sizeof *items };
    for (size_t l = 0; l < sizeof layouts / sizeof *layouts; l++) {
        char text[256], name[256];
        snprintf(text, sizeof text, "model=gpt2-tiny layers=1 %s", layouts[l]);
        struct words words = make(text);
        assert_int_equal(layout_tensor_count(words.layout), 4 * TENSORS + ITEMS);
        for (size_t i = 0; i < 4 * TENSORS; i++) {
            snprintf(name, sizeof name, kinds[i / TENSORS], tensors[i % TENSORS]);
            assert_string_equal(layout_tensor(words.layout, i)->fqn, name);
        }
        for (size_t i = 0; i < ITEMS; i++)
            assert_string_equal(layout_tensor(words.layout, 4 * TENSORS + i)->fqn, items[i]);
        words_release(&words);
    }
}

static void state_has_the_bytes_of_its_kinds(void **state)
{
    (void)state;
    struct words words = make("model=gpt2 tp=2 dp=2");
    assert_int_equal(layout_total_bytes(words.layout), UINT64_C(124439808) * 14);
    assert_int_equal(layout_kind_bytes(words.layout, KIND_WEIGHT), UINT64_C(124439808) * 2);
    assert_int_equal(layout_kind_bytes(words.layout, KIND_EXP_AVG), UINT64_C(124439808) * 4);
    assert_string_equal(layout_state_name(words.layout), "weights+adam");
    words_release(&words);
    words = make("model=gpt2 dtype=fp32");
    assert_int_equal(layout_kind_bytes(words.layout, KIND_MASTER), 0);
    assert_int_equal(layout_total_bytes(words.layout), UINT64_C(124439808) * 12);
    words_release(&words);
    words = make("model=L7b");
    assert_string_equal(layout_state_name(words.layout), "weights");
    assert_int_equal(layout_tensor_count(words.layout), 291);
    assert_int_equal(layout_total_bytes(words.layout), UINT64_C(6889410560) * 4);
    words_release(&words);
}

static void mlperf_state_has_the_published_bytes(void **state)
{
    (void)state;
    static const struct {
        const char *words;
        uint32_t ranks;
        uint64_t model, optimizer;
    } cases[] = {
        {"model=mlperf-8b", 8, 16060522496, 96365101056},
        {"model=mlperf-70b", 64, 139783700480, 838622871552},
        {"model=mlperf-405b", 512, 811764809728, 4870743982080},
        {"model=mlperf-1t ranks=1024", 1024, 2366163292416, 14198010802176},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct words words = make(cases[i].words);
        assert_int_equal(layout_world_size(words.layout), cases[i].ranks);
        assert_int_equal(layout_kind_bytes(words.layout, KIND_WEIGHT), cases[i].model);
        assert_int_equal(layout_total_bytes(words.layout) - cases[i].model, cases[i].optimizer);
        words_release(&words);
    }
    struct words words = make("model=mlperf-405b");
    assert_string_equal(layout_describe(words.layout), "dp2 pp32 tp8 zero1");
    words_release(&words);
}

static void the_last_axis_varies_fastest(void **state)
{
    (void)state;
    struct words words = make("model=gpt2-tiny pp=2 dp=3 tp=2");
    assert_int_equal(layout_world_size(words.layout), 12);
    assert_string_equal(layout_describe(words.layout), "pp2 dp3 tp2");
    struct region region[4];
    assert_int_equal(pieces_of(words.layout, 0, "model.transformer.wte.weight", region, 4), 1);
    expect_region(&region[0], 2, 0, 129, 0, 128);
    assert_int_equal(pieces_of(words.layout, 1, "model.transformer.wte.weight", region, 4), 1);
    expect_region(&region[0], 2, 129, 128, 0, 128);
    assert_int_equal(pieces_of(words.layout, 4, "model.transformer.wte.weight", region, 4), 1);
    expect_region(&region[0], 2, 0, 129, 0, 128);
    assert_int_equal(pieces_of(words.layout, 6, "model.transformer.wte.weight", region, 4), 0);
    words_release(&words);
    words = make("model=gpt2-tiny mesh=tp=2+dp=3 ranks=6");
    assert_int_equal(pieces_of(words.layout, 2, "model.transformer.wte.weight", region, 4), 1);
    expect_region(&region[0], 2, 0, 129, 0, 128);
    assert_int_equal(pieces_of(words.layout, 3, "model.transformer.wte.weight", region, 4), 1);
    expect_region(&region[0], 2, 129, 128, 0, 128);
    words_release(&words);
}

static void an_odd_vocabulary_splits_as_torch_chunk_does(void **state)
{
    (void)state;
    struct words words = make("model=gpt2 tp=2");
    struct region region[4];
    assert_int_equal(pieces_of(words.layout, 0, "model.transformer.wte.weight", region, 4), 1);
    expect_region(&region[0], 2, 0, 25129, 0, 768);
    assert_int_equal(pieces_of(words.layout, 1, "model.transformer.wte.weight", region, 4), 1);
    expect_region(&region[0], 2, 25129, 25128, 0, 768);
    words_release(&words);
}

/* Queries, keys and values are split each for itself, on heads. */
static void a_fused_qkv_is_three_regions(void **state)
{
    (void)state;
    struct words words = make("model=gpt2 tp=4");
    struct region region[4];
    assert_int_equal(pieces_of(words.layout, 1, "model.transformer.h.0.attn.c_attn.weight", region, 4), 3);
    for (uint64_t part = 0; part < 3; part++)
        expect_region(&region[part], 2, 0, 768, part * 768 + 192, 192);
    assert_int_equal(pieces_of(words.layout, 3, "model.transformer.h.0.attn.c_proj.weight", region, 4), 1);
    expect_region(&region[0], 2, 576, 192, 0, 768);
    assert_int_equal(pieces_of(words.layout, 3, "model.transformer.h.0.ln_1.weight", region, 4), 1);
    expect_region(&region[0], 1, 0, 768, 0, 0);
    words_release(&words);
    words = make("model=gpt2 dp=4");
    assert_int_equal(pieces_of(words.layout, 1, "model.transformer.h.0.attn.c_attn.weight", region, 4), 1);
    words_release(&words);
}

static void few_key_value_heads_repeat_over_tp(void **state)
{
    (void)state;
    struct words words = make("model=llama3-8b layers=1 tp=16");
    struct region region[4];
    for (uint32_t rank = 0; rank < 16; rank++) {
        assert_int_equal(pieces_of(words.layout, rank, "model.model.layers.0.self_attn.k_proj.weight", region, 4), 1);
        expect_region(&region[0], 2, rank / 2 * 128, 128, 0, 4096);
        assert_int_equal(pieces_of(words.layout, rank, "model.model.layers.0.self_attn.q_proj.weight", region, 4), 1);
        expect_region(&region[0], 2, rank * 256, 256, 0, 4096);
    }
    words_release(&words);
}

static void zero_1_shards_the_optimizer_flat_and_replicates_weights(void **state)
{
    (void)state;
    struct words words = make("model=gpt2-tiny dp=2 zero=1");
    struct region region[BOX_MAX_OF_INTERVAL];
    assert_int_equal(pieces_of(words.layout, 1, "model.transformer.wte.weight", region, 4), 1);
    expect_region(&region[0], 2, 0, 257, 0, 128);
    assert_int_equal(pieces_of(words.layout, 0, "optimizer.state.transformer.wte.weight.master", region, 4), 1);
    assert_int_equal(pieces_of(words.layout, 1, "optimizer.state.transformer.wte.weight.master", region, 4), 0);
    uint64_t half = 842624 / 2;
    assert_int_equal(layout_rank_bytes(words.layout, 0), 842624 * 2 + half * 12);
    assert_int_equal(layout_rank_bytes(words.layout, 1), 842624 * 2 + half * 12);
    words_release(&words);
    words = make("model=gpt2-tiny dp=2 zero=3");
    assert_int_equal(layout_rank_bytes(words.layout, 1), half * 14);
    words_release(&words);
}

/* 842,624 elements over 5: intervals of 168,525, the last 168,524. */
static void flat_intervals_are_rounded_up(void **state)
{
    (void)state;
    struct words words = make("model=gpt2-tiny dp=5 zero=2");
    for (uint32_t rank = 0; rank < 5; rank++)
        assert_int_equal(layout_rank_bytes(words.layout, rank), 842624 * 2 + (rank < 4 ? 168525 : 168524) * 12);
    words_release(&words);
}

static void fsdp_chunks_dimension_0_within_the_tp_shard(void **state)
{
    (void)state;
    struct words words = make("model=gpt2-tiny dp=2 tp=2 sharding=full");
    struct region region[4];
    assert_string_equal(layout_describe(words.layout), "fsdp2 tp2");
    assert_int_equal(pieces_of(words.layout, 0, "model.transformer.wte.weight", region, 4), 1);
    expect_region(&region[0], 2, 0, 65, 0, 128);
    assert_int_equal(pieces_of(words.layout, 2, "model.transformer.wte.weight", region, 4), 1);
    expect_region(&region[0], 2, 65, 64, 0, 128);
    assert_int_equal(pieces_of(words.layout, 3, "optimizer.state.transformer.wte.weight.exp_avg", region, 4), 1);
    expect_region(&region[0], 2, 129 + 64, 64, 0, 128);
    assert_int_equal(pieces_of(words.layout, 3, "model.transformer.h.0.attn.c_attn.bias", region, 4), 2);
    words_release(&words);
    words = make("model=gpt2-tiny dp=4 sharding=hybrid(2)");
    assert_string_equal(layout_describe(words.layout), "dp2 fsdp2");
    assert_int_equal(layout_rank_bytes(words.layout, 0), layout_rank_bytes(words.layout, 2));
    words_release(&words);
}

static void experts_are_spread_over_ep(void **state)
{
    (void)state;
    struct words words = make("model=mixtral-8x7b layers=1 dp=4 ep=4");
    struct region region[4];
    assert_string_equal(layout_describe(words.layout), "ep4");
    for (uint32_t rank = 0; rank < 4; rank++) {
        for (uint32_t expert = 0; expert < 8; expert++) {
            char name[128];
            snprintf(name, sizeof name, "model.model.layers.0.block_sparse_moe.experts.%u.w1.weight", expert);
            assert_int_equal(pieces_of(words.layout, rank, name, region, 4), expert / 2 == rank ? 1 : 0);
        }
        assert_int_equal(pieces_of(words.layout, rank, "model.lm_head.weight", region, 4), 1);
    }
    words_release(&words);
}

static uint32_t layers_of_stage(const struct words *words, uint32_t rank)
{
    struct region region[4];
    uint32_t layers = 0;
    for (uint32_t i = 0; i < words->model->layers; i++) {
        char name[128];
        snprintf(name, sizeof name, "model.model.layers.%u.input_layernorm.weight", i);
        layers += (uint32_t)pieces_of(words->layout, rank, name, region, 4);
    }
    return layers;
}

static void stages_are_balanced_with_embedding_and_head(void **state)
{
    (void)state;
    struct words words = make("model=llama3-405b pp=16 state=weights");
    for (uint32_t stage = 0; stage < 16; stage++)
        assert_int_equal(layers_of_stage(&words, stage), stage == 0 || stage == 15 ? 7 : 8);
    words_release(&words);
    words = make("model=llama3-405b pp=16 state=weights pp.split=even");
    for (uint32_t stage = 0; stage < 16; stage++)
        assert_int_equal(layers_of_stage(&words, stage), stage < 14 ? 8 : 7);
    words_release(&words);
    words = make("model=llama3-8b pp=3 state=weights pp.split=20+10+2");
    assert_int_equal(layers_of_stage(&words, 0), 20);
    assert_int_equal(layers_of_stage(&words, 2), 2);
    words_release(&words);
}

/* Every element of every tensor is held, and by no rank twice. */
/* Known sizes of some ranks are those of the others that hold as much. */
static void check_sizes(const struct layout *layout)
{
    struct layout_sizes sizes;
    layout_sizes_init(&sizes, layout);
    assert_non_null(sizes.known);
    for (uint32_t rank = 0; rank < layout_world_size(layout); rank++)
        assert_int_equal(layout_sizes_of(&sizes, rank), layout_rank_bytes(layout, rank));
    layout_sizes_release(&sizes);
}

static void check_cover(const char *text)
{
    struct words words = make(text);
    const struct layout *layout = words.layout;
    check_sizes(layout);
    for (size_t t = 0; t < layout_tensor_count(layout); t++) {
        const struct state_tensor *tensor = layout_tensor(layout, t);
        struct region whole = region_whole(tensor->dims, tensor->shape);
        if (tensor->kind == KIND_BYTES)
            continue;
        uint64_t elements = region_elements(&whole);
        uint8_t *held = calloc(elements, 1), *here = malloc(elements);
        for (uint32_t rank = 0; rank < layout_world_size(layout); rank++) {
            struct region regions[64];
            size_t count = pieces_of(layout, rank, tensor->fqn, regions, 64);
            memset(here, 0, elements);
            for (size_t i = 0; i < count; i++) {
                uint64_t runs, run_elements, outer, inner;
                assert_true(region_contains(&whole, &regions[i]));
                region_runs(&whole, &regions[i], &runs, &run_elements);
                for (uint64_t r = 0; r < runs; r++) {
                    region_run(&whole, &regions[i], r, &outer, &inner);
                    for (uint64_t e = 0; e < run_elements; e++)
                        assert_int_equal(here[outer + e]++, 0);
                }
            }
            for (uint64_t e = 0; e < elements; e++)
                held[e] = (uint8_t)(held[e] | here[e]);
        }
        for (uint64_t e = 0; e < elements; e++)
            assert_int_equal(held[e], 1);
        free(here);
        free(held);
    }
    words_release(&words);
}

static void every_element_is_held_in_every_layout(void **state)
{
    (void)state;
    char path[] = "/tmp/test_layout.XXXXXX.yaml";
    int fd = mkstemps(path, 5);
    assert_true(fd >= 0);
    const char *list = "- {name: a, shape: 7x3, layer: first, tp_dim: 0}\n"
                       "- {name: b, shape: 5x4x3, layer: 0, tp_dim: 1, dtype: fp32}\n"
                       "- {name: c, shape: scalar, layer: 0}\n"
                       "- {name: d, shape: 11, layer: 1}\n"
                       "- {name: i, shape: 3, layer: 1, dtype: i64}\n"
                       "- {name: e0, shape: 6x2, layer: 1, expert: 0, tp_dim: 0}\n"
                       "- {name: e1, shape: 6x2, layer: 1, expert: 1, tp_dim: 0}\n"
                       "- {name: z, shape: 2x3x2x3, layer: last, tp_dim: 3}\n";
    assert_int_equal(write(fd, list, strlen(list)), (ssize_t)strlen(list));
    close(fd);
    static const char *const layouts[] = {"",
                                          "tp=2",
                                          "tp=4",
                                          "tp=2 dp=3",
                                          "dp=5 zero=1",
                                          "pp=2 tp=3",
                                          "dp=4 zero=3",
                                          "tp=2 dp=3 zero=2",
                                          "dp=4 ep=2 zero=1",
                                          "dp=4 ep=2",
                                          "dp=6 sharding=full",
                                          "dp=6 tp=2 sharding=hybrid(3)",
                                          "dp=4 ep=2 sharding=full",
                                          "dp=32 zero=3",
                                          "dp=9 tp=8 zero=3",
                                          "mesh=tp=3+dp=2+pp=2 zero=1",
                                          "mesh=fsdp=3+tp=2+dp=2+ep=2"};
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        char text[256];
        snprintf(text, sizeof text, "model=%s %s", path, layouts[i]);
        check_cover(text);
    }
    unlink(path);
}

static void bad_layouts_say_why_with_the_figures(void **state)
{
    (void)state;
    static const struct {
        const char *words, *message;
    } cases[] = {
        {"model=gpt2 ranks=6 tp=4", "ranks=6 is not a multiple of tp x pp = 4 x 1 = 4"},
        {"model=gpt2 ranks=6 tp=2 dp=2", "ranks=6, but dp=2 x tp=2 gives 4"},
        {"model=gpt2 tp=5", "tp=5 does not divide the 12 attention heads of gpt2"},
        {"model=llama3-70b tp=64 dp=1 mesh=tp=3", "mesh=tp=3 and dp=1 are both given"},
        {"model=qwen2-7b tp=7", "tp=7 neither divides the 4 key-value heads of qwen2-7b"},
        {"model=gpt2 pp=13", "pp=13 has more stages than the 12 layers of gpt2"},
        {"model=gpt2 dp=4 ep=2", "ep=2 needs a model with experts; gpt2 has none"},
        {"model=mixtral-8x7b dp=3 ep=3", "ep=3 does not divide the 8 experts"},
        {"model=mixtral-8x7b dp=6 ep=4", "ep=4 does not divide dp=6"},
        {"model=gpt2 dp=4 sharding=hybrid(3)", "groups of 3 do not divide dp=4"},
        {"model=gpt2 dp=4 sharding=half", "sharding=half is not none, full or hybrid(n)"},
        {"model=gpt2 dp=4 sharding=full zero=1", "zero=1 and FSDP sharding"},
        {"model=mixtral-8x7b dp=4 ep=2 sharding=hybrid(1)", "ep=2 does not divide groups of 1"},
        {"model=gpt2 mesh=tp=2+tp=2", "axis tp is given twice"},
        {"model=gpt2 mesh=tq=2", "\"tq=2\" is not an axis"},
        {"model=gpt2 mesh=tp=x", "the size of tp"},
        {"model=gpt2 mesh=tp=2+", "ends with a +"},
        {"model=gpt2 mesh=dp=2+tp=2 ranks=8", "ranks=8, but dp=2 x tp=2 gives 4"},
        {"model=gpt2 pp=2 pp.split=6+5", "pp.split=6+5 has 11 layers, but gpt2 has 12"},
        {"model=gpt2 pp=2 pp.split=4+4+4", "pp.split=4+4+4 has 3 stages, but pp=2"},
        {"model=gpt2 pp=2 pp.split=odd", "pp.split=odd is not balanced, even, or layer counts"},
        {"model=gpt2 state=mlperf", "state=mlperf is for the presets"},
        {"model=gpt2 state=mlperf ranks=8", "state=mlperf is for the presets"},
        {"model=mlperf-70b dp=8", "state=mlperf needs zero=1, 2 or 3"},
        {"model=gpt2 dp=1048576 tp=12 pp=12", "more than 16777216 ranks"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct words words;
        struct cb_err err = {0};
        assert_int_equal(words_make(&words, cases[i].words, &err), CB_ERR_USAGE);
        if (!strstr(err.message, cases[i].message))
            fail_msg("%s: \"%s\" does not say \"%s\"", cases[i].words, err.message, cases[i].message);
        assert_null(words.layout);
        words_release(&words);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(state_has_fixed_names_in_every_layout),
        cmocka_unit_test(state_has_the_bytes_of_its_kinds),
        cmocka_unit_test(mlperf_state_has_the_published_bytes),
        cmocka_unit_test(the_last_axis_varies_fastest),
        cmocka_unit_test(an_odd_vocabulary_splits_as_torch_chunk_does),
        cmocka_unit_test(a_fused_qkv_is_three_regions),
        cmocka_unit_test(few_key_value_heads_repeat_over_tp),
        cmocka_unit_test(zero_1_shards_the_optimizer_flat_and_replicates_weights),
        cmocka_unit_test(flat_intervals_are_rounded_up),
        cmocka_unit_test(fsdp_chunks_dimension_0_within_the_tp_shard),
        cmocka_unit_test(experts_are_spread_over_ep),
        cmocka_unit_test(stages_are_balanced_with_embedding_and_head),
        cmocka_unit_test(every_element_is_held_in_every_layout),
        cmocka_unit_test(bad_layouts_say_why_with_the_figures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
