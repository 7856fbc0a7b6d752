/* Names that keys have in other tools: what they become, and what is said of it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "run/aliases.h"

#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

static int resolve(const char *const *words, struct setting_list *list, struct buf *said, struct cb_err *err)
{
    for (size_t i = 0; words[i]; i++)
        if (setting_parse_word(words[i], list, err))
            fail_msg("%s", err->message);
    return aliases_resolve(list, said, err);
}

/* The settings afterwards: "key=value|value " each. */
static void expect(const char *const *words, const char *wanted, const char *wanted_said)
{
    struct setting_list list = {0};
    struct cb_err err = {0};
    struct buf said, text;
    buf_init(&said, 65536);
    buf_init(&text, 65536);
    if (resolve(words, &list, &said, &err))
        fail_msg("%s", err.message);
    for (size_t i = 0; i < list.count; i++) {
        buf_printf(&text, "%s=", list.items[i].key);
        for (size_t k = 0; k < list.items[i].value_count; k++)
            buf_printf(&text, "%s%s", k ? "|" : "", list.items[i].values[k]);
        buf_append_char(&text, ' ');
    }
    assert_string_equal(text.data, wanted);
    if (wanted_said)
        assert_string_equal(said.data, wanted_said);
    setting_list_release(&list);
    buf_release(&said);
    buf_release(&text);
}

static void expect_refused(const char *const *words, const char *wanted)
{
    struct setting_list list = {0};
    struct cb_err err = {0};
    struct buf said;
    buf_init(&said, 65536);
    assert_int_equal(resolve(words, &list, &said, &err), CB_ERR_USAGE);
    if (!strstr(err.message, wanted))
        fail_msg("'%s' is not in '%s'", wanted, err.message);
    setting_list_release(&list);
    buf_release(&said);
}

static void every_alias_is_another_word_than_a_key_and_is_found(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < alias_count(); i++) {
        enum option_id id;
        assert_int_not_equal(option_find(alias_row(i)->word, &id, NULL), 0);
        assert_ptr_equal(alias_find(alias_row(i)->word), alias_row(i));
    }
    assert_null(alias_find("ranks"));
    assert_null(alias_find("world_siz"));
}

static void own_keys_stay_and_nothing_is_said(void **unused)
{
    (void)unused;
    expect(WORDS("ranks=2", "tp=2", "io.depth=1,8"), "ranks=2 tp=2 io.depth=1|8 ", "");
}

static void words_of_a_tool_become_keys_and_values(void **unused)
{
    (void)unused;
    expect(WORDS("world_size=8", "backend=nccl,gloo", "epochs=4"), "ranks=8 device=cuda|cpu iterations=4 ",
           "world_size is ranks, backend is device (nccl: cuda) (gloo: cpu), epochs is iterations");
    expect(WORDS("async_checkpoint=True", "broadcast_checkpoint=true"), "save.async=true load.exchange=broadcast ",
           NULL);
    expect(WORDS("data_parallel=ddp", "batch_size=8"), "train.data_parallel=ddp train.batch_size=8 ", NULL);
}

static void hydra_and_argparse_forms_are_accepted(void **unused)
{
    (void)unused;
    expect(WORDS("+world_size=8", "++workload.checkpoint.fsync=False", "num-processes=4"),
           "ranks=8 io.fsync=false ranks=4 ", NULL);
}

static void a_zip_may_name_aliases(void **unused)
{
    (void)unused;
    expect(WORDS("world_size=2,4", "tp=1,2", "zip=world_size,tp"), "ranks=2|4 tp=1|2 zip=ranks|tp ", NULL);
}

static void the_storage_chooses_between_path_and_uri(void **unused)
{
    (void)unused;
    expect(WORDS("path=/mnt/x"), "store=/mnt/x ", NULL);
    expect(WORDS("s3.uri=s3://b/p"), "store=s3://b/p ", NULL);
    expect(WORDS("path=/mnt/x", "s3.uri=s3://b/p", "checkpoint.storage=disk,s3"), "store=/mnt/x|s3://b/p ", NULL);
    expect(WORDS("checkpoint.storage=s3", "path=/mnt/x", "s3.uri=s3://b/p"), "store=s3://b/p ", NULL);
    expect_refused(WORDS("path=/mnt/x", "s3.uri=s3://b/p"), "say checkpoint.storage=");
    expect_refused(WORDS("checkpoint.storage=disk"), "checkpoint.storage=disk needs path=");
    expect_refused(WORDS("checkpoint.storage=tape", "path=/mnt/x"), "must be one of disk, s3");
}

static void counts_of_saves_and_loads_are_iterations_and_operations(void **unused)
{
    (void)unused;
    expect(WORDS("num_checkpoints_write=10", "num_checkpoints_read=10"), "iterations=10 iterations=10 ", NULL);
    expect(WORDS("num_checkpoints_write=10", "num_checkpoints_read=0"), "iterations=10 ops=save ", NULL);
    expect(WORDS("num_checkpoints_write=0", "num_checkpoints_read=3"), "ops=load iterations=3 ", NULL);
    expect_refused(WORDS("num_checkpoints_write=10", "num_checkpoints_read=3"), "differ");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_alias_is_another_word_than_a_key_and_is_found),
        cmocka_unit_test(own_keys_stay_and_nothing_is_said),
        cmocka_unit_test(words_of_a_tool_become_keys_and_values),
        cmocka_unit_test(hydra_and_argparse_forms_are_accepted),
        cmocka_unit_test(a_zip_may_name_aliases),
        cmocka_unit_test(the_storage_chooses_between_path_and_uri),
        cmocka_unit_test(counts_of_saves_and_loads_are_iterations_and_operations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
