/* The native engine over real stores: what is saved is what is loaded in any layout, and what goes
 * wrong is named and never committed. Ranks are threads. */
#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "ckpt/format/format.h"
#include "tests/unit/native_world.h"
#include "tests/unit/own_folder.h"

/* Calls `each` for every data file of a checkpoint. */
static unsigned each_file(const char *checkpoint, void (*each)(const char *path, uint64_t bytes, unsigned number))
{
    char path[512];
    unsigned number = 0;
    snprintf(path, sizeof path, "%s/%s", folder, checkpoint);
    DIR *entries = opendir(path);
    assert_non_null(entries);
    for (struct dirent *entry; (entry = readdir(entries));) {
        char file[1024];
        struct stat status;
        snprintf(file, sizeof file, "%s/%s", path, entry->d_name);
        if (entry->d_name[0] == '.' || stat(file, &status) != 0)
            continue;
        each(file, (uint64_t)status.st_size, number++);
    }
    closedir(entries);
    return number;
}

static double total(const struct world *world, enum metric_id metric)
{
    double sum = 0;
    for (uint32_t i = 0; i < world->size; i++)
        sum += world->ranks[i].sample.values[metric];
    return sum;
}

static void save_and_load(const char *words, uint32_t shift)
{
    struct world world;
    clear();
    world_open(&world, words, folder, shift);
    world_pass(&world, OP_SAVE, "a/0");
    world_pass(&world, OP_SAVE, "a/1");
    assert_true(exists("a/1/" STORED_MARKER));
    world_pass(&world, OP_LOAD, "a/1");
    world_check_loaded(&world);
    assert_true(total(&world, METRIC_BYTES_NEEDED) >= (double)layout_total_bytes(world.words.layout));
    world_close(&world);
}

static void what_is_saved_is_what_is_loaded(void **unused)
{
    (void)unused;
    static const char *const worlds[] = {
        "model=gpt2-tiny",
        "model=gpt2-tiny io.direct=false",
        "model=gpt2-tiny io.engine=psync io.direct=false checksum=none",
        "model=gpt2-tiny dp=2 tp=2 io.block=64KiB",
        "model=gpt2-tiny dp=3 zero=1 io.files=2 io.depth=1",
        "model=gpt2-tiny dp=2 zero=3 io.files=item",
        "model=gpt2-tiny dp=2 pp=2 io.files=shared",
        "model=gpt2-tiny dp=2 pp=2 io.files=shared io.direct=false",
        "model=gpt2-tiny tp=4 io.fsync=false format=raw",
        "model=gpt2-tiny sharding=full dp=3 save.dedup=lowest_rank",
        "model=gpt2-tiny dp=2 save.dedup=none",
        "model=gpt2-tiny state=weights dp=2 tp=2 io.block=4096",
    };
    for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++)
        save_and_load(worlds[i], (uint32_t)i % 3);
}

static const char *random_world(char text[256])
{
    static const char *const layouts[] = {
        "",         "dp=2", "tp=2", "dp=2 tp=2 zero=1", "dp=3 zero=3", "pp=2 tp=2", "dp=4 zero=1", "sharding=full dp=3",
        "dp=2 pp=3"};
    static const char *const io[] = {"",
                                     "io.files=item",
                                     "io.files=3",
                                     "io.files=shared",
                                     "io.engine=psync io.threads=2",
                                     "io.direct=false",
                                     "io.block=12KiB io.depth=3",
                                     "io.block=1MiB io.depth=1",
                                     "save.dedup=lowest_rank"};
    static const char *const loads[] = {"", "load.exchange=broadcast", "load.exchange=split",
                                        "load.exchange=split load.gap=0"};
    snprintf(text, 256, "model=gpt2-tiny layers=3 payload=weights %s %s %s format=%s checksum=%s",
             loads[(size_t)rand() % (sizeof loads / sizeof *loads)],
             layouts[(size_t)rand() % (sizeof layouts / sizeof *layouts)],
             io[(size_t)rand() % (sizeof io / sizeof *io)], rand() % 3 ? "dcp" : "raw", rand() % 3 ? "crc32" : "none");
    return text;
}

