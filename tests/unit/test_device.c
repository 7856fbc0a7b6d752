/* Devices: what is copied is what was there, by any number of threads, in rows and in one; the fake
 * one is late as a real one may be. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <unistd.h>

#include "tests/unit/fake_device.h"

#define BYTES ((size_t)9 * 1024 * 1024 + 77)

/* BYTES bytes that differ with `seed`. They are computed once: a sanitizer makes a loop over bytes slow. */
static unsigned char *filled(unsigned seed)
{
    static unsigned char pattern[BYTES + 251];
    unsigned char *memory = malloc(BYTES);
    assert_non_null(memory);
    for (size_t i = 0; i < sizeof pattern && !pattern[1]; i++)
        pattern[sizeof pattern - 1 - i] = (unsigned char)((i * 131 + i / 255) % 251);
    memcpy(memory, pattern + seed, BYTES);
    return memory;
}

static void finish(struct device *device)
{
    uint64_t event;
    struct cb_err err;
    assert_int_equal(device->ops->record(device, &event, &err), 0);
    assert_int_equal(device->ops->wait(device, event, clock_monotonic_ns() + NS_PER_S, &err), 0);
}

static void check_one_row(struct device *device, size_t to_skip, size_t from_skip, size_t bytes)
{
    struct cb_err err;
    unsigned char *from = filled(1), *to = filled(7), *want = filled(7);
    memcpy(want + to_skip, from + from_skip, bytes);
    struct device_copy copy = {.to = to + to_skip, .from = from + from_skip, .row_bytes = bytes, .rows = 1};
    assert_int_equal(device->ops->copy(device, DEVICE_TO_HOST, &copy, 1, &err), 0);
    finish(device);
    assert_memory_equal(to, want, BYTES);
    free(from), free(to), free(want);
}

static void check_rows(struct device *device)
{
    struct cb_err err;
    unsigned char *from = filled(1), *to = filled(7), *want = filled(7);
    struct device_copy copies[3];
    uint64_t at = 3;
    for (size_t i = 0; i < 3; i++) {
        uint64_t rows = 100 * i + 1, bytes = 8191 * i + 5, stride = bytes + 3 * i;
        copies[i] = (struct device_copy){to + at, from + 11 * i, bytes, rows, bytes, stride};
        for (uint64_t row = 0; row < rows; row++)
            memcpy(want + at + row * bytes, from + 11 * i + row * stride, bytes);
        at += rows * bytes + 13;
    }
    assert_true(at < BYTES);
    assert_int_equal(device->ops->copy(device, DEVICE_TO_HOST, copies, 3, &err), 0);
    finish(device);
    assert_memory_equal(to, want, BYTES);
    free(from), free(to), free(want);
}

static void check_device(struct device *device)
{
    static const size_t lengths[] = {0, 1, 31, 4096, 262143, 262144, 262145, (size_t)5 << 20, BYTES - 64};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        check_one_row(device, 0, 0, lengths[i]);
        check_one_row(device, i + 1, 64 - i, lengths[i] < 70 ? lengths[i] : lengths[i] - 6);
    }
    check_rows(device);
}

static void the_host_copies_with_any_number_of_threads(void **unused)
{
    (void)unused;
    for (uint32_t threads = 1; threads <= 4; threads++) {
        struct device *device;
        struct cb_err err;
        assert_int_equal(device_host_open(threads, &device, &err), 0);
        check_device(device);
        device_close(device);
    }
}

/* Replaces the C library's in this program: while `holds` is set nobody returns from it, as a thread that gets no core. */
static atomic_bool holds;
int sem_wait(sem_t *semaphore)
{
    while (atomic_load(&holds) || sem_trywait(semaphore) != 0)
        usleep(1000);
    return 0;
}

static void a_copy_waits_for_no_thread_that_gets_no_core(void **unused)
{
    (void)unused;
    struct device *device;
    struct cb_err err;
    atomic_store(&holds, true);
    assert_int_equal(device_host_open(4, &device, &err), 0);
    alarm(240); /* one that waits would wait for ever */
    check_device(device);
    atomic_store(&holds, false);
    check_device(device); /* with threads that come late */
    alarm(0);
    device_close(device);
}

static void memory_is_aligned_and_there(void **unused)
{
    (void)unused;
    struct device *device;
    struct cb_err err;
    void *memory[2];
    assert_int_equal(device_host_open(1, &device, &err), 0);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(device->ops->allocate(device, MEMORY_PINNED, 5000000 * i + 1, &memory[i], &err), 0);
        assert_int_equal((uintptr_t)memory[i] % (2 << 20), 0);
        memset(memory[i], 1, 5000000 * i + 1);
    }
    for (size_t i = 0; i < 2; i++)
        device->ops->release(device, MEMORY_PINNED, memory[i], 5000000 * i + 1);
    assert_int_equal(device->ops->allocate(device, MEMORY_PINNED, UINT64_C(1) << 60, &memory[0], &err), CB_ERR_MEMORY);
    device_close(device);
}

static void the_fake_copies_late_and_all_of_it(void **unused)
{
    (void)unused;
    struct fake_device *fake = fake_device_new(5, 3);
    assert_non_null(fake);
    check_device(&fake->base);
    unsigned char from[64] = {1}, to[64] = {0};
    struct device_copy copies[16];
    struct cb_err err;
    uint64_t event;
    bool done = true;
    for (size_t i = 0; i < 16; i++)
        copies[i] = (struct device_copy){to + 4 * i, from, 4, 1, 4, 4};
    assert_int_equal(fake_ops.copy(&fake->base, DEVICE_TO_HOST, copies, 16, &err), 0);
    assert_int_equal(fake_ops.record(&fake->base, &event, &err), 0);
    assert_int_equal(fake_ops.poll(&fake->base, event, &done, &err), 0);
    assert_false(done);
    assert_true(fake->count > 0); /* something is still to be copied, and reads `from` when it is */
    fake->fail_at = 1;
    assert_int_equal(fake_ops.wait(&fake->base, event, UINT64_MAX, &err), CB_ERR_SYSTEM);
    device_close(&fake->base);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_host_copies_with_any_number_of_threads),
        cmocka_unit_test(a_copy_waits_for_no_thread_that_gets_no_core),
        cmocka_unit_test(memory_is_aligned_and_there),
        cmocka_unit_test(the_fake_copies_late_and_all_of_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
