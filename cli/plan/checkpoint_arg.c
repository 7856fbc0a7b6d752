/* Finds and opens the checkpoint that a user names. */
#include "cli/plan/checkpoint_arg.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "ckpt/format/safetensors.h"
#include "ckpt/stored/read_metadata.h"
#include "ckpt/stored/resolve_checkpoint.h"

#define DEPTH 4

/* DIR/NAME.safetensors becomes the store DIR and the file NAME; an index or a marker stands for its folder. */
static int split_file(struct checkpoint_arg *self, struct cb_err *err)
{
    struct stat status;
    if (stat(self->path, &status) != 0 || !S_ISREG(status.st_mode))
        return 0;
    char *slash = strrchr(self->path, '/'), *name = slash ? slash + 1 : self->path;
    size_t len = strlen(name), suffix = strlen(SAFETENSORS_SUFFIX);
    bool single = len > suffix && strcmp(name + len - suffix, SAFETENSORS_SUFFIX) == 0;
    if (!single && !format_is_marker(name))
        return cb_fail(err, CB_ERR_USAGE, "%s is a file, but no safetensors file: give the folder of a checkpoint",
                       self->path);
    if (single)
        snprintf(self->file, sizeof self->file, "%s", name);
    if (slash == self->path)
        slash[1] = '\0';
    else if (slash)
        *slash = '\0';
    else
        snprintf(self->path, sizeof self->path, ".");
    return 0;
}

/* A run folder contains a checkpoint for each iteration, of which the last is used; any other folder may contain a
 * single one (ckpt/stored/resolve_checkpoint.h). A place without a complete checkpoint is opened too. */
static int open_checkpoint(struct checkpoint_arg *self, struct cb_err *err)
{
    const struct store_options options = {.direct = STORE_DIRECT_NO, .depth = DEPTH, .threads = 1, .read_only = true};
    char name[CHECKPOINT_PATH_BYTES] = "";
    uint64_t of = 0;
    int rc = store_open(self->path, &options, &self->store, err);
    if (rc)
        return rc;
    rc = resolve_checkpoint(self->store, "", self->path, name, sizeof name, &of, err);
    if (rc && rc != CB_ERR_NOT_FOUND)
        return rc;
    self->nothing.code = rc;
    if (rc)
        snprintf(self->nothing.message, sizeof self->nothing.message, "%s", err->message);
    if (of == 1)
        snprintf(self->how, sizeof self->how, "the only one there");
    else if (of > 1)
        snprintf(self->how, sizeof self->how, "the last of %" PRIu64, of);
    if (!*name)
        return 0;
    size_t len = strlen(self->path), bytes = strlen(name) + 1;
    if (len + 1 + bytes > sizeof self->path)
        return cb_fail(err, CB_ERR_USAGE, "the name %s/%s is too long", self->path, name);
    self->path[len] = '/';
    memcpy(self->path + len + 1, name, bytes);
    store_free(self->store);
    self->store = NULL;
    return store_open(self->path, &options, &self->store, err);
}

void checkpoint_arg_release(struct checkpoint_arg *self)
{
    if (self->store)
        store_free(self->store);
    self->store = NULL;
}

int checkpoint_arg_open(struct checkpoint_arg *self, const char *path, struct cb_err *err)
{
    const struct store_options of_file = {.direct = STORE_DIRECT_NO, .depth = 1, .in_caller = true, .read_only = true};
    *self = (struct checkpoint_arg){0};
    if ((size_t)snprintf(self->path, sizeof self->path, "%s", path) >= sizeof self->path)
        return cb_fail(err, CB_ERR_USAGE, "%.60s…: the path is too long", path);
    int rc = split_file(self, err);
    if (rc == 0)
        rc = self->file[0] ? store_open(self->path, &of_file, &self->store, err) : open_checkpoint(self, err);
    if (rc)
        checkpoint_arg_release(self);
    return rc;
}

int checkpoint_arg_read(const struct checkpoint_arg *self, struct stored_checkpoint **checkpoint, struct cb_err *err)
{
    int rc = self->file[0] ? metadata_read_file(self->store, self->file, checkpoint, err)
                           : metadata_read_checkpoint(self->store, "", checkpoint, err);
    if (rc == CB_ERR_NOT_FOUND && self->nothing.code)
        *err = self->nothing; /* its message lists all places that were searched */
    return rc;
}

void checkpoint_arg_write_name(const struct checkpoint_arg *self, struct buf *out)
{
    buf_append_text(out, self->path);
    if (*self->how)
        buf_printf(out, " (%s)", self->how);
}
