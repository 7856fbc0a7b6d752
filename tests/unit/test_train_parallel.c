/* Wraps and visits of a training, and the layouts its checkpoints have. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "setup/checkpoint_options.h"
#include "train/fsdp_units.h"

/* A transformer of four blocks: the root, then the blocks; the last stage uses the root again. */
static const uint64_t units[] = {1000, 300, 300, 300, 301};
static const size_t stages[] = {0, 1, 2, 3, 4, 0};
#define UNITS 5
#define STAGES 6

static struct fsdp_units make(struct training training)
{
    struct fsdp_units wraps;
    struct cb_err err;
    training.shard_ranks = training.shard_ranks ? training.shard_ranks : 1;
    assert_int_equal(fsdp_units_init(&wraps, &training, units, UNITS, stages, STAGES, &err), 0);
    return wraps;
}

static void each_module_is_a_wrap_of_its_own(void **state)
{
    (void)state;
    struct fsdp_units wraps = make((struct training){.wrap = WRAP_MODULE, .shard_ranks = 4});
    assert_int_equal(wraps.count, 5);
    assert_true(wraps.items[0].root);
    assert_false(wraps.items[1].root);
    assert_int_equal(wraps.items[4].elements, 301);
    assert_int_equal(wraps.items[4].share, 76); /* 304 / 4: padded */
    assert_int_equal(wraps.largest, 304);
    assert_int_equal(wraps.root_padded, 1000);
    assert_int_equal(wraps.share, 250 + 3 * 75 + 76);
    fsdp_units_release(&wraps);
}

static void units_are_put_together_until_there_are_enough(void **state)
{
    (void)state;
    struct fsdp_units wraps = make((struct training){.wrap = WRAP_SIZE, .min_num_params = 600});
    assert_int_equal(wraps.count, 3); /* 1000; 300 + 300; 300 + 301 */
    assert_int_equal(wraps.items[1].unit_count, 2);
    assert_int_equal(wraps.wrap_of[4], 2);
    assert_int_equal(wraps.offset_of[4], 300);
    fsdp_units_release(&wraps);
    wraps = make((struct training){.wrap = WRAP_SIZE, .min_num_params = 100000});
    assert_int_equal(wraps.count, 1);
    fsdp_units_release(&wraps);
}

static void without_a_policy_and_with_ddp_all_is_one(void **state)
{
    (void)state;
    struct fsdp_units none = make((struct training){.wrap = WRAP_NONE}), ddp = make((struct training){.ddp = true});
    assert_int_equal(none.count, 1);
    assert_int_equal(ddp.count, 1);
    assert_int_equal(none.items[0].elements, 2201);
    assert_int_equal(none.offset_of[4], 1900);
    fsdp_units_release(&none);
    fsdp_units_release(&ddp);
}

static void visits_go_forward_and_back_and_the_root_comes_last(void **state)
{
    static const size_t order[] = {0, 1, 2, 3, 4, 0, 0, 4, 3, 2, 1, 0};
    (void)state;
    struct fsdp_units wraps = make((struct training){.wrap = WRAP_MODULE});
    assert_int_equal(wraps.visit_count, 12);
    assert_int_equal(wraps.forward_count, 6);
    for (size_t i = 0; i < 12; i++) {
        assert_int_equal(wraps.visits[i].wrap, order[i]);
        assert_int_equal(wraps.visits[i].backward, i >= 6);
        /* Gradients of a wrap are complete at its last visit: the root's at the very end. */
        assert_int_equal(wraps.visits[i].last, i >= 7);
    }
    assert_int_equal(fsdp_units_next(&wraps, 0), 1);
    assert_int_equal(fsdp_units_next(&wraps, 4), 7); /* past the root: the last block again, backward */
    assert_int_equal(fsdp_units_next(&wraps, 10), 12);
    fsdp_units_release(&wraps);
}

static void a_linear_stack_has_no_root(void **state)
{
    static const size_t own[] = {0, 1, 2, 3, 4};
    (void)state;
    struct fsdp_units wraps;
    struct cb_err err;
    struct training training = {.linear = true, .wrap = WRAP_MODULE, .shard_ranks = 2};
    assert_int_equal(fsdp_units_init(&wraps, &training, units, UNITS, own, UNITS, &err), 0);
    assert_int_equal(wraps.root_padded, 0);
    assert_int_equal(wraps.largest, 1000);
    assert_int_equal(wraps.visit_count, 10);
    for (size_t i = 0; i < wraps.visit_count; i++)
        assert_int_equal(wraps.visits[i].last, i >= 5);
    fsdp_units_release(&wraps);
}

static void shares_are_equal_and_near_a_part_of_the_whole(void **state)
{
    (void)state;
    for (uint32_t ranks = 1; ranks <= 8; ranks++) {
        struct fsdp_units wraps = make((struct training){.wrap = WRAP_MODULE, .shard_ranks = ranks});
        double share = (double)wraps.share, part = 2201.0 / ranks;
        assert_true(share >= part && share < part + 5);
        fsdp_units_release(&wraps);
    }
}

/* --- layouts of a training's checkpoints --- */

/* Two flat buffers: {a: 5 x 7, b: 3} and {c: 4 x 2}; a counter beside them. */
static const struct layout_range ranges[] = {{0, 38}, {35, 38}, {0, 8}, {0, 0}};
static const uint64_t flats[] = {38, 38, 8};

