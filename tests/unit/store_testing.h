/* What the tests of the store share: a folder of their own, one request at a time, patterns. */
#ifndef TESTS_UNIT_STORE_TESTING_H
#define TESTS_UNIT_STORE_TESTING_H

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/clock.h"
#include "core/units.h"
#include "store/store.h"

/* A new folder beside the test program, so that it is on a disk when the build is; must be removed. */
static inline void testing_make_folder(char path[PATH_MAX])
{
    char program[PATH_MAX] = {0};
    assert_true(readlink("/proc/self/exe", program, sizeof(program) - 1) > 0);
    *strrchr(program, '/') = 0;
    assert_true(snprintf(path, PATH_MAX, "%.3900s/store-test-XXXXXX", program) < PATH_MAX);
    assert_non_null(mkdtemp(path));
}

static inline void testing_remove_folder(const char *path)
{
    char command[PATH_MAX + 16];
    snprintf(command, sizeof(command), "rm -rf '%s'", path);
    assert_int_equal(system(command), 0);
}

/* Page-aligned, filled with a pattern that differs at every 8 bytes and for every seed. */
static inline unsigned char *testing_pattern(size_t len, uint64_t seed)
{
    size_t room = (len / 4096 + 2) * 4096;
    uint64_t *words = aligned_alloc(4096, room);
    assert_non_null(words);
    for (size_t i = 0; i < room / 8; i++)
        words[i] = (i + 1) * UINT64_C(0x9e3779b97f4a7c15) ^ seed;
    return (unsigned char *)words;
}

static inline struct store *testing_open(const char *uri, const struct store_options *options)
{
    struct store *store = NULL;
    struct cb_err err = {0};
    if (store_open(uri, options, &store, &err))
        fail_msg("store_open(%s): %s", uri, err.message);
    return store;
}

/* Waits for one completion. */
static inline struct store_completion testing_wait(struct store *store)
{
    struct store_completion completion = {0};
    struct cb_err err = {0};
    size_t count = 0;
    assert_int_equal(store_poll(store, &completion, 1, clock_monotonic_ns() + 60 * NS_PER_S, &count, &err), 0);
    assert_int_equal(count, 1);
    return completion;
}

static inline void testing_submit(struct store *store, struct store_object *object, enum store_request_kind kind,
                                  void *memory, uint64_t length, uint64_t offset, uint64_t user)
{
    struct cb_err err = {0};
    struct iovec segment = {.iov_base = memory, .iov_len = length};
    struct store_request request = {.kind = kind,
                                    .object = object,
                                    .offset = offset,
                                    .segments = &segment,
                                    .segment_count = kind == STORE_FINISH ? 0 : 1,
                                    .user = user};
    if (store_submit(store, &request, 1, &err))
        fail_msg("store_submit: %s", err.message);
}

static inline struct store_completion testing_run(struct store *store, struct store_object *object,
                                                  enum store_request_kind kind, void *memory, uint64_t length,
                                                  uint64_t offset)
{
    testing_submit(store, object, kind, memory, length, offset, 7);
    struct store_completion completion = testing_wait(store);
    assert_int_equal(completion.user, 7);
    return completion;
}

static inline void testing_ok(struct store *store, struct store_completion completion)
{
    struct cb_err err = {0};
    if (completion.code && store_completion_error(store, &completion, &err))
        fail_msg("%s", err.message);
}

static inline struct store_object *testing_create(struct store *store, const char *name, uint64_t length)
{
    struct store_object *object = NULL;
    struct cb_err err = {0};
    if (store_create(store, name, length, &object, &err))
        fail_msg("store_create: %s", err.message);
    return object;
}

static inline struct store_object *testing_open_read(struct store *store, const char *name, uint64_t expected_length)
{
    struct store_object *object = NULL;
    struct cb_err err = {0};
    uint64_t length = 0;
    if (store_open_read(store, name, &object, &length, &err))
        fail_msg("store_open_read: %s", err.message);
    assert_int_equal(length, expected_length);
    return object;
}

/* Creates, writes (one request), finishes and closes. */
static inline void testing_write_object(struct store *store, const char *name, void *bytes, uint64_t length)
{
    struct store_object *object = testing_create(store, name, length);
    if (length > 0)
        testing_ok(store, testing_run(store, object, STORE_WRITE, bytes, length, 0));
    testing_ok(store, testing_run(store, object, STORE_FINISH, NULL, 0, 0));
    store_close(store, object);
}

/* The context of testing_pass: bytes that are passed in pieces. */
struct testing_pieces {
    const unsigned char *bytes;
    size_t len, piece;
    size_t fail_after; /* so many bytes; 0: never */
};

static inline int testing_pass(void *context, store_put_fn put, void *to, struct cb_err *err)
{
    const struct testing_pieces *self = context;
    int rc = 0;
    for (size_t at = 0; at < self->len && !rc; at += self->piece) {
        if (self->fail_after > 0 && at >= self->fail_after)
            return cb_fail(err, CB_ERR_FORMAT, "there are no more bytes");
        rc = put(to, self->bytes + at, self->len - at < self->piece ? self->len - at : self->piece, err);
    }
    return rc;
}

#endif
