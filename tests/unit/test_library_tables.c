/* Tables of what ranks hold, below libckptbench's header: what a rank's layout has of the others, and tables that are
 * damaged. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lib/exchange_tables.h"
#include "thread_comm.h"

#define RANKS 3

/* Stands for the library's, which a rank alone does not need. */
int comm_start_all_gather(struct comm *comm, const void *mine, void *all, uint64_t values, struct comm_message *message,
                          struct cb_err *err)
{
    (void)comm, (void)mine, (void)all, (void)values, (void)message;
    return cb_fail(err, CB_ERR_INTERNAL, "a rank alone asks others");
}

/* A matrix that every rank has whole, so that its table fits any rank. */
struct part {
    struct ckptbench_tensor tensor;
    struct ckptbench_region region;
    struct ckptbench_state state;
};

static void describe(struct part *self)
{
    *self = (struct part){.tensor = {.fqn = "matrix", .dtype = ckptbench_dtype("float32"), .dims = 2, .shape = {3, 4}},
                          .region = {.size = {3, 4}, .stride = {4, 1}}};
    self->state = (struct ckptbench_state){.struct_bytes = sizeof self->state,
                                           .tensors = &self->tensor,
                                           .tensor_count = 1,
                                           .regions = &self->region,
                                           .region_count = 1};
}

struct rank {
    pthread_t thread;
    struct comm comm;
    size_t pieces[RANKS]; /* in this rank's layout, of each rank */
    int code;
};

static void *load_alone(void *context)
{
    struct rank *self = context;
    const struct table_request request = {
        .op = "load", .path = "/there", .deadline_ns = clock_monotonic_ns() + 60 * NS_PER_S, .alone = true};
    struct tables tables;
    struct part part;
    bool kept;
    describe(&part);
    tables_init(&tables);
    self->code = tables_exchange(&tables, &self->comm, &part.state, &request, 0, &kept, NULL);
    for (uint32_t i = 0; i < RANKS && !self->code; i++) {
        struct piece *pieces = NULL;
        self->code = layout_pieces(tables.joined.layout, i, &pieces, &self->pieces[i], NULL);
        free(pieces);
    }
    tables_release(&tables);
    return NULL;
}

static void a_rank_that_loads_alone_knows_of_its_own_part_only(void **unused)
{
    static struct rank ranks[RANKS];
    struct meeting meeting;
    (void)unused;
    meeting_init(&meeting, RANKS);
    for (uint32_t i = 0; i < RANKS; i++) {
        ranks[i] = (struct rank){.comm = {.meeting = &meeting, .rank = i}};
        assert_int_equal(pthread_create(&ranks[i].thread, NULL, load_alone, &ranks[i]), 0);
    }
    for (uint32_t i = 0; i < RANKS; i++)
        pthread_join(ranks[i].thread, NULL);
    for (uint32_t i = 0; i < RANKS; i++) {
        assert_int_equal(ranks[i].code, 0);
        for (uint32_t other = 0; other < RANKS; other++)
            assert_int_equal(ranks[i].pieces[other], i == other);
    }
}

/* What a rank makes of a table of which `cut` bytes are missing at its end, and of whose factors `fewer` are. */
static int read_regions(const struct buf *table, size_t cut, struct description_factors factors, uint64_t fewer)
{
    const struct buf text = {.data = table->data, .len = table->len - cut};
    struct described_table described;
    struct described_part parts[1];
    size_t count = 0;
    assert_int_equal(description_read(&text, "", 0, 0, 1, RANKS, &described, NULL), 0);
    factors.count -= fewer;
    int rc = description_parts(&described, &factors, 1, parts, &count, NULL);
    assert_int_equal(count, rc == 0);
    description_release(&described);
    return rc;
}

static void tables_whose_regions_are_damaged_are_refused(void **unused)
{
    struct description_factors factors = {0};
    struct part part;
    struct buf table;
    (void)unused;
    describe(&part);
    part.region.offset[0] = part.region.size[0] = 1; /* needs a factor */
    buf_init(&table, 1000);
    assert_int_equal(description_write(&part.state, RANKS, &table, &factors, NULL), 0);
    assert_int_equal(read_regions(&table, 0, factors, 0), 0);
    assert_int_equal(read_regions(&table, 8, factors, 0), CB_ERR_FORMAT);
    assert_int_equal(read_regions(&table, 0, factors, 1), CB_ERR_FORMAT);
    buf_append(&table, "12345678", 8);
    assert_int_equal(read_regions(&table, 0, factors, 0), CB_ERR_FORMAT);
    buf_release(&table);
}

/* Rows of a tensor, over ranks of which the last two hold the same piece: its bytes in a table, with one number changed. */
static int read_split(uint64_t at, uint64_t number, struct described_part *part)
{
    static const uint64_t index[RANKS] = {0, 1, 1};
    const struct ckptbench_split split = {.pieces = 2, .index = index};
    struct description_factors factors = {0};
    struct described_table described;
    struct part state;
    struct buf table;
    size_t count = 0;
    describe(&state);
    state.region.size[0] = 2; /* rank 0's */
    state.region.split[0] = 1;
    state.state.splits = &split;
    state.state.split_count = 1;
    buf_init(&table, 1000);
    assert_int_equal(description_write(&state.state, RANKS, &table, &factors, NULL), 0);
    assert_int_equal(factors.count, 0);
    memcpy(table.data + at * sizeof number, &number, sizeof number);
    int rc = description_read(&table, "", 0, 0, RANKS, RANKS, &described, NULL);
    if (!rc) {
        rc = description_parts(&described, &factors, 2, part, &count, NULL);
        description_release(&described);
    }
    buf_release(&table);
    return rc;
}

static void a_table_with_a_split_has_what_each_rank_holds(void **unused)
{
    struct described_part part = {0};
    (void)unused;
    assert_int_equal(read_split(0, 1, &part), 0); /* one tensor, as there is */
    assert_int_equal(part.box.offset[0], 2);
    assert_int_equal(part.box.size[0], 1); /* of 3 rows in steps of 2 */
    assert_int_equal(part.box.size[1], 4);
}

static void tables_whose_splits_are_damaged_are_refused(void **unused)
{
    struct described_part part;
    (void)unused;
    assert_int_equal(read_split(3, 0, &part), CB_ERR_FORMAT);                 /* no splits: their bytes are no tensor */
    assert_int_equal(read_split(3, UINT64_MAX / 16, &part), CB_ERR_FORMAT);   /* more splits than bytes */
    assert_int_equal(read_split(4, 0, &part), CB_ERR_FORMAT);                 /* no pieces */
    assert_int_equal(read_split(4, UINT64_C(1) << 33, &part), CB_ERR_FORMAT); /* too many */
    assert_int_equal(read_split(7, 2, &part), CB_ERR_FORMAT);                 /* a piece that is not there */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_that_loads_alone_knows_of_its_own_part_only),
        cmocka_unit_test(tables_whose_regions_are_damaged_are_refused),
        cmocka_unit_test(a_table_with_a_split_has_what_each_rank_holds),
        cmocka_unit_test(tables_whose_splits_are_damaged_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
