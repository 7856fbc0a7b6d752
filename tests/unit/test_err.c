/* Errors and buffers: what every room builds on. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/buf.h"
#include "core/err.h"
#include "core/utf8.h"

static void failure_returns_the_code_and_keeps_the_sentence(void **unused)
{
    (void)unused;
    struct cb_err err;
    assert_int_equal(cb_fail(&err, CB_ERR_USAGE, "tp=%d does not divide %d heads", 3, 12), CB_ERR_USAGE);
    assert_string_equal(err.message, "tp=3 does not divide 12 heads");
}

static void failed_system_call_says_why(void **unused)
{
    (void)unused;
    struct cb_err err;
    assert_int_equal(cb_fail_errno(&err, ENOSPC, "writing %s", "a"), CB_ERR_NO_SPACE);
    assert_string_equal(err.message, "writing a: No space left on device");
    assert_int_equal(err.sys_errno, ENOSPC);
}

static void context_goes_before_the_message(void **unused)
{
    (void)unused;
    struct cb_err err;
    int rc = cb_fail(&err, CB_ERR_CORRUPT, "short by 3 bytes");
    assert_int_equal(cb_context(&err, "tensor %s", "x"), rc);
    assert_string_equal(err.message, "tensor x: short by 3 bytes");
}

static void what_is_too_long_keeps_its_beginning_and_its_end(void **unused)
{
    struct cb_err err;
    char value[10001], umlauts[10001];
    (void)unused;
    memset(value, 'x', sizeof value - 1);
    value[sizeof value - 1] = '\0';
    assert_int_equal(cb_fail(&err, CB_ERR_USAGE, "key=%s: no such value", value), CB_ERR_USAGE);
    assert_memory_equal(err.message, "key=xxx", 7);
    assert_non_null(strstr(err.message, "xxx ... xxx"));
    assert_string_equal(err.message + strlen(err.message) - strlen("xx: no such value"), "xx: no such value");
    assert_int_equal(cb_fail_errno(&err, ENOSPC, "writing %s", value), CB_ERR_NO_SPACE);
    assert_non_null(strstr(err.message, "x: No space left on device"));
    cb_context(&err, "of %s", value);
    assert_memory_equal(err.message, "of xxx", 6);
    assert_non_null(strstr(err.message, "x: No space left on device"));
    for (size_t i = 0; i + 2 < sizeof umlauts; i += 2)
        memcpy(umlauts + i, "\xC3\xA4", 3);
    for (int shift = 0; shift < 2; shift++) {
        assert_int_equal(cb_fail(&err, CB_ERR_USAGE, "%s%s!", shift ? "a" : "", umlauts), CB_ERR_USAGE);
        for (const unsigned char *at = (unsigned char *)err.message; *at; at += utf8_length(at))
            assert_int_not_equal(utf8_length(at), 0);
    }
}

static void every_code_has_a_name_of_its_own(void **unused)
{
    (void)unused;
    for (int code = CB_OK; code >= CB_ERR_LIMIT; code--)
        for (int other = code - 1; other >= CB_ERR_LIMIT; other--)
            assert_string_not_equal(cb_code_name(code), cb_code_name(other));
}

static void append_past_the_maximum_is_kept_and_reported_once_at_the_end(void **unused)
{
    (void)unused;
    struct buf buf;
    struct cb_err err;
    buf_init(&buf, 4);
    buf_append_text(&buf, "abcd");
    assert_int_equal(buf_check(&buf, "the text", &err), 0);
    buf_append_text(&buf, "e");
    assert_int_equal(buf_check(&buf, "the text", &err), CB_ERR_MEMORY);
    assert_string_equal(buf.data, "abcd");
    buf_release(&buf);
}

static void printf_and_extend_grow_the_buffer(void **unused)
{
    (void)unused;
    struct buf buf;
    buf_init(&buf, 1 << 20);
    for (int i = 0; i < 1000; i++)
        buf_printf(&buf, "%03d,", i);
    memset(buf_extend(&buf, 1000), 'x', 1000);
    assert_int_equal(buf.len, 5000);
    assert_memory_equal(buf.data + 3996, "999,xx", 6);
    buf_release(&buf);
}

static void written_file_reads_back_whole(void **unused)
{
    (void)unused;
    char path[] = "/tmp/ckptbench-test-XXXXXX";
    close(mkstemp(path));
    struct buf out, in;
    struct cb_err err;
    buf_init(&out, 1 << 20);
    buf_init(&in, 1 << 20);
    buf_append_text(&out, "one\ntwo\n");
    assert_int_equal(buf_write_file(&out, path, 0600, &err), 0);
    assert_int_equal(buf_read_file(&in, path, &err), 0);
    assert_string_equal(in.data, out.data);
    unlink(path);
    buf_release(&out);
    buf_release(&in);
}

static void file_over_the_maximum_is_refused_and_leaves_the_buffer(void **unused)
{
    (void)unused;
    struct buf in;
    struct cb_err err;
    buf_init(&in, 16);
    assert_int_equal(buf_read_file(&in, "/proc/cpuinfo", &err), CB_ERR_MEMORY);
    assert_int_equal(in.len, 0);
    buf_release(&in);
}

static size_t bold_is_ours(const char *at, size_t left)
{
    return left >= 4 && memcmp(at, "\033[1m", 4) == 0 ? 4 : 0;
}

static void assert_escaped(const char *text, size_t (*is_ours)(const char *, size_t), const char *wanted)
{
    char *out = malloc(strlen(text) * UTF8_ESCAPED_MAX + 1);
    assert_non_null(out);
    out[utf8_escape(text, strlen(text), is_ours, out)] = '\0';
    assert_string_equal(out, wanted);
    free(out);
}

static void what_steers_a_terminal_is_escaped(void **unused)
{
    (void)unused;
    assert_escaped("plain\ttext, äöü €\n", NULL, "plain\ttext, äöü €\n");
    assert_escaped("\033]0;title\007", NULL, "\\u001b]0;title\\u0007");
    assert_escaped("a\rb\177c\302\233d", NULL, "a\\u000db\\u007fc\\u009bd");
    assert_escaped("a,b\r\n\r", NULL, "a,b\r\n\\u000d");
    assert_escaped("gpj.\342\200\256exe", NULL, "gpj.\\u202eexe");
    assert_escaped("\377\303 cut \342\202", NULL, "\\xff\\xc3 cut \\xe2\\x82");
    assert_escaped("\033[1mbold\033[2J", bold_is_ours, "\033[1mbold\\u001b[2J");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(failure_returns_the_code_and_keeps_the_sentence),
        cmocka_unit_test(failed_system_call_says_why),
        cmocka_unit_test(context_goes_before_the_message),
        cmocka_unit_test(what_is_too_long_keeps_its_beginning_and_its_end),
        cmocka_unit_test(every_code_has_a_name_of_its_own),
        cmocka_unit_test(append_past_the_maximum_is_kept_and_reported_once_at_the_end),
        cmocka_unit_test(printf_and_extend_grow_the_buffer),
        cmocka_unit_test(written_file_reads_back_whole),
        cmocka_unit_test(what_steers_a_terminal_is_escaped),
        cmocka_unit_test(file_over_the_maximum_is_refused_and_leaves_the_buffer),
    };
    return cmocka_run_group_tests_name("err", tests, NULL, NULL);
}
