/* The key of a plan: the same for the same structure, another for a change in any of it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#include <cmocka.h>

#include "ckpt/layout/layout_internal.h"
#include "ckpt/plan.h"
#include "tests/unit/layout_words.h"

static struct plan_key key_of(const char *text)
{
    struct words words;
    struct cb_err err;
    struct plan_options options;
    struct plan_key key;
    if (words_make(&words, text, &err) != 0)
        fail_msg("%s: %s", text, err.message);
    assert_int_equal(plan_options_read(words.experiment, 4096, &options, &err), 0);
    assert_int_equal(plan_key_of(words.layout, &options, &key, &err), 0);
    words_release(&words);
    return key;
}

static char model[64];

static struct plan_key key_of_tensor(const char *tensor)
{
    char words[160];
    FILE *file = fopen(model, "w");
    assert_non_null(file);
    fprintf(file, "- {name: b, shape: [8, 8], dtype: bf16}\n- %s\n", tensor);
    assert_int_equal(fclose(file), 0);
    snprintf(words, sizeof words, "model=%s state=weights tp=2", model);
    return key_of(words);
}

static void names_shapes_and_types_are_in_it(void **unused)
{
    (void)unused;
    snprintf(model, sizeof model, "/tmp/ckptbench-key-%d.yaml", (int)getpid());
    struct plan_key base = key_of_tensor("{name: a, shape: [64, 32], dtype: bf16}");
    struct plan_key same = key_of_tensor("{name: a, shape: [64, 32], dtype: bf16}");
    static const char *const others[] = {
        "{name: c, shape: [64, 32], dtype: bf16}", "{name: a, shape: [32, 64], dtype: bf16}",
        "{name: a, shape: [64, 33], dtype: bf16}", "{name: a, shape: [64, 32, 1], dtype: bf16}",
        "{name: a, shape: [64, 32], dtype: fp16}", "{name: a, shape: [64, 32], dtype: fp32}"};
    assert_true(plan_key_equal(&base, &same) && base.number == same.number);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        struct plan_key other = key_of_tensor(others[i]);
        if (plan_key_equal(&base, &other))
            fail_msg("%s has the same key", others[i]);
    }
    unlink(model);
}

static void mesh_placements_and_options_are_in_it(void **unused)
{
    (void)unused;
    static const char *const all[] = {"model=gpt2-tiny dp=4 zero=0",
                                      "model=gpt2-tiny dp=4 zero=1",
                                      "model=gpt2-tiny dp=4 zero=3",
                                      "model=gpt2-tiny tp=4",
                                      "model=gpt2-tiny dp=2 tp=2",
                                      "model=gpt2-tiny mesh=tp=2+dp=2",
                                      "model=gpt2-tiny dp=2 pp=2",
                                      "model=gpt2-tiny dp=2 pp=2 pp.split=3+1",
                                      "model=gpt2-tiny dp=2 pp=2 pp.split=1+3",
                                      "model=gpt2-tiny dp=4 sharding=full",
                                      "model=gpt2-tiny dp=4 sharding=hybrid(2)",
                                      "model=gpt2-tiny dp=8",
                                      "model=gpt2-tiny dp=4 state=weights",
                                      "model=gpt2-tiny dp=4 layers=3",
                                      "model=gpt2-tiny dp=4 format=raw",
                                      "model=gpt2-tiny dp=4 format=safetensors",
                                      "model=gpt2-tiny dp=4 io.files=2",
                                      "model=gpt2-tiny dp=4 io.files=item",
                                      "model=gpt2-tiny dp=4 io.files=shared",
                                      "model=gpt2-tiny dp=4 format=raw io.fanout=4",
                                      "model=gpt2-tiny dp=4 save.dedup=lowest_rank",
                                      "model=gpt2-tiny dp=4 save.dedup=none",
                                      "model=gpt2-medium layers=2 dp=4"};
    enum { COUNT = sizeof all / sizeof *all };
    struct plan_key keys[COUNT];
    for (size_t i = 0; i < COUNT; i++) {
        keys[i] = key_of(all[i]);
        struct plan_key again = key_of(all[i]);
        assert_true(plan_key_equal(&keys[i], &again));
        for (size_t k = 0; k < i; k++) {
            if (plan_key_equal(&keys[i], &keys[k]) || keys[i].number == keys[k].number)
                fail_msg("%s and %s have the same key", all[i], all[k]);
        }
    }
}

static void a_longer_value_of_a_small_object_is_another_plan_another_value_is_not(void **unused)
{
    (void)unused;
    struct words words;
    struct cb_err err;
    struct plan_options options;
    struct plan_key keys[3];
    static const char *const values[] = {"3", "4", "70000"};
    assert_int_equal(words_make(&words, "model=gpt2-tiny", &err), 0);
    assert_int_equal(plan_options_read(words.experiment, 4096, &options, &err), 0);
    struct state_tensor *last = &words.layout->tensors[words.layout->tensor_count - 1];
    assert_int_equal(last->kind, KIND_BYTES);
    const char *kept = last->literal;
    for (size_t i = 0; i < 3; i++) {
        last->literal = values[i];
        assert_int_equal(plan_key_of(words.layout, &options, &keys[i], &err), 0);
    }
    last->literal = kept;
    assert_true(plan_key_equal(&keys[0], &keys[1]));
    assert_false(plan_key_equal(&keys[0], &keys[2]));
    words_release(&words);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_shapes_and_types_are_in_it),
        cmocka_unit_test(mesh_placements_and_options_are_in_it),
        cmocka_unit_test(a_longer_value_of_a_small_object_is_another_plan_another_value_is_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
