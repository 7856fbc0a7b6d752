/* Files and folders by SFTP. A transfer whose connection breaks is resumed on the next connection; a file arrives
 * under a temporary name and is renamed when it is complete. */
#ifndef JOBS_SSH_SSH_FILES_H
#define JOBS_SSH_SSH_FILES_H

#include "core/buf.h"
#include "jobs/ssh/ssh_link.h"

int ssh_files_put(struct transport *transport, const char *local, const char *remote, struct cb_err *err) CB_MUST_CHECK;
int ssh_files_get(struct transport *transport, const char *remote, const char *local, struct cb_err *err) CB_MUST_CHECK;
int ssh_files_stat(struct transport *transport, const char *path, struct transport_stat *status,
                   struct cb_err *err) CB_MUST_CHECK;
int ssh_files_read(struct transport *transport, const char *path, uint64_t offset, size_t max_bytes, struct buf *out,
                   struct cb_err *err) CB_MUST_CHECK;

/* An entry of a remote folder: never "." or "..", and checked to contain no path. */
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

/* Folders (jobs/ssh/ssh_folders.c): copies remote PARENT/NAME to local LOCAL/NAME for each name, as one stream (tar)
 * if possible. Links and special files are skipped, as in transport_local. */
int ssh_folders_get_many(struct transport *transport, const char *parent, const char *const *names, size_t count,
                         const char *local, struct cb_err *err) CB_MUST_CHECK;

#endif
