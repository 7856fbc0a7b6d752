/* What doctor can look at without the machine that it runs on: a munged that answers, one that has died, none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "cli/doctor/doctor_munge.h"

static char folder[64], path[96];

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/ckptbench-doctor-XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/socket", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(folder);
}

/* As munged does it; what is left when it dies is the socket without the listener. */
static int listen_at(const char *where)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", where);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(fd, 1), 0);
    return fd;
}

static void a_munged_that_listens_answers(void **state)
{
    (void)state;
    int fd = listen_at(path);
    assert_int_equal(munge_look(path), MUNGE_ANSWERS);
    assert_int_equal(munge_look(path), MUNGE_ANSWERS);
    assert_int_equal(munge_look(path), MUNGE_ANSWERS); /* also once its queue is full: it is alive */
    close(fd);
}

static void the_socket_of_a_munged_that_died_is_dead(void **state)
{
    (void)state;
    close(listen_at(path));
    struct stat status;
    assert_int_equal(stat(path, &status), 0);
    assert_int_equal(munge_look(path), MUNGE_DEAD);
}

static void without_a_socket_there_is_no_munged(void **state)
{
    (void)state;
    char long_path[256];
    assert_int_equal(munge_look(path), MUNGE_ABSENT);
    memset(long_path, 'x', sizeof long_path - 1);
    long_path[sizeof long_path - 1] = '\0';
    assert_int_equal(munge_look(long_path), MUNGE_ABSENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_munged_that_listens_answers, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(the_socket_of_a_munged_that_died_is_dead, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(without_a_socket_there_is_no_munged, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
