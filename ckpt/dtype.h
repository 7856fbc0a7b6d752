/* Element types, by the names that PyTorch and safetensors use. Read-only data. */
#ifndef CKPT_DTYPE_H
#define CKPT_DTYPE_H

#include <stdbool.h>
#include <stddef.h>

enum dtype {
    DTYPE_F64,
    DTYPE_F32,
    DTYPE_F16,
    DTYPE_BF16,
    DTYPE_F8_E4M3FN,
    DTYPE_F8_E5M2,
    DTYPE_I64,
    DTYPE_I32,
    DTYPE_I16,
    DTYPE_I8,
    DTYPE_U64,
    DTYPE_U32,
    DTYPE_U16,
    DTYPE_U8,
    DTYPE_BOOL,
    DTYPE_C64,
    DTYPE_C128, /* types of other programs from here on; files store our types by number, so only append */
    DTYPE_F8_E4M3FNUZ,
    DTYPE_F8_E5M2FNUZ,
    DTYPE_F8_E8M0FNU,
    DTYPE_COUNT
};

size_t dtype_bytes(enum dtype dtype);
const char *dtype_name(enum dtype dtype);       /* "bf16" */
const char *dtype_torch_name(enum dtype dtype); /* "bfloat16", as in torch.bfloat16 */
/* Class of the storage in torch, "BFloat16Storage"; NULL if torch stores it untyped. */
const char *dtype_torch_storage(enum dtype dtype);
/* "BF16"; NULL if safetensors has no such type. */
const char *dtype_safetensors_name(enum dtype dtype);
bool dtype_find_safetensors(const char *name, enum dtype *dtype);
bool dtype_find(const char *name, enum dtype *dtype); /* either name, or safetensors' "BF16" */

#endif
