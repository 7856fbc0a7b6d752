/* libcupti of cuda_on_cpu, a library of its own as CUPTI is: what the plugin's streams do is told to it by runtime.cpp, which is in the
 * plugin (CKPTBENCH_CUDA_PLUGIN). Its clock is not the monotonic one. It fills small buffers, so that there are several.
 *
 * CUDA_ON_CPU_PROFILER=1: another profiler is there. CUDA_ON_CPU_UNPRIVILEGED=1: nobody may record. */
#include "cupti.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <algorithm>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "inside.h"

namespace
{

/* The larger of the records; each takes that much. */
union record {
    CUpti_Activity any;
    CUpti_ActivityKernel10 kernel;
    CUpti_ActivityMemcpy6 copy;
};

#define RECORDS_OF_A_BUFFER 16

std::mutex lock;
std::set<int> enabled;
std::set<std::string> names;
std::vector<record> records;
CUpti_BuffersCallbackRequestFunc give;
CUpti_BuffersCallbackCompleteFunc take;
bool subscribed;

/* Its distance from the monotonic clock stays, so that what is over has an end behind its start. */
uint64_t cupti_ns(uint64_t monotonic_ns)
{
    return monotonic_ns + UINT64_C(1700000000) * 1000000000;
}

/* Called while the plugin's lock is held. */
void note(int kind, const char *name, unsigned stream, uint64_t start_ns, uint64_t end_ns, size_t bytes)
{
    std::lock_guard<std::mutex> guard(lock);
    record one = {};
    int of = kind == cuda_on_cpu::KERNEL ? CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL
             : kind == cuda_on_cpu::SET  ? CUPTI_ACTIVITY_KIND_MEMSET
                                         : CUPTI_ACTIVITY_KIND_MEMCPY;
    if (!enabled.count(of))
        return;
    if (of == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL)
        one.kernel = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, cupti_ns(start_ns), cupti_ns(end_ns), stream, names.insert(name).first->c_str()};
    else
        one.copy = {CUpti_ActivityKind(of), uint8_t(kind), bytes, cupti_ns(start_ns), cupti_ns(end_ns), stream};
    records.push_back(one);
}

} // namespace

#pragma GCC visibility push(default)

CUptiResult cuptiSubscribe(CUpti_SubscriberHandle *subscriber, CUpti_CallbackFunc callback, void *)
{
    if (!subscriber || !callback)
        return CUPTI_ERROR_INVALID_PARAMETER;
    if (subscribed || getenv("CUDA_ON_CPU_PROFILER"))
        return CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
    void *plugin = dlopen(getenv("CKPTBENCH_CUDA_PLUGIN"), RTLD_NOW | RTLD_NOLOAD);
    auto tell = plugin ? reinterpret_cast<void (*)(cuda_on_cpu::notifier)>(dlsym(plugin, "cuda_on_cpu_tell")) : nullptr;
    if (!tell)
        abort(); /* a test that forgot the variable */
    tell(note);
    subscribed = true;
    *subscriber = nullptr;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiUnsubscribe(CUpti_SubscriberHandle)
{
    std::lock_guard<std::mutex> guard(lock);
    subscribed = false;
    enabled.clear();
    records.clear();
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc request,
                                           CUpti_BuffersCallbackCompleteFunc complete)
{
    give = request;
    take = complete;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind)
{
    if (getenv("CUDA_ON_CPU_UNPRIVILEGED"))
        return CUPTI_ERROR_INSUFFICIENT_PRIVILEGES;
    std::lock_guard<std::mutex> guard(lock);
    enabled.insert(kind);
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityDisable(CUpti_ActivityKind kind)
{
    std::lock_guard<std::mutex> guard(lock);
    enabled.erase(kind);
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityFlushAll(uint32_t)
{
    std::vector<record> left;
    {
        std::lock_guard<std::mutex> guard(lock);
        left.swap(records);
    }
    for (size_t at = 0; at < left.size();) {
        uint8_t *buffer;
        size_t size, most, count;
        give(&buffer, &size, &most);
        if (!buffer)
            break;
        count = std::min({left.size() - at, size / sizeof(record), size_t(RECORDS_OF_A_BUFFER)});
        memcpy(buffer, &left[at], count * sizeof(record));
        take(nullptr, 0, buffer, size, count * sizeof(record));
        at += count;
    }
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, CUpti_Activity **record_out)
{
    uint8_t *next = *record_out ? reinterpret_cast<uint8_t *>(*record_out) + sizeof(record) : buffer;
    if (next + sizeof(record) > buffer + valid)
        return CUPTI_ERROR_MAX_LIMIT_REACHED;
    *record_out = reinterpret_cast<CUpti_Activity *>(next);
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext, uint32_t, size_t *dropped)
{
    *dropped = 0;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiGetTimestamp(uint64_t *timestamp)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    *timestamp = cupti_ns(uint64_t(now.tv_sec) * 1000000000 + uint64_t(now.tv_nsec));
    return CUPTI_SUCCESS;
}

CUptiResult cuptiGetResultString(CUptiResult result, const char **text)
{
    *text = result == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED ? "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED"
            : result == CUPTI_ERROR_INSUFFICIENT_PRIVILEGES          ? "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"
                                                                     : "an error of CUPTI";
    return CUPTI_SUCCESS;
}

#pragma GCC visibility pop
