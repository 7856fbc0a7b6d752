/* Folders to and from there, file by file. */
#include "jobs/ssh_files.h"

#ifdef HAVE_SSH2

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define MAX_FOLDER_DEPTH 16

static int too_deep(const char *path, struct cb_err *err)
{
    return cb_fail(err, CB_ERR_USAGE, "%s is nested more than %d folders deep", path, MAX_FOLDER_DEPTH);
}

static int join(char path[PATH_MAX], const char *folder, const char *name, struct cb_err *err)
{
    if (snprintf(path, PATH_MAX, "%s/%s", folder, name) >= PATH_MAX)
        return cb_fail(err, CB_ERR_USAGE, "the path %s/%s is too long", folder, name);
    return 0;
}

static int put_folder(struct ssh_link *link, const char *local, const char *remote, int depth, struct cb_err *err)
{
    char source[PATH_MAX], target[PATH_MAX];
    if (depth > MAX_FOLDER_DEPTH)
        return too_deep(local, err);
    DIR *entries = opendir(local);
    if (!entries)
        return cb_fail_errno(err, errno, "reading %s", local);
    int rc = ssh_files_make_folder(link, remote, err);
    for (struct dirent *entry; rc == 0 && (entry = readdir(entries));) {
        struct stat facts;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        rc = join(source, local, entry->d_name, err);
        if (rc == 0)
            rc = join(target, remote, entry->d_name, err);
        if (rc)
            break;
        if (lstat(source, &facts) < 0)
            rc = cb_fail_errno(err, errno, "looking at %s", source);
        else if (S_ISDIR(facts.st_mode))
            rc = put_folder(link, source, target, depth + 1, err);
        else if (S_ISREG(facts.st_mode))
            rc = ssh_files_put(link, source, target, err);
    }
    closedir(entries);
    return rc;
}

int ssh_folders_put(struct ssh_link *link, const char *local, const char *remote, struct cb_err *err)
{
    return put_folder(link, local, remote, 0, err);
}

static int make_local_folder(const char *path, struct cb_err *err)
{
    char own[PATH_MAX];
    if (snprintf(own, sizeof own, "%s/", path) >= (int)sizeof own)
        return cb_fail(err, CB_ERR_USAGE, "the path %s is too long", path);
    for (char *slash = strchr(own + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (mkdir(own, 0755) < 0 && errno != EEXIST)
            return cb_fail_errno(err, errno, "creating the folder %s", own);
        *slash = '/';
    }
    return 0;
}

static int get_folder(struct ssh_link *link, const char *remote, const char *local, int depth, struct cb_err *err)
{
    char source[PATH_MAX], target[PATH_MAX];
    struct ssh_entries entries = {0};
    if (depth > MAX_FOLDER_DEPTH)
        return too_deep(remote, err);
    int rc = ssh_files_list(link, remote, &entries, err);
    if (rc == 0)
        rc = make_local_folder(local, err);
    for (size_t i = 0; rc == 0 && i < entries.count; i++) {
        const struct ssh_entry *entry = &entries.items[i];
        rc = join(source, remote, entry->name, err);
        if (rc == 0)
            rc = join(target, local, entry->name, err);
        if (rc == 0 && entry->is_folder)
            rc = get_folder(link, source, target, depth + 1, err);
        else if (rc == 0 && entry->is_file)
            rc = ssh_files_get(link, source, target, err);
    }
    ssh_entries_release(&entries);
    return rc;
}

int ssh_folders_get(struct ssh_link *link, const char *remote, const char *local, struct cb_err *err)
{
    return get_folder(link, remote, local, 0, err);
}

#endif
