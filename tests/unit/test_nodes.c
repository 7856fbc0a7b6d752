/* The tournament of all pairs of nodes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "suite/tournament.h"

#define PLAYERS_MOST 33

static void every_pair_meets_exactly_once_whatever_the_number(void **state)
{
    (void)state;
    for (uint32_t count = 1; count <= PLAYERS_MOST; count++) {
        unsigned met[PLAYERS_MOST][PLAYERS_MOST];
        memset(met, 0, sizeof met);
        for (uint32_t round = 0; round < nodes_rounds(count); round++)
            for (uint32_t player = 0; player < count; player++)
                met[player][nodes_opponent(count, round, player)]++;
        for (uint32_t a = 0; a < count; a++)
            for (uint32_t b = 0; b < count; b++)
                if (a != b)
                    assert_int_equal(met[a][b], 1);
    }
}

static void the_opponent_of_an_opponent_is_the_player(void **state)
{
    (void)state;
    for (uint32_t count = 2; count <= PLAYERS_MOST; count++)
        for (uint32_t round = 0; round < nodes_rounds(count); round++)
            for (uint32_t player = 0; player < count; player++)
                assert_int_equal(nodes_opponent(count, round, nodes_opponent(count, round, player)), player);
}

static void rounds_grow_with_the_number_of_nodes_not_of_pairs(void **state)
{
    (void)state;
    assert_int_equal(nodes_rounds(1), 0);
    assert_int_equal(nodes_rounds(2), 1);
    assert_int_equal(nodes_rounds(4), 3);
    assert_int_equal(nodes_rounds(5), 5);
    assert_int_equal(nodes_rounds(1000), 999);
}

static void each_pair_is_noted_once_and_nobody_notes_much_more_than_half_of_his(void **state)
{
    (void)state;
    for (uint32_t count = 2; count <= PLAYERS_MOST; count++)
        for (uint32_t a = 0; a < count; a++) {
            uint32_t noted = 0;
            for (uint32_t b = 0; b < count; b++) {
                noted += a != b && nodes_keeps(a, b);
                if (a != b)
                    assert_int_equal(nodes_keeps(a, b), !nodes_keeps(b, a));
            }
            assert_in_range(noted, 0, count / 2);
        }
}

#define RANKS_MOST 12

/* Node i mod `nodes`, or `ranks` divided into runs: how launchers place ranks. The first node has `more` ranks besides. */
static uint32_t place_ranks(uint32_t *node_of, uint32_t nodes, uint32_t each, uint32_t more, bool in_turn)
{
    uint32_t ranks = 0;
    for (; ranks < nodes * each; ranks++)
        node_of[ranks] = in_turn ? ranks % nodes : ranks / each;
    for (uint32_t i = 0; i < more; i++)
        node_of[ranks++] = 0;
    return ranks;
}

static void files_are_read_by_one_rank_of_another_node_wherever_ranks_lie(void **state)
{
    (void)state;
    for (uint32_t nodes = 2; nodes <= 4; nodes++)
        for (uint32_t each = 1; each <= 2; each++)
            for (uint32_t more = 0; more <= (nodes - 2) * each; more++) /* no more than half on one */
                for (int in_turn = 0; in_turn < 2; in_turn++) {
                    uint32_t node_of[RANKS_MOST], readers[RANKS_MOST] = {0};
                    uint32_t ranks = place_ranks(node_of, nodes, each, more, in_turn);
                    for (uint32_t rank = 0; rank < ranks; rank++) {
                        uint32_t partner = nodes_partner(node_of, ranks, nodes, rank);
                        assert_int_not_equal(node_of[partner], node_of[rank]);
                        readers[partner]++;
                    }
                    for (uint32_t rank = 0; rank < ranks; rank++)
                        assert_int_equal(readers[rank], 1);
                }
}

static void on_one_node_files_are_another_ranks_and_alone_ones_own(void **state)
{
    const uint32_t node_of[3] = {0};
    (void)state;
    for (uint32_t rank = 0; rank < 3; rank++)
        assert_int_equal(nodes_partner(node_of, 3, 1, rank), (rank + 1) % 3);
    assert_int_equal(nodes_partner(node_of, 1, 1, 0), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pair_meets_exactly_once_whatever_the_number),
        cmocka_unit_test(the_opponent_of_an_opponent_is_the_player),
        cmocka_unit_test(rounds_grow_with_the_number_of_nodes_not_of_pairs),
        cmocka_unit_test(each_pair_is_noted_once_and_nobody_notes_much_more_than_half_of_his),
        cmocka_unit_test(files_are_read_by_one_rank_of_another_node_wherever_ranks_lie),
        cmocka_unit_test(on_one_node_files_are_another_ranks_and_alone_ones_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
