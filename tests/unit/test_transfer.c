/* The data path over real stores: what is written comes back, in whatever alignment and engine; short
 * and missing files, stop requests and deadlines end as they should. */
#include <fcntl.h>
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
#include "core/histogram.h"
#include "engine/io/transfer.h"
#include "tests/unit/thread_comm.h"

#define FILES 3
#define FILE_BYTES 300000

struct store_location {
    char folder[64];
    struct meeting meeting;
    struct comm comm; /* of one rank */
    struct status_page *page;
};

static struct store_location place;

struct files {
    struct store *store;
    char *memory[FILES]; /* page-aligned, FILE_BYTES and a page each */
    struct io_schedule *schedule;
    int failures;
    struct cb_err last;
};

static int create_file(void *context, uint32_t file, struct store_object **object, uint64_t *length, struct cb_err *err)
{
    struct files *self = context;
    char name[32];
    snprintf(name, sizeof name, "sub/file%u", file);
    *length = FILE_BYTES;
    return store_create(self->store, name, FILE_BYTES, object, err);
}

static int open_file(void *context, uint32_t file, struct store_object **object, uint64_t *length, struct cb_err *err)
{
    struct files *self = context;
    char name[32];
    snprintf(name, sizeof name, "sub/file%u", file);
    return store_open_read(self->store, name, object, length, err);
}

static int compose(void *context, const struct io_request *request, char *staging, struct cb_err *err)
{
    (void)err;
    struct files *self = context;
    for (size_t i = 0; i < request->part_count; i++) {
        const struct part *part = &self->schedule->parts[request->first_part + i];
        if (!part->direct)
            memcpy(staging + (part->offset - request->offset), self->memory[request->file] + part->offset, part->bytes);
    }
    return 0;
}

static int take(void *context, const struct io_request *request, const char *staging, uint64_t available,
                const struct cb_err *why, struct cb_err *err)
{
    (void)err;
    struct files *self = context;
    for (size_t i = 0; i < request->part_count; i++) {
        const struct part *part = &self->schedule->parts[request->first_part + i];
        if (part->offset + part->bytes > available) {
            self->failures++;
            if (why->code) /* what ended early has none */
                self->last = *why;
        } else if (!part->direct) {
            memcpy(self->memory[request->file] + part->offset, staging + (part->offset - request->offset), part->bytes);
        }
    }
    return 0;
}

static int write_failed(void *context, const struct io_request *request, const char *staging, uint64_t available,
                        const struct cb_err *why, struct cb_err *err)
{
    (void)context, (void)request, (void)staging, (void)available;
    *err = *why;
    return why->code;
}

static const struct transfer_ops write_ops = {.open = create_file, .prepare = compose, .complete = write_failed};
static const struct transfer_ops read_ops = {.open = open_file, .complete = take};

/* Files of frames and payloads in odd places; memory is the image of the file. */
static void build(struct files *files, struct io_schedule *schedule, bool whole_frames)
{
    struct io_limits limits = io_limits_of(store_capabilities(files->store), 32768);
    limits.gap = 65536;
    limits.whole_frames = whole_frames;
    io_schedule_init(schedule, &limits);
    for (uint32_t file = 0; file < FILES; file++) {
        uint64_t offset = 0;
        for (uint32_t item = 0; offset < FILE_BYTES; item++) {
            uint64_t header = item % 3 ? 4096 - offset % 4096 : 300, bytes = 7000u * (item % 5) + 13;
            header = header < FILE_BYTES - offset ? header : FILE_BYTES - offset;
            io_schedule_add_frame(schedule, PART_HEADER, item, offset, header);
            offset += header;
            bytes = bytes < FILE_BYTES - offset ? bytes : FILE_BYTES - offset;
            io_schedule_add_payload(schedule, item, offset, bytes, 0, files->memory[file] + offset);
            offset += bytes;
        }
        io_schedule_end_file(schedule);
    }
    assert_int_equal(io_schedule_finish(schedule, 2, NULL), 0);
    files->schedule = schedule;
}

