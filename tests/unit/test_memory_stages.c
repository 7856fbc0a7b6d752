/* The memory of a training's stages: the data-parallel tutorial's figures, computed without allocating any of it. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/json.h"
#include "setup/training.h"
#include "train/memory_stages.h"

#define GB 1073741824.0

struct planned {
    struct experiment *experiment;
    struct model *model;
    struct training training;
};

/* Settings as "key=value", NULL at the end. */
static int plan(struct planned *self, const char *model, uint32_t ranks, const char *const *settings,
                struct cb_err *err)
{
    *self = (struct planned){0};
    int rc = experiment_new(&self->experiment, err);
    for (; !rc && settings && *settings; settings++) {
        char key[64];
        const char *equals = strchr(*settings, '=');
        snprintf(key, sizeof key, "%.*s", (int)(equals - *settings), *settings);
        rc = experiment_set(self->experiment, key, equals + 1, "test", err);
    }
    if (!rc)
        rc = model_load(model, 0, NULL, &self->model, err);
    return rc ? rc : training_read(self->experiment, self->model, ranks, &self->training, err);
}

static void release(struct planned *self)
{
    experiment_free(self->experiment);
    model_free(self->model);
}

static double gb_at(const struct planned *planned, unsigned moments, enum memory_stage stage)
{
    return (double)memory_stage_bytes(&planned->training, planned->model, moments, stage) / GB;
}

static void the_tutorials_stack_has_the_tutorials_figures(void **state)
{
    static const char *const ddp[] = {"train.data_parallel=ddp", NULL};
    static const char *const offload[] = {"train.cpu_offload=true", NULL};
    (void)state;
    struct planned planned;
    struct cb_err err;
    assert_int_equal(plan(&planned, "linear-8x16384", 8, NULL, &err), 0);
    assert_int_equal(planned.training.batch, 8192);
    assert_string_equal(planned.training.name, "fsdp-module_wrap-BACKWARD_PRE");
    assert_float_equal(gb_at(&planned, 0, MEMORY_AFTER_DATA_CREATION), 1, 0);
    assert_float_equal(gb_at(&planned, 0, MEMORY_AFTER_MODEL_CREATION), 9.00048828125, 0);
    assert_float_equal(gb_at(&planned, 0, MEMORY_AFTER_WARMUP), 1 + 2 * 8.00048828125 / 8, 1e-8);
    release(&planned);
    assert_int_equal(plan(&planned, "linear-8x16384", 8, ddp, &err), 0);
    assert_float_equal(gb_at(&planned, 0, MEMORY_AFTER_MODEL_CREATION), 9.00048828125, 0);
    assert_float_equal(gb_at(&planned, 0, MEMORY_AFTER_WARMUP), 1 + 3 * 8.00048828125, 0);
    release(&planned);
    assert_int_equal(plan(&planned, "linear-8x16384", 8, offload, &err), 0);
    assert_float_equal(gb_at(&planned, 0, MEMORY_AFTER_WARMUP), 1, 0);
    release(&planned);
}

static void moments_are_shared_out_with_the_weights(void **state)
{
    (void)state;
    struct planned planned;
    struct cb_err err;
    assert_int_equal(plan(&planned, "gpt2-tiny", 4, NULL, &err), 0);
    uint64_t data = 2 * 4 * 16 * 128, share = (model_parameters(planned.model) + 3) / 4;
    assert_int_equal(memory_stage_bytes(&planned.training, planned.model, 2, MEMORY_AFTER_DATA_CREATION), data);
    assert_int_equal(memory_stage_bytes(&planned.training, planned.model, 2, MEMORY_AFTER_WARMUP),
                     data + 4 * share * 4);
    release(&planned);
}

static void groups_that_shard_have_larger_shares(void **state)
{
    static const char *const hybrid[] = {"sharding=hybrid(2)", NULL};
    (void)state;
    struct planned planned;
    struct cb_err err;
    assert_int_equal(plan(&planned, "linear-8x16384", 8, hybrid, &err), 0);
    assert_float_equal(gb_at(&planned, 0, MEMORY_AFTER_WARMUP), 1 + 8.00048828125, 1e-8);
    assert_string_equal(planned.training.name, "fsdp-module_wrap-BACKWARD_PRE-hybrid2");
    release(&planned);
}

