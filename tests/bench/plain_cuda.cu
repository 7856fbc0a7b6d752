/* What a GPU and the way to it give to a program that does nothing else: cudaMemcpyAsync between pinned memory
 * (cudaMallocHost) and the device, and inside the device by cudaMemcpyAsync and by a kernel, of which the better one is
 * its peak. Medians of rounds after one that does not count; one line of JSON. The peer of `make bench-gpu`.
 * usage: plain_cuda BYTES_ACROSS BYTES_INSIDE */
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <cuda_runtime.h>

static const int rounds = 9, batch = 8; /* copies inside the device, so that launching is no part of it */

static void check(cudaError_t code, const char *doing)
{
    if (code == cudaSuccess)
        return;
    fprintf(stderr, "%s: %s (%s)\n", doing, cudaGetErrorString(code), cudaGetErrorName(code));
    exit(1);
}

__global__ static void copy_words(uint4 *to, const uint4 *from, size_t count)
{
    size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step)
        to[i] = from[i];
}

template <typename Work> static double median_seconds(cudaStream_t stream, Work work)
{
    std::vector<double> seconds;
    for (int i = 0; i <= rounds; i++) {
        auto start = std::chrono::steady_clock::now();
        work();
        check(cudaStreamSynchronize(stream), "waiting");
        if (i > 0)
            seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    std::nth_element(seconds.begin(), seconds.begin() + rounds / 2, seconds.end());
    return seconds[rounds / 2];
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return fprintf(stderr, "usage: plain_cuda BYTES_ACROSS BYTES_INSIDE\n"), 2;
    size_t across = strtoull(argv[1], NULL, 10), inside = strtoull(argv[2], NULL, 10);
    size_t most = std::max(across, inside);
    cudaDeviceProp properties;
    cudaStream_t stream;
    char *host = NULL, *own = NULL, *other = NULL;
    check(cudaSetDevice(0), "using the GPU");
    check(cudaGetDeviceProperties(&properties, 0), "asking what the GPU is");
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream");
    check(cudaMallocHost((void **)&host, across), "pinned memory");
    check(cudaMalloc((void **)&own, most), "memory of the GPU");
    check(cudaMalloc((void **)&other, inside), "memory of the GPU");
    memset(host, 1, across);
    check(cudaMemset(own, 2, most), "filling");
    double to_host = median_seconds(
        stream, [&] { check(cudaMemcpyAsync(host, own, across, cudaMemcpyDeviceToHost, stream), "copying"); });
    double to_device = median_seconds(
        stream, [&] { check(cudaMemcpyAsync(own, host, across, cudaMemcpyHostToDevice, stream), "copying"); });
    double copy = median_seconds(stream, [&] {
        for (int i = 0; i < batch; i++)
            check(cudaMemcpyAsync(other, own, inside, cudaMemcpyDeviceToDevice, stream), "copying");
    });
    unsigned blocks = (unsigned)properties.multiProcessorCount * 16;
    double kernel = median_seconds(stream, [&] {
        for (int i = 0; i < batch; i++)
            copy_words<<<blocks, 512, 0, stream>>>((uint4 *)other, (const uint4 *)own, inside / sizeof(uint4));
        check(cudaGetLastError(), "copying with a kernel");
    });
    printf("{\"device\": \"%s\", \"to_host_bytes_per_s\": %.9g, \"to_device_bytes_per_s\": %.9g, "
           "\"copy_bytes_per_s\": %.9g}\n",
           properties.name, (double)across / to_host, (double)across / to_device,
           2 * batch * (double)inside / std::min(copy, kernel));
    return 0;
}
