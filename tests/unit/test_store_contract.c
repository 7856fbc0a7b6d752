/* The contract of store/store.h, held against every backend and engine: each test runs on each. */
#include "tests/unit/store_testing.h"

#include <math.h>

#define TAG "store contract"

struct variant {
    const char *name;
    const char *prefix;    /* of the URI */
    bool on_disk;          /* the URI goes on with a folder */
    bool keeps_data;       /* what was written is read back */
    const char *describes; /* must be in store_describe */
    struct store_options options;
};

static const struct variant variants[] = {
    {"psync buffered",
     "",
     true,
     true,
     "psync 1 thread buffered",
     {.depth = 8, .direct = STORE_DIRECT_NO, .durable = true}},
    {"psync direct",
     "",
     true,
     true,
     "psync 4 threads O_DIRECT",
     {.depth = 8, .threads = 4, .direct = STORE_DIRECT_YES, .durable = true}},
    {"in the caller, buffered",
     "",
     true,
     true,
     "psync in the caller buffered",
     {.depth = 8, .in_caller = true, .direct = STORE_DIRECT_NO, .durable = true}},
    {"in the caller, direct",
     "",
     true,
     true,
     "psync in the caller O_DIRECT",
     {.depth = 1, .in_caller = true, .direct = STORE_DIRECT_YES}},
#ifdef HAVE_LIBURING
    {"io_uring buffered",
     "",
     true,
     true,
     "io_uring buffered",
     {.use_io_uring = true, .depth = 8, .direct = STORE_DIRECT_NO}},
    {"io_uring direct",
     "",
     true,
     true,
     "io_uring O_DIRECT",
     {.use_io_uring = true, .depth = 8, .direct = STORE_DIRECT_YES, .durable = true}},
    {"io_uring depth 1",
     "",
     true,
     true,
     "io_uring O_DIRECT",
     {.use_io_uring = true, .depth = 1, .direct = STORE_DIRECT_AUTO}},
    {"fault over io_uring direct",
     "fault:delay=10us+bandwidth=20GiB/s:",
     true,
     true,
     ") over io_uring O_DIRECT",
     {.use_io_uring = true, .depth = 8, .direct = STORE_DIRECT_YES}},
#endif
    {"fault over psync",
     "fault:delay=10us+ops=write|read|finish|publish:",
     true,
     true,
     "fault(delay=10us+ops=write|read|finish|publish) over psync",
     {.depth = 8, .direct = STORE_DIRECT_NO}},
    {"fault over null", "fault:rank=1+error_at=1:null:", false, false, "not on this rank", {.depth = 8}},
    {"null", "null:", false, false, "null", {.depth = 8}},
};

struct fixture {
    const struct variant *variant;
    struct store *store;
    char folder[PATH_MAX];
    char uri[PATH_MAX + 64];
};

static int set_up(void **state)
{
    struct fixture *self = calloc(1, sizeof(*self));
    self->variant = *state;
    if (self->variant->on_disk)
        testing_make_folder(self->folder);
    snprintf(self->uri, sizeof(self->uri), "%s%s", self->variant->prefix, self->folder);
    self->store = testing_open(self->uri, &self->variant->options);
    *state = self;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *self = *state;
    store_free(self->store);
    if (self->variant->on_disk)
        testing_remove_folder(self->folder);
    free(self);
    return 0;
}

static void description_says_what_is_used(void **state)
{
    struct fixture *self = *state;
    if (!strstr(store_describe(self->store), self->variant->describes))
        fail_msg("'%s' lacks '%s'", store_describe(self->store), self->variant->describes);
    assert_int_equal(store_capabilities(self->store)->max_depth, self->variant->options.depth);
}

static void check_bytes(const struct fixture *self, const void *got, const void *expected, size_t len)
{
    if (self->variant->keeps_data)
        assert_memory_equal(got, expected, len);
}

