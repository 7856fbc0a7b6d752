/* Parts into requests: alignment, zero copy, cuts, gaps, turns; and regions onto memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/io/io_schedule.h"
#include "engine/mapping.h"

#define BLOCK 65536

static struct io_limits limits_of(uint64_t alignment, uint32_t segments)
{
    return (struct io_limits){
        .block = BLOCK, .alignment = alignment, .memory_alignment = alignment, .max_segments = segments, .gap = 4096};
}

static uint64_t direct_bytes(const struct io_schedule *schedule)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < schedule->part_count; i++)
        bytes += schedule->parts[i].direct ? schedule->parts[i].bytes : 0;
    return bytes;
}

/* What every schedule must be: aligned requests in order, parts inside their request and in order,
 * segments that cover the request and no more of them than allowed. */
static void check_schedule(const struct io_schedule *schedule)
{
    struct iovec *segments = calloc(schedule->limits.max_segments, sizeof *segments);
    char *staging = aligned_alloc(4096, (schedule->staging_bytes + 4095) / 4096 * 4096 + 4096);
    size_t parts = 0;
    for (size_t i = 0; i < schedule->request_count; i++) {
        const struct io_request *request = &schedule->requests[i];
        assert_int_equal(request->offset % schedule->limits.alignment, 0);
        assert_int_equal(request->end % schedule->limits.alignment, 0);
        if (io_schedule_is_apart(schedule, request))
            assert_int_equal(request->part_count, 1);
        else
            assert_true(request->end - request->offset <= schedule->staging_bytes);
        uint64_t position = request->offset;
        for (size_t j = 0; j < request->part_count; j++, parts++) {
            const struct part *part = &schedule->parts[request->first_part + j];
            assert_true(part->bytes > 0 && part->offset >= position);
            position = part->offset + part->bytes;
            assert_true(position <= request->end);
            if (part->direct) {
                assert_true(!schedule->limits.apart || io_schedule_is_apart(schedule, request));
                assert_int_equal(part->offset % schedule->limits.alignment, 0);
                assert_int_equal(part->bytes % schedule->limits.alignment, 0);
                assert_int_equal((uintptr_t)part->memory % schedule->limits.memory_alignment, 0);
            }
        }
        uint32_t count = io_schedule_segments(schedule, request, request->end, staging, segments);
        assert_true(count >= 1 && count <= schedule->limits.max_segments);
        uint64_t covered = 0;
        for (uint32_t j = 0; j < count; j++) {
            assert_int_equal(segments[j].iov_len % schedule->limits.alignment, 0);
            covered += segments[j].iov_len;
        }
        assert_int_equal(covered, request->end - request->offset);
    }
    assert_int_equal(parts, schedule->part_count);
    free(segments);
    free(staging);
}

static void body_of_aligned_payload_is_direct_and_its_ends_are_copied(void **unused)
{
    (void)unused;
    char *memory = aligned_alloc(4096, 4 * BLOCK);
    struct io_limits limits = limits_of(4096, 16);
    struct io_schedule schedule;
    io_schedule_init(&schedule, &limits);
    io_schedule_add_frame(&schedule, PART_HEADER, 0, 0, 4096);
    io_schedule_add_payload(&schedule, 0, 4096, 20000, 0, memory);
    io_schedule_add_frame(&schedule, PART_TRAILER, 0, 24096, 500);
    io_schedule_end_file(&schedule);
    struct cb_err err;
    assert_int_equal(io_schedule_finish(&schedule, 1, &err), 0);
    check_schedule(&schedule);
    assert_int_equal(schedule.request_count, 1);
    assert_int_equal(direct_bytes(&schedule), 16384);
    assert_int_equal(schedule.bytes, 24596);
    assert_int_equal(schedule.requests[0].end, 28672);
    io_schedule_release(&schedule);
    free(memory);
}

