/* Models: presets, config.json and lists of tensors, against published names, shapes and counts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "ckpt/model/model.h"

/* Published parameter and tensor counts. */
static const struct golden {
    const char *name;
    uint64_t parameters;
    size_t tensors;
    enum dtype dtype;
    const char *state;
} goldens[] = {
    {"L7b", 6889410560, 291, DTYPE_F32, "weights"},
    {"L13b", 13204608000, 363, DTYPE_F32, "weights"},
    {"L30b", 32774310400, 543, DTYPE_F32, "weights"},
    {"L65b", 65587650560, 723, DTYPE_F32, "weights"},
    {"L70b", 69278638080, 723, DTYPE_F32, "weights"},
    {"mlperf-8b", 8030261248, 291, DTYPE_BF16, "mlperf"},
    {"mlperf-70b", 69882617856, 723, DTYPE_BF16, "mlperf"},
    {"mlperf-405b", 405853388800, 1137, DTYPE_BF16, "mlperf"},
    {"mlperf-1t", 1183035102480, 1155, DTYPE_BF16, "mlperf"},
    {"llama3-8b", 8030261248, 291, DTYPE_BF16, "weights+adam"},
    {"llama3-70b", 70553706496, 723, DTYPE_BF16, "weights+adam"},
    {"llama3-405b", 405853388800, 1137, DTYPE_BF16, "weights+adam"},
    {"gpt2", 124439808, 148, DTYPE_BF16, "weights+adam"},
    {"gpt2-medium", 354823168, 292, DTYPE_BF16, "weights+adam"},
    {"gpt2-large", 774030080, 436, DTYPE_BF16, "weights+adam"},
    {"gpt2-xl", 1557611200, 580, DTYPE_BF16, "weights+adam"},
    {"gpt2-seed", 2648931840, 388, DTYPE_BF16, "weights+adam"},
    {"gpt2-tiny", 842624, 52, DTYPE_BF16, "weights+adam"},
    {"mixtral-8x7b", 46702792704, 995, DTYPE_BF16, "weights+adam"},
    {"qwen2-0.5b", 494032768, 290, DTYPE_BF16, "weights+adam"},
    {"qwen2-1.5b", 1543714304, 338, DTYPE_BF16, "weights+adam"},
    {"qwen2-7b", 7615616512, 339, DTYPE_BF16, "weights+adam"},
    {"qwen2-72b", 72706203648, 963, DTYPE_BF16, "weights+adam"},
    {"linear-8x16384", 8 * (UINT64_C(16384) * 16384 + 16384), 16, DTYPE_F32, "weights"},
    {"vit-base", 86567656, 200, DTYPE_F32, "weights"},
    {"clip-vit", 427616513, 590, DTYPE_F32, "weights"},
    {"clip-vit-large", 427616513, 590, DTYPE_F32, "weights"},
    {"T0_3B", 2849757184, 558, DTYPE_F32, "weights"},
    {"T0pp", 11135332352, 558, DTYPE_F32, "weights"},
};

static struct model *load(const char *source, uint64_t layers, const enum dtype *dtype)
{
    struct model *model = NULL;
    struct cb_err err = {0};
    if (model_load(source, layers, dtype, &model, &err))
        fail_msg("%s", err.message);
    return model;
}

static void presets_have_the_published_counts(void **state)
{
    (void)state;
    assert_int_equal(model_preset_count(), sizeof goldens / sizeof *goldens);
    for (size_t i = 0; i < sizeof goldens / sizeof *goldens; i++) {
        struct model *model = load(goldens[i].name, 0, NULL);
        if (model_parameters(model) != goldens[i].parameters || model->count != goldens[i].tensors)
            fail_msg("%s: %llu parameters in %zu tensors, not %llu in %zu", goldens[i].name,
                     (unsigned long long)model_parameters(model), model->count,
                     (unsigned long long)goldens[i].parameters, goldens[i].tensors);
        assert_int_equal(model->dtype, goldens[i].dtype);
        assert_string_equal(model->default_state, goldens[i].state);
        model_free(model);
    }
}

