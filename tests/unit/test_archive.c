/* Tar archives as other machines send them: what is read of them, and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/buf.h"
#include "jobs/ssh/archive.h"

#define BLOCK 512

static const char *const wanted[] = {"run-1", "run-2"};

/* ---- archives made by hand ---- */

static void sum_up(char *header)
{
    unsigned sum = 0;
    memset(header + 148, ' ', 8);
    for (int i = 0; i < BLOCK; i++)
        sum += (unsigned char)header[i];
    snprintf(header + 148, 8, "%06o", sum);
}

static void add(struct buf *tar, const char *name, char type, const char *bytes, size_t len)
{
    char header[BLOCK] = {0}, rest[BLOCK] = {0};
    snprintf(header, 100, "%s", name);
    snprintf(header + 100, 8, "%07o", 0640);
    snprintf(header + 124, 12, "%011o", (unsigned)len);
    header[156] = type;
    memcpy(header + 257,
           "ustar\0"
           "00",
           8);
    sum_up(header);
    buf_append(tar, header, BLOCK);
    buf_append(tar, bytes, len);
    buf_append(tar, rest, (BLOCK - len % BLOCK) % BLOCK);
}

static void end(struct buf *tar)
{
    static const char nothing[2 * BLOCK];
    buf_append(tar, nothing, sizeof nothing);
}

struct bed {
    char folder[64];
    struct buf tar;
};

static int set_up(void **state)
{
    struct bed *bed = calloc(1, sizeof *bed);
    if (!bed)
        return -1;
    snprintf(bed->folder, sizeof bed->folder, "/tmp/ckptbench-archive-XXXXXX");
    buf_init(&bed->tar, 1u << 20);
    *state = bed;
    return mkdtemp(bed->folder) ? 0 : -1;
}

static int tear_down(void **state)
{
    struct bed *bed = *state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", bed->folder);
    int rc = system(command);
    buf_release(&bed->tar);
    free(bed);
    return rc;
}

static int unpack(struct bed *bed, struct cb_err *err)
{
    return archive_unpack(bed->tar.data, bed->tar.len, bed->folder, wanted, 2, err);
}

static void check_file(const struct bed *bed, const char *name, const char *text)
{
    char path[256];
    struct buf found;
    struct stat status;
    snprintf(path, sizeof path, "%s/%s", bed->folder, name);
    buf_init(&found, 1u << 16);
    assert_int_equal(buf_read_file(&found, path, NULL), 0);
    assert_string_equal(found.data, text);
    assert_int_equal(stat(path, &status), 0);
    assert_int_equal(status.st_mode & 0777, 0640);
    buf_release(&found);
}

static void check_refused(struct bed *bed, int code, const char *word)
{
    struct cb_err err = {0};
    assert_int_equal(unpack(bed, &err), code);
    if (!strstr(err.message, word))
        fail_msg("'%s' does not say '%s'", err.message, word);
    buf_clear(&bed->tar);
}

/* ---- what is read ---- */

static void folders_and_files_come_out_as_they_were(void **state)
{
    struct bed *bed = *state;
    char half[BLOCK + 1];
    memset(half, 'x', BLOCK);
    half[BLOCK] = '\0';
    add(&bed->tar, "run-1/", '5', "", 0);
    add(&bed->tar, "run-1/empty/", '5', "", 0);
    add(&bed->tar, "run-1/none", '0', "", 0);
    add(&bed->tar, "run-1/block", '0', half, BLOCK);
    add(&bed->tar, "run-2/below/deep/file", '\0', "two", 3); /* whose folders were not said */
    end(&bed->tar);
    assert_int_equal(unpack(bed, NULL), 0);
    check_file(bed, "run-1/none", "");
    check_file(bed, "run-1/block", half);
    check_file(bed, "run-2/below/deep/file", "two");
    char path[128];
    struct stat status;
    snprintf(path, sizeof path, "%s/run-1/empty", bed->folder);
    assert_int_equal(stat(path, &status), 0);
    assert_true(S_ISDIR(status.st_mode));
    assert_int_equal(unpack(bed, NULL), 0); /* once more, over what is there */
}

static void long_names_of_gnu_and_pax_are_names(void **state)
{
    struct bed *bed = *state;
    char name[160] = "run-1/", record[200];
    memset(name + 6, 'n', 120);
    add(&bed->tar, "././@LongLink", 'L', name, strlen(name) + 1);
    add(&bed->tar, "run-1/nnn", '0', "gnu", 3);
    name[6] = 'p';
    snprintf(record, sizeof record, "13 mtime=1.5\n%zu path=%s\n", strlen(name) + 10, name);
    add(&bed->tar, "run-1/pax", 'x', record, strlen(record));
    add(&bed->tar, "run-1/ppp", '0', "pax", 3);
    end(&bed->tar);
    assert_int_equal(unpack(bed, NULL), 0);
    check_file(bed, name, "pax");
    name[6] = 'n';
    check_file(bed, name, "gnu");
}

