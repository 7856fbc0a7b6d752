/* Tables: aligned as a terminal shows them, whatever the letters. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "cli/report/table.h"

static void columns_are_as_wide_as_their_widest_cell(void **unused)
{
    (void)unused;
    struct table table;
    struct buf out;
    struct cb_err err;
    buf_init(&out, 1 << 16);
    table_init(&table, "lrl");
    table_add_headings(&table, (const char *const[]){"RUN", "TIME", "NOTE"});
    table_add(&table, TABLE_PLAIN, "a-long-name");
    table_addf(&table, TABLE_GOOD, "%.2f", 1.5);
    table_add(&table, TABLE_PLAIN, "x");
    table_add(&table, TABLE_PLAIN, "b");
    table_add(&table, TABLE_PLAIN, "12.25");
    table_add(&table, TABLE_PLAIN, "");
    assert_int_equal(table_write(&table, 0, false, &out, &err), 0);
    assert_string_equal(out.data, "RUN           TIME  NOTE\n"
                                  "a-long-name   1.50  x\n"
                                  "b            12.25\n");
    table_release(&table);
    buf_release(&out);
}

static void widths_count_what_a_terminal_shows(void **unused)
{
    (void)unused;
    assert_int_equal(table_text_width("save"), 4);
    assert_int_equal(table_text_width("\xc2\xb1 3 %"), 5);             /* plus-minus */
    assert_int_equal(table_text_width("e\xcc\x81"), 1);                /* combining acute */
    assert_int_equal(table_text_width("\xe4\xb8\xad\xe6\x96\x87"), 4); /* two wide letters */
    assert_int_equal(table_text_width("\xe2\x96\x81\xe2\x96\x88"), 2); /* blocks of a sparkline */
    assert_int_equal(table_text_width("\xff"), 1);
}

static void colour_wraps_the_text_and_not_the_padding(void **unused)
{
    (void)unused;
    struct table table;
    struct buf out;
    struct cb_err err;
    buf_init(&out, 1 << 16);
    table_init(&table, "rl");
    table_add(&table, TABLE_BAD, "1");
    table_add(&table, TABLE_PLAIN, "x");
    table_add(&table, TABLE_PLAIN, "100");
    table_add(&table, TABLE_PLAIN, "y");
    assert_int_equal(table_write(&table, 1, true, &out, &err), 0);
    assert_string_equal(out.data, "   \033[31m1\033[0m  x\n 100  y\n");
    table_release(&table);
    buf_release(&out);
}

static void a_file_wants_no_colour(void **unused)
{
    (void)unused;
    FILE *file = tmpfile();
    assert_non_null(file);
    assert_false(table_wants_colour(file));
    fclose(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(columns_are_as_wide_as_their_widest_cell),
        cmocka_unit_test(widths_count_what_a_terminal_shows),
        cmocka_unit_test(colour_wraps_the_text_and_not_the_padding),
        cmocka_unit_test(a_file_wants_no_colour),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