static void device_memory_has_requests_to_itself(void **unused)
{
    (void)unused;
    char *memory = aligned_alloc(4096, 4 * BLOCK);
    struct io_limits limits = limits_of(4096, 16);
    struct io_schedule schedule;
    limits.apart = true;
    io_schedule_init(&schedule, &limits);
    io_schedule_add_frame(&schedule, PART_HEADER, 0, 0, 4096);
    io_schedule_add_payload(&schedule, 0, 4096, BLOCK + 100, 0, memory);
    io_schedule_add_frame(&schedule, PART_TRAILER, 0, BLOCK + 4196, 500);
    io_schedule_add_frame(&schedule, PART_HEADER, 1, BLOCK + 4696, 3496);
    io_schedule_add_payload(&schedule, 1, BLOCK + 8192, 8192, 0, memory + 2 * BLOCK);
    io_schedule_add_payload(&schedule, 2, BLOCK + 16384, 4096, 0, memory + 3 * BLOCK);
    io_schedule_end_file(&schedule);
    assert_int_equal(io_schedule_finish(&schedule, 1, NULL), 0);
    check_schedule(&schedule);
    assert_int_equal(direct_bytes(&schedule), BLOCK + 12288);
    /* A header; two blocks; end, trailer, header; two tensors, which are not adjacent in memory. */
    assert_int_equal(schedule.request_count, 6);
    assert_int_equal(schedule.staging_bytes, 4096);
    assert_int_equal(schedule.requests[3].part_count, 3);
    io_schedule_release(&schedule);
    free(memory);
}

static void payload_at_odd_memory_is_copied(void **unused)
{
    (void)unused;
    char *memory = aligned_alloc(4096, BLOCK);
    struct io_limits limits = limits_of(4096, 16);
    struct io_schedule schedule;
    io_schedule_init(&schedule, &limits);
    io_schedule_add_payload(&schedule, 0, 0, 16384, 0, memory + 6);
    io_schedule_end_file(&schedule);
    assert_int_equal(io_schedule_finish(&schedule, 1, NULL), 0);
    assert_int_equal(direct_bytes(&schedule), 0);
    io_schedule_release(&schedule);
    free(memory);
}

static void long_payload_is_cut_at_block_boundaries_of_the_file(void **unused)
{
    (void)unused;
    char *memory = aligned_alloc(4096, 4 * BLOCK);
    struct io_limits limits = limits_of(4096, 16);
    struct io_schedule schedule;
    io_schedule_init(&schedule, &limits);
    io_schedule_add_payload(&schedule, 0, 8192, 3 * BLOCK, 0, memory);
    io_schedule_end_file(&schedule);
    assert_int_equal(io_schedule_finish(&schedule, 1, NULL), 0);
    check_schedule(&schedule);
    assert_int_equal(schedule.request_count, 4);
    assert_int_equal(schedule.requests[0].end, BLOCK);
    assert_int_equal(schedule.requests[1].end, 2 * BLOCK);
    assert_int_equal(schedule.parts[1].skip, BLOCK - 8192);
    assert_ptr_equal(schedule.parts[1].memory, memory + BLOCK - 8192);
    io_schedule_release(&schedule);
    free(memory);
}

static void a_frame_is_not_cut_when_it_is_parsed_in_place(void **unused)
{
    (void)unused;
    struct io_limits limits = limits_of(1, 16);
    limits.whole_frames = true;
    struct io_schedule schedule;
    io_schedule_init(&schedule, &limits);
    io_schedule_add_mapped(&schedule, 0, 0, BLOCK - 10, 0);
    io_schedule_add_frame(&schedule, PART_TRAILER, 0, BLOCK - 10, 500);
    io_schedule_add_frame(&schedule, PART_HEADER, 1, BLOCK + 490, 2 * BLOCK);
    io_schedule_end_file(&schedule);
    assert_int_equal(io_schedule_finish(&schedule, 1, NULL), 0);
    check_schedule(&schedule);
    assert_int_equal(schedule.part_count, 3);
    assert_int_equal(schedule.request_count, 3);
    io_schedule_release(&schedule);
}

static void a_long_gap_makes_another_request_and_a_short_one_does_not(void **unused)
{
    (void)unused;
    struct io_limits limits = limits_of(512, 16);
    struct io_schedule schedule;
    io_schedule_init(&schedule, &limits);
    io_schedule_add_mapped(&schedule, 0, 0, 512, 0);
    io_schedule_add_mapped(&schedule, 0, 4608, 512, 512);
    io_schedule_add_mapped(&schedule, 0, 20480, 512, 1024);
    io_schedule_end_file(&schedule);
    assert_int_equal(io_schedule_finish(&schedule, 1, NULL), 0);
    check_schedule(&schedule);
    assert_int_equal(schedule.request_count, 2);
    assert_int_equal(schedule.requests[0].end, 5120);
    assert_int_equal(schedule.requests[1].offset, 20480);
    io_schedule_release(&schedule);
}

