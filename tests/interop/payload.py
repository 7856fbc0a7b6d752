"""The values that tensors have, computed from docs/dcp-format.md alone, with numpy."""
import numpy as np
import torch

MASK = (1 << 64) - 1


def mix64(x):
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


def key_of(seed, fqn):
    value = 0xCBF29CE484222325
    for byte in fqn.encode():
        value = (value ^ byte) * 0x100000001B3 & MASK
    return mix64((mix64(value) + seed * 0x9E3779B97F4A7C15) & MASK)


def words(key, count):
    out = np.empty(count, np.uint32)
    for block in range(0, count, 1 << 20):
        mixed = mix64((key + (block >> 20) * 0x9E3779B97F4A7C15) & MASK)
        low, high = np.uint32(mixed & 0xFFFFFFFF), np.uint32(mixed >> 32)
        x = np.arange(min(1 << 20, count - block), dtype=np.uint32) * np.uint32(0x9E3779B1) + low
        x ^= x >> np.uint32(15)
        x *= np.uint32(0x85EBCA77)
        x ^= x >> np.uint32(13)
        out[block : block + len(x)] = x + high
    return out


def weights(fqn, dtype, shape, seed=0):
    """The whole tensor of this name as payload=weights has it."""
    count = int(np.prod(shape, dtype=np.int64))
    word = words(key_of(seed, fqn), count)
    if dtype == torch.bfloat16:
        real = ((word & 0xFFFF).astype(np.int32) - (word >> 16).astype(np.int32)).astype(np.float32)
        bits = ((real * np.float32(2.0**-20)).view(np.uint32) >> 16).astype(np.uint16)
        return torch.from_numpy(bits.view(np.int16).copy()).view(torch.bfloat16).reshape(shape)
    assert dtype == torch.float32
    other = (word ^ (word >> np.uint32(16))) * np.uint32(0x27D4EB2F)
    real = ((word >> 1).astype(np.int32) - (other >> 1).astype(np.int32)).astype(np.float32)
    return torch.from_numpy(real * np.float32(2.0**-35)).reshape(shape)
