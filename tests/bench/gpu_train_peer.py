"""The peer of bench_gpu.py: a GPT-2 in PyTorch eager on a GPU, trained on random tokens. Prints one line of JSON; exits 3 and says what is
missing where it cannot.

usage: gpu_train_peer.py VOCABULARY WIDTH LAYERS HEADS BATCH SEQUENCE STEPS math|efficient|flash
scaled_dot_product_attention with the named kernel: math is products over all keys, as ours are; efficient is fused, in fp32; flash is fused, under
autocast to bf16. The model of train_peer.py; fp32 products as PyTorch's default has them (no TF32), fused AdamW, clipping; no torch.compile.
"""
import json
import statistics
import sys
import time

WARMUP = 5


def missing(why):
    print(why, file=sys.stderr)
    sys.exit(3)


def main():
    vocabulary, width, layers, heads, batch, sequence, steps = map(int, sys.argv[1:8])
    try:
        import torch
    except ImportError:
        missing(f"{sys.executable} has no PyTorch")
    if torch.version.cuda is None:
        missing(f"PyTorch {torch.__version__} of {sys.executable} is built without CUDA")
    if not torch.cuda.is_available():
        missing(f"PyTorch {torch.__version__} of {sys.executable} sees no GPU")
    from torch import nn
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from train_peer import Gpt2

    kernel = {"math": SDPBackend.MATH, "efficient": SDPBackend.EFFICIENT_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}[sys.argv[8]]
    device = torch.device("cuda", 0)
    torch.manual_seed(1)
    model = Gpt2(vocabulary, width, layers, heads, sequence).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    seconds = []
    with sdpa_kernel(kernel):
        for step in range(WARMUP + steps):
            torch.cuda.synchronize()
            start = time.monotonic()
            row = torch.randint(vocabulary, (batch, sequence + 1)).to(device)
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda", torch.bfloat16, enabled=sys.argv[8] == "flash"):
                loss = model(row[:, :-1], row[:, 1:].contiguous())
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            loss.item()
            torch.cuda.synchronize()
            if step >= WARMUP:
                seconds.append(time.monotonic() - start)
    median = statistics.median(seconds)
    print(json.dumps({"torch": torch.__version__, "device": torch.cuda.get_device_name(device), "tokens_per_s": batch * sequence / median,
                      "step_s": median, "peak_bytes": torch.cuda.max_memory_allocated(device)}))


if __name__ == "__main__":
    main()
