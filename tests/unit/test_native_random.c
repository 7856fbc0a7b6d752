/* Random models, layouts, formats and ways to load: what is loaded is what was saved, bytes are read as often as
 * the way to load says. Each round has a seed, which is printed: CKPTBENCH_SEED=N CKPTBENCH_ROUNDS=1 repeats one. */
#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/load/load_stages.h"
#include "tests/unit/native_world.h"
#include "tests/unit/own_folder.h"

#define ROUNDS 10
#define FIRST_SEED 30 /* 36 once cut a single row by columns */
#define LAYERS 4

static unsigned number(const char *name, unsigned fallback)
{
    const char *text = getenv(name);
    return text ? (unsigned)strtoul(text, NULL, 10) : fallback;
}

static unsigned below(unsigned limit)
{
    return (unsigned)rand() % limit;
}

static const char *one_of(const char *const *words, size_t count)
{
    return words[below((unsigned)count)];
}
#define ONE_OF(words) one_of(words, sizeof(words) / sizeof *(words))

/* One to four dimensions or none, uneven sizes, now and then one that is larger than a request. */
static void write_tensor(FILE *list, unsigned index, unsigned layer)
{
    static const char *const dtypes[] = {"bf16", "fp32", "fp16", "fp8_e4m3fn", "i64", "u8", "bool", "fp64"};
    unsigned dims = below(5);
    fprintf(list, "- {name: t%u, dtype: %s, layer: %u, shape: [", index, ONE_OF(dtypes), layer);
    for (unsigned i = 0; i < dims; i++)
        fprintf(list, "%s%u", i ? ", " : "", 1 + below(i == 0 && below(4) == 0 ? 700 : dims > 2 ? 9 : 60));
    fprintf(list, "]");
    if (dims > 0 && below(3) > 0)
        fprintf(list, ", tp_dim: %u", below(dims));
    fprintf(list, "}\n");
}

static void write_model(char path[96])
{
    snprintf(path, 96, "%s/model.yaml", folder);
    FILE *list = fopen(path, "w");
    assert_non_null(list);
    unsigned count = LAYERS + below(10);
    for (unsigned i = 0; i < count; i++)
        write_tensor(list, i, i < LAYERS ? i : below(LAYERS));
    assert_int_equal(fclose(list), 0);
}

static void random_words(char text[400], const char *model, const char *state, bool loads)
{
    static const char *const layouts[] = {"",
                                          "dp=2",
                                          "dp=5",
                                          "tp=2",
                                          "tp=3",
                                          "tp=4",
                                          "pp=2",
                                          "pp=4",
                                          "dp=2 tp=2",
                                          "dp=2 tp=2 zero=1",
                                          "dp=3 zero=3",
                                          "dp=4 zero=2",
                                          "tp=3 dp=2 zero=3",
                                          "dp=4 sharding=full",
                                          "dp=4 sharding=hybrid(2)",
                                          "dp=4 tp=2 sharding=hybrid(2)",
                                          "pp=2 dp=2 zero=1",
                                          "mesh=dp=2+pp=2+tp=2"};
    static const char *const saves[] = {
        "", "io.files=item", "io.files=2", "io.files=shared", "save.dedup=lowest_rank", "format=raw"};
    static const char *const ways[] = {"",
                                       "load.gap=0",
                                       "load.exchange=broadcast",
                                       "load.exchange=split",
                                       "load.exchange=split load.gap=0",
                                       "load.exchange=auto"};
    static const char *const io[] = {"", "io.direct=false", "io.block=4KiB", "io.block=16KiB io.depth=2"};
    snprintf(text, 400, "model=%s state=%s %s %s %s", model, state, ONE_OF(layouts),
             loads ? ONE_OF(ways) : ONE_OF(saves), ONE_OF(io));
}

/* What a rank read for itself: no byte of a file twice, and no more for nothing than load.waste allows. With O_DIRECT
 * whole blocks are read, and two requests in a row may share one, as where a header begins in it that the first has no
 * room for. */
static void check_requests(const struct world_rank *rank)
{
    const struct native_load *load = ((const struct native_engine *)rank->engine)->load;
    const struct io_schedule *schedule = &load->io.schedule;
    uint64_t *end = calloc(schedule->file_count + 1, sizeof *end), bytes = 0, frames = 0;
    uint64_t shared = schedule->limits.alignment > 1 ? schedule->limits.alignment : 0;
    for (size_t i = 0; i < schedule->request_count; i++) {
        const struct io_request *request = &schedule->requests[i];
        assert_true(request->offset + shared >= end[request->file]);
        end[request->file] = request->end;
        bytes += request->end - request->offset;
    }
    for (size_t i = 0; i < schedule->part_count; i++) {
        const struct part *part = &schedule->parts[i];
        frames += part->kind == PART_HEADER || part->kind == PART_TRAILER ? part->bytes : 0;
    }
    double needed = rank->sample.values[METRIC_BYTES_NEEDED];
    if (schedule->limits.alignment == 1)
        assert_true((double)(bytes - frames) <= needed * (1 + (double)load->plan.waste_percent / 100));
    free(end);
}

static void one_round(unsigned seed)
{
    struct world saver, loader;
    char model[96], store[80], from[400], to[400];
    srand(seed);
    snprintf(store, sizeof store, "%s/store", folder);
    nftw(store, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    assert_int_equal(mkdir(store, 0700), 0);
    write_model(model);
    const char *state = below(3) ? "weights+adam" : "weights";
    random_words(from, model, state, false);
    if (seed % 3 == 1 && !strstr(from, "format=") && !strstr(from, "io.files=shared")) /* which it refuses */
        strcat(from, " format=dcp+safetensors");
    random_words(to, model, below(4) ? state : "weights", true);
    print_message("seed %u: %s\n    -> %s\n", seed, strstr(from, " ") + 1, strstr(to, " ") + 1);
    world_open(&saver, from, store, 0);
    world_open(&loader, to, store, below(3));
    world_pass(&saver, OP_SAVE, "c");
    world_pass(&loader, OP_LOAD, "c");
    world_check_loaded(&loader);
    for (uint32_t i = 0; i < loader.size && !strstr(to, "load.exchange"); i++)
        check_requests(&loader.ranks[i]);
    world_pass(&loader, OP_LOAD, "c");
    world_check_loaded(&loader);
    world_close(&saver);
    world_close(&loader);
}

static void what_is_saved_is_loaded_in_any_layout(void **state)
{
    (void)state;
    unsigned seed = number("CKPTBENCH_SEED", FIRST_SEED), rounds = number("CKPTBENCH_ROUNDS", ROUNDS);
    for (unsigned i = 0; i < rounds; i++)
        one_round(seed + i);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_saved_is_loaded_in_any_layout),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