static void a_record_has_the_tutorials_keys_and_null_for_what_is_not_there(void **state)
{
    (void)state;
    struct memory_record record = {.stage = MEMORY_AFTER_WARMUP, .rank = 3, .resident_bytes = GB / 2};
    record.allocated_bytes = 25 * GB;
    record.most_allocated_bytes = record.reserved_bytes = record.most_reserved_bytes = NAN;
    struct json_writer json;
    struct buf text;
    buf_init(&text, 4096);
    json_writer_init(&json, &text, 0);
    memory_record_write(&record, &json);
    assert_string_equal(text.data, "{\"stage\": \"after warmup\", \"rank\": 3, \"log_key\": \"memory\", "
                                   "\"cuda_memory_allocated_GB\": 25, \"cuda_max_memory_allocated_GB\": null, "
                                   "\"cuda_memory_reserved_GB\": null, \"cuda_max_memory_reserved_GB\": null, "
                                   "\"cpu_memory_rss_GB\": 0.5}");
    buf_release(&text);
}

static void the_stages_have_the_tutorials_names(void **state)
{
    (void)state;
    assert_string_equal(memory_stage_name(MEMORY_AFTER_DATA_CREATION), "after data creation");
    assert_string_equal(memory_stage_name(MEMORY_AFTER_MODEL_CREATION), "after model creation");
    assert_string_equal(memory_stage_name(MEMORY_AFTER_WARMUP), "after warmup");
}

static void a_stage_keeps_what_was_resident_when_it_came_first(void **state)
{
    (void)state;
    struct memory_stages stages = {0};
    memory_stages_take(&stages, MEMORY_AFTER_DATA_CREATION, NAN, NAN);
    uint64_t first = stages.resident_bytes[MEMORY_AFTER_DATA_CREATION];
    assert_true(first > 0);
    stages.resident_bytes[MEMORY_AFTER_DATA_CREATION] = 7;
    memory_stages_take(&stages, MEMORY_AFTER_DATA_CREATION, NAN, NAN);
    assert_int_equal(stages.resident_bytes[MEMORY_AFTER_DATA_CREATION], 7);
    assert_false(stages.taken[MEMORY_AFTER_WARMUP]);
}

static void stages_are_told_in_a_line(void **state)
{
    (void)state;
    char text[128], cut[24];
    struct memory_stages stages = {.taken = {true, true}, .resident_bytes = {1 << 29, 1 << 30, 7}};
    for (int stage = 0; stage < MEMORY_STAGES; stage++)
        stages.device_bytes[stage] = NAN;
    memory_stages_describe(&stages, "/runs/a", text, sizeof text);
    assert_string_equal(text, "0.500 GB after data creation, 1.000 after model creation resident: /runs/a");
    memory_stages_describe(&stages, "/runs/a", cut, sizeof cut);
    assert_string_equal(cut, "0.500 GB after data cre");
    stages.device_bytes[0] = stages.device_bytes[1] = 1 << 28;
    memory_stages_describe(&stages, "/runs/a", text, sizeof text);
    assert_string_equal(text, "0.250 GB after data creation, 0.250 after model creation on the device: /runs/a");
}

static void intervals_are_steps_or_time(void **state)
{
    static const char *const steps[] = {"train.checkpoint_every=100", NULL};
    static const char *const time[] = {"train.checkpoint_every=30s", NULL};
    static const char *const wrong[] = {"train.checkpoint_every=now", NULL};
    (void)state;
    struct planned planned;
    struct cb_err err;
    assert_int_equal(plan(&planned, "gpt2-tiny", 1, steps, &err), 0);
    assert_int_equal(planned.training.checkpoint_steps, 100);
    assert_int_equal(planned.training.checkpoint_ns, 0);
    release(&planned);
    assert_int_equal(plan(&planned, "gpt2-tiny", 1, time, &err), 0);
    assert_int_equal(planned.training.checkpoint_steps, 0);
    assert_int_equal(planned.training.checkpoint_ns, UINT64_C(30000000000));
    release(&planned);
    assert_int_equal(plan(&planned, "gpt2-tiny", 1, wrong, &err), CB_ERR_USAGE);
    assert_non_null(strstr(err.message, "train.checkpoint_every=now"));
    release(&planned);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_tutorials_stack_has_the_tutorials_figures),
        cmocka_unit_test(moments_are_shared_out_with_the_weights),
        cmocka_unit_test(groups_that_shard_have_larger_shares),
        cmocka_unit_test(a_record_has_the_tutorials_keys_and_null_for_what_is_not_there),
        cmocka_unit_test(the_stages_have_the_tutorials_names),
        cmocka_unit_test(a_stage_keeps_what_was_resident_when_it_came_first),
        cmocka_unit_test(stages_are_told_in_a_line),
        cmocka_unit_test(intervals_are_steps_or_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