static void presets_are_listed_with_a_line_about_each(void **state)
{
    (void)state;
    for (size_t i = 0; i < model_preset_count(); i++) {
        assert_true(strlen(model_preset_about(i)) > 5);
        for (size_t k = 0; k < i; k++)
            assert_string_not_equal(model_preset_name(i), model_preset_name(k));
    }
}

static void expect_tensor(const struct model *model, size_t index, const char *fqn, uint64_t rows, uint64_t columns)
{
    assert_string_equal(model->tensors[index].fqn, fqn);
    assert_int_equal(model->tensors[index].shape[0], rows);
    assert_int_equal(model->tensors[index].dims > 1 ? model->tensors[index].shape[1] : 0, columns);
}

static void gpt2_has_the_names_and_shapes_of_hugging_face(void **state)
{
    (void)state;
    struct model *model = load("gpt2", 0, NULL);
    expect_tensor(model, 0, "transformer.wte.weight", 50257, 768);
    expect_tensor(model, 1, "transformer.wpe.weight", 1024, 768);
    expect_tensor(model, 2, "transformer.h.0.ln_1.weight", 768, 0);
    expect_tensor(model, 4, "transformer.h.0.attn.c_attn.weight", 768, 2304);
    expect_tensor(model, 5, "transformer.h.0.attn.c_attn.bias", 2304, 0);
    expect_tensor(model, 10, "transformer.h.0.mlp.c_fc.weight", 768, 3072);
    expect_tensor(model, 12, "transformer.h.0.mlp.c_proj.weight", 3072, 768);
    expect_tensor(model, 147, "transformer.ln_f.bias", 768, 0);
    assert_int_equal(model->tensors[4].tp_parts, 3);
    assert_int_equal(model->tensors[4].tp_unit, 64);
    assert_int_equal(model->tensors[0].layer, MODEL_LAYER_FIRST);
    assert_int_equal(model->tensors[147].layer, MODEL_LAYER_LAST);
    model_free(model);
}

static void llama_has_the_names_and_shapes_of_hugging_face(void **state)
{
    (void)state;
    struct model *model = load("llama3-8b", 0, NULL);
    expect_tensor(model, 0, "model.embed_tokens.weight", 128256, 4096);
    expect_tensor(model, 1, "model.layers.0.self_attn.q_proj.weight", 4096, 4096);
    expect_tensor(model, 2, "model.layers.0.self_attn.k_proj.weight", 1024, 4096);
    expect_tensor(model, 5, "model.layers.0.mlp.gate_proj.weight", 14336, 4096);
    expect_tensor(model, 7, "model.layers.0.mlp.down_proj.weight", 4096, 14336);
    expect_tensor(model, 9, "model.layers.0.post_attention_layernorm.weight", 4096, 0);
    expect_tensor(model, 290, "lm_head.weight", 128256, 4096);
    assert_int_equal(model->tensors[2].tp_unit, 128);
    model_free(model);
}

static void layers_cut_the_model_and_dtype_changes_it(void **state)
{
    (void)state;
    enum dtype dtype = DTYPE_F32;
    struct model *model = load("llama3-405b", 2, &dtype);
    assert_int_equal(model->layers, 2);
    assert_int_equal(model->count, 3 + 2 * 9);
    assert_int_equal(model->tensors[5].dtype, DTYPE_F32);
    model_free(model);
    model = load("gpt2", 100, NULL);
    assert_int_equal(model->layers, 12);
    model_free(model);
}

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void expect_failure(const char *source, int code, const char *words)
{
    struct model *model = NULL;
    struct cb_err err = {0};
    assert_int_equal(model_load(source, 0, NULL, &model, &err), code);
    assert_null(model);
    if (!strstr(err.message, words))
        fail_msg("\"%s\" does not say \"%s\"", err.message, words);
}

static void an_unknown_model_names_the_nearest(void **state)
{
    (void)state;
    expect_failure("gpt2-tinny", CB_ERR_USAGE, "did you mean gpt2-tiny?");
    expect_failure("/nowhere/at/all.json", CB_ERR_USAGE, "neither a preset nor a file");
    expect_failure("/dev/null", CB_ERR_USAGE, "config.json");
}

