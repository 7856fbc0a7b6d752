"""The peer of bench_gpu.py: matrix products of PyTorch on a GPU. Prints one line of JSON; exits 3 and says what is missing where it cannot.

usage: gpu_peer.py ROWS
Square matrices, median of rounds of four products after some that do not count, timed by events of the GPU.
"""
import json
import statistics
import sys

ROUNDS, PRODUCTS, WARMUP = 9, 4, 3


def missing(why):
    print(why, file=sys.stderr)
    sys.exit(3)


def seconds_of(torch, multiply):
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    seconds = []
    for index in range(WARMUP + ROUNDS):
        begin.record()
        for _ in range(PRODUCTS):
            multiply()
        end.record()
        torch.cuda.synchronize()
        if index >= WARMUP:
            seconds.append(begin.elapsed_time(end) / 1e3 / PRODUCTS)
    return statistics.median(seconds)


def main():
    rows = int(sys.argv[1])
    try:
        import torch
    except ImportError:
        missing(f"{sys.executable} has no PyTorch")
    if torch.version.cuda is None:
        missing(f"PyTorch {torch.__version__} of {sys.executable} is built without CUDA")
    if not torch.cuda.is_available():
        missing(f"PyTorch {torch.__version__} of {sys.executable} sees no GPU")
    device = torch.device("cuda", 0)
    flops = {}
    for name, dtype, tf32 in (("fp32", torch.float32, False), ("tf32", torch.float32, True), ("bf16", torch.bfloat16, False)):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        a, b = (torch.randn(rows, rows, device=device).to(dtype) for _ in range(2))
        out = torch.empty_like(a)
        flops[name] = 2 * rows**3 / seconds_of(torch, lambda: torch.mm(a, b, out=out))
    if torch.cuda.get_device_capability(device) >= (8, 9):
        a, b = (torch.randn(rows, rows, device=device).to(torch.float8_e4m3fn) for _ in range(2))
        one = torch.ones((), device=device)
        flops["fp8"] = 2 * rows**3 / seconds_of(torch, lambda: torch._scaled_mm(a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16))
    print(json.dumps({"torch": torch.__version__, "device": torch.cuda.get_device_name(device), "flops": flops}))


if __name__ == "__main__":
    main()
