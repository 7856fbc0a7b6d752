/* Chooses the folder of the history's database, on a local file system of this machine. */
#include "db/connection.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/buf.h"
#include "core/hash.h"
#include "core/path.h"

/* File systems whose locks or shared memory SQLite cannot rely on between machines (statfs magic). */
static const uint32_t network_filesystems[] = {
    0x6969,     0x517B,     0xFE534D42,
    0xFF534D42, 0x0BD00BD0, 0x65735546, /* NFS, SMB (three), Lustre, FUSE */
    0x00C36400, 0x47504653, 0x19830326,
    0x5346414F, 0x6B414653, 0x01021997, /* Ceph, GPFS, BeeGFS, AFS (two), 9P */
    0x20030528, 0xAAD7AAEA, 0x73757245,
    0x7461636F, 0x01161970, 0x786F4256, /* OrangeFS, PanFS, Coda, OCFS2, GFS2, vbox */
};

/* Whether the path, or its nearest existing parent, is on a local file system. */
static bool is_local(const char *path, statfs_fn *statfs_call)
{
    char above[PATH_MAX];
    struct statfs facts;
    snprintf(above, sizeof above, "%s", path);
    while (statfs_call(above, &facts)) {
        char *slash = strrchr(above, '/');
        if (errno != ENOENT || !slash || !above[1])
            return false;
        slash[slash == above] = '\0';
    }
    for (size_t i = 0; i < sizeof network_filesystems / sizeof *network_filesystems; i++)
        if ((uint32_t)facts.f_type == network_filesystems[i])
            return false;
    return true;
}

static bool is_ours(const char *folder)
{
    struct stat facts;
    return lstat(folder, &facts) == 0 && S_ISDIR(facts.st_mode) && facts.st_uid == geteuid() &&
           access(folder, W_OK) == 0;
}

static bool only_we_write(const char *folder)
{
    struct stat facts;
    return stat(folder, &facts) == 0 && !(facts.st_mode & (S_IWGRP | S_IWOTH));
}

/* Creates FOLDER/NAME for the database `path`; false if the folder is not local, not ours or not writable. */
static bool use_place(const char *folder, const char *name, bool only_ours, statfs_fn *statfs_call, char path[PATH_MAX])
{
    if (folder[0] != '/' || !is_local(folder, statfs_call) ||
        snprintf(path, PATH_MAX, "%s/%s/", folder, name) >= PATH_MAX - (int)sizeof INDEX_NAME ||
        path_make_folders(path, 0700, NULL) || (only_ours && !is_ours(folder)))
        return false;
    path[strlen(path) - 1] = '\0'; /* else lstat() would follow a link that somebody put there */
    if (!is_ours(path) || !only_we_write(path))
        return false;
    snprintf(path + strlen(path), sizeof INDEX_NAME + 1, "/%s", INDEX_NAME);
    return true;
}

/* The name depends on the user and on the home's real path, so all paths to a home give one name. */
static void name_index(const char *home, char name[17])
{
    char text[PATH_MAX + 32], real[PATH_MAX], hex[65];
    snprintf(text, sizeof text, "%u %s", (unsigned)geteuid(), realpath(home, real) ? real : home);
    hash_sha256_hex(text, strlen(text), hex);
    snprintf(name, 17, "%.16s", hex);
}

int index_place(const char *home, statfs_fn *statfs_call, char path[PATH_MAX], struct cb_err *err)
{
    const char *chosen = getenv("CKPTBENCH_INDEX"), *cache = getenv("XDG_CACHE_HOME"), *user = getenv("HOME");
    char name[17], folder[PATH_MAX];
    name_index(home, name);
    if (chosen && *chosen)
        return use_place(chosen, name, false, statfs_call, path)
                   ? 0
                   : cb_fail(err, CB_ERR_SYSTEM,
                             "CKPTBENCH_INDEX=%s must be the absolute path of a folder on a local disk that you may "
                             "write to: the index of the history is kept there",
                             chosen);
    if (is_local(home, statfs_call) && is_ours(home))
        return path_format(path, PATH_MAX, err, "%s/" INDEX_NAME, home);
    snprintf(folder, sizeof folder, "%s%s/ckptbench",
             cache && *cache ? cache
             : user          ? user
                             : "",
             cache && *cache ? "" : "/.cache");
    if (use_place(folder, name, true, statfs_call, path))
        return 0;
    static const char *const others[] = {"/var/tmp", "/tmp", "/dev/shm"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        snprintf(folder, sizeof folder, "%s/ckptbench-index-%u", others[i], (unsigned)geteuid());
        if (use_place(folder, name, true, statfs_call, path))
            return 0;
    }
    return cb_fail(err, CB_ERR_SYSTEM,
                   "no local disk has a place for the index of the history, which cannot lie on the network file "
                   "system of %s: set CKPTBENCH_INDEX to a folder on one",
                   home);
}

/* Copies to a temporary name and renames, so that an incomplete copy is never used. */
static int copy_file(const char *from, const char *to)
{
    char bytes[1 << 16], temporary[PATH_MAX];
    ssize_t len = -1;
    int in = open(from, O_RDONLY | O_CLOEXEC), out = -1;
    if (in < 0 || snprintf(temporary, sizeof temporary, "%s.%d", to, (int)getpid()) >= (int)sizeof temporary)
        goto out;
    out = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    while (out >= 0 && (len = read(in, bytes, sizeof bytes)) > 0 && fd_write_all(out, bytes, (size_t)len))
        ;
    if (len == 0 && rename(temporary, to) == 0)
        goto out;
    len = -1;
    if (out >= 0)
        unlink(temporary);
out:
    if (in >= 0)
        close(in);
    if (out >= 0)
        close(out);
    return len == 0 ? 0 : -1;
}

void index_take_over(const char *home, const char *path)
{
    char old[PATH_MAX], log[PATH_MAX], own_log[PATH_MAX], damaged[PATH_MAX];
    if (snprintf(damaged, sizeof damaged, "%s.damaged", path) >= (int)sizeof damaged || access(damaged, F_OK) == 0)
        return; /* it may be a copy of that one */
    if (access(path, F_OK) == 0 || snprintf(old, sizeof old, "%s/" INDEX_NAME, home) >= (int)sizeof old ||
        strcmp(old, path) == 0 || access(old, R_OK) < 0 ||
        snprintf(log, sizeof log, "%s-wal", old) >= (int)sizeof log ||
        snprintf(own_log, sizeof own_log, "%s-wal", path) >= (int)sizeof own_log)
        return;
    if (access(log, F_OK) == 0 && copy_file(log, own_log))
        return;
    if (copy_file(old, path))
        unlink(own_log);
}
