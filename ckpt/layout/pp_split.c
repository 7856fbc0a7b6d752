/* pp.split: which pipeline stage holds which layer. */
#include <math.h>
#include <string.h>

#include "ckpt/layout/layout_internal.h"
#include "core/alloc.h"

/* Parameters of each layer; tensors before the layers count for the first, tensors after them for the last. */
static void weigh_layers(const struct model *model, double *weight)
{
    for (uint32_t i = 0; i < model->layers; i++)
        weight[i] = 0;
    for (size_t i = 0; i < model->count; i++) {
        const struct model_tensor *tensor = &model->tensors[i];
        struct region whole = region_whole(tensor->dims, tensor->shape);
        uint32_t layer = tensor->layer >= 0                   ? (uint32_t)tensor->layer
                         : tensor->layer == MODEL_LAYER_FIRST ? 0
                                                              : model->layers - 1;
        weight[layer] += (double)region_elements(&whole);
    }
}

/* The cost of a split: its largest stage first, then the sum of squares, so that among splits with
 * the same largest stage the others are even. */
struct cost {
    double largest, squares;
};

/* best[s][i]: the cheapest split of layers 0 … i-1 into s stages; from[s][i]: the first layer of its last stage. */
static void balance(const double *before, uint32_t layers, uint32_t stages, struct cost *best, uint32_t *from)
{
    size_t width = (size_t)layers + 1;
    for (size_t i = 0; i < (stages + 1) * width; i++)
        best[i] = (struct cost){INFINITY, INFINITY};
    best[0] = (struct cost){0, 0};
    for (uint32_t s = 1; s <= stages; s++) {
        for (uint32_t i = s; i <= layers - (stages - s); i++) {
            for (uint32_t k = i; k-- > s - 1;) {
                double stage = before[i] - before[k];
                if (stage > best[s * width + i].largest)
                    break; /* the cost only grows from here */
                struct cost last = best[(s - 1) * width + k];
                struct cost cost = {fmax(stage, last.largest), last.squares + stage * stage};
                struct cost *known = &best[s * width + i];
                if (cost.largest < known->largest ||
                    (cost.largest == known->largest && cost.squares < known->squares)) {
                    *known = cost;
                    from[s * width + i] = k;
                }
            }
        }
    }
}

static int split_balanced(const struct model *model, uint32_t stages, uint32_t *stage_of, struct cb_err *err)
{
    uint32_t layers = model->layers;
    size_t cells = ((size_t)stages + 1) * ((size_t)layers + 1);
    double *weight = malloc(layers * sizeof *weight), *before = calloc((size_t)layers + 1, sizeof *before);
    struct cost *best = calloc(cells, sizeof *best);
    uint32_t *from = calloc(cells, sizeof *from);
    int code = 0;
    if (!weight || !before || !best || !from) {
        code = alloc_fail(err, "to split %u layers into %u stages", layers, stages);
        goto out;
    }
    weigh_layers(model, weight);
    for (uint32_t i = 0; i < layers; i++)
        before[i + 1] = before[i] + weight[i];
    balance(before, layers, stages, best, from);
    uint32_t end = layers;
    for (uint32_t s = stages; s > 0; s--) {
        uint32_t begin = from[s * ((size_t)layers + 1) + end];
        for (uint32_t i = begin; i < end; i++)
            stage_of[i] = s - 1;
        end = begin;
    }
out:
    free(weight);
    free(before);
    free(best);
    free(from);
    return code;
}

/* The remainder goes to the first stages. */
static void split_even(uint32_t layers, uint32_t stages, uint32_t *stage_of)
{
    uint32_t layer = 0;
    for (uint32_t s = 0; s < stages; s++) {
        uint32_t count = layers / stages + (s < layers % stages ? 1 : 0);
        for (uint32_t i = 0; i < count; i++)
            stage_of[layer++] = s;
    }
}

static int split_listed(const struct model *model, uint32_t stages, const char *split, uint32_t *stage_of,
                        struct cb_err *err)
{
    uint64_t layer = 0, stage = 0;
    for (const char *at = split;; at++) {
        size_t digits = strspn(at, "0123456789");
        uint64_t count = digits > 0 && digits < 9 ? strtoull(at, NULL, 10) : 0;
        if (count == 0)
            return cb_fail(err, CB_ERR_USAGE, "pp.split=%s is not balanced, even, or layer counts from 1 as 8+8+7",
                           split);
        for (uint64_t i = 0; i < count && layer + i < model->layers; i++)
            stage_of[layer + i] = (uint32_t)stage;
        layer += count;
        stage++;
        at += digits;
        if (*at == '\0')
            break;
        if (*at != '+')
            return cb_fail(err, CB_ERR_USAGE, "pp.split=%s is not balanced, even, or layer counts from 1 as 8+8+7",
                           split);
    }
    if (stage != stages)
        return cb_fail(err, CB_ERR_USAGE, "pp.split=%s has %llu stages, but pp=%u", split, (unsigned long long)stage,
                       stages);
    if (layer != model->layers)
        return cb_fail(err, CB_ERR_USAGE, "pp.split=%s has %llu layers, but %s has %u", split,
                       (unsigned long long)layer, model->name, model->layers);
    return 0;
}

int pipeline_split(const struct model *model, uint32_t stages, const char *split, uint32_t *stage_of,
                   struct cb_err *err)
{
    bool named = strcmp(split, "balanced") == 0 || strcmp(split, "even") == 0;
    if (!named)
        return split_listed(model, stages, split, stage_of, err);
    if (stages == 1 || strcmp(split, "even") == 0) {
        split_even(model->layers, stages, stage_of);
        return 0;
    }
    return split_balanced(model, stages, stage_of, err);
}