static void what_one_layout_saves_any_other_loads(void **unused)
{
    (void)unused;
    srand(3);
    for (int round = 0; round < 30; round++) {
        struct world saver, loader;
        char from[256], to[256];
        clear();
        world_open(&saver, random_world(from), folder, 0);
        world_open(&loader, random_world(to), folder, (uint32_t)rand() % 3);
        print_message("%s -> %s\n", from, to);
        world_pass(&saver, OP_SAVE, "c");
        world_pass(&loader, OP_LOAD, "c");
        world_check_loaded(&loader);
        world_close(&saver);
        world_close(&loader);
    }
}

static void states_sum_to_the_operation(void **unused)
{
    (void)unused;
    struct world world;
    clear();
    world_open(&world, "model=gpt2-tiny dp=2 tp=2", folder, 1);
    for (int op = OP_SAVE; op <= OP_LOAD; op++) {
        world_pass(&world, (enum operation)op, "a");
        for (uint32_t i = 0; i < world.size; i++) {
            const double *values = world.ranks[i].sample.values;
            double sum = 0;
            for (int state = 0; state < STATE_COUNT; state++)
                sum += values[metric_of_state((enum rank_state)state)];
            assert_true(fabs(sum - values[METRIC_OP_S]) < 1e-6);
            assert_true(values[METRIC_OWN_S] <= values[METRIC_OP_S]);
            assert_true(values[METRIC_REQUESTS] > 0 && values[METRIC_ERRORS] == 0);
            assert_true(world.ranks[i].page->latency[op].count > 0);
            assert_true(world.ranks[i].page->bytes_done >= world.ranks[i].page->bytes_total);
        }
    }
    world_close(&world);
}

/* A proxy for speed: of what O_DIRECT moves only edges and small tensors are copied. */
static void large_tensors_are_not_copied(void **unused)
{
    (void)unused;
    struct world world;
    char words[256], path[128];
    clear();
    snprintf(path, sizeof path, "%s/model.yaml", folder);
    FILE *list = fopen(path, "w");
    assert_non_null(list);
    for (int i = 0; i < 4; i++)
        fprintf(list, "- {name: large.%d, shape: [1001, 1024], dtype: bf16}\n", i);
    assert_int_equal(fclose(list), 0);
    snprintf(words, sizeof words, "model=%s dp=2 io.direct=auto", path);
    world_open(&world, words, folder, 1);
    bool direct = store_capabilities(world.ranks[0].store)->direct;
    for (int op = OP_SAVE; op <= OP_LOAD; op++) {
        world_pass(&world, (enum operation)op, "a");
        double moved = total(&world, METRIC_BYTES_MOVED), copied = total(&world, METRIC_BYTES_COPIED);
        double requests = total(&world, METRIC_REQUESTS);
        print_message("%s (%s): %.0f of %.0f bytes copied, %.0f requests\n", operation_name((enum operation)op),
                      direct ? "O_DIRECT" : "buffered", copied, moved, requests);
        assert_true(copied < 0.02 * moved);
        assert_true(requests < moved / (4 << 20) * 1.1 + 10);
    }
    world_close(&world);
}

static void a_failing_write_commits_nothing_and_names_rank_file_and_reason(void **unused)
{
    (void)unused;
    struct world world;
    char uri[256];
    clear();
    snprintf(uri, sizeof uri, "fault:error_at=2/ENOSPC+rank=1:%s", folder);
    world_open(&world, "model=gpt2-tiny dp=3 zero=1 io.block=64KiB", uri, 0);
    assert_int_not_equal(world_run(&world, OP_SAVE, "a", WORLD_TIMEOUT_NS), 0);
    assert_false(exists("a/" STORED_MARKER));
    assert_int_equal(world.ranks[1].rc, CB_ERR_NO_SPACE);
    assert_non_null(strstr(world.ranks[1].err.message, "rank 1"));
    assert_non_null(strstr(world.ranks[1].err.message, "a/"));
    assert_non_null(strstr(world.ranks[1].err.message, "No space left"));
    for (uint32_t i = 0; i < 3; i += 2) {
        assert_int_equal(world.ranks[i].rc, CB_ERR_ABORTED);
        assert_non_null(strstr(world.ranks[i].err.message, "rank 1 failed (no_space)"));
    }
    world_close(&world);
}