static struct layout *make_layout(uint32_t ranks, const char *sharding)
{
    char path[] = "/tmp/test-train-XXXXXX.yaml", count[16];
    struct experiment *experiment;
    struct layout *layout;
    struct model *model;
    struct cb_err err;
    static const struct layout_item items[] = {{"train.seed", "7"}};
    struct layout_training training = {.ranges = ranges, .items = items, .item_count = 1};
    int fd = mkstemps(path, 5);
    FILE *file = fdopen(fd, "w");
    assert_non_null(file);
    fprintf(file, "- {name: a, shape: 5x7, dtype: fp32, layer: 0}\n- {name: b, shape: 3, dtype: fp32, layer: 0}\n"
                  "- {name: c, shape: 4x2, dtype: fp32, layer: 1}\n- {name: train.step, shape: scalar, dtype: i64}\n");
    fclose(file);
    snprintf(count, sizeof count, "%u", ranks);
    assert_int_equal(model_load(path, 0, NULL, &model, &err), 0);
    assert_int_equal(experiment_new(&experiment, &err), 0);
    assert_int_equal(experiment_set(experiment, "ranks", count, "test", &err), 0);
    assert_int_equal(experiment_set(experiment, "sharding", sharding, "test", &err), 0);
    const struct layout_options options = layout_options_of(experiment);
    assert_int_equal(layout_new_training(model, &options, &training, &layout, &err), 0);
    experiment_free(experiment);
    model_free(model);
    remove(path);
    return layout;
}

/* What a rank holds of a flat buffer is one interval: its part, where each element of a tensor is found. */
static void check_pieces(const struct layout *layout, uint32_t rank, uint32_t shards, unsigned seen[4][64])
{
    struct piece *pieces;
    size_t count;
    struct cb_err err;
    assert_int_equal(layout_pieces(layout, rank, &pieces, &count, &err), 0);
    for (size_t i = 0; i < count; i++) {
        const struct state_tensor *tensor = layout_tensor(layout, pieces[i].tensor);
        if (tensor->kind != KIND_WEIGHT)
            continue;
        uint32_t index = tensor->model_tensor;
        uint64_t first = region_first_element(&pieces[i].region, tensor->shape),
                 elements = region_elements(&pieces[i].region);
        for (uint64_t k = 0; k < elements; k++) {
            seen[index][first + k]++;
            if (index == 3)
                continue;
            uint64_t share = (flats[index] + shards - 1) / shards, flat = ranges[index].begin + first + k;
            assert_int_equal(flat / share, rank % shards);
        }
    }
    free(pieces);
}

static void every_element_is_in_one_share_and_counters_are_everywhere(void **state)
{
    static const uint64_t sizes[] = {35, 3, 8, 1};
    (void)state;
    for (uint32_t ranks = 2; ranks <= 7; ranks++) {
        unsigned seen[4][64] = {{0}};
        struct layout *layout = make_layout(ranks, "full");
        for (uint32_t rank = 0; rank < ranks; rank++)
            check_pieces(layout, rank, ranks, seen);
        for (size_t i = 0; i < 4; i++)
            for (size_t k = 0; k < sizes[i]; k++)
                assert_int_equal(seen[i][k], i == 3 ? ranks : 1);
        layout_free(layout);
    }
}

static void replicas_hold_the_same_shares(void **state)
{
    (void)state;
    unsigned seen[4][64] = {{0}};
    struct layout *layout = make_layout(6, "hybrid(3)");
    for (uint32_t rank = 0; rank < 6; rank++)
        check_pieces(layout, rank, 3, seen);
    for (size_t k = 0; k < 35; k++)
        assert_int_equal(seen[0][k], 2);
    layout_free(layout);
}

static void plans_write_every_byte_once_and_names_are_those_of_a_training(void **state)
{
    static const char *const shardings[] = {"full", "hybrid(2)", "none"};
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        struct experiment *experiment;
        struct plan_options options;
        struct plan *plan;
        struct cb_err err;
        struct layout *layout = make_layout(4, shardings[i]);
        assert_int_equal(experiment_new(&experiment, &err), 0);
        assert_int_equal(plan_options_read(experiment, 64, &options, &err), 0);
        assert_int_equal(plan_compute(layout, &options, &plan, &err), 0);
        uint64_t elements[4] = {0};
        for (size_t k = 0; k < plan->item_count; k++) {
            const struct state_tensor *tensor = layout_tensor(layout, plan->items[k].tensor);
            if (tensor->kind == KIND_WEIGHT)
                elements[tensor->model_tensor] += region_elements(&plan->items[k].region);
        }
        assert_int_equal(elements[0], 35);
        assert_int_equal(elements[1], 3);
        assert_int_equal(elements[2], 8);
        assert_int_equal(elements[3], 1);
        assert_string_equal(layout_tensor(layout, 0)->fqn, "model.a");
        assert_string_equal(layout_tensor(layout, 3)->fqn, "train.step");
        assert_string_equal(layout_tensor(layout, layout_tensor_count(layout) - 1)->fqn, "train.seed");
        plan_free(plan);
        experiment_free(experiment);
        layout_free(layout);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_module_is_a_wrap_of_its_own),
        cmocka_unit_test(units_are_put_together_until_there_are_enough),
        cmocka_unit_test(without_a_policy_and_with_ddp_all_is_one),
        cmocka_unit_test(visits_go_forward_and_back_and_the_root_comes_last),
        cmocka_unit_test(a_linear_stack_has_no_root),
        cmocka_unit_test(shares_are_equal_and_near_a_part_of_the_whole),
        cmocka_unit_test(every_element_is_in_one_share_and_counters_are_everywhere),
        cmocka_unit_test(replicas_hold_the_same_shares),
        cmocka_unit_test(plans_write_every_byte_once_and_names_are_those_of_a_training),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
