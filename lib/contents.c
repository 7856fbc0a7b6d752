#include "lib/contents.h"

#include <string.h>

#include "ckpt/dtype.h"
#include "ckpt/stored/read_metadata.h"
#include "core/alloc.h"
#include "lib/errors.h"

const char *ckptbench_version(void)
{
    return "1.0";
}

int64_t ckptbench_dtype(const char *name)
{
    for (int i = 0; i < DTYPE_COUNT; i++) {
        if (strcmp(dtype_torch_name((enum dtype)i), name) == 0)
            return i;
    }
    return CKPTBENCH_NOT_FOUND;
}

const char *ckptbench_dtype_name(int64_t dtype)
{
    return dtype >= 0 && dtype < DTYPE_COUNT ? dtype_torch_name((enum dtype)dtype) : NULL;
}

uint64_t ckptbench_dtype_bytes(int64_t dtype)
{
    return dtype >= 0 && dtype < DTYPE_COUNT ? dtype_bytes((enum dtype)dtype) : 0;
}

struct ckptbench_checkpoint {
    struct stored_checkpoint *stored;
};

int contents_read(struct store *store, const char *name, ckptbench_checkpoint **checkpoint, struct cb_err *err)
{
    ckptbench_checkpoint *made = calloc(1, sizeof *made);
    int rc = made ? metadata_read_checkpoint(store, name, &made->stored, err) : alloc_fail(err, "to list a checkpoint");
    if (rc)
        free(made);
    else
        *checkpoint = made;
    return rc;
}

size_t ckptbench_checkpoint_count(const ckptbench_checkpoint *checkpoint)
{
    return checkpoint->stored->tensor_count;
}

static uint64_t stored_bytes(const struct stored_checkpoint *stored, const struct stored_tensor *tensor)
{
    struct region whole = region_whole(tensor->dims, tensor->shape);
    if (!tensor->is_bytes)
        return region_elements(&whole) * dtype_bytes(tensor->dtype);
    return tensor->chunk_count > 0 ? stored->chunks[tensor->first_chunk].length
                                   : (tensor->literal ? strlen(tensor->literal) : 0);
}

int ckptbench_checkpoint_entry(const ckptbench_checkpoint *checkpoint, size_t index, struct ckptbench_entry *entry,
                               struct ckptbench_error *error)
{
    struct cb_err err = {0};
    int rc = 0;
    if (entry->struct_bytes != sizeof *entry)
        rc = cb_fail(&err, CB_ERR_USAGE, "the entry's struct_bytes is not its size in this version");
    else if (index >= checkpoint->stored->tensor_count)
        rc = cb_fail(&err, CB_ERR_USAGE, "the checkpoint has no entry %zu", index);
    if (rc)
        return errors_report(rc, &err, error);
    const struct stored_tensor *tensor = &checkpoint->stored->tensors[index];
    *entry = (struct ckptbench_entry){.struct_bytes = sizeof *entry,
                                      .fqn = tensor->fqn,
                                      .path = tensor->path,
                                      .is_value = tensor->is_bytes,
                                      .dtype = tensor->is_bytes ? CKPTBENCH_NOT_FOUND : (int64_t)tensor->dtype,
                                      .dims = tensor->dims,
                                      .bytes = stored_bytes(checkpoint->stored, tensor)};
    memcpy(entry->shape, tensor->shape, tensor->dims * sizeof *entry->shape);
    return 0;
}

void ckptbench_checkpoint_free(ckptbench_checkpoint *checkpoint)
{
    if (!checkpoint)
        return;
    stored_checkpoint_free(checkpoint->stored);
    free(checkpoint);
}
