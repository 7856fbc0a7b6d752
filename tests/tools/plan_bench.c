/* Times the global plan of an experiment given as key=value words and prints one JSON object:
 *   build/tests/plan_bench model=llama3-405b tp=8 pp=16 dp=128 zero=1 [rounds=5]
 * plan_s is the median of the rounds, cached_s the shortest look into a plan cache, layout_s the time to
 * build the layout once. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "core/clock.h"
#include "core/json.h"
#include "core/units.h"
#include "setup/checkpoint_options.h"

struct bench {
    struct experiment *experiment;
    struct model *model;
    struct layout *layout;
    struct plan *plan; /* of the last round */
    uint64_t rounds;
    uint64_t layout_ns, *plan_ns;
    uint64_t key_ns; /* shortest look into a plan cache: the key of the structure, compared */
};

static int read_words(struct bench *self, int count, char **words, struct cb_err *err)
{
    int code = experiment_new(&self->experiment, err);
    for (int i = 0; i < count && !code; i++) {
        char *equals = strchr(words[i], '=');
        if (!equals)
            return cb_fail(err, CB_ERR_USAGE, "\"%s\" is not key=value", words[i]);
        *equals = '\0';
        code = strcmp(words[i], "rounds") == 0 ? units_parse_u64(equals + 1, &self->rounds, err)
                                               : experiment_set(self->experiment, words[i], equals + 1, "words", err);
    }
    if (!code && (self->rounds == 0 || self->rounds > 1000))
        code = cb_fail(err, CB_ERR_USAGE, "rounds must be from 1 to 1000");
    return code;
}

static int compare_u64(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static int measure(struct bench *self, struct cb_err *err)
{
    enum dtype dtype;
    struct plan_options options;
    bool given = dtype_find(experiment_text(self->experiment, OPT_DTYPE), &dtype);
    int code = model_load(experiment_text(self->experiment, OPT_MODEL), experiment_u64(self->experiment, OPT_LAYERS),
                          given ? &dtype : NULL, &self->model, err);
    const struct layout_options layout = layout_options_of(self->experiment);
    uint64_t started_ns = clock_monotonic_ns();
    if (!code)
        code = layout_new(self->model, &layout, &self->layout, err);
    self->layout_ns = clock_monotonic_ns() - started_ns;
    if (!code)
        code = plan_options_read(self->experiment, 4096, &options, err);
    self->plan_ns = calloc(self->rounds, sizeof *self->plan_ns);
    if (!code && !self->plan_ns)
        code = cb_fail(err, CB_ERR_MEMORY, "no memory for %llu rounds", (unsigned long long)self->rounds);
    for (uint64_t i = 0; i < self->rounds && !code; i++) {
        plan_free(self->plan);
        self->plan = NULL;
        code = plan_compute(self->layout, &options, &self->plan, err);
        if (!code)
            self->plan_ns[i] = self->plan->compute_ns;
    }
    struct plan_key first, again;
    if (!code)
        code = plan_key_of(self->layout, &options, &first, err);
    self->key_ns = UINT64_MAX;
    for (uint64_t i = 0; i < self->rounds && !code; i++) {
        uint64_t from_ns = clock_monotonic_ns();
        code = plan_key_of(self->layout, &options, &again, err);
        if (!code && !plan_key_equal(&first, &again))
            code = cb_fail(err, CB_ERR_INTERNAL, "one structure has two keys");
        uint64_t key_ns = clock_monotonic_ns() - from_ns;
        self->key_ns = key_ns < self->key_ns ? key_ns : self->key_ns;
    }
    if (!code)
        qsort(self->plan_ns, self->rounds, sizeof *self->plan_ns, compare_u64);
    return code;
}

static void write_u64(struct json_writer *json, const char *key, uint64_t value)
{
    json_write_key(json, key);
    json_write_u64(json, value);
}

static void write_double(struct json_writer *json, const char *key, double value)
{
    json_write_key(json, key);
    json_write_double(json, value);
}

static int print(const struct bench *self, struct cb_err *err)
{
    struct rusage usage;
    struct buf out;
    struct json_writer json;
    const struct plan *plan = self->plan;
    double plan_ns = (double)self->plan_ns[self->rounds / 2];
    getrusage(RUSAGE_SELF, &usage);
    buf_init(&out, 1 << 16);
    json_writer_init(&json, &out, 0);
    json_write_begin_object(&json);
    json_write_key(&json, "layout");
    json_write_text(&json, layout_describe(self->layout));
    write_u64(&json, "params", model_parameters(self->model));
    write_u64(&json, "ranks", plan->world_size);
    write_u64(&json, "tensors", layout_tensor_count(self->layout));
    write_u64(&json, "items", plan->item_count);
    write_u64(&json, "files", plan->file_count);
    write_u64(&json, "payload_bytes", plan->payload_bytes);
    write_double(&json, "plan_s", plan_ns / 1e9);
    write_double(&json, "plan_min_s", (double)self->plan_ns[0] / 1e9);
    write_double(&json, "ns_per_item", plan_ns / (double)(plan->item_count ? plan->item_count : 1));
    write_double(&json, "cached_s", (double)self->key_ns / 1e9);
    write_double(&json, "layout_s", (double)self->layout_ns / 1e9);
    write_u64(&json, "rss_bytes", (uint64_t)usage.ru_maxrss * 1024);
    write_double(&json, "imbalance", plan->imbalance);
    write_double(&json, "imbalance_vs_bound", plan->imbalance_vs_bound);
    write_u64(&json, "rank_bytes_min", plan->rank_bytes_min);
    write_u64(&json, "rank_bytes_max", plan->rank_bytes_max);
    write_u64(&json, "bound_bytes", plan->bound_bytes);
    json_write_end_object(&json);
    int code = buf_check(&out, "the result", err);
    if (!code)
        puts(out.data);
    buf_release(&out);
    return code;
}

int main(int count, char **words)
{
    struct bench bench = {.rounds = 5};
    struct cb_err err = {0};
    int code = read_words(&bench, count - 1, words + 1, &err);
    if (!code)
        code = measure(&bench, &err);
    if (!code)
        code = print(&bench, &err);
    if (code)
        fprintf(stderr, "plan_bench: %s\n", err.message);
    plan_free(bench.plan);
    layout_free(bench.layout);
    model_free(bench.model);
    experiment_free(bench.experiment);
    free(bench.plan_ns);
    return cb_exit_code(code);
}
