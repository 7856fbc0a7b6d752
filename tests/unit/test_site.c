/* Site files: what they may say, and how mistakes in them are told. */
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

#include "run/site.h"

static char folder[64];

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/test_site-XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    return setenv("XDG_CONFIG_HOME", folder, 1);
}

static int remove_folder(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

static void parse(struct site *site, const char *text)
{
    struct cb_err err = {0};
    if (site_init(site, "tor", &err) || site_parse(site, "tor.yaml", text, strlen(text), &err))
        fail_msg("%s", err.message);
}

static void expect_refused(const char *text, const char *wanted)
{
    struct site site;
    struct cb_err err = {0};
    assert_int_equal(site_init(&site, "tor", &err), 0);
    assert_int_not_equal(site_parse(&site, "tor.yaml", text, strlen(text), &err), 0);
    assert_string_equal(err.message, wanted);
    site_release(&site);
}

static void test_a_file_says_how_a_site_is_reached(void **state)
{
    struct site site;
    (void)state;
    parse(&site,
          "host: me@login.example:2222\nprefix: /opt/ckptbench\nhome: /shared/me\nmodules: [gcc/12, openmpi/4.1]\n"
          "environment:\n  OMPI_MCA_btl: self,tcp\n");
    assert_string_equal(site_text(&site, SITE_HOST), "me@login.example:2222");
    assert_string_equal(site_text(&site, SITE_PREFIX), "/opt/ckptbench");
    assert_string_equal(site_text(&site, SITE_MODULES), "gcc/12 openmpi/4.1");
    assert_string_equal(site_text(&site, SITE_PARTITION), "");
    assert_false(site_is_here(&site));
    assert_int_equal(site.environment_count, 1);
    assert_string_equal(site.environment[0].name, "OMPI_MCA_btl");
    assert_string_equal(site.environment[0].value, "self,tcp");
    site_release(&site);
    parse(&site, "host: localhost\n");
    assert_true(site_is_here(&site));
    site_release(&site);
    parse(&site, "");
    assert_true(site_is_here(&site));
    site_release(&site);
}

static void test_mistakes_are_told_with_their_place(void **state)
{
    (void)state;
    expect_refused("host: a\nprefx: /opt\n", "tor.yaml:2:1: a site has no key 'prefx': did you mean 'prefix'?");
    expect_refused("prefix: opt/here\n", "tor.yaml:1:1: prefix: 'opt/here' is no absolute path of the site");
    expect_refused("modules: 'gcc; rm -rf x'\n",
                   "tor.yaml:1:1: modules: 'gcc; rm -rf x' is no list of modules: names with blanks between them");
    expect_refused("host: -oProxyCommand=x\n",
                   "tor.yaml:1:1: host: '-oProxyCommand=x' is no host: a name that ssh knows, or user@host:port");
    expect_refused("environment:\n  A-B: x\n", "tor.yaml:2:3: 'A-B' is no name of an environment variable");
}

static void test_names_of_sites(void **state)
{
    struct site site;
    struct cb_err err;
    (void)state;
    static const char *const refused[] = {"", "../x", "a/b", ".x", "local", "a b", "-x"};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        assert_int_equal(site_init(&site, refused[i], &err), CB_ERR_USAGE);
    assert_int_equal(site_init(&site, "tor-2.example_a", &err), 0);
    site_release(&site);
}

static void test_what_is_written_reads_back(void **state)
{
    struct site site, again;
    struct cb_err err = {0};
    struct buf path;
    struct stat status;
    (void)state;
    assert_int_equal(site_init(&site, "tor", &err), 0);
    assert_int_equal(site_set(&site, "host", "login", "words", &err), 0);
    assert_int_equal(site_set(&site, "partition", "a \"b\" \\ 2..8,c", "words", &err), 0);
    assert_int_equal(site_set(&site, "environment.X", "1,2", "words", &err), 0);
    assert_int_equal(site_set(&site, "environment.X", "3,4", "words", &err), 0);
    assert_int_equal(site_set(&site, "environment.Y", "1", "words", &err), 0);
    assert_int_equal(site_set(&site, "environment.Y", "", "words", &err), 0);
    assert_int_equal(site_write(&site, &err), 0);
    buf_init(&path, 4096);
    assert_int_equal(site_path("tor", &path, &err), 0);
    assert_int_equal(stat(path.data, &status), 0);
    assert_int_equal(status.st_mode & 0777, 0600);
    buf_release(&path);
    if (site_read("tor", &again, &err))
        fail_msg("%s", err.message);
    assert_string_equal(site_text(&again, SITE_HOST), "login");
    assert_string_equal(site_text(&again, SITE_PARTITION), "a \"b\" \\ 2..8,c");
    assert_int_equal(again.environment_count, 1);
    assert_string_equal(again.environment[0].value, "3,4");
    site_release(&again);
    site_release(&site);
}

static void test_a_name_that_is_wrong_finds_the_right_one(void **state)
{
    struct site site;
    struct site_names names;
    struct cb_err err = {0};
    (void)state;
    assert_int_equal(site_read("tor", &site, &err), CB_ERR_NOT_FOUND);
    assert_string_equal(err.message, "no site 'tor', and no other: `ckptbench site add tor --host LOGIN` adds it");
    site_release(&site);
    assert_int_equal(site_init(&site, "frontier", &err), 0);
    assert_int_equal(site_write(&site, &err), 0);
    site_release(&site);
    assert_int_equal(site_read("frontir", &site, &err), CB_ERR_NOT_FOUND);
    assert_string_equal(err.message, "no site 'frontir': did you mean 'frontier'?");
    site_release(&site);
    assert_int_equal(site_list(&names, &err), 0);
    assert_int_equal(names.count, 1);
    assert_string_equal(names.items[0], "frontier");
    site_names_release(&names);
    assert_int_equal(site_remove("frontier", &err), 0);
    assert_int_equal(site_remove("frontier", &err), CB_ERR_NOT_FOUND);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_file_says_how_a_site_is_reached),
        cmocka_unit_test(test_mistakes_are_told_with_their_place),
        cmocka_unit_test(test_names_of_sites),
        cmocka_unit_test_setup_teardown(test_what_is_written_reads_back, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_a_name_that_is_wrong_finds_the_right_one, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
