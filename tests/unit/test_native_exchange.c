/* Loads in other layouts and through an exchange: what is read of the store, that it is right, and that a
 * rank which cannot read ends the load of all with its reason. Ranks are threads. */
#include <dirent.h>
#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/unit/native_world.h"
#include "tests/unit/own_folder.h"

static char config[96];

static void clear_store(void)
{
    char store[80];
    snprintf(store, sizeof store, "%s/store", folder);
    nftw(store, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    assert_int_equal(mkdir(store, 0700), 0);
}

/* The world of `words` over the model of this test, in "FAULT" (or "") of the store. */
static void open_world(struct world *self, const char *words, const char *fault, uint32_t shift)
{
    char text[400], uri[256];
    snprintf(text, sizeof text, "model=%s io.direct=false load.gap=4KiB %s", config, words);
    snprintf(uri, sizeof uri, "%s%s/store", fault, folder);
    world_open(self, text, uri, shift);
}

static double total(const struct world *world, enum metric_id metric)
{
    double sum = 0;
    for (uint32_t i = 0; i < world->size; i++)
        sum += world->ranks[i].sample.values[metric];
    return sum;
}

static void save(const char *words)
{
    struct world world;
    clear_store();
    open_world(&world, words, "", 0);
    world_pass(&world, OP_SAVE, "c");
    world_close(&world);
}

/* Loads what is there in another layout; the bytes read of the store, as a part of one checkpoint. */
static double load(const char *words, uint32_t shift)
{
    struct world world;
    open_world(&world, words, "", shift);
    world_pass(&world, OP_LOAD, "c");
    world_check_loaded(&world);
    double part = total(&world, METRIC_BYTES_MOVED) / (double)layout_total_bytes(world.words.layout);
    double needed = total(&world, METRIC_BYTES_NEEDED), held = 0;
    for (uint32_t i = 0; i < world.size; i++)
        held += (double)layout_rank_bytes(world.words.layout, i);
    assert_true(needed == held);
    print_message("%s: %.3f of a checkpoint read, %.3f of what is needed\n", words, part,
                  total(&world, METRIC_BYTES_MOVED) / needed);
    world_close(&world);
    return part;
}

static void resharding_reads_each_byte_once(void **state)
{
    (void)state;
    save("tp=2");
    assert_true(load("tp=4 load.exchange=split", 0) <= 1.05);
    assert_true(load("tp=4 load.gap=0", 0) <= 1.10); /* what tp replicates is read by each */
    assert_true(load("tp=1", 0) <= 1.05);
    save("tp=4");
    assert_true(load("tp=1", 0) <= 1.05);
    save("dp=4");
    assert_true(load("dp=1", 0) <= 1.05);
    save("pp=2");
    assert_true(load("pp=4", 0) <= 1.05);
    save("dp=4 zero=3");
    assert_true(load("dp=4 zero=1 load.exchange=split", 0) <= 1.05);
    assert_true(load("dp=3 zero=1 load.exchange=broadcast", 0) <= 1.05); /* a prime world */
}

static void replicas_read_one_copy(void **state)
{
    (void)state;
    save("dp=4");
    double off = load("dp=4", 1), broadcast = load("dp=4 load.exchange=broadcast", 1);
    double split = load("dp=4 load.exchange=split", 1);
    assert_true(off > 4 && broadcast <= 1.05 && split <= 1.05);
    assert_true(load("dp=2 tp=2 load.exchange=split", 3) <= 1.05);
    assert_true(load("dp=4 sharding=hybrid(2) load.exchange=split", 0) <= 1.05);
}

static void one_rank_reads_for_a_broadcast_and_all_for_a_split(void **state)
{
    (void)state;
    struct world world;
    save("dp=2");
    open_world(&world, "dp=4 load.exchange=broadcast", "", 0);
    world_pass(&world, OP_LOAD, "c");
    for (uint32_t i = 1; i < 4; i++)
        assert_true(world.ranks[i].sample.values[METRIC_BYTES_MOVED] == 0);
    world_close(&world);
    open_world(&world, "dp=4 load.exchange=split", "", 0);
    world_pass(&world, OP_LOAD, "c");
    for (uint32_t i = 0; i < 4; i++) {
        double share = world.ranks[i].sample.values[METRIC_BYTES_MOVED] / total(&world, METRIC_BYTES_MOVED);
        assert_true(share > 0.22 && share < 0.28);
    }
    world_close(&world);
}

/* Failures on the pages of all ranks that hold a text. */
static unsigned count_failures(const struct world *world, const char *text)
{
    unsigned found = 0;
    for (uint32_t i = 0; i < world->size; i++) {
        for (const char *at = world->ranks[i].page->failures; (at = strstr(at, text)); at++)
            found++;
    }
    return found;
}

static void a_read_error_is_named_once_and_ends_for_all(void **state)
{
    (void)state;
    static const char *const modes[] = {"broadcast", "split"};
    for (size_t i = 0; i < 2; i++) {
        struct world world;
        char words[128];
        save("dp=2");
        snprintf(words, sizeof words, "dp=3 load.exchange=%s io.block=64KiB", modes[i]);
        open_world(&world, words, "fault:error_at=3+ops=read+rank=0:", 0);
        assert_int_not_equal(world_run(&world, OP_LOAD, "c", WORLD_TIMEOUT_NS), 0);
        assert_int_equal(world.ranks[0].rc, CB_ERR_CORRUPT);
        assert_int_equal(world.ranks[1].rc, CB_ERR_ABORTED);
        assert_non_null(strstr(world.ranks[1].err.message, "rank 0 failed"));
        assert_true(count_failures(&world, "Input/output error") >= 1);
        assert_true(world.ranks[0].page->failures[0] && !world.ranks[2].page->failures[0]);
        world_close(&world);
    }
}

static void every_missing_file_is_named_by_who_reads_it(void **state)
{
    (void)state;
    struct world world;
    char path[160];
    save("dp=3");
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/store/c/__%d_0.distcp", folder, i);
        assert_int_equal(unlink(path), 0);
    }
    open_world(&world, "dp=2 tp=2 load.exchange=split", "", 0);
    assert_int_not_equal(world_run(&world, OP_LOAD, "c", WORLD_TIMEOUT_NS), 0);
    assert_true(count_failures(&world, "c/__0_0.distcp") > 0);
    assert_true(count_failures(&world, "c/__1_0.distcp") > 0);
    assert_int_equal(count_failures(&world, "c/__2_0.distcp"), 0);
    world_close(&world);
}