static void a_failing_commit_commits_nothing(void **unused)
{
    (void)unused;
    static const char *const steps[] = {"create", "finish", "sync_folder", "publish"};
    for (size_t i = 0; i < 4; i++) {
        struct world world;
        char uri[256];
        clear();
        snprintf(uri, sizeof uri, "fault:fail=%s+rank=0:%s", steps[i], folder);
        world_open(&world, "model=gpt2-tiny dp=2", uri, 0);
        world_run(&world, OP_SAVE, "a", WORLD_TIMEOUT_NS);
        if (world.ranks[0].rc == 0 || world.ranks[1].rc == 0 || exists("a/" STORED_MARKER))
            fail_msg("%s failed, and the save did not", steps[i]);
        world_close(&world);
    }
}

/* Another run takes the folder over while rank 0 writes the metadata. */
static int lose_folder_meanwhile(void *unused, struct cb_err *err)
{
    (void)unused;
    return exists("a/" STORED_MARKER ".tmp") ? cb_fail(err, CB_ERR_EXISTS, "it is another's") : 0;
}

static void a_folder_that_is_lost_while_the_metadata_are_written_is_not_committed(void **unused)
{
    (void)unused;
    struct world world;
    clear();
    world_check_owner = lose_folder_meanwhile;
    world_open(&world, "model=gpt2-tiny dp=2", folder, 0);
    world_check_owner = NULL;
    assert_int_equal(world_run(&world, OP_SAVE, "a", WORLD_TIMEOUT_NS), CB_ERR_EXISTS);
    assert_false(exists("a/" STORED_MARKER));
    assert_non_null(strstr(world.ranks[0].err.message, "it is another's"));
    world_close(&world);
}

static blkcnt_t blocks_then;

/* Another run takes the folder over right after rank 0 has found that it is still this run's. */
static int replace_shared_file(void *unused, struct cb_err *err)
{
    char path[128];
    struct stat status;
    (void)unused, (void)err;
    snprintf(path, sizeof path, "%s/a/__0_0.distcp", folder);
    if (stat(path, &status) != 0 || status.st_size == 6)
        return 0;
    blocks_then = status.st_blocks;
    FILE *theirs = unlink(path) == 0 ? fopen(path, "w") : NULL;
    return theirs && fputs("theirs", theirs) >= 0 && fclose(theirs) == 0 ? 0 : CB_ERR_SYSTEM;
}

static void ranks_write_to_the_shared_file_of_their_own_run_alone(void **unused)
{
    (void)unused;
    struct world world;
    struct stat status;
    char path[128];
    clear();
    world_check_owner = replace_shared_file;
    world_open(&world, "model=gpt2-tiny dp=4 io.files=shared", folder, 0);
    world_check_owner = NULL;
    world_run(&world, OP_SAVE, "a", WORLD_TIMEOUT_NS);
    snprintf(path, sizeof path, "%s/a/__0_0.distcp", folder);
    assert_int_equal(world.ranks[0].rc, 0);
    assert_int_equal(stat(path, &status), 0);
    assert_int_equal(status.st_size, 6);
    assert_int_equal(blocks_then, 0); /* nobody had written */
    world_close(&world);
}

static void a_stuck_rank_ends_the_save_for_all(void **unused)
{
    (void)unused;
    struct world world;
    char uri[256];
    clear();
    snprintf(uri, sizeof uri, "fault:stall_at=2+rank=1:%s", folder);
    world_open(&world, "model=gpt2-tiny dp=2 io.block=64KiB", uri, 0);
    world_run(&world, OP_SAVE, "a", NS_PER_S / 2);
    assert_int_equal(world.ranks[1].rc, CB_ERR_TIMEOUT);
    assert_int_equal(world.ranks[0].rc, CB_ERR_ABORTED);
    assert_non_null(strstr(world.ranks[0].err.message, "rank 1 failed (timeout)"));
    assert_false(exists("a/" STORED_MARKER));
    world_close(&world);
}

