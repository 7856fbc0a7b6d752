/* The names in Slurm's lists of nodes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "agent/node/nodes.h"

static void expands_to(const char *list, const char *names)
{
    struct buf text;
    buf_init(&text, 1 << 20);
    assert_true(nodes_expand(list, &text));
    assert_string_equal(text.data, names);
    buf_release(&text);
}

static void is_left_to_slurm(const char *list)
{
    struct buf text;
    buf_init(&text, 1 << 20);
    assert_false(nodes_expand(list, &text));
    buf_release(&text);
}

static void lists_as_slurm_writes_them_are_read_in_order(void **state)
{
    (void)state;
    expands_to("n1", "n1\n");
    expands_to("n1,gpu-7.example", "n1\ngpu-7.example\n");
    expands_to("n[1-4]", "n1\nn2\nn3\nn4\n");
    expands_to("n[4,1-2],login,m[07-11]", "n4\nn1\nn2\nlogin\nm07\nm08\nm09\nm10\nm11\n");
    expands_to("n[098-101]", "n098\nn099\nn100\nn101\n");
    expands_to("n[9-11]", "n9\nn10\nn11\n");
    expands_to("r1-c[3]", "r1-c3\n");
}

static void what_else_there_may_be_is_left_to_slurm(void **state)
{
    static const char *const lists[] = {"",
                                        "n[",
                                        "n]",
                                        "n[]",
                                        "n[1",
                                        "n[1-]",
                                        "n[-1]",
                                        "n[2-1]",
                                        "n[1-2]x",
                                        "n[1-2][3-4]",
                                        "n[1,]",
                                        "n[,1]",
                                        "n[a-b]",
                                        "n[1-2,",
                                        "n1,",
                                        ",n1",
                                        "n1,,n2",
                                        "n[1 -2]",
                                        "n[1-2-3]",
                                        "n[1-4294967296000]",
                                        "n[0-9999999]",
                                        "n[[1]]"};
    (void)state;
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        is_left_to_slurm(lists[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_as_slurm_writes_them_are_read_in_order),
        cmocka_unit_test(what_else_there_may_be_is_left_to_slurm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
