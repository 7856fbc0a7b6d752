/* The most memory that was allocated at once between two calls, by replacing malloc of the program that includes it.
 * Under a sanitizer, which replaces malloc itself, the result is 0. */
#ifndef TESTS_UNIT_MALLOC_PEAK_H
#define TESTS_UNIT_MALLOC_PEAK_H

#include <malloc.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static bool malloc_peak_counts;
static uint64_t malloc_peak_now, malloc_peak_most;

static inline void malloc_peak_start(void)
{
    malloc_peak_now = malloc_peak_most = 0;
    malloc_peak_counts = true;
}

static inline uint64_t malloc_peak_end(void)
{
    malloc_peak_counts = false;
    return malloc_peak_most;
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);
void __libc_free(void *memory);

static void *malloc_peak_add(void *memory)
{
    malloc_peak_now += malloc_peak_counts ? malloc_usable_size(memory) : 0;
    malloc_peak_most = malloc_peak_now > malloc_peak_most ? malloc_peak_now : malloc_peak_most;
    return memory;
}

/* Memory from before the start may be freed, too. */
static void malloc_peak_drop(uint64_t bytes)
{
    malloc_peak_now -= bytes < malloc_peak_now ? bytes : malloc_peak_now;
}

void *malloc(size_t bytes)
{
    return malloc_peak_add(__libc_malloc(bytes));
}

void *calloc(size_t count, size_t bytes)
{
    return malloc_peak_add(__libc_calloc(count, bytes));
}

void *realloc(void *memory, size_t bytes)
{
    uint64_t before = malloc_peak_counts ? malloc_usable_size(memory) : 0;
    void *moved = __libc_realloc(memory, bytes);
    if (moved) {
        malloc_peak_add(moved);
        malloc_peak_drop(before);
    }
    return moved;
}

void free(void *memory)
{
    malloc_peak_drop(malloc_peak_counts ? malloc_usable_size(memory) : 0);
    __libc_free(memory);
}
#endif

#endif
