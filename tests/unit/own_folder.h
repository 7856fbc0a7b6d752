/* A folder of a test program's own in /tmp: make_folder and remove_folder are its group's fixture. */
#ifndef TESTS_UNIT_OWN_FOLDER_H
#define TESTS_UNIT_OWN_FOLDER_H

#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[64];

static inline int remove_entry(const char *path, const struct stat *status, int kind, struct FTW *walk)
{
    (void)status, (void)kind, (void)walk;
    return remove(path);
}

static inline int make_folder(void **unused)
{
    (void)unused;
    snprintf(folder, sizeof folder, "/tmp/ckptbench-unit-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static inline int remove_folder(void **unused)
{
    (void)unused;
    return nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

/* Empties it. */
static inline void clear(void)
{
    nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    assert_int_equal(mkdir(folder, 0700), 0);
}

static inline bool exists(const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return access(path, F_OK) == 0;
}

#endif