static void round_trip(struct fixture *self, const char *name, uint64_t length, uint64_t block)
{
    unsigned char *source = testing_pattern(length, length), *target = testing_pattern(length, ~length);
    unsigned char *untouched = testing_pattern(length, ~length);
    struct store_object *object = testing_create(self->store, name, length);
    for (uint64_t at = 0; at < length; at += block) {
        uint64_t part = length - at < block ? length - at : block;
        struct store_completion done = testing_run(self->store, object, STORE_WRITE, source + at, part, at);
        testing_ok(self->store, done);
        assert_int_equal(done.bytes, part);
        assert_true(done.completed_ns >= done.submitted_ns);
    }
    testing_ok(self->store, testing_run(self->store, object, STORE_FINISH, NULL, 0, 0));
    store_close(self->store, object);
    object = testing_open_read(self->store, name, length);
    for (uint64_t at = 0; at < length; at += block) {
        uint64_t part = length - at < block ? length - at : block;
        testing_ok(self->store, testing_run(self->store, object, STORE_READ, target + at, part, at));
    }
    check_bytes(self, target, source, length);
    /* nothing is written behind the bytes that were asked for */
    assert_memory_equal(target + length, untouched + length, 64);
    store_close(self->store, object);
    uint64_t length_now = 0;
    assert_int_equal(store_stat(self->store, name, &length_now, NULL), 0);
    assert_int_equal(length_now, length);
    uint64_t written_ns = 0, now_ns = clock_wall_ns();
    assert_int_equal(store_modified(self->store, name, &written_ns, NULL), 0);
    assert_true(written_ns > now_ns - 600 * NS_PER_S && written_ns < now_ns + 600 * NS_PER_S);
    free(untouched);
    free(source);
    free(target);
}

static void data_of_any_length_comes_back(void **state)
{
    struct fixture *self = *state;
    static const uint64_t lengths[] = {
        0, 1, 511, 512, 513, 4095, 4096, 4097, 8191, 8192, 8193, 65536, 65537, 1 << 20, (1 << 20) + 123, 3000001};
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        char name[64];
        snprintf(name, sizeof(name), "run/f%zu", i);
        round_trip(self, name, lengths[i], 65536);
        snprintf(name, sizeof(name), "run/whole%zu", i);
        round_trip(self, name, lengths[i], UINT64_C(1) << 30);
    }
}

static void several_segments_make_one_request(void **state)
{
    struct fixture *self = *state;
    uint64_t step = store_capabilities(self->store)->length_alignment;
    step = step < 3 ? 3 : step;
    uint64_t length = 4 * step + 5;
    unsigned char *source = testing_pattern(2 * length, 1), *target = testing_pattern(2 * length, 2);
    struct iovec write_segments[] = {{source, step}, {source + step, 2 * step}, {source + 3 * step, step + 5}};
    struct iovec read_segments[] = {{target, 3 * step}, {target + 3 * step, step}, {target + 4 * step, 5}};
    struct store_object *object = testing_create(self->store, "segments", length);
    struct store_request request = {
        .kind = STORE_WRITE, .object = object, .segments = write_segments, .segment_count = 3};
    assert_int_equal(store_submit(self->store, &request, 1, NULL), 0);
    testing_ok(self->store, testing_wait(self->store));
    store_close(self->store, object);
    object = testing_open_read(self->store, "segments", length);
    request =
        (struct store_request){.kind = STORE_READ, .object = object, .segments = read_segments, .segment_count = 3};
    assert_int_equal(store_submit(self->store, &request, 1, NULL), 0);
    testing_ok(self->store, testing_wait(self->store));
    store_close(self->store, object);
    check_bytes(self, target, source, length);
    free(source);
    free(target);
}

/* Keeps the store full: a new request for every completion, each exactly once. */
static void run_all(struct fixture *self, struct store_object *object, enum store_request_kind kind,
                    unsigned char *memory, uint64_t block, uint64_t blocks)
{
    bool *seen = calloc(blocks, sizeof(*seen));
    uint64_t next = 0, done = 0;
    while (done < blocks) {
        while (next < blocks && store_in_flight(self->store) < self->variant->options.depth) {
            testing_submit(self->store, object, kind, memory + next * block, block, next * block, next);
            next++;
        }
        struct store_completion completion = testing_wait(self->store);
        testing_ok(self->store, completion);
        assert_int_equal(completion.offset, completion.user * block);
        assert_ptr_equal(completion.object, object);
        assert_false(seen[completion.user]);
        seen[completion.user] = true;
        done++;
    }
    free(seen);
}