static void files_take_turns_when_asked(void **unused)
{
    (void)unused;
    struct io_limits limits = limits_of(4096, 16);
    struct io_schedule schedule;
    io_schedule_init(&schedule, &limits);
    static const unsigned blocks[] = {3, 1, 2, 2};
    for (unsigned file = 0; file < 4; file++) {
        io_schedule_add_mapped(&schedule, file, 0, (uint64_t)blocks[file] * BLOCK, 0);
        io_schedule_end_file(&schedule);
    }
    assert_int_equal(io_schedule_finish(&schedule, 3, NULL), 0);
    static const uint32_t order[] = {0, 1, 2, 0, 2, 0, 3, 3};
    assert_int_equal(schedule.request_count, 8);
    for (size_t i = 0; i < 8; i++)
        assert_int_equal(schedule.requests[i].file, order[i]);
    io_schedule_release(&schedule);
}

static void random_programs_keep_the_rules(void **unused)
{
    (void)unused;
    char *memory = aligned_alloc(4096, 64 * BLOCK);
    srand(7);
    for (int round = 0; round < 400; round++) {
        static const uint64_t alignments[] = {1, 512, 4096};
        struct io_limits limits = limits_of(alignments[rand() % 3], (uint32_t)(rand() % 4 == 0 ? 1 : 2 + rand() % 30));
        limits.whole_frames = rand() % 2;
        struct io_schedule schedule;
        io_schedule_init(&schedule, &limits);
        uint64_t total = 0;
        for (int file = 0; file < 3; file++) {
            uint64_t offset = 0;
            for (uint32_t item = 0; item < 40; item++) {
                uint64_t header = (uint64_t)(200 + rand() % 5000), bytes = (uint64_t)(rand() % 30000);
                io_schedule_add_frame(&schedule, PART_HEADER, item, offset, header);
                uint64_t at = offset + header;
                uint64_t aligned = rand() % 3 ? (at + 4095) / 4096 * 4096 : at;
                char *from = memory + rand() % 8 * 4096 + (rand() % 4 ? 0 : 6);
                if (rand() % 5)
                    io_schedule_add_payload(&schedule, item, aligned, bytes, 0, from);
                else
                    io_schedule_add_mapped(&schedule, item, aligned, bytes, 0);
                io_schedule_add_frame(&schedule, PART_TRAILER, item, aligned + bytes, 300);
                total += header + bytes + 300;
                offset = aligned + bytes + 300;
            }
            io_schedule_end_file(&schedule);
        }
        assert_int_equal(io_schedule_finish(&schedule, (uint32_t)(rand() % 4), NULL), 0);
        assert_int_equal(schedule.bytes, total);
        check_schedule(&schedule);
        io_schedule_release(&schedule);
    }
    free(memory);
}

/* What an object store needs: no request is short but the last, however many segments and gaps there are. */
static void parts_are_whole_blocks_but_the_last(void **unused)
{
    (void)unused;
    char *memory = aligned_alloc(4096, 64 * BLOCK);
    srand(11);
    for (int round = 0; round < 200; round++) {
        struct io_limits limits = limits_of(1, (uint32_t)(8 + rand() % 8));
        limits.whole_blocks = true;
        limits.gap = UINT64_MAX;
        struct io_schedule schedule;
        io_schedule_init(&schedule, &limits);
        uint64_t offset = 0;
        for (uint32_t item = 0; item < 60; item++) {
            uint64_t bytes = (uint64_t)(rand() % 30000);
            io_schedule_add_frame(&schedule, PART_HEADER, item, offset, 100);
            uint64_t at = (offset + 100 + 4095) / 4096 * 4096;
            io_schedule_add_payload(&schedule, item, at, bytes, 0, memory + rand() % 8 * 4096);
            io_schedule_add_frame(&schedule, PART_TRAILER, item, at + bytes, 300);
            offset = at + bytes + 300;
        }
        io_schedule_end_file(&schedule);
        assert_int_equal(io_schedule_finish(&schedule, 1, NULL), 0);
        check_schedule(&schedule);
        assert_true(direct_bytes(&schedule) > 0);
        for (size_t i = 0; i < schedule.request_count; i++) {
            uint64_t end = i + 1 == schedule.request_count ? offset : (i + 1) * BLOCK;
            assert_int_equal(schedule.requests[i].offset, i * BLOCK);
            assert_int_equal(schedule.requests[i].end, end);
        }
        io_schedule_release(&schedule);
    }
    free(memory);
}

