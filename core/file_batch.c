/* Batches of files: temporary names, and the order of syncs and renames. */
#include "core/file_batch.h"

#include "core/alloc.h"
#include "core/path.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Above this number of files we sync the whole file system: a disk flush for each of a thousand files takes seconds. */
#define MOST_SINGLE 16

static int temporary_name(const char *path, char name[PATH_MAX], struct cb_err *err)
{
    if (path_format(name, PATH_MAX, err, "%s.tmp", path))
        return CB_ERR_USAGE;
    return 0;
}

static void forget(struct file_batch *self)
{
    for (size_t i = 0; i < self->count; i++)
        free(self->paths[i]);
    free(self->paths);
    *self = (struct file_batch){0};
}

static void remove_temporary(const struct file_batch *self)
{
    char name[PATH_MAX];
    for (size_t i = 0; i < self->count; i++)
        if (temporary_name(self->paths[i], name, NULL) == 0)
            unlink(name);
}

void file_batch_release(struct file_batch *self)
{
    remove_temporary(self);
    forget(self);
}

int file_batch_add(struct file_batch *self, const struct buf *text, const char *path, unsigned mode, struct cb_err *err)
{
    char name[PATH_MAX];
    int rc = buf_check(text, path, err);
    if (rc == 0)
        rc = temporary_name(path, name, err);
    if (rc)
        return rc;
    int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, (mode_t)mode);
    if (fd < 0)
        return cb_fail_errno(err, errno, "creating %s", name);
    if (!fd_write_all(fd, text->data, text->len))
        rc = cb_fail_errno(err, errno, "writing %s", name);
    close(fd);
    if (rc == 0)
        rc = alloc_grow(&self->paths, self->count, sizeof *self->paths, err);
    if (rc == 0 && !(self->paths[self->count] = strdup(path)))
        rc = alloc_fail(err, "for a path");
    if (rc)
        unlink(name);
    else
        self->count++;
    return rc;
}

static int sync_path(const char *path, bool folder, struct cb_err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | (folder ? O_DIRECTORY : 0));
    if (fd < 0)
        return cb_fail_errno(err, errno, "opening %s", path);
    int rc = 0;
    if (fsync(fd) < 0 && !(folder && errno == EINVAL)) /* some file systems cannot sync a folder */
        rc = cb_fail_errno(err, errno, "syncing %s", path);
    close(fd);
    return rc;
}

/* Skips the file system *device, which was synced last. */
static int sync_file_system(const char *folder, dev_t *device, struct cb_err *err)
{
    struct stat facts;
    int rc = 0, fd = open(folder, O_RDONLY | O_CLOEXEC | O_DIRECTORY);
    if (fd < 0)
        return cb_fail_errno(err, errno, "opening %s", folder);
    if (fstat(fd, &facts) < 0 || (facts.st_dev != *device && syncfs(fd) < 0))
        rc = cb_fail_errno(err, errno, "syncing the file system of %s", folder);
    *device = facts.st_dev;
    close(fd);
    return rc;
}

static void folder_of(const char *path, char folder[PATH_MAX])
{
    const char *slash = strrchr(path, '/');
    size_t len = slash ? (size_t)(slash - path) : 0;
    if (!slash)
        snprintf(folder, PATH_MAX, ".");
    else
        snprintf(folder, PATH_MAX, "%.*s", (int)(len ? len : 1), path);
}

/* Files come folder by folder, so each folder (or each file system) is synced once. */
static int sync_folders(const struct file_batch *self, struct cb_err *err)
{
    char folder[PATH_MAX], last[PATH_MAX] = "";
    dev_t device = 0;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < self->count; i++) {
        folder_of(self->paths[i], folder);
        if (strcmp(folder, last) != 0)
            rc = self->count > MOST_SINGLE ? sync_file_system(folder, &device, err) : sync_path(folder, true, err);
        memcpy(last, folder, sizeof last);
    }
    return rc;
}

static int sync_files(const struct file_batch *self, struct cb_err *err)
{
    char name[PATH_MAX];
    int rc = 0;
    if (self->count > MOST_SINGLE)
        return sync_folders(self, err);
    for (size_t i = 0; rc == 0 && i < self->count; i++) {
        rc = temporary_name(self->paths[i], name, err);
        if (rc == 0)
            rc = sync_path(name, false, err);
    }
    return rc;
}

int file_batch_commit(struct file_batch *self, struct cb_err *err)
{
    char name[PATH_MAX];
    int rc = sync_files(self, err);
    for (size_t i = 0; rc == 0 && i < self->count; i++) {
        rc = temporary_name(self->paths[i], name, err);
        if (rc == 0 && rename(name, self->paths[i]) < 0)
            rc = cb_fail_errno(err, errno, "renaming %s to %s", name, self->paths[i]);
    }
    if (rc)
        remove_temporary(self); /* renamed files no longer have a temporary name */
    else
        rc = sync_folders(self, err);
    forget(self);
    return rc;
}

int file_write(struct file_batch *batch, const struct buf *text, const char *path, unsigned mode, struct cb_err *err)
{
    return batch ? file_batch_add(batch, text, path, mode, err) : buf_write_file(text, path, mode, err);
}