static void a_complete_checkpoint_is_not_written_over(void **unused)
{
    (void)unused;
    struct world world;
    clear();
    world_open(&world, "model=gpt2-tiny dp=2", folder, 0);
    world_pass(&world, OP_SAVE, "a");
    assert_int_equal(world_run(&world, OP_SAVE, "a", WORLD_TIMEOUT_NS), CB_ERR_EXISTS);
    world_pass(&world, OP_LOAD, "a");
    world_check_loaded(&world);
    world_close(&world);
}

static void an_overwritten_checkpoint_is_gone_until_the_new_one_is_whole(void **unused)
{
    (void)unused;
    struct world world;
    char uri[256];
    clear();
    world_open(&world, "model=gpt2-tiny dp=2 folder=overwrite", folder, 1);
    for (int i = 0; i < 3; i++) {
        world_pass(&world, OP_SAVE, "a");
        assert_true(world.ranks[0].sample.values[METRIC_DELETE_S] > 0);
    }
    world_pass(&world, OP_LOAD, "a");
    world_check_loaded(&world);
    world_close(&world);
    snprintf(uri, sizeof uri, "fault:error_at=1/EIO+rank=1:%s", folder);
    world_open(&world, "model=gpt2-tiny dp=2 folder=overwrite", uri, 1);
    world_run(&world, OP_SAVE, "a", WORLD_TIMEOUT_NS);
    assert_int_not_equal(world.ranks[1].rc, 0);
    assert_false(exists("a/" STORED_MARKER));
    world_close(&world);
}

static void an_overwriting_run_leaves_no_files_of_an_older_checkpoint(void **unused)
{
    (void)unused;
    static const char *const places[] = {"a", "a/left", "a/copy-1", "a/copy-1/right"}; /* left and right: s3.prefixes */
    struct world world;
    char path[128];
    clear();
    for (size_t i = 0; i < 4; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, places[i]);
        assert_int_equal(mkdir(path, 0777), 0);
        snprintf(path, sizeof path, "%s/%s/__9_0.distcp", folder, places[i]);
        FILE *older = fopen(path, "w");
        assert_true(older && fclose(older) == 0);
    }
    world_open(&world, "model=gpt2-tiny dp=2 folder=overwrite", folder, 0);
    world_pass(&world, OP_SAVE, "a");
    world_close(&world);
    assert_false(exists("a/__9_0.distcp") || exists("a/left") || exists("a/copy-1"));
}

static void a_load_without_a_marker_says_so(void **unused)
{
    (void)unused;
    struct world world;
    clear();
    world_open(&world, "model=gpt2-tiny dp=2", folder, 0);
    assert_int_not_equal(world_run(&world, OP_LOAD, "nothing", WORLD_TIMEOUT_NS), 0);
    assert_int_equal(world.ranks[0].rc, CB_ERR_NOT_FOUND);
    assert_non_null(strstr(world.ranks[0].err.message, "no complete checkpoint at nothing"));
    world_close(&world);
}

/* In several places: one alone may hit the padding before a payload, which nobody reads. */
static void flip_bits(const char *path, uint64_t bytes, unsigned number)
{
    (void)number;
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    for (uint64_t i = 1; i < 8; i++) {
        char byte;
        assert_int_equal(pread(fd, &byte, 1, (off_t)(bytes * i / 8)), 1);
        byte ^= 4;
        assert_int_equal(pwrite(fd, &byte, 1, (off_t)(bytes * i / 8)), 1);
    }
    close(fd);
}

static void cut_in_half(const char *path, uint64_t bytes, unsigned number)
{
    (void)number;
    assert_int_equal(truncate(path, (off_t)(bytes / 2)), 0);
}