static char folder[] = "/tmp/test_model.XXXXXX";

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? chdir(folder) : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    const char *files[] = {"config.json", "model.yaml"};
    for (size_t i = 0; i < 2; i++)
        unlink(files[i]);
    return chdir("/") || rmdir(folder);
}

static void config_files_give_the_models_of_the_presets(void **state)
{
    (void)state;
    static const struct {
        const char *preset, *json;
    } cases[] = {
        {"gpt2", "{\"model_type\":\"gpt2\",\"n_embd\":768,\"n_layer\":12,\"n_head\":12,\"vocab_size\":50257,"
                 "\"n_positions\":1024,\"n_inner\":null}"},
        {"llama3-8b",
         "{\"model_type\":\"llama\",\"hidden_size\":4096,\"intermediate_size\":14336,\"num_hidden_layers\":32,"
         "\"num_attention_heads\":32,\"num_key_value_heads\":8,\"vocab_size\":128256,\"torch_dtype\":\"bfloat16\"}"},
        {"mixtral-8x7b",
         "{\"model_type\":\"mixtral\",\"hidden_size\":4096,\"intermediate_size\":14336,\"num_hidden_layers\":32,"
         "\"num_attention_heads\":32,\"num_key_value_heads\":8,\"vocab_size\":32000,\"num_local_experts\":8}"},
        {"qwen2-0.5b",
         "{\"model_type\":\"qwen2\",\"hidden_size\":896,\"intermediate_size\":4864,\"num_hidden_layers\":24,"
         "\"num_attention_heads\":14,\"num_key_value_heads\":2,\"vocab_size\":151936,\"tie_word_embeddings\":true}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_file("config.json", cases[i].json);
        struct model *file = load(i % 2 ? "config.json" : ".", 0, NULL), *preset = load(cases[i].preset, 0, NULL);
        assert_int_equal(file->count, preset->count);
        assert_int_equal(file->dtype, DTYPE_BF16);
        for (size_t t = 0; t < file->count; t++) {
            assert_string_equal(file->tensors[t].fqn, preset->tensors[t].fqn);
            assert_memory_equal(file->tensors[t].shape, preset->tensors[t].shape, sizeof file->tensors[t].shape);
            assert_int_equal(file->tensors[t].tp_unit, preset->tensors[t].tp_unit);
        }
        model_free(file);
        model_free(preset);
    }
}

static void a_head_size_of_its_own_widens_the_queries(void **state)
{
    (void)state;
    write_file("config.json",
               "{\"model_type\":\"llama\",\"hidden_size\":8,\"intermediate_size\":16,\"num_hidden_layers\":1,"
               "\"num_attention_heads\":2,\"head_dim\":6,\"vocab_size\":10,\"torch_dtype\":\"float32\"}");
    struct model *model = load("config.json", 0, NULL);
    expect_tensor(model, 1, "model.layers.0.self_attn.q_proj.weight", 12, 8);
    expect_tensor(model, 4, "model.layers.0.self_attn.o_proj.weight", 8, 12);
    assert_int_equal(model->dtype, DTYPE_F32);
    model_free(model);
}

static void bad_config_files_say_what_is_wrong(void **state)
{
    (void)state;
    write_file("config.json", "{\"model_type\":\"bert\"}");
    expect_failure("config.json", CB_ERR_USAGE, "\"bert\" is not one of llama, gpt2, mixtral, qwen2");
    write_file("config.json", "{\"model_type\":\"gpt2\",\"n_embd\":768}");
    expect_failure("config.json", CB_ERR_FORMAT, "n_layer");
    write_file("config.json", "{\"model_type\":\"gpt2\",\"n_embd\":0,\"n_layer\":1,\"n_head\":1,\"vocab_size\":1,"
                              "\"n_positions\":1}");
    expect_failure("config.json", CB_ERR_FORMAT, "n_embd is 0");
    write_file("config.json", "{\"model_type\":\"gpt2\",\"n_embd\":10,\"n_layer\":1,\"n_head\":3,\"vocab_size\":1,"
                              "\"n_positions\":1}");
    expect_failure("config.json", CB_ERR_FORMAT, "3 attention heads do not divide the hidden size 10");
    write_file("config.json",
               "{\"model_type\":\"llama\",\"hidden_size\":268435456,\"intermediate_size\":268435456,"
               "\"num_hidden_layers\":10000,\"num_attention_heads\":1,\"head_dim\":268435456,\"vocab_size\":1}");
    expect_failure("config.json", CB_ERR_USAGE, "2^56 parameters or more");
    write_file("config.json", "{");
    expect_failure("config.json", CB_ERR_FORMAT, "config.json");
}

static void a_list_gives_names_shapes_and_types(void **state)
{
    (void)state;
    write_file("model.yaml", "- {name: a, shape: 4x6, dtype: fp32, layer: first, tp_dim: 0, tp_unit: 2}\n"
                             "- {name: b, shape: 7, dtype: bfloat16, layer: 1}\n"
                             "- {name: c, shape: scalar, dtype: i64, layer: last}\n"
                             "- {name: d, shape: 2x3x5, layer: 0, expert: 3}\n");
    struct model *model = load("model.yaml", 0, NULL);
    assert_int_equal(model->count, 4);
    assert_int_equal(model_parameters(model), 24 + 7 + 1 + 30);
    assert_int_equal(model->dtype, DTYPE_F32);
    assert_int_equal(model->layers, 2);
    assert_int_equal(model->experts, 4);
    assert_int_equal(model->tensors[0].tp_unit, 2);
    assert_int_equal(model->tensors[1].dtype, DTYPE_BF16);
    assert_int_equal(model->tensors[2].dims, 0);
    assert_int_equal(model->tensors[2].layer, MODEL_LAYER_LAST);
    assert_int_equal(model->tensors[3].expert, 3);
    model_free(model);
    enum dtype dtype = DTYPE_F16;
    model = load("model.yaml", 1, &dtype);
    assert_int_equal(model->count, 3);
    assert_int_equal(model->tensors[0].dtype, DTYPE_F16);
    assert_int_equal(model->tensors[1].dtype, DTYPE_I64);
    model_free(model);
}

static void bad_lists_say_line_and_mistake(void **state)
{
    (void)state;
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"- {name: a, shape: 4x6, dtyp: fp32}\n", "model.yaml:1: \"dtyp\" is not a key"},
        {"- {name: a, shape: 4}\n- {name: b}\n", "model.yaml:2: a tensor needs a name and a shape"},
        {"- {name: a, shape: 4xq}\n", "shape \"4xq\""},
        {"- {name: a, shape: 4x0}\n", "empty"},
        {"- {name: a, shape: 1x1x1x1x1x1x1}\n", "more than 6 dimensions"},
        {"- {name: a, shape: 4000000000000000x4000}\n", "2^50"},
        {"- {name: a, shape: 4, dtype: int3}\n", "dtype \"int3\""},
        {"- {name: a, shape: 4, tp_dim: 1}\n", "tp_dim is 1"},
        {"- {name: a, shape: 5, tp_dim: 0, tp_unit: 2}\n", "tp_unit 2 does not divide"},
        {"- {name: a, shape: scalar, tp_dim: 0}\n", "a scalar has no dimension"},
        {"- {name: a, shape: 5}\n- {name: b, shape: 5}\n- {name: a, shape: 5}\n", "\"a\" is listed twice"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_file("model.yaml", cases[i].text);
        expect_failure("model.yaml", CB_ERR_USAGE, cases[i].words);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(presets_have_the_published_counts),
        cmocka_unit_test(presets_are_listed_with_a_line_about_each),
        cmocka_unit_test(gpt2_has_the_names_and_shapes_of_hugging_face),
        cmocka_unit_test(llama_has_the_names_and_shapes_of_hugging_face),
        cmocka_unit_test(layers_cut_the_model_and_dtype_changes_it),
        cmocka_unit_test(an_unknown_model_names_the_nearest),
        cmocka_unit_test(config_files_give_the_models_of_the_presets),
        cmocka_unit_test(a_head_size_of_its_own_widens_the_queries),
        cmocka_unit_test(bad_config_files_say_what_is_wrong),
        cmocka_unit_test(a_list_gives_names_shapes_and_types),
        cmocka_unit_test(bad_lists_say_line_and_mistake),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