static void a_full_depth_of_requests_completes_each_once(void **state)
{
    struct fixture *self = *state;
    const uint64_t block = 65536, blocks = 64;
    unsigned char *source = testing_pattern(block * blocks, 3), *target = testing_pattern(block * blocks, 4);
    struct iovec regions[] = {{source, block * blocks}, {target, block * blocks}};
    store_register(self->store, regions, 2);
    struct store_object *object = testing_create(self->store, "deep", block * blocks);
    run_all(self, object, STORE_WRITE, source, block, blocks);
    testing_ok(self->store, testing_run(self->store, object, STORE_FINISH, NULL, 0, 0));
    store_close(self->store, object);
    object = testing_open_read(self->store, "deep", block * blocks);
    run_all(self, object, STORE_READ, target, block, blocks);
    store_close(self->store, object);
    check_bytes(self, target, source, block * blocks);
    free(source);
    free(target);
}

static void ranks_write_their_parts_of_a_shared_object(void **state)
{
    struct fixture *self = *state;
    uint64_t half = 8192, length = 2 * half + 77;
    unsigned char *source = testing_pattern(length, 5), *target = testing_pattern(length, 6);
    struct store_object *first = testing_create(self->store, "shared/all", length), *second = NULL;
    assert_int_equal(store_open_shared(self->store, "shared/all", length, &second, NULL), 0);
    testing_ok(self->store, testing_run(self->store, second, STORE_WRITE, source + half, length - half, half));
    testing_ok(self->store, testing_run(self->store, first, STORE_WRITE, source, half, 0));
    testing_ok(self->store, testing_run(self->store, first, STORE_FINISH, NULL, 0, 0));
    store_close(self->store, first);
    store_close(self->store, second);
    first = testing_open_read(self->store, "shared/all", length);
    testing_ok(self->store, testing_run(self->store, first, STORE_READ, target, length, 0));
    check_bytes(self, target, source, length);
    store_close(self->store, first);
    free(source);
    free(target);
}

static void reading_past_the_end_is_corrupt_and_says_how_much_there_was(void **state)
{
    struct fixture *self = *state;
    unsigned char *bytes = testing_pattern(32768, 8);
    testing_write_object(self->store, "short", bytes, 10000);
    struct store_object *object = testing_open_read(self->store, "short", 10000);
    static const uint64_t offsets[] = {0, 8192, 12288};
    for (size_t i = 0; i < 3; i++) {
        struct store_completion done = testing_run(self->store, object, STORE_READ, bytes, 16384, offsets[i]);
        assert_int_equal(done.code, CB_ERR_CORRUPT);
        assert_int_equal(done.bytes, offsets[i] < 10000 ? 10000 - offsets[i] : 0);
        struct cb_err err;
        assert_int_equal(store_completion_error(self->store, &done, &err), CB_ERR_CORRUPT);
        assert_non_null(strstr(err.message, "reading short at offset"));
    }
    store_close(self->store, object);
    free(bytes);
}

static void cancelled_requests_complete_once(void **state)
{
    struct fixture *self = *state;
    const uint64_t block = 1 << 20, depth = self->variant->options.depth;
    unsigned char *bytes = testing_pattern(block, 9);
    struct store_object *object = testing_create(self->store, "cancelled", depth * block);
    for (uint64_t i = 0; i < depth; i++)
        testing_submit(self->store, object, STORE_WRITE, bytes, block, i * block, i);
    store_cancel(self->store);
    uint64_t seen = 0;
    for (uint64_t i = 0; i < depth; i++) {
        struct store_completion done = testing_wait(self->store);
        assert_true(done.code == 0 || done.code == CB_ERR_ABORTED);
        assert_false(seen & (UINT64_C(1) << done.user));
        seen |= UINT64_C(1) << done.user;
    }
    assert_int_equal(store_in_flight(self->store), 0);
    /* and the store works on */
    testing_ok(self->store, testing_run(self->store, object, STORE_WRITE, bytes, block, 0));
    store_close(self->store, object);
    free(bytes);
}