static void remove_one(const char *path, uint64_t bytes, unsigned number)
{
    (void)bytes;
    if (number == 0)
        assert_int_equal(unlink(path), 0);
}

/* Failures on the pages of all ranks that hold a text. */
static unsigned count_failures(struct world *world, const char *text)
{
    unsigned found = 0;
    for (uint32_t i = 0; i < world->size; i++) {
        const char *failures = world->ranks[i].page->failures;
        for (const char *at = failures; (at = strstr(at, text)); at++)
            found++;
    }
    return found;
}

static void damage_and_load(const char *words, void (*damage)(const char *, uint64_t, unsigned), const char *expected,
                            unsigned at_least)
{
    struct world world;
    clear();
    world_open(&world, words, folder, 1);
    world_pass(&world, OP_SAVE, "a");
    each_file("a", damage);
    assert_int_not_equal(world_run(&world, OP_LOAD, "a", WORLD_TIMEOUT_NS), 0);
    if (count_failures(&world, expected) < at_least || count_failures(&world, "in a/") == 0)
        fail_msg("not enough failures say \"%s\": %s / %s", expected, world.ranks[0].page->failures,
                 world.ranks[world.size - 1].page->failures);
    world_close(&world);
}

static void damage_is_named_by_tensor_file_and_offset(void **unused)
{
    (void)unused;
    damage_and_load("model=gpt2-tiny dp=2 zero=1", flip_bits, "CRC-32", 4);
    damage_and_load("model=gpt2-tiny dp=2 zero=1 io.direct=false", flip_bits, "CRC-32", 4);
    damage_and_load("model=gpt2-tiny dp=2 zero=1", cut_in_half, "too short", 10);
    damage_and_load("model=gpt2-tiny dp=2 zero=1 io.direct=false", cut_in_half, "too short", 10);
    damage_and_load("model=gpt2-tiny dp=2 zero=1", remove_one, "No such file", 2);
}

/* Rank 0 finds that while others already have a part. */
static void metadata_that_end_early_fail_the_load_of_all_ranks(void **unused)
{
    (void)unused;
    struct world world;
    char path[512];
    struct stat status;
    clear();
    world_open(&world, "model=gpt2-tiny dp=3 zero=1", folder, 1);
    world_pass(&world, OP_SAVE, "a");
    snprintf(path, sizeof path, "%s/a/.metadata", folder);
    assert_int_equal(stat(path, &status), 0);
    for (int part = 1; part < 4; part++) {
        assert_int_equal(truncate(path, status.st_size * (4 - part) / 4), 0);
        assert_int_not_equal(world_run(&world, OP_LOAD, "a", WORLD_TIMEOUT_NS), 0);
        assert_int_equal(world.ranks[0].rc, CB_ERR_FORMAT);
        for (uint32_t rank = 1; rank < world.size; rank++) {
            assert_int_equal(world.ranks[rank].rc, CB_ERR_ABORTED);
            assert_non_null(strstr(world.ranks[rank].err.message, "rank 0 failed"));
        }
    }
    world_close(&world);
}

static void a_bit_flipped_below_the_reader_is_found(void **unused)
{
    (void)unused;
    struct world world;
    char uri[256];
    clear();
    snprintf(uri, sizeof uri, "fault:bit_flip=1+rank=0:%s", folder);
    world_open(&world, "model=gpt2-tiny dp=2", uri, 1);
    world_pass(&world, OP_SAVE, "a");
    assert_int_equal(world_run(&world, OP_LOAD, "a", WORLD_TIMEOUT_NS), CB_ERR_CORRUPT);
    world_close(&world);
}

static void a_read_error_fails_its_items_and_the_load_goes_on(void **unused)
{
    (void)unused;
    struct world world;
    char uri[256];
    clear();
    snprintf(uri, sizeof uri, "fault:error_at=2+ops=read+rank=0:%s", folder);
    world_open(&world, "model=gpt2-tiny dp=2 io.block=64KiB", uri, 1);
    world_pass(&world, OP_SAVE, "a");
    assert_int_not_equal(world_run(&world, OP_LOAD, "a", WORLD_TIMEOUT_NS), 0);
    assert_true(count_failures(&world, "Input/output error") > 0);
    assert_true(world.ranks[0].sample.values[METRIC_REQUESTS] > 3);
    assert_true(world.ranks[0].sample.values[METRIC_ERRORS] == 1);
    world_close(&world);
}