static void links_and_special_files_are_left_out(void **state)
{
    struct bed *bed = *state;
    char path[128];
    struct stat status;
    add(&bed->tar, "run-1/link", '2', "", 0);
    add(&bed->tar, "run-1/pipe", '6', "", 0);
    add(&bed->tar, "run-1/file", '0', "x", 1);
    end(&bed->tar);
    assert_int_equal(unpack(bed, NULL), 0);
    snprintf(path, sizeof path, "%s/run-1/link", bed->folder);
    assert_int_not_equal(lstat(path, &status), 0);
    check_file(bed, "run-1/file", "x");
}

/* ---- what is refused ---- */

static void names_that_lead_elsewhere_are_refused(void **state)
{
    static const char *const names[] = {"/run-1/x", "run-1/../../x", "../run-1", "run-1//x", "run-1/./x", ".."};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct bed *bed = *state;
        add(&bed->tar, names[i], '0', "x", 1);
        end(&bed->tar);
        check_refused(bed, CB_ERR_FORMAT, "leads elsewhere");
    }
}

static void what_was_not_asked_for_is_refused(void **state)
{
    struct bed *bed = *state;
    add(&bed->tar, "run-10/x", '0', "x", 1);
    end(&bed->tar);
    check_refused(bed, CB_ERR_FORMAT, "not asked for");
}

static void a_link_that_is_there_is_not_followed(void **state)
{
    struct bed *bed = *state;
    char path[128];
    snprintf(path, sizeof path, "%s/run-1", bed->folder);
    assert_int_equal(mkdir(path, 0755), 0);
    snprintf(path, sizeof path, "%s/run-1/x", bed->folder);
    assert_int_equal(symlink("../outside", path), 0);
    add(&bed->tar, "run-1/x", '0', "x", 1);
    end(&bed->tar);
    check_refused(bed, CB_ERR_SYSTEM, "run-1/x");
}

static void an_archive_that_is_cut_anywhere_is_refused(void **state)
{
    struct bed *bed = *state;
    struct cb_err err;
    add(&bed->tar, "run-1/a", '0', "abc", 3);
    add(&bed->tar, "run-1/b", '0', "abc", 3);
    size_t whole = bed->tar.len;
    end(&bed->tar);
    for (size_t len = 0; len < whole + BLOCK; len += 100) {
        assert_int_equal(archive_unpack(bed->tar.data, len, bed->folder, wanted, 2, &err), CB_ERR_FORMAT);
        assert_non_null(strstr(err.message, "cut"));
    }
    assert_int_equal(archive_unpack(bed->tar.data, whole + BLOCK, bed->folder, wanted, 2, &err), 0);
}

static void headers_that_lie_are_refused(void **state)
{
    struct bed *bed = *state;
    add(&bed->tar, "run-1/a", '0', "abc", 3);
    end(&bed->tar);
    bed->tar.data[3]++; /* its sum does not fit any more */
    check_refused(bed, CB_ERR_FORMAT, "no header");
    add(&bed->tar, "run-1/a", '0', "abc", 3);
    end(&bed->tar);
    memset(bed->tar.data + 124, '\xff', 12); /* a size beyond all sizes */
    sum_up(bed->tar.data);
    check_refused(bed, CB_ERR_FORMAT, "no header");
    add(&bed->tar, "run-1/a", '0', "abc", 3);
    end(&bed->tar);
    memcpy(bed->tar.data + 124, "77777777777", 12);
    sum_up(bed->tar.data);
    check_refused(bed, CB_ERR_FORMAT, "cut");
    add(&bed->tar, "run-1/a", '1', "", 0);
    end(&bed->tar);
    check_refused(bed, CB_ERR_UNSUPPORTED, "of a kind ('1')");
    static const char *const records[] = {"path=x\n", "99 path=x\n",  "9 path=x\n", "8 path x",
                                          "3 \n",     "11 size=-1\n", " 9 path=x\n"};
    for (size_t i = 0; i < sizeof records / sizeof *records; i++) {
        add(&bed->tar, "run-1/pax", 'x', records[i], strlen(records[i]));
        add(&bed->tar, "run-1/a", '0', "abc", 3);
        end(&bed->tar);
        check_refused(bed, CB_ERR_FORMAT, i == 2 ? "not asked for" : "extended header");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(folders_and_files_come_out_as_they_were, set_up, tear_down),
        cmocka_unit_test_setup_teardown(long_names_of_gnu_and_pax_are_names, set_up, tear_down),
        cmocka_unit_test_setup_teardown(links_and_special_files_are_left_out, set_up, tear_down),
        cmocka_unit_test_setup_teardown(names_that_lead_elsewhere_are_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_was_not_asked_for_is_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_link_that_is_there_is_not_followed, set_up, tear_down),
        cmocka_unit_test_setup_teardown(an_archive_that_is_cut_anywhere_is_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(headers_that_lie_are_refused, set_up, tear_down),
    };
    return cmocka_run_group_tests_name("archive", tests, NULL, NULL);
}