static void a_store_freed_with_requests_in_flight_waits_for_them(void **state)
{
    struct fixture *self = *state;
    const uint64_t block = 1 << 20, depth = self->variant->options.depth;
    unsigned char *bytes = testing_pattern(block, 10);
    struct store *store = testing_open(self->uri, &self->variant->options);
    struct store_object *object = testing_create(store, "left", depth * block);
    for (uint64_t i = 0; i < depth; i++)
        testing_submit(store, object, STORE_WRITE, bytes, block, i * block, i);
    store_free(store);
    free(bytes); /* nothing may touch it any more: a sanitizer build would tell */
}

static void polling_with_nothing_in_flight_gives_nothing(void **state)
{
    struct fixture *self = *state;
    struct store_completion completion;
    size_t count = 99;
    assert_int_equal(store_poll(self->store, &completion, 1, UINT64_MAX, &count, NULL), 0);
    assert_int_equal(count, 0);
}

static void an_object_is_created_only_once(void **state)
{
    struct fixture *self = *state;
    struct cb_err err;
    struct store_object *object = testing_create(self->store, "a/b/c/once", 10), *again = NULL;
    assert_int_equal(store_create(self->store, "a/b/c/once", 10, &again, &err), CB_ERR_EXISTS);
    assert_non_null(strstr(err.message, "a/b/c/once"));
    assert_null(again);
    store_close(self->store, object);
}

static void what_is_not_there_is_not_found_by_name(void **state)
{
    struct fixture *self = *state;
    struct cb_err err;
    struct store_object *object = NULL;
    struct buf buf;
    uint64_t length = 1;
    double resident;
    buf_init(&buf, 100);
    assert_int_equal(store_open_read(self->store, "no/such", &object, &length, &err), CB_ERR_NOT_FOUND);
    assert_non_null(strstr(err.message, "no/such"));
    assert_int_equal(store_stat(self->store, "no/such", &length, &err), CB_ERR_NOT_FOUND);
    assert_int_equal(store_modified(self->store, "no/such", &length, &err), CB_ERR_NOT_FOUND);
    assert_int_equal(store_read_small(self->store, "no/such", &buf, &err), CB_ERR_NOT_FOUND);
    assert_int_equal(store_remove(self->store, "no/such", &err), CB_ERR_NOT_FOUND);
    assert_int_equal(store_drop_cache(self->store, "no/such", &resident, &err), CB_ERR_NOT_FOUND);
    assert_int_equal(length, 1);
    buf_release(&buf);
}

static void names_that_lead_out_of_the_store_are_refused(void **state)
{
    struct fixture *self = *state;
    static const char *const names[] = {"/etc/passwd", "../x", "a/../../x", "a//b", "a/", "", ".", "a/./b"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        uint64_t length;
        struct cb_err err;
        assert_int_equal(store_stat(self->store, names[i], &length, &err), CB_ERR_USAGE);
        assert_int_equal(store_publish(self->store, names[i], "x", 1, &err), CB_ERR_USAGE);
    }
    uint64_t length;
    assert_int_equal(store_stat(self->store, "..a/b..", &length, NULL), CB_ERR_NOT_FOUND);
}

static void published_objects_are_whole_and_replace_what_was_there(void **state)
{
    struct fixture *self = *state;
    struct buf buf;
    buf_init(&buf, 4096);
    assert_int_equal(store_publish(self->store, "run/.metadata", "first", 5, NULL), 0);
    assert_int_equal(store_publish(self->store, "run/.metadata", "second!", 7, NULL), 0);
    assert_int_equal(store_read_small(self->store, "run/.metadata", &buf, NULL), 0);
    assert_string_equal(buf.data, "second!");
    buf_clear(&buf);
    assert_int_equal(store_publish(self->store, "empty", NULL, 0, NULL), 0);
    assert_int_equal(store_read_small(self->store, "empty", &buf, NULL), 0);
    assert_int_equal(buf.len, 0);
    assert_int_equal(store_sync_folder(self->store, "run", NULL), 0);
    assert_int_equal(store_sync_folder(self->store, "", NULL), 0);
    buf_release(&buf);
}