static void a_checkpoint_of_another_model_is_refused_by_name(void **unused)
{
    (void)unused;
    struct world saver, loader;
    clear();
    world_open(&saver, "model=gpt2-tiny layers=1", folder, 0);
    world_open(&loader, "model=gpt2-tiny layers=2", folder, 0);
    world_pass(&saver, OP_SAVE, "a");
    assert_int_not_equal(world_run(&loader, OP_LOAD, "a", WORLD_TIMEOUT_NS), 0);
    assert_true(count_failures(&loader, "transformer.h.1") > 3);
    world_close(&saver);
    world_close(&loader);
}

static void another_type_or_shape_is_named(void **unused)
{
    (void)unused;
    static const char *const lists[] = {"{name: a, shape: [64, 32], dtype: bf16}",
                                        "{name: a, shape: [64, 32], dtype: fp16}",
                                        "{name: a, shape: [32, 64], dtype: bf16}"};
    static const char *const said[] = {"", "model.a: the checkpoint has bf16, the model fp16",
                                       "model.a: the checkpoint has shape [64, 32], the model [32, 64]"};
    clear();
    for (int i = 0; i < 3; i++) {
        struct world world;
        char model[96], words[160];
        snprintf(model, sizeof model, "%s/model.yaml", folder);
        snprintf(words, sizeof words, "model=%s state=weights io.fsync=false", model);
        FILE *file = fopen(model, "w");
        assert_non_null(file);
        fprintf(file, "- %s\n", lists[i]);
        assert_int_equal(fclose(file), 0);
        world_open(&world, words, folder, 0);
        if (i == 0)
            world_pass(&world, OP_SAVE, "a");
        else
            assert_int_not_equal(world_run(&world, OP_LOAD, "a", WORLD_TIMEOUT_NS), 0);
        if (i > 0 && count_failures(&world, said[i]) == 0)
            fail_msg("not \"%s\" but %s", said[i], world.ranks[0].page->failures);
        world_close(&world);
    }
}

static void a_null_store_takes_a_save(void **unused)
{
    (void)unused;
    struct world world;
    world_open(&world, "model=gpt2-tiny dp=2 io.files=item", "null:", 0);
    world_pass(&world, OP_SAVE, "a/0");
    world_pass(&world, OP_SAVE, "a/1");
    world_close(&world);
}

/* Another state through the same engines, from words of another model or layout. */
static void give_state(struct world *world, struct words *words, const char *text)
{
    struct cb_err err;
    if (words_make(words, text, &err) != 0)
        fail_msg("%s: %s", text, err.message);
    for (uint32_t i = 0; i < world->size; i++) {
        struct world_rank *rank = &world->ranks[i];
        struct state *states[] = {&rank->state, &rank->loaded};
        for (size_t k = 0; k < 2; k++) {
            state_release(states[k]);
            assert_int_equal(state_init(states[k], words->layout, i, &err), 0);
            assert_int_equal(state_allocate(states[k], STATE_MEMORY_OWN, 0, &err), 0);
        }
        assert_int_equal(state_set_values(&rank->state, &world->payload, &err), 0);
    }
}

