/* What loads in other layouts read of the store: at most 1.05 of what they need, no byte twice, in as few requests as
 * that allows. Every read is seen on its way to the store (the linker puts this test's store_submit before the real
 * one). Ranks are threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/native_world.h"
#include "tests/unit/own_folder.h"

static char model[96];

/* --- what is read --- */

struct seen {
    const struct store *store; /* one a rank */
    char name[64];
    uint64_t begin, end;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct seen *all_seen;
static size_t seen_count, seen_capacity;

int __real_store_submit(struct store *self, const struct store_request *requests, size_t count, struct cb_err *err);
int __wrap_store_submit(struct store *self, const struct store_request *requests, size_t count, struct cb_err *err);

static void see(const struct store *store, const struct store_request *request)
{
    if (seen_count == seen_capacity) {
        seen_capacity = seen_capacity ? 2 * seen_capacity : 4096;
        all_seen = realloc(all_seen, seen_capacity * sizeof *all_seen);
        assert_non_null(all_seen);
    }
    struct seen *seen = &all_seen[seen_count++];
    *seen = (struct seen){.store = store, .begin = request->offset, .end = request->offset};
    snprintf(seen->name, sizeof seen->name, "%s", store_object_name(request->object));
    for (uint32_t i = 0; i < request->segment_count; i++)
        seen->end += request->segments[i].iov_len;
}

int __wrap_store_submit(struct store *self, const struct store_request *requests, size_t count, struct cb_err *err)
{
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < count; i++) {
        if (requests[i].kind == STORE_READ)
            see(self, &requests[i]);
    }
    pthread_mutex_unlock(&lock);
    return __real_store_submit(self, requests, count, err);
}

static bool by_rank;

static int compare_seen(const void *a, const void *b)
{
    const struct seen *x = a, *y = b;
    if (by_rank && x->store != y->store)
        return x->store < y->store ? -1 : 1;
    int order = strcmp(x->name, y->name);
    if (order != 0)
        return order;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

/* Bytes that were read more than once: by one rank, or by any of them. */
static uint64_t read_twice(bool of_each_rank)
{
    uint64_t twice = 0;
    by_rank = of_each_rank;
    if (seen_count > 0)
        qsort(all_seen, seen_count, sizeof *all_seen, compare_seen);
    uint64_t end = 0;
    for (size_t i = 0; i < seen_count; i++) {
        const struct seen *seen = &all_seen[i];
        bool same = i > 0 && strcmp(seen->name, seen[-1].name) == 0 && (!by_rank || seen->store == seen[-1].store);
        end = same ? end : 0;
        if (seen->begin < end)
            twice += (seen->end < end ? seen->end : end) - seen->begin;
        end = seen->end > end ? seen->end : end;
    }
    return twice;
}

/* --- loads --- */

static void open_world(struct world *self, const char *words)
{
    char text[400], store[80];
    snprintf(text, sizeof text, "model=%s io.direct=false io.fsync=false %s", model, words);
    snprintf(store, sizeof store, "%s/store", folder);
    world_open(self, text, store, 0);
}

static void save(const char *words)
{
    struct world world;
    char store[80];
    snprintf(store, sizeof store, "%s/store", folder);
    nftw(store, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    assert_int_equal(mkdir(store, 0700), 0);
    open_world(&world, words);
    world_pass(&world, OP_SAVE, "c");
    world_close(&world);
}

static double total(const struct world *world, enum metric_id metric)
{
    double sum = 0;
    for (uint32_t i = 0; i < world->size; i++)
        sum += world->ranks[i].sample.values[metric];
    return sum;
}

struct figures {
    double amplification, requests, needed;
};

static struct figures load(const char *words)
{
    struct world world;
    open_world(&world, words);
    seen_count = 0;
    world_pass(&world, OP_LOAD, "c");
    world_check_loaded(&world);
    struct figures figures = {total(&world, METRIC_BYTES_MOVED) / total(&world, METRIC_BYTES_NEEDED),
                              total(&world, METRIC_REQUESTS), total(&world, METRIC_BYTES_NEEDED)};
    print_message("%s: %.4f of what is needed, %.0f requests, %llu bytes twice\n", words, figures.amplification,
                  figures.requests, (unsigned long long)read_twice(true));
    world_close(&world);
    return figures;
}

static void reshards_read_what_they_need_and_nothing_twice(void **unused)
{
    (void)unused;
    static const char *const reshards[][2] = {
        {"tp=2", "tp=4"}, {"tp=4", "tp=1"}, {"dp=4", "dp=1"}, {"pp=2", "pp=4"}, {"dp=4 zero=3", "dp=4 zero=1"}};
    static const char *const ways[] = {"", "load.exchange=broadcast", "load.exchange=split"};
    for (size_t i = 0; i < sizeof reshards / sizeof *reshards; i++) {
        save(reshards[i][0]);
        for (size_t way = 0; way < sizeof ways / sizeof *ways; way++) {
            char words[128];
            snprintf(words, sizeof words, "%s %s", reshards[i][1], ways[way]);
            struct figures figures = load(words);
            assert_true(figures.amplification <= 1.05);
            assert_int_equal(read_twice(true), 0);
            if (way == 2) /* all ranks share it: two of them read only headers and gaps */
                assert_true((double)read_twice(false) <= 0.04 * figures.needed);
        }
    }
}

/* More may be wasted for fewer requests, less for more of them; the shortest gaps come first, since each saves as much. */
static void waste_buys_requests(void **unused)
{
    (void)unused;
    save("tp=2");
    struct figures none = load("tp=4 load.waste=0"), few = load("tp=4"), some = load("tp=4 load.waste=20"),
                   all = load("tp=4 load.waste=1000");
    assert_true(none.amplification <= 1.01 && some.amplification <= 1.21 && all.amplification > 1.25);
    assert_true(few.amplification > none.amplification + 0.03); /* what is allowed is used */
    assert_true(none.requests > few.requests && few.requests > some.requests && some.requests > all.requests);
    assert_true(all.requests < none.requests / 20);
    double few_buys = (none.requests - few.requests) / (few.amplification - none.amplification);
    double all_buys = (none.requests - all.requests) / (all.amplification - none.amplification);
    assert_true(few_buys > 1.5 * all_buys);
    struct figures split = load("tp=4 load.exchange=split");
    assert_true(split.requests < none.requests / 20 && split.amplification <= 1.05);
}

static int make_folder_and_model(void **state)
{
    if (make_folder(state))
        return -1;
    snprintf(model, sizeof model, "%s/config.json", folder);
    FILE *file = fopen(model, "w");
    if (!file)
        return -1;
    fputs("{\"model_type\": \"llama\", \"vocab_size\": 1000, \"hidden_size\": 256, \"intermediate_size\": 2816, "
          "\"num_hidden_layers\": 4, \"num_attention_heads\": 8, \"num_key_value_heads\": 4, "
          "\"tie_word_embeddings\": false}",
          file);
    return fclose(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reshards_read_what_they_need_and_nothing_twice),
        cmocka_unit_test(waste_buys_requests),
    };
    return cmocka_run_group_tests(tests, make_folder_and_model, remove_folder);
}