struct found {
    int count;
    uint64_t bytes;
    char names[256];
};

static int remember(void *context, const char *name, uint64_t length, struct cb_err *err)
{
    (void)err;
    struct found *found = context;
    found->count++;
    found->bytes += length;
    strcat(strcat(found->names, name), " ");
    return 0;
}

static void holds_text(struct store *store, const char *name, const char *text)
{
    struct buf found;
    buf_init(&found, 100);
    assert_int_equal(store_read_small(store, name, &found, NULL), 0);
    assert_string_equal(found.data, text);
    buf_release(&found);
}

static int count_object(void *context, const char *name, uint64_t length, struct cb_err *err)
{
    (void)name, (void)length, (void)err;
    ++*(unsigned *)context;
    return 0;
}

static void check_published(struct store *store, const unsigned char *bytes, size_t len)
{
    struct buf found;
    unsigned objects = 0;
    buf_init(&found, 8 << 20);
    assert_int_equal(store_read_small(store, "run/.metadata", &found, NULL), 0);
    assert_int_equal(found.len, len);
    assert_memory_equal(found.data, bytes, len);
    assert_int_equal(store_list(store, "run", count_object, &objects, NULL), 0);
    assert_int_equal(objects, 1); /* and nothing temporary */
    buf_release(&found);
}

static void pieces_are_published_as_one_object_or_not_at_all(void **state)
{
    struct fixture *self = *state;
    unsigned char *bytes = testing_pattern(3 << 20, 5);
    struct cb_err err = {0};
    static const size_t lengths[] = {3 << 20, 100001, 1, 0};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        struct testing_pieces pieces = {.bytes = bytes + i, .len = lengths[i], .piece = 70001};
        assert_int_equal(store_publish_pieces(self->store, "run/.metadata", testing_pass, &pieces, &err), 0);
        check_published(self->store, bytes + i, lengths[i]);
    }
    struct testing_pieces whole = {.bytes = bytes, .len = 1 << 20, .piece = 1 << 20};
    assert_int_equal(store_publish_pieces(self->store, "run/.metadata", testing_pass, &whole, &err), 0);
    struct testing_pieces broken = {.bytes = bytes, .len = 3 << 20, .piece = 70001, .fail_after = 1 << 20};
    assert_int_equal(store_publish_pieces(self->store, "run/.metadata", testing_pass, &broken, &err), CB_ERR_FORMAT);
    assert_string_equal(err.message, "there are no more bytes");
    check_published(self->store, bytes, 1 << 20);
    assert_int_equal(store_publish_pieces(self->store, "../x", testing_pass, &whole, &err), CB_ERR_USAGE);
    free(bytes);
}

static void a_swap_replaces_only_what_is_as_expected(void **state)
{
    struct fixture *self = *state;
    bool guarded = false;
    struct found found = {0};
    assert_int_equal(store_swap(self->store, "a/claim", "one", "two", &guarded, NULL), CB_ERR_EXISTS);
    assert_int_equal(store_swap(self->store, "a/claim", NULL, "one", &guarded, NULL), 0);
    assert_true(guarded);
    assert_int_equal(store_swap(self->store, "a/claim", NULL, "another", &guarded, NULL), CB_ERR_EXISTS);
    assert_int_equal(store_swap(self->store, "a/claim", "on", "another", &guarded, NULL), CB_ERR_EXISTS);
    holds_text(self->store, "a/claim", "one");
    assert_int_equal(store_swap(self->store, "a/claim", "one", "longer", &guarded, NULL), 0);
    assert_true(guarded);
    holds_text(self->store, "a/claim", "longer");
    assert_int_equal(store_list(self->store, "", remember, &found, NULL), 0);
    assert_string_equal(found.names, "a/claim ");
    assert_int_equal(store_swap(self->store, "../claim", NULL, "one", &guarded, NULL), CB_ERR_USAGE);
}

