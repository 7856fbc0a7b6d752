/* Between submit and poll nothing is allocated, and nothing locked but psync's own queue: allocations
 * and locks of this program are counted while requests run. */
#include "tests/unit/store_testing.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>

static atomic_bool counting;
static atomic_uint allocations, locks;

/* A sanitizer has its own allocator and locks, which these would break: there the same loops run for what
 * the sanitizer sees, and the counters stay 0. */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define CAN_COUNT 1

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *memory, size_t size);
void __libc_free(void *memory);

static void note_allocation(void)
{
    if (atomic_load(&counting))
        atomic_fetch_add(&allocations, 1);
}

void *malloc(size_t size)
{
    note_allocation();
    return __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
    note_allocation();
    return __libc_calloc(count, size);
}

void *realloc(void *memory, size_t size)
{
    note_allocation();
    return __libc_realloc(memory, size);
}

void free(void *memory)
{
    if (memory)
        note_allocation();
    __libc_free(memory);
}

int pthread_mutex_lock(pthread_mutex_t *mutex)
{
    static int (*_Atomic real)(pthread_mutex_t *);
    int (*function)(pthread_mutex_t *) = atomic_load(&real);
    if (!function) {
        void *symbol = dlsym(RTLD_NEXT, "pthread_mutex_lock");
        memcpy(&function, &symbol, sizeof(function));
        atomic_store(&real, function);
    }
    if (atomic_load(&counting))
        atomic_fetch_add(&locks, 1);
    return function(mutex);
}
#else
#define CAN_COUNT 0
#endif

#define BLOCK 65536
#define BLOCKS 64
#define DEPTH 8

static struct store_request request_of(struct store_object *object, enum store_request_kind kind,
                                       const struct iovec *segment, uint64_t block)
{
    return (struct store_request){.kind = kind,
                                  .object = object,
                                  .offset = block * BLOCK,
                                  .segments = segment,
                                  .segment_count = 1,
                                  .user = block};
}

/* The loop of a rank; asserts only when the counting is over. */
static int move_all(struct store *store, struct store_object *object, enum store_request_kind kind,
                    unsigned char *memory)
{
    uint64_t next = 0, done = 0;
    struct store_completion completions[DEPTH];
    while (done < BLOCKS) {
        while (next < BLOCKS && store_in_flight(store) < DEPTH) {
            struct iovec segment = {memory + next * BLOCK, BLOCK};
            struct store_request request = request_of(object, kind, &segment, next++);
            if (store_submit(store, &request, 1, NULL))
                return -1;
        }
        size_t count = 0;
        if (store_poll(store, completions, DEPTH, UINT64_MAX, &count, NULL))
            return -1;
        for (size_t i = 0; i < count; i++)
            if (completions[i].code)
                return completions[i].code;
        done += count;
    }
    return 0;
}

static void expect_steady(const char *prefix, bool on_disk, const struct store_options *options, bool may_lock)
{
    char folder[PATH_MAX] = "", uri[PATH_MAX + 64];
    if (on_disk)
        testing_make_folder(folder);
    snprintf(uri, sizeof(uri), "%s%s", prefix, folder);
    struct store *store = testing_open(uri, options);
    unsigned char *memory = testing_pattern((size_t)BLOCK * BLOCKS, 1);
    store_register(store, &(struct iovec){memory, (size_t)BLOCK * BLOCKS}, 1);
    for (int pass = 0; pass < 2; pass++) {
        struct store_object *object = pass == 0 ? testing_create(store, "o", (uint64_t)BLOCK * BLOCKS)
                                                : testing_open_read(store, "o", (uint64_t)BLOCK * BLOCKS);
        atomic_store(&allocations, 0);
        atomic_store(&locks, 0);
        atomic_store(&counting, true);
        int rc = move_all(store, object, pass == 0 ? STORE_WRITE : STORE_READ, memory);
        atomic_store(&counting, false);
        assert_int_equal(rc, 0);
        assert_int_equal(atomic_load(&allocations), 0);
        if (!may_lock)
            assert_int_equal(atomic_load(&locks), 0);
        store_close(store, object);
    }
    store_free(store);
    free(memory);
    if (on_disk)
        testing_remove_folder(folder);
}

#if CAN_COUNT
static void the_counters_count(void **state)
{
    (void)state;
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    atomic_store(&allocations, 0);
    atomic_store(&locks, 0);
    atomic_store(&counting, true);
    char *volatile memory = strdup("x");
    free(memory);
    pthread_mutex_lock(&mutex);
    atomic_store(&counting, false);
    pthread_mutex_unlock(&mutex);
    assert_int_equal(atomic_load(&allocations), 2);
    assert_int_equal(atomic_load(&locks), 1);
}
#endif

static void null_is_steady(void **state)
{
    (void)state;
    expect_steady("null:", false, &(struct store_options){.depth = DEPTH}, false);
}

static void psync_is_steady_but_for_its_queue(void **state)
{
    (void)state;
    expect_steady("", true, &(struct store_options){.depth = DEPTH, .threads = 2}, true);
}

static void buffered_psync_is_steady_but_for_its_queue(void **state)
{
    (void)state;
    expect_steady("", true, &(struct store_options){.depth = DEPTH, .direct = STORE_DIRECT_NO}, true);
}

static void in_the_caller_it_is_steady(void **state)
{
    (void)state;
    expect_steady("", true, &(struct store_options){.depth = DEPTH, .in_caller = true}, false);
}

#ifdef HAVE_LIBURING
static void io_uring_is_steady(void **state)
{
    (void)state;
    expect_steady("", true, &(struct store_options){.depth = DEPTH, .use_io_uring = true}, false);
}

static void buffered_io_uring_is_steady(void **state)
{
    (void)state;
    expect_steady("", true, &(struct store_options){.depth = DEPTH, .use_io_uring = true, .direct = STORE_DIRECT_NO},
                  false);
}

static void fault_over_io_uring_is_steady(void **state)
{
    (void)state;
    expect_steady("fault:delay=100us+bandwidth=10GiB/s:", true,
                  &(struct store_options){.depth = DEPTH, .use_io_uring = true}, false);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
#if CAN_COUNT
        cmocka_unit_test(the_counters_count),
#endif
        cmocka_unit_test(null_is_steady),
        cmocka_unit_test(psync_is_steady_but_for_its_queue),
        cmocka_unit_test(buffered_psync_is_steady_but_for_its_queue),
        cmocka_unit_test(in_the_caller_it_is_steady),
#ifdef HAVE_LIBURING
        cmocka_unit_test(io_uring_is_steady),
        cmocka_unit_test(buffered_io_uring_is_steady),
        cmocka_unit_test(fault_over_io_uring_is_steady),
#endif
    };
    return cmocka_run_group_tests_name("store steady", tests, NULL, NULL);
}
