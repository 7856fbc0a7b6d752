"""The peer of bench_train.py: a GPT-2 in PyTorch eager, trained on random tokens. Prints one line of JSON.

usage: train_peer.py VOCABULARY WIDTH LAYERS HEADS BATCH SEQUENCE THREADS STEPS
fp32; scaled_dot_product_attention (the flash kernel on the CPU), GELU in its tanh form, tied head, fused AdamW, clipping, as
people write it who care for speed; no torch.compile.
"""
import json
import resource
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional

WARMUP = 3


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.c_fc, self.c_down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (part.view(b, t, self.heads, c // self.heads).transpose(1, 2) for part in self.c_attn(self.ln_1(x)).split(c, dim=2))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(mixed.transpose(1, 2).reshape(b, t, c))
        return x + self.c_down(functional.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self, vocabulary, width, layers, heads, positions):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(positions, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe.weight[:tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = self.ln_f(x) @ self.wte.weight.T
        return functional.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main():
    vocabulary, width, layers, heads, batch, sequence, threads, steps = map(int, sys.argv[1:9])
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    empty_bytes = peak_bytes()
    model = Gpt2(vocabulary, width, layers, heads, sequence)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    seconds, cpu_start = [], 0.0
    for step in range(WARMUP + steps):
        if step == WARMUP:
            cpu_start = cpu_seconds()
        start = time.monotonic()
        row = torch.randint(vocabulary, (batch, sequence + 1))
        optimizer.zero_grad(set_to_none=True)
        loss = model(row[:, :-1], row[:, 1:].contiguous())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss.item()
        if step >= WARMUP:
            seconds.append(time.monotonic() - start)
    median = statistics.median(seconds)
    print(json.dumps({"tokens_per_s": batch * sequence / median, "step_s": median, "least_step_s": min(seconds),
                      "cpu_s_per_step": (cpu_seconds() - cpu_start) / steps, "peak_rss_bytes": peak_bytes(), "empty_rss_bytes": empty_bytes}))


if __name__ == "__main__":
    main()
