/* Converts element types and payloads to the parameters of a kernel. */
#include "engine/device_values.h"

#include <assert.h>

#include "engine/device.h"

static_assert(VALUES_MAX_DIMS == CKPT_MAX_DIMS, "a kernel takes boxes of any tensor");

static enum values_form form_of(const struct payload_source *source)
{
    if (source->kind == PAYLOAD_ZERO)
        return VALUES_ZERO;
    if (source->kind == PAYLOAD_RANDOM)
        return VALUES_RAW;
    switch (source->dtype) {
    case DTYPE_BF16:
        return VALUES_BF16;
    case DTYPE_F16:
        return VALUES_F16;
    case DTYPE_F32:
        return VALUES_F32;
    case DTYPE_F64:
        return VALUES_F64;
    case DTYPE_C64:
        return VALUES_C64;
    default:
        return VALUES_RAW;
    }
}

static uint32_t mask_of(const struct payload_source *source)
{
    if (source->dtype == DTYPE_BOOL)
        return 0x01010101;
    bool fp8 = source->dtype == DTYPE_F8_E4M3FN || source->dtype == DTYPE_F8_E5M2;
    return fp8 && source->kind == PAYLOAD_WEIGHTS ? 0xbfbfbfbf : 0xffffffff;
}

void values_job_make(const struct device_values *values, struct values_job *job)
{
    *job = (struct values_job){
        .form = (uint32_t)form_of(&values->source),
        .element_bytes = (uint32_t)dtype_bytes(values->source.dtype),
        .mask = mask_of(&values->source),
        .dims = values->region.dims,
        .key = values->source.key,
        .count = region_elements(&values->region),
    };
    for (uint32_t i = 0; i < values->region.dims; i++) {
        job->offset[i] = values->region.offset[i];
        job->size[i] = values->region.size[i];
        job->shape[i] = values->shape[i];
    }
}
