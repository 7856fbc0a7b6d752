/* Random layouts over a model of awkward shapes. */
#ifndef TESTS_UNIT_RANDOM_LAYOUTS_H
#define TESTS_UNIT_RANDOM_LAYOUTS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char list_path[] = "/tmp/random_layouts.XXXXXX.yaml";

/* Writes the model's list of tensors to list_path: the common ones, then `more`. */
static int write_list_with(const char *more)
{
    const char *list = "- {name: a, shape: 7x3, layer: first, tp_dim: 0}\n"
                       "- {name: b, shape: 5x4x3, layer: 0, tp_dim: 1, dtype: fp32}\n"
                       "- {name: d, shape: 11, layer: 1}\n"
                       "- {name: i, shape: 3, layer: 1, dtype: i64}\n"
                       "- {name: e0, shape: 6x2, layer: 1, expert: 0, tp_dim: 0}\n"
                       "- {name: n0, shape: 5, layer: 1, expert: 0}\n"
                       "- {name: e1, shape: 6x2, layer: 1, expert: 1, tp_dim: 0}\n"
                       "- {name: h, shape: 8x3, layer: 1, tp_dim: 0, tp_unit: 4}\n"
                       "- {name: y, shape: 1x9x4, layer: last}\n"
                       "- {name: z, shape: 2x3x2x3, layer: last, tp_dim: 3}\n";
    int fd = mkstemps(list_path, 5);
    bool written = fd >= 0 && write(fd, list, strlen(list)) == (ssize_t)strlen(list) &&
                   write(fd, more, strlen(more)) == (ssize_t)strlen(more);
    return close(fd) || !written;
}

static int remove_list(void **state)
{
    (void)state;
    return unlink(list_path);
}

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static const char *pick(uint64_t *state, const char *const *choices, size_t count)
{
    return choices[next_random(state) % count];
}

#define PICK(state, ...)                                                                                               \
    pick(state, (const char *const[]){__VA_ARGS__}, sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *))

#endif