static struct region random_region_in(const struct region *outer)
{
    struct region region = {.dims = outer->dims};
    for (uint32_t i = 0; i < outer->dims; i++) {
        region.size[i] = 1 + (uint64_t)rand() % outer->size[i];
        region.offset[i] = outer->offset[i] + (uint64_t)rand() % (outer->size[i] - region.size[i] + 1);
    }
    return region;
}

static uint64_t index_in(const struct region *region, const uint64_t *at)
{
    uint64_t index = 0;
    for (uint32_t i = 0; i < region->dims; i++)
        index = index * region->size[i] + (at[i] - region->offset[i]);
    return index;
}

/* Scatter in chunks, then compare element by element with the definition; gather must invert it. */
static void mapped_bytes_land_where_the_regions_say(void **unused)
{
    (void)unused;
    srand(11);
    for (int round = 0; round < 2000; round++) {
        uint64_t shape[CKPT_MAX_DIMS];
        uint32_t dims = (uint32_t)(rand() % 5);
        for (uint32_t i = 0; i < dims; i++)
            shape[i] = 1 + (uint64_t)rand() % 6;
        struct region whole = region_whole(dims, shape), common;
        struct region stored = random_region_in(&whole), held = random_region_in(&whole);
        if (!region_intersect(&stored, &held, &common))
            continue;
        struct mapping mapping;
        mapping_init(&mapping, &stored, &held, &common, 2);
        uint16_t file[8192], memory[8192], again[8192];
        for (uint64_t i = 0; i < region_elements(&stored); i++)
            file[i] = (uint16_t)(i + 1);
        memset(memory, 0, sizeof memory);
        memset(again, 0, sizeof again);
        uint64_t stored_bytes = region_elements(&stored) * 2, step = 2 * (1 + (uint64_t)rand() % 9), copied = 0;
        for (uint64_t at = 0; at < stored_bytes; at += step) {
            uint64_t len = stored_bytes - at < step ? stored_bytes - at : step;
            copied += mapping_scatter(&mapping, at, (char *)file + at, len, memory);
            mapping_gather(&mapping, at, (char *)again + at, len, memory);
        }
        assert_int_equal(copied, region_elements(&common) * 2);
        uint64_t begin, end, seen = 0;
        mapping_span(&mapping, &begin, &end);
        assert_true(begin < end && end <= stored_bytes);
        for (uint64_t element = 0; element < region_elements(&whole); element++) {
            uint64_t at[CKPT_MAX_DIMS], left = element;
            bool in_common = true, in_held = true;
            for (uint32_t i = dims; i-- > 0; left /= shape[i]) {
                at[i] = left % shape[i];
                in_common &= at[i] >= common.offset[i] && at[i] < common.offset[i] + common.size[i];
                in_held &= at[i] >= held.offset[i] && at[i] < held.offset[i] + held.size[i];
            }
            if (in_common) {
                seen++;
                assert_int_equal(memory[index_in(&held, at)], file[index_in(&stored, at)]);
                assert_int_equal(again[index_in(&stored, at)], file[index_in(&stored, at)]);
            } else if (in_held) {
                assert_int_equal(memory[index_in(&held, at)], 0);
            }
        }
        assert_int_equal(seen, region_elements(&common));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(body_of_aligned_payload_is_direct_and_its_ends_are_copied),
        cmocka_unit_test(device_memory_has_requests_to_itself),
        cmocka_unit_test(payload_at_odd_memory_is_copied),
        cmocka_unit_test(long_payload_is_cut_at_block_boundaries_of_the_file),
        cmocka_unit_test(a_frame_is_not_cut_when_it_is_parsed_in_place),
        cmocka_unit_test(a_long_gap_makes_another_request_and_a_short_one_does_not),
        cmocka_unit_test(files_take_turns_when_asked),
        cmocka_unit_test(random_programs_keep_the_rules),
        cmocka_unit_test(parts_are_whole_blocks_but_the_last),
        cmocka_unit_test(mapped_bytes_land_where_the_regions_say),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
