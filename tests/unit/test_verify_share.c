/* Several that verify a checkpoint together find what one finds alone, each thing once, and have about as much to do. */
#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "ckpt/stored/verify.h"
#include "tests/unit/native_world.h"
#include "tests/unit/own_folder.h"

#define MOST_FINDINGS 256

struct findings {
    char *texts[MOST_FINDINGS];
    size_t count;
};

static void collect(void *context, const struct verify_problem *problem)
{
    struct findings *self = context;
    assert_true(self->count < MOST_FINDINGS);
    self->texts[self->count] = strdup(problem->text);
    assert_non_null(self->texts[self->count++]);
}

static int compare_texts(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void release(struct findings *self)
{
    for (size_t i = 0; i < self->count; i++)
        free(self->texts[i]);
    self->count = 0;
}

static void save(const char *words)
{
    struct world world;
    world_open(&world, words, folder, 0);
    world_pass(&world, OP_SAVE, "it");
    world_close(&world);
}

static void flip(const char *name, long every)
{
    char path[512];
    snprintf(path, sizeof path, "%s/it/%s", folder, name);
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    long length = ftell(file);
    for (long at = every; at < length; at += every) {
        fseek(file, at, SEEK_SET);
        int byte = fgetc(file);
        fseek(file, at, SEEK_SET);
        fputc(byte ^ 1, file);
    }
    assert_int_equal(fclose(file), 0);
}

/* All parts, added up. */
static void look(uint32_t parts, uint32_t threads, struct findings *findings, struct verify_result *sum,
                 uint64_t *largest_share)
{
    char place[128];
    snprintf(place, sizeof place, "%s/it", folder);
    *sum = (struct verify_result){0};
    *largest_share = 0;
    for (uint32_t part = 0; part < parts; part++) {
        struct verify_job job = {.place = place, .file = "", .threads = threads, .part = part, .parts = parts};
        struct verify_result result;
        struct cb_err err;
        assert_int_equal(verify_checkpoint(&job, collect, findings, &result, &err), 0);
        sum->counts = result.counts;
        sum->share_items += result.share_items;
        sum->share_bytes += result.share_bytes;
        sum->right_bytes += result.right_bytes;
        sum->payload_bytes += result.payload_bytes;
        sum->checksums += result.checksums;
        sum->values_checked += result.values_checked;
        sum->problems += result.problems;
        *largest_share = result.share_bytes > *largest_share ? result.share_bytes : *largest_share;
    }
    qsort(findings->texts, findings->count, sizeof *findings->texts, compare_texts);
}

static const uint32_t divisions[] = {2, 3, 7, 64, 500};

static void parts_find_together_what_one_finds_alone(void **unused)
{
    (void)unused;
    static const char *const ways[] = {"model=gpt2-tiny dp=2 tp=2 seed=42",
                                       "model=gpt2-tiny tp=2 checksum=none seed=42",
                                       "model=gpt2-tiny dp=2 zero=1 format=raw", "model=gpt2-tiny dp=3 io.files=item"};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct findings alone = {0}, together = {0};
        struct verify_result one, sum;
        uint64_t largest;
        char path[256];
        assert_int_equal(mkdir(folder, 0700), 0);
        save(ways[i]);
        if (i < 2) {
            flip("__0_0.distcp", 300000);
            flip("__1_0.distcp", 700000);
        } else if (i == 3) {
            snprintf(path, sizeof path, "%s/it/__1_0.distcp", folder);
            assert_int_equal(unlink(path), 0);
            snprintf(path, sizeof path, "%s/it/__2_3.distcp", folder);
            assert_int_equal(truncate(path, 10), 0);
        }
        look(1, 1, &alone, &one, &largest);
        assert_int_equal(one.problems, alone.count);
        if (i == 2 ? alone.count > 0 : alone.count < 2)
            fail_msg("%s: %zu findings", ways[i], alone.count);
        for (size_t k = 0; k < sizeof divisions / sizeof *divisions; k++) {
            look(divisions[k], 3, &together, &sum, &largest);
            assert_int_equal(together.count, alone.count);
            for (size_t j = 0; j < alone.count; j++)
                assert_string_equal(together.texts[j], alone.texts[j]);
            assert_int_equal(sum.share_items, one.counts.items);
            assert_int_equal(sum.payload_bytes, one.payload_bytes);
            assert_int_equal(sum.right_bytes, one.right_bytes);
            assert_int_equal(sum.checksums, one.checksums);
            assert_int_equal(sum.values_checked, one.values_checked);
            release(&together);
        }
        release(&alone);
        nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    }
}

/* No part has more than its share and half an item more at each end. */
static void parts_are_about_as_large(void **unused)
{
    (void)unused;
    struct findings none = {0};
    struct verify_result sum;
    uint64_t largest;
    assert_int_equal(mkdir(folder, 0700), 0);
    save("model=gpt2-tiny dp=4 zero=1");
    for (uint32_t parts = 2; parts <= 4; parts++) {
        look(parts, 1, &none, &sum, &largest);
        assert_true(largest <= sum.share_bytes / parts + (UINT64_C(2) << 20));
    }
    nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

static int refuse(void *context, uint64_t bytes, struct cb_err *err)
{
    uint64_t *seen = context;
    *seen += bytes;
    return *seen > 1000000 ? cb_fail(err, CB_ERR_ABORTED, "enough") : 0;
}

static void a_watch_that_refuses_ends_it_and_nothing_is_reported(void **unused)
{
    (void)unused;
    char place[128];
    uint64_t seen = 0;
    struct findings none = {0};
    struct verify_result result;
    struct cb_err err;
    assert_int_equal(mkdir(folder, 0700), 0);
    save("model=gpt2-tiny");
    snprintf(place, sizeof place, "%s/it", folder);
    struct verify_job job = {.place = place, .file = "", .threads = 1, .watch = refuse, .watch_context = &seen};
    assert_int_equal(verify_checkpoint(&job, collect, &none, &result, &err), CB_ERR_ABORTED);
    assert_string_equal(err.message, "enough");
    assert_int_equal(none.count, 0);
    nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

int main(void)
{
    snprintf(folder, sizeof folder, "/tmp/ckptbench-shares-%d", (int)getpid());
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_find_together_what_one_finds_alone),
        cmocka_unit_test(parts_are_about_as_large),
        cmocka_unit_test(a_watch_that_refuses_ends_it_and_nothing_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
