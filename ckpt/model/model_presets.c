/* The table of models known by name. */
#include <string.h>

#include "ckpt/model/model_shape.h"

#define LLAMA(...) .shape = {FAMILY_LLAMA, __VA_ARGS__} /* hidden, ffn, layers, heads, kv_heads, vocab */
#define GPT2(hidden, layers, heads, vocab, positions)                                                                  \
    .shape = {FAMILY_GPT2, hidden, 4 * (hidden), layers, heads, 0, vocab, positions, .tied = true}
#define T5(hidden, ffn, layers, heads) .shape = {FAMILY_T5, hidden, ffn, layers, heads, 0, 32128, .head_size = 64}
#define CLIP .shape = {FAMILY_CLIP, 1024, 4096, 24, 4, 0, 49408} /* 4: divides the 12 and 16 heads of both towers */
#define S3 .dtype = DTYPE_F32, .state = "weights"
#define ADAM .dtype = DTYPE_BF16, .state = "weights+adam"
#define MLPERF(tp_, pp_, dp_, zero_)                                                                                   \
    .dtype = DTYPE_BF16, .state = "mlperf", .mlperf_tp = tp_, .mlperf_pp = pp_, .mlperf_dp = dp_, .mlperf_zero = zero_

static const struct model_preset presets[] = {
    {"llama3-8b", "Llama 3 8B, public shape", LLAMA(4096, 14336, 32, 32, 8, 128256), ADAM},
    {"llama3-70b", "Llama 3 70B, public shape", LLAMA(8192, 28672, 80, 64, 8, 128256), ADAM},
    {"llama3-405b", "Llama 3.1 405B, public shape", LLAMA(16384, 53248, 126, 128, 8, 128256), ADAM},
    {"gpt2", "GPT-2 small, tied head", GPT2(768, 12, 12, 50257, 1024), ADAM},
    {"gpt2-medium", "GPT-2 medium, tied head", GPT2(1024, 24, 16, 50257, 1024), ADAM},
    {"gpt2-large", "GPT-2 large, tied head", GPT2(1280, 36, 20, 50257, 1024), ADAM},
    {"gpt2-xl", "GPT-2 XL, tied head", GPT2(1600, 48, 25, 50257, 1024), ADAM},
    {"gpt2-seed", "the GPT-2 shape of the FSDP training example, tied head", GPT2(2560, 32, 32, 50257, 1024), ADAM},
    {"gpt2-tiny", "a GPT-2 of 0.84 M parameters for tests, odd vocabulary", GPT2(128, 4, 4, 257, 128), ADAM},
    {"L7b", "Llama 7B of the S3 connector's benchmarks", LLAMA(4096, 11008, 32, 32, 32, 50432), S3},
    {"L13b", "Llama 13B of the S3 connector's benchmarks", LLAMA(5120, 13824, 40, 40, 40, 50432), S3},
    {"L30b", "Llama 30B of the S3 connector's benchmarks", LLAMA(6656, 17920, 60, 52, 52, 50432), S3},
    {"L65b", "Llama 65B of the S3 connector's benchmarks", LLAMA(8192, 22016, 80, 64, 64, 50432), S3},
    {"L70b", "Llama 70B of the S3 connector's benchmarks", LLAMA(8192, 28672, 80, 64, 8, 50432), S3},
    {"mlperf-8b", "MLPerf Storage checkpointing 8B, its own bytes and files", LLAMA(4096, 14336, 32, 32, 8, 128256),
     MLPERF(1, 1, 8, 3)},
    {"mlperf-70b", "MLPerf Storage checkpointing 70B (128 heads), its own bytes and files",
     LLAMA(8192, 28672, 80, 128, 8, 128256), MLPERF(8, 1, 8, 3)},
    {"mlperf-405b", "MLPerf Storage checkpointing 405B, its own bytes and files",
     LLAMA(16384, 53248, 126, 128, 8, 128256), MLPERF(8, 32, 2, 1)},
    {"mlperf-1t", "MLPerf Storage checkpointing 1T, its own bytes and files", LLAMA(25872, 98304, 128, 192, 32, 128256),
     MLPERF(8, 64, 2, 1)},
    {"mixtral-8x7b", "Mixtral 8x7B, 8 experts a layer", LLAMA(4096, 14336, 32, 32, 8, 32000, .experts = 8), ADAM},
    {"qwen2-0.5b", "Qwen2 0.5B, tied head", LLAMA(896, 4864, 24, 14, 2, 151936, .qkv_bias = true, .tied = true), ADAM},
    {"qwen2-1.5b", "Qwen2 1.5B, tied head", LLAMA(1536, 8960, 28, 12, 2, 151936, .qkv_bias = true, .tied = true), ADAM},
    {"qwen2-7b", "Qwen2 7B", LLAMA(3584, 18944, 28, 28, 4, 152064, .qkv_bias = true), ADAM},
    {"qwen2-72b", "Qwen2 72B", LLAMA(8192, 29568, 80, 64, 8, 152064, .qkv_bias = true), ADAM},
    {"linear-8x16384", "8 linear layers of 16384 x 16384 with bias, as in the data-parallel tutorial",
     .shape = {FAMILY_LINEAR, 16384, .layers = 8}, S3},
    {"vit-base", "ViT-Base patch 16, of the S3 connector's benchmarks",
     .shape = {FAMILY_VIT, 768, 3072, 12, 12, .classes = 1000}, S3},
    {"clip-vit", "CLIP ViT-Large patch 14, of the S3 connector's benchmarks", CLIP, S3},
    {"clip-vit-large", "another name of clip-vit", CLIP, S3},
    {"T0_3B", "T0 3B (T5 1.1 XL), of the S3 connector's benchmarks", T5(2048, 5120, 24, 32), S3},
    {"T0pp", "T0++ 11B (T5 1.1 XXL), of the S3 connector's benchmarks", T5(4096, 10240, 24, 64), S3},
};

#define PRESET_COUNT (sizeof presets / sizeof *presets)

size_t model_preset_count(void)
{
    return PRESET_COUNT;
}

const char *model_preset_name(size_t index)
{
    return presets[index].name;
}

const char *model_preset_about(size_t index)
{
    return presets[index].about;
}

const struct model_preset *model_preset_find(const char *name)
{
    for (size_t i = 0; i < PRESET_COUNT; i++) {
        if (strcmp(presets[i].name, name) == 0)
            return &presets[i];
    }
    return NULL;
}