static int run(struct files *files, bool write, uint64_t deadline_ns, struct transfer_counts *counts,
               struct cb_err *err)
{
    struct io_schedule schedule;
    struct timeline timeline;
    struct transfer *transfer;
    struct transfer_setup setup = {.store = files->store, .comm = &place.comm, .page = place.page, .depth = 4};
    build(files, &schedule, !write);
    assert_int_equal(transfer_new(&setup, &transfer, err), 0);
    assert_int_equal(transfer_reserve(transfer, FILES, schedule.staging_bytes, err), 0);
    timeline_start(&timeline, place.page, write ? OP_SAVE : OP_LOAD, STATE_OTHER);
    struct transfer_run transfer_run_ = {
        .schedule = &schedule,
        .ops = write ? &write_ops : &read_ops,
        .context = files,
        .write = write,
        .timeline = &timeline,
        .deadline_ns = deadline_ns,
    };
    int rc = transfer_run(transfer, &transfer_run_, counts, err);
    timeline_stop(&timeline);
    transfer_free(transfer);
    io_schedule_release(&schedule);
    return rc;
}

static void fill(struct files *files, unsigned seed)
{
    for (uint32_t file = 0; file < FILES; file++)
        for (size_t i = 0; i < FILE_BYTES; i++)
            files->memory[file][i] = (char)((i * 131 + file * 7 + seed) >> 3);
}

static void open_store(struct files *files, const char *uri, bool use_io_uring, enum store_direct direct)
{
    struct cb_err err;
    struct store_options options = {
        .use_io_uring = use_io_uring, .direct = direct, .depth = 4, .threads = 2, .durable = true};
    memset(files, 0, sizeof *files);
    if (store_open(uri, &options, &files->store, &err) != 0)
        fail_msg("%s", err.message);
    for (uint32_t file = 0; file < FILES; file++)
        assert_non_null(files->memory[file] = aligned_alloc(4096, FILE_BYTES / 4096 * 4096 + 8192));
}

static void close_store(struct files *files)
{
    store_free(files->store);
    for (uint32_t file = 0; file < FILES; file++)
        free(files->memory[file]);
}

static void remove_files(void)
{
    for (uint32_t file = 0; file < FILES; file++) {
        char path[128];
        snprintf(path, sizeof path, "%s/sub/file%u", place.folder, file);
        unlink(path);
    }
}

static void what_is_written_comes_back(void **unused)
{
    (void)unused;
    for (int variant = 0; variant < 4; variant++) {
        struct files files;
        struct transfer_counts counts;
        struct cb_err err;
        open_store(&files, place.folder, variant & 1, variant & 2 ? STORE_DIRECT_AUTO : STORE_DIRECT_NO);
        remove_files();
        fill(&files, 5);
        if (run(&files, true, UINT64_MAX, &counts, &err) != 0)
            fail_msg("%s: %s", store_describe(files.store), err.message);
        assert_true(counts.bytes >= FILES * FILE_BYTES && counts.errors == 0 && counts.requests > FILES);
        for (uint32_t file = 0; file < FILES; file++)
            memset(files.memory[file], 0, FILE_BYTES);
        if (run(&files, false, UINT64_MAX, &counts, &err) != 0)
            fail_msg("%s: %s", store_describe(files.store), err.message);
        assert_int_equal(files.failures, 0);
        for (uint32_t file = 0; file < FILES; file++)
            for (size_t i = 0; i < FILE_BYTES; i++)
                assert_int_equal(files.memory[file][i], (char)((i * 131 + file * 7 + 5) >> 3));
        assert_int_equal(store_in_flight(files.store), 0);
        close_store(&files);
    }
}

