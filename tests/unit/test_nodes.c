/* The tournament of all pairs of nodes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "worker/suite/nodes.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pair_meets_exactly_once_whatever_the_number),
        cmocka_unit_test(the_opponent_of_an_opponent_is_the_player),
        cmocka_unit_test(rounds_grow_with_the_number_of_nodes_not_of_pairs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
