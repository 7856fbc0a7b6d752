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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_that_loads_alone_knows_of_its_own_part_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