static void a_swap_for_the_same_text_only_renews_its_time(void **state)
{
    struct fixture *self = *state;
    bool guarded;
    uint64_t before_ns = 0, after_ns = 0;
    assert_int_equal(store_swap(self->store, "claim", NULL, "one", &guarded, NULL), 0);
    assert_int_equal(store_modified(self->store, "claim", &before_ns, NULL), 0);
    do {
        clock_sleep_ns(NS_PER_MS);
        assert_int_equal(store_swap(self->store, "claim", "one", "one", &guarded, NULL), 0);
        assert_int_equal(store_modified(self->store, "claim", &after_ns, NULL), 0);
    } while (after_ns == before_ns);
    assert_true(after_ns > before_ns);
    holds_text(self->store, "claim", "one");
}

static void read_small_keeps_to_the_buffers_maximum(void **state)
{
    struct fixture *self = *state;
    struct buf buf;
    struct cb_err err;
    buf_init(&buf, 3);
    assert_int_equal(store_publish(self->store, "big", "12345", 5, NULL), 0);
    assert_int_equal(store_read_small(self->store, "big", &buf, &err), CB_ERR_MEMORY);
    assert_non_null(strstr(err.message, "big"));
    buf_release(&buf);
}

static int stop_at_once(void *context, const char *name, uint64_t length, struct cb_err *err)
{
    (void)name;
    (void)length;
    ++*(int *)context;
    return cb_fail(err, CB_ERR_ABORTED, "enough");
}

static void list_names_every_object_below_a_folder(void **state)
{
    struct fixture *self = *state;
    assert_int_equal(store_publish(self->store, "run/x", "1", 1, NULL), 0);
    assert_int_equal(store_publish(self->store, "run/deep/er/y", "22", 2, NULL), 0);
    assert_int_equal(store_publish(self->store, "runner", "333", 3, NULL), 0);
    struct found found = {0}, all = {0}, none = {0};
    assert_int_equal(store_list(self->store, "run", remember, &found, NULL), 0);
    assert_int_equal(found.count, 2);
    assert_int_equal(found.bytes, 3);
    assert_non_null(strstr(found.names, "run/deep/er/y "));
    assert_non_null(strstr(found.names, "run/x "));
    assert_int_equal(store_list(self->store, "", remember, &all, NULL), 0);
    assert_int_equal(all.count, 3);
    assert_int_equal(store_list(self->store, "nothing", remember, &none, NULL), 0);
    assert_int_equal(none.count, 0);
    int calls = 0;
    assert_int_equal(store_list(self->store, "", stop_at_once, &calls, NULL), CB_ERR_ABORTED);
    assert_int_equal(calls, 1);
}

/* Where folders are only names, all of them may come. */
static void a_search_goes_no_deeper_than_asked(void **state)
{
    struct fixture *self = *state;
    bool folders = self->variant->on_disk;
    assert_int_equal(store_publish(self->store, "run/x", "1", 1, NULL), 0);
    assert_int_equal(store_publish(self->store, "run/deep/y", "22", 2, NULL), 0);
    assert_int_equal(store_publish(self->store, "run/deep/er/z", "333", 3, NULL), 0);
    for (uint32_t depth = 0; depth < 4; depth++) {
        struct found found = {0};
        assert_int_equal(store_list_near(self->store, "run", depth, remember, &found, NULL), 0);
        assert_int_equal(found.count, folders && depth < 2 ? depth + 1 : 3);
    }
}

