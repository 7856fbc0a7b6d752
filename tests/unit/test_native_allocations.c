/* Between the first and the last byte of a save or load nothing is allocated or freed, once an
 * iteration has warmed things up. This program's own malloc counts, or a sanitizer's hooks. */
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

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZER_OWNS_MALLOC 1
#else
#define SANITIZER_OWNS_MALLOC 0
#endif

static const struct status_page *watched;
static _Atomic uint64_t calls_in_data_path, calls_at_all;

static void count_call(void)
{
    calls_at_all++;
    const struct status_page *page = watched;
    if (page && page->bytes_done > 0 && page->bytes_done < page->bytes_total)
        calls_in_data_path++;
    if (page && !world_thread && page->behind_bytes_done > 0 && page->behind_bytes_done < page->behind_bytes_total)
        calls_in_data_path++;
    if (page && page->op == OP_SAVE && page->state == STATE_STAGE)
        calls_in_data_path++;
}

#if !SANITIZER_OWNS_MALLOC
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);
void __libc_free(void *memory);

void *malloc(size_t bytes)
{
    count_call();
    return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    count_call();
    return __libc_calloc(count, bytes);
}

void *realloc(void *memory, size_t bytes)
{
    count_call();
    return __libc_realloc(memory, bytes);
}

void free(void *memory)
{
    count_call();
    __libc_free(memory);
}

static void count_calls(void) {}
#else
int __sanitizer_install_malloc_and_free_hooks(void (*allocated)(const volatile void *, size_t),
                                              void (*freed)(const volatile void *));

static void allocated(const volatile void *memory, size_t bytes)
{
    (void)memory, (void)bytes;
    count_call();
}

static void freed(const volatile void *memory)
{
    (void)memory;
    count_call();
}

static void count_calls(void)
{
    __sanitizer_install_malloc_and_free_hooks(allocated, freed);
}
#endif

static void save_and_load_allocate_nothing(const char *words)
{
    struct world world;
    assert_int_equal(mkdir(folder, 0700), 0);
    world_open(&world, words, folder, 0);
    world_pass(&world, OP_SAVE, "a/0");
    world_pass(&world, OP_LOAD, "a/0");
    watched = world.ranks[0].page;
    calls_in_data_path = 0;
    uint64_t before = calls_at_all;
    world_pass(&world, OP_SAVE, "a/1");
    assert_true(watched->bytes_done >= watched->bytes_total && watched->bytes_total > 0);
    uint64_t in_save = calls_in_data_path;
    world_pass(&world, OP_LOAD, "a/1");
    watched = NULL;
    assert_true(calls_at_all > before); /* the hook works: planning a load allocates */
    if (calls_in_data_path > 0)
        fail_msg("%s: %llu calls while saving, %llu while loading", words, (unsigned long long)in_save,
                 (unsigned long long)(calls_in_data_path - in_save));
    world_check_loaded(&world);
    world_close(&world);
    nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

static void the_data_path_does_not_allocate(void **unused)
{
    (void)unused;
    save_and_load_allocate_nothing("model=gpt2-tiny io.depth=2 io.block=64KiB");
    save_and_load_allocate_nothing("model=gpt2-tiny io.depth=2 io.block=64KiB io.direct=false");
    save_and_load_allocate_nothing("model=gpt2-tiny io.depth=2 io.block=64KiB io.engine=psync");
    save_and_load_allocate_nothing("model=gpt2-tiny io.depth=2 io.block=64KiB io.engine=psync io.threads=2 format=raw");
}

/* Neither while the state is copied nor while it is written behind; the world's own threads come and go
 * outside of both. */
static void neither_does_a_save_that_goes_on_behind(const char *words)
{
    struct world world;
    assert_int_equal(mkdir(folder, 0700), 0);
    world_open(&world, words, folder, 0);
    world_pass(&world, OP_SAVE, "a/0");
    assert_int_equal(world_wait(&world), 0);
    world_thread = true; /* threads of ranks come and go while the save goes on behind */
    watched = world.ranks[0].page;
    calls_in_data_path = 0;
    world_pass(&world, OP_SAVE, "a/1");
    while (engine_native_ops.under_way(world.ranks[0].engine) > 0)
        usleep(1000);
    watched = NULL;
    assert_true(world.ranks[0].page->behind_bytes_done >= world.ranks[0].page->behind_bytes_total);
    if (calls_in_data_path > 0)
        fail_msg("%s: %llu calls", words, (unsigned long long)calls_in_data_path);
    world_close(&world);
    nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

static void saving_behind_does_not_allocate(void **unused)
{
    (void)unused;
    char words[160];
    static const char *const ways[] = {"", "save.staging_bytes=1GiB io.direct=false", "io.engine=psync"};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        snprintf(words, sizeof words, "model=gpt2-tiny save.async=true io.depth=2 io.block=64KiB %s", ways[i]);
        neither_does_a_save_that_goes_on_behind(words);
    }
}

static int choose_folder(void **unused)
{
    (void)unused;
    count_calls();
    snprintf(folder, sizeof folder, "/tmp/ckptbench-allocations-XXXXXX");
    return mkdtemp(folder) && rmdir(folder) == 0 ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_data_path_does_not_allocate),
        cmocka_unit_test(saving_behind_does_not_allocate),
    };
    return cmocka_run_group_tests(tests, choose_folder, NULL);
}