/* One engine, a state that changes: each kind of change is planned anew, what stays the same is not. */
static void a_cached_plan_is_used_for_the_same_structure_alone(void **unused)
{
    (void)unused;
    static const char *const tensors[] = {
        "{name: a, shape: [64, 32], dtype: bf16, layer: 0, tp_dim: 0}",
        "{name: c, shape: [64, 32], dtype: bf16, layer: 0, tp_dim: 0}", /* a name, */
        "{name: a, shape: [32, 64], dtype: bf16, layer: 0, tp_dim: 0}", /* a shape of as many bytes, */
        "{name: a, shape: [64, 32], dtype: fp16, layer: 0, tp_dim: 0}", /* a type of as many bytes */
        "{name: a, shape: [64, 32], dtype: bf16, layer: 0, tp_dim: 1}", /* and a placement */
    };
    static const struct {
        unsigned model;
        const char *layout;
        bool hit;
    } saves[] = {
        {0, "dp=2", false},        {0, "dp=2", true},        {0, "dp=2 zero=1", false}, {0, "dp=2 zero=1", true},
        {0, "dp=2 zero=3", false}, {0, "tp=2", false},       {4, "tp=2", false},        {0, "pp=2", false},
        {0, "mesh=fsdp=2", false}, {0, "mesh=fsdp=2", true}, {0, "dp=2", false},        {1, "dp=2", false},
        {2, "dp=2", false},        {3, "dp=2", false},       {0, "dp=2", false},        {0, "dp=2", true}};
    enum { SAVES = sizeof saves / sizeof *saves };
    struct world world;
    struct words words[SAVES];
    char models[sizeof tensors / sizeof *tensors][96];
    clear();
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
        snprintf(models[i], sizeof models[i], "%s/model-%zu.yaml", folder, i);
        FILE *file = fopen(models[i], "w");
        assert_non_null(file);
        fprintf(file, "- %s\n- {name: z, shape: [8, 8], dtype: bf16, layer: 1}\n", tensors[i]);
        assert_int_equal(fclose(file), 0);
    }
    world_open(&world, "model=gpt2-tiny dp=2 io.fsync=false", folder, 0);
    for (size_t i = 0; i < SAVES; i++) {
        char text[256], path[32];
        snprintf(text, sizeof text, "model=%s state=weights+adam %s", models[saves[i].model], saves[i].layout);
        snprintf(path, sizeof path, "plan/%zu", i);
        give_state(&world, &words[i], text);
        world_pass(&world, OP_SAVE, path);
        for (uint32_t rank = 0; rank < 2; rank++)
            assert_true((world.ranks[rank].sample.values[METRIC_PLAN_CACHE_HIT] == 1) == saves[i].hit);
        world_pass(&world, OP_LOAD, path);
        world_check_loaded(&world);
    }
    world_close(&world);
    for (size_t i = 0; i < SAVES; i++)
        words_release(&words[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_saved_is_what_is_loaded),
        cmocka_unit_test(what_one_layout_saves_any_other_loads),
        cmocka_unit_test(states_sum_to_the_operation),
        cmocka_unit_test(large_tensors_are_not_copied),
        cmocka_unit_test(a_failing_write_commits_nothing_and_names_rank_file_and_reason),
        cmocka_unit_test(a_failing_commit_commits_nothing),
        cmocka_unit_test(a_folder_that_is_lost_while_the_metadata_are_written_is_not_committed),
        cmocka_unit_test(ranks_write_to_the_shared_file_of_their_own_run_alone),
        cmocka_unit_test(a_stuck_rank_ends_the_save_for_all),
        cmocka_unit_test(a_complete_checkpoint_is_not_written_over),
        cmocka_unit_test(an_overwritten_checkpoint_is_gone_until_the_new_one_is_whole),
        cmocka_unit_test(an_overwriting_run_leaves_no_files_of_an_older_checkpoint),
        cmocka_unit_test(a_load_without_a_marker_says_so),
        cmocka_unit_test(damage_is_named_by_tensor_file_and_offset),
        cmocka_unit_test(metadata_that_end_early_fail_the_load_of_all_ranks),
        cmocka_unit_test(a_bit_flipped_below_the_reader_is_found),
        cmocka_unit_test(a_read_error_fails_its_items_and_the_load_goes_on),
        cmocka_unit_test(a_checkpoint_of_another_model_is_refused_by_name),
        cmocka_unit_test(another_type_or_shape_is_named),
        cmocka_unit_test(a_null_store_takes_a_save),
        cmocka_unit_test(a_cached_plan_is_used_for_the_same_structure_alone),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
