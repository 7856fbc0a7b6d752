/* Files that are made durable together. This program's own fsync counts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/file_batch.h"

#define FOLDERS 50
#define FILES 4

static unsigned syncs, file_system_syncs;

int fsync(int fd)
{
    syncs++;
    return (int)syscall(SYS_fsync, fd);
}

int syncfs(int fd)
{
    file_system_syncs++;
    return (int)syscall(SYS_syncfs, fd);
}

static char folder[64];

static int set_up(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/ckptbench-batch-XXXXXX");
    syncs = file_system_syncs = 0;
    return mkdtemp(folder) ? 0 : -1;
}

static int tear_down(void **state)
{
    char command[128];
    (void)state;
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

static void add(struct file_batch *batch, const char *name, const char *text)
{
    char path[256];
    struct buf bytes;
    struct cb_err err;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    buf_init(&bytes, 4096);
    buf_append_text(&bytes, text);
    assert_int_equal(file_write(batch, &bytes, path, 0644, &err), 0);
    buf_release(&bytes);
}

/* "" where there is no file. */
static const char *content(const char *name, char text[64])
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "r");
    size_t len = file ? fread(text, 1, 63, file) : 0;
    text[len] = '\0';
    if (file)
        fclose(file);
    return text;
}

static void files_have_their_names_after_the_commit_and_not_before(void **state)
{
    struct file_batch batch = {0};
    struct cb_err err;
    char text[64];
    (void)state;
    add(NULL, "old", "before");
    add(&batch, "old", "after");
    add(&batch, "new", "");
    assert_string_equal(content("old", text), "before");
    assert_int_equal(access(folder, F_OK), 0);
    assert_int_equal(file_batch_commit(&batch, &err), 0);
    assert_string_equal(content("old", text), "after");
    assert_string_equal(content("old.tmp", text), "");
    assert_int_equal(batch.count, 0);
}

static void many_files_cost_two_syncs_and_few_one_each_and_one_a_folder(void **state)
{
    struct file_batch batch = {0};
    struct cb_err err;
    char name[128], text[64];
    (void)state;
    for (int i = 0; i < FOLDERS; i++) {
        snprintf(name, sizeof name, "%s/%d", folder, i);
        assert_int_equal(mkdir(name, 0755), 0);
        for (int k = 0; k < FILES; k++) {
            snprintf(name, sizeof name, "%d/%d", i, k);
            add(&batch, name, name);
        }
    }
    assert_int_equal(syncs + file_system_syncs, 0);
    assert_int_equal(file_batch_commit(&batch, &err), 0);
    assert_int_equal(file_system_syncs, 2);
    assert_int_equal(syncs, 0);
    assert_string_equal(content("49/3", text), "49/3");
    for (int i = 0; i < 6; i++) {
        snprintf(name, sizeof name, "%d/few%d", i / 2, i);
        add(&batch, name, "y");
    }
    assert_int_equal(file_batch_commit(&batch, &err), 0);
    assert_int_equal(file_system_syncs, 2);
    assert_int_equal(syncs, 6 + 3);
    syncs = 0;
    add(NULL, "alone", "x");
    assert_int_equal(syncs, 2);
}

static void what_is_not_committed_is_not_there(void **state)
{
    struct file_batch batch = {0};
    char text[64];
    (void)state;
    add(NULL, "old", "before");
    add(&batch, "old", "after");
    add(&batch, "new", "x");
    file_batch_release(&batch);
    assert_string_equal(content("old", text), "before");
    assert_string_equal(content("new.tmp", text), "");
    assert_string_equal(content("old.tmp", text), "");
    assert_int_equal(rmdir(folder), -1);
    add(NULL, "old", "again"); /* nothing lies in the way */
    assert_string_equal(content("old", text), "again");
}

static void a_commit_that_fails_says_so_and_leaves_nothing_half(void **state)
{
    struct file_batch batch = {0};
    struct cb_err err;
    char path[256], text[64];
    (void)state;
    snprintf(path, sizeof path, "%s/taken", folder);
    assert_int_equal(mkdir(path, 0755), 0);
    add(&batch, "first", "1");
    add(&batch, "taken", "2");
    add(&batch, "last", "3");
    assert_int_equal(file_batch_commit(&batch, &err), CB_ERR_SYSTEM);
    assert_non_null(strstr(err.message, "taken"));
    assert_string_equal(content("first", text), "1");
    assert_string_equal(content("last", text), "");
    assert_string_equal(content("last.tmp", text), "");
    assert_string_equal(content("taken.tmp", text), "");
    snprintf(path, sizeof path, "%s/nowhere/x", folder);
    struct buf bytes;
    buf_init(&bytes, 16);
    assert_int_equal(file_batch_add(&batch, &bytes, path, 0644, &err), CB_ERR_NOT_FOUND);
    buf_release(&bytes);
    assert_int_equal(batch.count, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(files_have_their_names_after_the_commit_and_not_before, set_up, tear_down),
        cmocka_unit_test_setup_teardown(many_files_cost_two_syncs_and_few_one_each_and_one_a_folder, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_is_not_committed_is_not_there, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_commit_that_fails_says_so_and_leaves_nothing_half, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
