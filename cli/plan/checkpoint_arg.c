/* Finds and opens the checkpoint that a user names. */
#include "cli/plan/checkpoint_arg.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "ckpt/format/safetensors.h"
#include "ckpt/stored/read_metadata.h"

static int open_folder(struct checkpoint_arg *self, struct cb_err *err)
{
    struct store_options options = {.direct = STORE_DIRECT_NO, .depth = 1, .in_caller = true, .read_only = true};
    return store_open(self->path, &options, &self->store, err);
}

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

int checkpoint_arg_open(struct checkpoint_arg *self, const char *path, struct cb_err *err)
{
    char opened[CHECKPOINT_NAME_BYTES];
    *self = (struct checkpoint_arg){0};
    if ((size_t)snprintf(self->path, sizeof self->path, "%s", path) >= sizeof self->path)
        return cb_fail(err, CB_ERR_USAGE, "%.60s…: the path is too long", path);
    int code = split_file(self, err);
    if (!code && self->file[0])
        return open_folder(self, err);
    if (!code)
        code = checkpoint_open(self->path, &self->store, opened, self->how, &self->nothing, err);
    if (!code)
        memcpy(self->path, opened, sizeof self->path);
    return code;
}

int checkpoint_arg_read(const struct checkpoint_arg *self, struct stored_checkpoint **checkpoint, struct cb_err *err)
{
    int code = self->file[0] ? metadata_read_file(self->store, self->file, checkpoint, err)
                             : metadata_read_checkpoint(self->store, "", checkpoint, err);
    if (code == CB_ERR_NOT_FOUND && self->nothing.code)
        *err = self->nothing; /* its message names all places that were searched */
    return code;
}

void checkpoint_arg_release(struct checkpoint_arg *self)
{
    if (self->store)
        store_free(self->store);
    self->store = NULL;
}

void checkpoint_arg_write_name(const struct checkpoint_arg *self, struct buf *out)
{
    buf_append_text(out, self->path);
    if (*self->how)
        buf_printf(out, " (%s)", self->how);
}