static void a_short_and_a_missing_file_fail_their_parts_and_no_others(void **unused)
{
    (void)unused;
    struct files files;
    struct transfer_counts counts;
    struct cb_err err;
    char path[128];
    open_store(&files, place.folder, true, STORE_DIRECT_AUTO);
    remove_files();
    fill(&files, 9);
    assert_int_equal(run(&files, true, UINT64_MAX, &counts, &err), 0);
    snprintf(path, sizeof path, "%s/sub/file0", place.folder);
    assert_int_equal(truncate(path, FILE_BYTES - 50001), 0);
    snprintf(path, sizeof path, "%s/sub/file1", place.folder);
    assert_int_equal(unlink(path), 0);
    for (uint32_t file = 0; file < FILES; file++)
        memset(files.memory[file], 0, FILE_BYTES);
    assert_int_equal(run(&files, false, UINT64_MAX, &counts, &err), 0);
    assert_true(files.failures > 0);
    assert_true(files.last.code != 0);
    for (size_t i = 0; i < FILE_BYTES; i++) {
        assert_int_equal(files.memory[2][i], (char)((i * 131 + 2 * 7 + 9) >> 3));
        assert_int_equal(files.memory[1][i], 0);
        if (i < FILE_BYTES - 50001 - 65536)
            assert_int_equal(files.memory[0][i], (char)((i * 131 + 9) >> 3));
    }
    close_store(&files);
}

static void an_existing_file_ends_a_write(void **unused)
{
    (void)unused;
    struct files files;
    struct transfer_counts counts;
    struct cb_err err;
    open_store(&files, place.folder, true, STORE_DIRECT_NO);
    remove_files();
    fill(&files, 1);
    assert_int_equal(run(&files, true, UINT64_MAX, &counts, &err), 0);
    assert_int_equal(run(&files, true, UINT64_MAX, &counts, &err), CB_ERR_EXISTS);
    assert_non_null(strstr(err.message, "file0"));
    close_store(&files);
}

static void a_stop_request_ends_a_transfer(void **unused)
{
    (void)unused;
    struct files files;
    struct transfer_counts counts;
    struct cb_err err;
    open_store(&files, place.folder, true, STORE_DIRECT_NO);
    remove_files();
    fill(&files, 1);
    place.page->stop = STOP_NOW;
    assert_int_equal(run(&files, true, UINT64_MAX, &counts, &err), CB_ERR_ABORTED);
    assert_int_equal(store_in_flight(files.store), 0);
    place.page->stop = STOP_NONE;
    close_store(&files);
}

static void latencies_are_recorded_for_each_request(void **unused)
{
    (void)unused;
    struct files files;
    struct transfer_counts counts;
    struct cb_err err;
    open_store(&files, "null:", true, STORE_DIRECT_AUTO);
    fill(&files, 1);
    histogram_init(&place.page->latency[OP_SAVE]);
    place.page->slowest[OP_SAVE].count = 0;
    assert_int_equal(run(&files, true, UINT64_MAX, &counts, &err), 0);
    assert_int_equal(place.page->latency[OP_SAVE].count, counts.requests);
    assert_int_equal(place.page->slowest[OP_SAVE].items[0].latency_ns, place.page->latency[OP_SAVE].max_ns);
    close_store(&files);
}

static int set_up(void **unused)
{
    (void)unused;
    snprintf(place.folder, sizeof place.folder, "/tmp/ckptbench-transfer-XXXXXX");
    place.page = calloc(1, sizeof *place.page + sizeof(struct sample));
    if (!mkdtemp(place.folder) || !place.page)
        return -1;
    meeting_init(&place.meeting, 1);
    place.comm.meeting = &place.meeting;
    comm_watch(&place.comm, status_page_check, place.page);
    return 0;
}

static int tear_down(void **unused)
{
    (void)unused;
    char path[128];
    remove_files();
    snprintf(path, sizeof path, "%s/sub", place.folder);
    rmdir(path);
    rmdir(place.folder);
    free(place.page);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_comes_back),
        cmocka_unit_test(a_short_and_a_missing_file_fail_their_parts_and_no_others),
        cmocka_unit_test(an_existing_file_ends_a_write),
        cmocka_unit_test(a_stop_request_ends_a_transfer),
        cmocka_unit_test(latencies_are_recorded_for_each_request),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
