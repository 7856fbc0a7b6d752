/* Files and folders over the connection, by SFTP. A transfer whose connection breaks goes on where it was
 * on the next one; a file arrives under another name and is renamed when it is whole. */
#ifndef JOBS_SSH_SSH_FILES_H
#define JOBS_SSH_SSH_FILES_H

#include "core/buf.h"
#include "jobs/ssh/ssh_link.h"

int ssh_files_put(struct ssh_link *link, const char *local, const char *remote, struct cb_err *err) CB_MUST_CHECK;
int ssh_files_get(struct ssh_link *link, const char *remote, const char *local, struct cb_err *err) CB_MUST_CHECK;
int ssh_files_stat(struct ssh_link *link, const char *path, struct transport_stat *status,
                   struct cb_err *err) CB_MUST_CHECK;
int ssh_files_read(struct ssh_link *link, const char *path, uint64_t offset, size_t max_bytes, struct buf *out,
                   struct cb_err *err) CB_MUST_CHECK;

/* What lies in a folder there: names without "." and "..", each checked to be no path. */
struct ssh_entry {
    char *name; /* owned */
    bool is_folder, is_file;
};
struct ssh_entries {
    struct ssh_entry *items;
    size_t count;
};
int ssh_files_list(struct ssh_link *link, const char *path, struct ssh_entries *entries,
                   struct cb_err *err) CB_MUST_CHECK;
void ssh_entries_release(struct ssh_entries *self);

/* Folders (ssh_folders.c): PARENT/NAME there to LOCAL/NAME here for each name, as one stream (tar) where that can be.
 * Links and special files are left out, as transport_local does. */
int ssh_folders_get_many(struct ssh_link *link, const char *parent, const char *const *names, size_t count,
                         const char *local, struct cb_err *err) CB_MUST_CHECK;

#endif
