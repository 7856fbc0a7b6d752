/* A run leaves its folder in the store, or holds it, while another one takes it. */
#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>

#include "own_folder.h"
#include "setup/folder/folder.h"

static struct experiment *experiment;

static int take(const char *run, struct folder *taken)
{
    const struct lease_owner owner = {.run = run, .run_folder = "", .attempt = 1, .one_machine = true};
    *taken = (struct folder){0};
    int rc = folder_prepare(taken, experiment, &owner, 0, NULL);
    return rc ? rc : folder_open(taken, experiment, run, NULL);
}

/* The other run comes before the first removal with these flags: of the claim (0), or of the folder (AT_REMOVEDIR). */
static bool comes;
static int comes_before, other_rc;
static struct folder other;

/* Programs find this one before the C library's. */
int unlinkat(int fd, const char *name, int flags)
{
    if (comes && flags == comes_before) {
        comes = false;
        other_rc = take("other", &other);
    }
    return (int)syscall(SYS_unlinkat, fd, name, flags);
}

/* Somebody who cleans removes the file by which a run that comes measures the age of the claim. */
static bool somebody_cleans;

int renameat(int from_fd, const char *from, int to_fd, const char *to)
{
    int rc = (int)syscall(SYS_renameat2, from_fd, from, to_fd, to, 0);
    if (somebody_cleans && rc == 0 && strstr(to, ".ckptbench-run."))
        rc = (int)syscall(SYS_unlinkat, to_fd, to, 0);
    return rc;
}

static void a_claim_holds_even_if_its_age_cannot_be_measured(void **unused)
{
    (void)unused;
    struct folder own;
    assert_int_equal(take("own", &own), 0);
    somebody_cleans = true;
    assert_int_equal(take("other", &other), CB_ERR_EXISTS);
    somebody_cleans = false;
    assert_int_equal(folder_check_owner(&own, NULL), 0);
    assert_int_equal(folder_leave(&own, NULL), 0);
    folder_release(&own);
    folder_release(&other);
}

static void leave_while_other_comes(int before)
{
    struct folder own;
    struct cb_err err = {0};
    assert_int_equal(take("own", &own), 0);
    comes = true;
    comes_before = before;
    if (folder_leave(&own, &err) != 0)
        fail_msg("%s", err.message);
    assert_false(comes);
    folder_release(&own);
}

static void the_lease_lasts_until_the_claim_is_gone(void **unused)
{
    (void)unused;
    leave_while_other_comes(0);
    assert_int_equal(other_rc, CB_ERR_EXISTS);
    assert_false(exists("nightly"));
    folder_release(&other);
}

static void a_run_that_comes_before_the_folder_is_removed_keeps_its_claim(void **unused)
{
    (void)unused;
    leave_while_other_comes(AT_REMOVEDIR);
    assert_int_equal(other_rc, 0);
    assert_int_equal(folder_check_owner(&other, NULL), 0);
    assert_int_equal(folder_leave(&other, NULL), 0);
    assert_false(exists("nightly"));
    folder_release(&other);
}

static int set_up(void **state)
{
    int rc = make_folder(state);
    if (!rc)
        rc = experiment_new(&experiment, NULL);
    if (!rc)
        rc = experiment_set(experiment, "store", folder, "test", NULL);
    if (!rc)
        rc = experiment_set(experiment, "suffix", "nightly", "test", NULL);
    return rc ? rc : experiment_set(experiment, "folder", "overwrite", "test", NULL);
}

static int tear_down(void **state)
{
    experiment_free(experiment);
    return remove_folder(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_lease_lasts_until_the_claim_is_gone),
        cmocka_unit_test(a_claim_holds_even_if_its_age_cannot_be_measured),
        cmocka_unit_test(a_run_that_comes_before_the_folder_is_removed_keeps_its_claim),
    };
    return cmocka_run_group_tests_name("leaving a folder", tests, set_up, tear_down);
}