static void removed_objects_and_folders_are_gone(void **state)
{
    struct fixture *self = *state;
    uint64_t length;
    assert_int_equal(store_make_folder(self->store, "p/q", NULL), 0);
    assert_int_equal(store_make_folder(self->store, "p/q", NULL), 0);
    assert_int_equal(store_publish(self->store, "p/q/r", "1", 1, NULL), 0);
    if (self->variant->on_disk)
        assert_int_equal(store_remove_folder(self->store, "p/q", NULL), CB_ERR_EXISTS);
    assert_int_equal(store_remove(self->store, "p/q/r", NULL), 0);
    assert_int_equal(store_stat(self->store, "p/q/r", &length, NULL), CB_ERR_NOT_FOUND);
    assert_int_equal(store_remove_folder(self->store, "p/q", NULL), 0);
    assert_int_equal(store_remove_folder(self->store, "p", NULL), 0);
}

static void dropped_cache_is_gone_or_unknown(void **state)
{
    struct fixture *self = *state;
    unsigned char *bytes = testing_pattern(1 << 20, 11);
    testing_write_object(self->store, "cached", bytes, (1 << 20) + 5 - 4096);
    double resident = 7;
    assert_int_equal(store_drop_cache(self->store, "cached", &resident, NULL), 0);
    if (self->variant->on_disk)
        assert_true(resident == 0.0);
    else
        assert_true(isnan(resident));
    free(bytes);
}

static void free_space_is_told(void **state)
{
    struct fixture *self = *state;
    uint64_t bytes = 0;
    assert_int_equal(store_free_bytes(self->store, &bytes, NULL), 0);
    assert_true(bytes > 0);
    assert_int_equal(bytes == UINT64_MAX, !self->variant->on_disk);
}

struct contract {
    const char *name;
    CMUnitTestFunction function;
};
#define CONTRACT(function)                                                                                             \
    {                                                                                                                  \
#function, function                                                                                            \
    }

static const struct contract contracts[] = {
    CONTRACT(description_says_what_is_used),
    CONTRACT(data_of_any_length_comes_back),
    CONTRACT(several_segments_make_one_request),
    CONTRACT(a_full_depth_of_requests_completes_each_once),
    CONTRACT(ranks_write_their_parts_of_a_shared_object),
    CONTRACT(reading_past_the_end_is_corrupt_and_says_how_much_there_was),
    CONTRACT(cancelled_requests_complete_once),
    CONTRACT(a_store_freed_with_requests_in_flight_waits_for_them),
    CONTRACT(polling_with_nothing_in_flight_gives_nothing),
    CONTRACT(an_object_is_created_only_once),
    CONTRACT(what_is_not_there_is_not_found_by_name),
    CONTRACT(names_that_lead_out_of_the_store_are_refused),
    CONTRACT(published_objects_are_whole_and_replace_what_was_there),
    CONTRACT(pieces_are_published_as_one_object_or_not_at_all),
    CONTRACT(a_swap_replaces_only_what_is_as_expected),
    CONTRACT(a_swap_for_the_same_text_only_renews_its_time),
    CONTRACT(read_small_keeps_to_the_buffers_maximum),
    CONTRACT(list_names_every_object_below_a_folder),
    CONTRACT(a_search_goes_no_deeper_than_asked),
    CONTRACT(removed_objects_and_folders_are_gone),
    CONTRACT(dropped_cache_is_gone_or_unknown),
    CONTRACT(free_space_is_told),
};
#define CONTRACTS (sizeof(contracts) / sizeof(contracts[0]))
#define VARIANTS (sizeof(variants) / sizeof(variants[0]))

int main(void)
{
    static struct CMUnitTest tests[CONTRACTS * VARIANTS];
    static char names[CONTRACTS * VARIANTS][128];
    size_t count = 0;
    for (size_t v = 0; v < VARIANTS; v++)
        for (size_t c = 0; c < CONTRACTS; c++) {
            snprintf(names[count], sizeof(names[count]), "%s: %s", variants[v].name, contracts[c].name);
            tests[count] = (struct CMUnitTest){.name = names[count],
                                               .test_func = contracts[c].function,
                                               .setup_func = set_up,
                                               .teardown_func = tear_down,
                                               .initial_state = (void *)(uintptr_t)&variants[v]};
            count++;
        }
    return _cmocka_run_group_tests(TAG, tests, count, NULL, NULL);
}