static void a_stuck_reader_ends_the_load_for_all(void **state)
{
    (void)state;
    struct world world;
    save("dp=2");
    open_world(&world, "dp=3 load.exchange=split io.block=64KiB", "fault:stall_at=2+ops=read+rank=1:", 0);
    world.leaves_memory = true;
    assert_int_not_equal(world_run(&world, OP_LOAD, "c", 3 * NS_PER_S), 0);
    assert_int_equal(world.ranks[1].rc, CB_ERR_TIMEOUT);
    assert_int_equal(world.ranks[0].rc, CB_ERR_TIMEOUT);
    assert_non_null(strstr(world.ranks[0].err.message, "which rank 1 reads"));
    world_close(&world);
}

static void what_is_missing_is_reported_before_anything_travels(void **state)
{
    (void)state;
    struct world saver, loader;
    clear_store();
    open_world(&saver, "dp=2 layers=1", "", 0);
    world_pass(&saver, OP_SAVE, "c");
    open_world(&loader, "dp=2 load.exchange=broadcast", "", 0);
    assert_int_not_equal(world_run(&loader, OP_LOAD, "c", WORLD_TIMEOUT_NS), 0);
    for (uint32_t i = 0; i < 2; i++)
        assert_non_null(strstr(loader.ranks[i].page->failures, "model.layers.1.self_attn.q_proj.weight: not in"));
    assert_true(total(&loader, METRIC_BYTES_MOVED) == 0);
    world_close(&saver);
    world_close(&loader);
}

/* The first load is measured: then `split`, where it promises to be faster. */
static void check_auto(const char *words, bool splits)
{
    struct world world;
    open_world(&world, words, "fault:bandwidth=20MiB/s+ops=read:", 0);
    double moved[2], once = (double)layout_total_bytes(world.words.layout);
    for (int i = 0; i < 2; i++) {
        world_pass(&world, OP_LOAD, "c");
        world_check_loaded(&world);
        moved[i] = total(&world, METRIC_BYTES_MOVED);
    }
    const char *said = splits ? "load.exchange=split: the first load read" : "load.exchange=off: the first load read";
    if (!strstr(world.ranks[0].page->facts, said))
        fail_msg("%s: not \"%s\" but %s", words, said, world.ranks[0].page->facts);
    if (splits)
        assert_true(moved[0] > 3.9 * once && moved[1] <= 1.05 * once);
    else
        assert_true(moved[0] == moved[1]);
    world_close(&world);
}

static void auto_goes_on_with_what_its_measurements_promise(void **state)
{
    (void)state;
    save("dp=2 state=weights");
    check_auto("dp=4 state=weights load.exchange=auto", true);
    check_auto("tp=4 state=weights load.exchange=auto", false); /* next to nothing is needed twice */
}

static int make_folder_and_model(void **state)
{
    if (make_folder(state))
        return -1;
    snprintf(config, sizeof config, "%s/config.json", folder);
    FILE *file = fopen(config, "w");
    if (!file)
        return -1;
    fputs("{\"model_type\": \"llama\", \"vocab_size\": 1001, \"hidden_size\": 256, \"intermediate_size\": 688, "
          "\"num_hidden_layers\": 4, \"num_attention_heads\": 8, \"num_key_value_heads\": 4, "
          "\"tie_word_embeddings\": false}",
          file);
    return fclose(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(resharding_reads_each_byte_once),
        cmocka_unit_test(replicas_read_one_copy),
        cmocka_unit_test(one_rank_reads_for_a_broadcast_and_all_for_a_split),
        cmocka_unit_test(a_read_error_is_named_once_and_ends_for_all),
        cmocka_unit_test(every_missing_file_is_named_by_who_reads_it),
        cmocka_unit_test(a_stuck_reader_ends_the_load_for_all),
        cmocka_unit_test(what_is_missing_is_reported_before_anything_travels),
        cmocka_unit_test(auto_goes_on_with_what_its_measurements_promise),
    };
    return cmocka_run_group_tests(tests, make_folder_and_model, remove_folder);
}
