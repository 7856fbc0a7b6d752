/* The table of element types. */
#include "ckpt/dtype.h"

#include <assert.h>
#include <string.h>

struct dtype_row {
    size_t bytes;
    const char *name, *torch_name, *torch_storage, *safetensors_name;
};

static const struct dtype_row rows[DTYPE_COUNT] = {
    [DTYPE_F64] = {8, "fp64", "float64", "DoubleStorage", "F64"},
    [DTYPE_F32] = {4, "fp32", "float32", "FloatStorage", "F32"},
    [DTYPE_F16] = {2, "fp16", "float16", "HalfStorage", "F16"},
    [DTYPE_BF16] = {2, "bf16", "bfloat16", "BFloat16Storage", "BF16"},
    [DTYPE_F8_E4M3FN] = {1, "fp8_e4m3fn", "float8_e4m3fn", NULL, "F8_E4M3"},
    [DTYPE_F8_E5M2] = {1, "fp8_e5m2", "float8_e5m2", NULL, "F8_E5M2"},
    [DTYPE_I64] = {8, "i64", "int64", "LongStorage", "I64"},
    [DTYPE_I32] = {4, "i32", "int32", "IntStorage", "I32"},
    [DTYPE_I16] = {2, "i16", "int16", "ShortStorage", "I16"},
    [DTYPE_I8] = {1, "i8", "int8", "CharStorage", "I8"},
    [DTYPE_U64] = {8, "u64", "uint64", NULL, "U64"},
    [DTYPE_U32] = {4, "u32", "uint32", NULL, "U32"},
    [DTYPE_U16] = {2, "u16", "uint16", NULL, "U16"},
    [DTYPE_U8] = {1, "u8", "uint8", "ByteStorage", "U8"},
    [DTYPE_BOOL] = {1, "bool", "bool", "BoolStorage", "BOOL"},
    [DTYPE_C64] = {8, "c64", "complex64", "ComplexFloatStorage", "C64"},
    [DTYPE_C128] = {16, "c128", "complex128", "ComplexDoubleStorage", NULL},
    [DTYPE_F8_E4M3FNUZ] = {1, "fp8_e4m3fnuz", "float8_e4m3fnuz", NULL, "F8_E4M3FNUZ"},
    [DTYPE_F8_E5M2FNUZ] = {1, "fp8_e5m2fnuz", "float8_e5m2fnuz", NULL, "F8_E5M2FNUZ"},
    [DTYPE_F8_E8M0FNU] = {1, "fp8_e8m0fnu", "float8_e8m0fnu", NULL, "F8_E8M0"},
};

size_t dtype_bytes(enum dtype dtype)
{
    assert((unsigned)dtype < DTYPE_COUNT);
    return rows[dtype].bytes;
}

const char *dtype_name(enum dtype dtype)
{
    assert((unsigned)dtype < DTYPE_COUNT);
    return rows[dtype].name;
}

const char *dtype_torch_name(enum dtype dtype)
{
    assert((unsigned)dtype < DTYPE_COUNT);
    return rows[dtype].torch_name;
}

const char *dtype_torch_storage(enum dtype dtype)
{
    assert((unsigned)dtype < DTYPE_COUNT);
    return rows[dtype].torch_storage;
}

const char *dtype_safetensors_name(enum dtype dtype)
{
    assert((unsigned)dtype < DTYPE_COUNT);
    return rows[dtype].safetensors_name;
}

bool dtype_find_safetensors(const char *name, enum dtype *dtype)
{
    for (unsigned i = 0; i < DTYPE_COUNT; i++) {
        if (rows[i].safetensors_name && strcmp(name, rows[i].safetensors_name) == 0) {
            *dtype = (enum dtype)i;
            return true;
        }
    }
    return false;
}

bool dtype_find(const char *name, enum dtype *dtype)
{
    for (unsigned i = 0; i < DTYPE_COUNT; i++) {
        if (strcmp(name, rows[i].name) == 0 || strcmp(name, rows[i].torch_name) == 0) {
            *dtype = (enum dtype)i;
            return true;
        }
    }
    return dtype_find_safetensors(name, dtype);
}
