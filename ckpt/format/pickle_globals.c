/* The list of classes and functions that a checkpoint may name. */
#include "ckpt/format/pickle_globals.h"

#include <string.h>

#include "ckpt/dtype.h"

static const struct {
    const char *module, *name;
    enum pickle_global global;
} globals[] = {
    {"torch.distributed.checkpoint.metadata", "Metadata", PICKLE_G_METADATA},
    {"torch.distributed.checkpoint.metadata", "TensorStorageMetadata", PICKLE_G_TENSOR_STORAGE_METADATA},
    {"torch.distributed.checkpoint.metadata", "BytesStorageMetadata", PICKLE_G_BYTES_STORAGE_METADATA},
    {"torch.distributed.checkpoint.metadata", "ChunkStorageMetadata", PICKLE_G_CHUNK_STORAGE_METADATA},
    {"torch.distributed.checkpoint.metadata", "TensorProperties", PICKLE_G_TENSOR_PROPERTIES},
    {"torch.distributed.checkpoint.metadata", "_MEM_FORMAT_ENCODING", PICKLE_G_MEM_FORMAT},
    {"torch.distributed.checkpoint.metadata", "MetadataIndex", PICKLE_G_METADATA_INDEX},
    {"torch.distributed.checkpoint.metadata", "StorageMeta", PICKLE_G_STORAGE_META},
    {"torch.distributed._shard.sharded_tensor.metadata", "TensorProperties", PICKLE_G_TENSOR_PROPERTIES},
    {"torch.distributed._shard.sharded_tensor.metadata", "MEM_FORMAT_ENCODING", PICKLE_G_MEM_FORMAT},
    {"torch.distributed.checkpoint.filesystem", "_StorageInfo", PICKLE_G_STORAGE_INFO},
    {"torch", "Size", PICKLE_G_SIZE},
    {"torch.serialization", "_get_layout", PICKLE_G_LAYOUT},
    {"pathlib", "PosixPath", PICKLE_G_PATH},
    {"pathlib._local", "PosixPath", PICKLE_G_PATH},
    {"torch._utils", "_rebuild_tensor_v2", PICKLE_G_REBUILD_V2},
    {"torch._utils", "_rebuild_tensor_v3", PICKLE_G_REBUILD_V3},
    {"torch.storage", "UntypedStorage", PICKLE_G_UNTYPED_STORAGE},
    {"collections", "OrderedDict", PICKLE_G_ORDERED_DICT},
};

static bool text_equal(const char *text, size_t len, const char *other)
{
    return strlen(other) == len && memcmp(text, other, len) == 0;
}

static bool find_torch_type(const char *name, size_t len, struct pickle_node *node)
{
    for (unsigned i = 0; i < DTYPE_COUNT; i++) {
        const char *storage = dtype_torch_storage((enum dtype)i);
        bool is_dtype = text_equal(name, len, dtype_torch_name((enum dtype)i));
        if (!is_dtype && !(storage && text_equal(name, len, storage)))
            continue;
        node->global = is_dtype ? PICKLE_G_DTYPE : PICKLE_G_STORAGE;
        node->dtype = (uint8_t)i;
        return true;
    }
    return false;
}

bool pickle_find_global(const char *module, size_t module_len, const char *name, size_t name_len,
                        struct pickle_node *node)
{
    for (size_t i = 0; i < sizeof globals / sizeof *globals; i++) {
        if (text_equal(module, module_len, globals[i].module) && text_equal(name, name_len, globals[i].name)) {
            node->global = (uint8_t)globals[i].global;
            return true;
        }
    }
    return text_equal(module, module_len, "torch") && find_torch_type(name, name_len, node);
}
