"""Our training arithmetic against PyTorch's: the same weights and tokens through build/tests/train_probe and through a GPT-2
written here of torch.nn.functional, with autograd and torch.optim."""
import struct
import subprocess

import numpy
import pytest
import torch
from torch.nn import functional

from harness import BUILD

STEPS, RATE = 20, 1e-3


class Shape:
    def __init__(self, linear=False, layers=2, width=48, heads=4, positions=80, vocabulary=65, batch=2, sequence=72):
        self.linear, self.layers, self.width, self.heads = linear, layers, width, heads
        self.positions, self.vocabulary, self.batch, self.sequence = positions, vocabulary, batch, sequence

    def parameters(self):
        """(name, shape) in the order of our units."""
        c = self.width
        if self.linear:
            return [pair for i in range(self.layers) for pair in ((f"{i}.weight", (c, c)), (f"{i}.bias", (c,)))]
        names = [("wte", (self.vocabulary, c)), ("wpe", (self.positions, c)), ("ln_f.weight", (c,)), ("ln_f.bias", (c,))]
        for i in range(self.layers):
            names += [(f"{i}.{name}", shape) for name, shape in (
                ("ln_1.weight", (c,)), ("ln_1.bias", (c,)), ("attn.weight", (c, 3 * c)), ("attn.bias", (3 * c,)),
                ("proj.weight", (c, c)), ("proj.bias", (c,)), ("ln_2.weight", (c,)), ("ln_2.bias", (c,)),
                ("fc.weight", (c, 4 * c)), ("fc.bias", (4 * c,)), ("down.weight", (4 * c, c)), ("down.bias", (c,)))]
        return names


def make_weights(shape):
    random = numpy.random.default_rng(1)
    weights = {}
    for name, size in shape.parameters():
        weights[name] = (random.standard_normal(size) * 0.1 + (1.0 if "ln_" in name and "weight" in name else 0.0)).astype(numpy.float32)
    return weights


def make_inputs(shape):
    random = numpy.random.default_rng(2)
    if shape.linear:
        return [random.standard_normal((shape.batch, shape.width)).astype(numpy.float32) for _ in range(STEPS)]
    inputs = []
    for _ in range(STEPS):
        tokens = random.integers(0, shape.vocabulary, (shape.batch, shape.sequence + 1)).astype(numpy.uint32)
        targets = tokens[:, 1:].copy()
        targets[0, :5] = 0xFFFFFFFF
        inputs.append((tokens[:, :-1].copy(), targets))
    return inputs


def forward_gpt2(shape, p, tokens, targets):
    b, t, c = shape.batch, shape.sequence, shape.width
    x = p["wte"][tokens] + p["wpe"][:t]
    for i in range(shape.layers):
        at = lambda name: p[f"{i}.{name}"]
        normal = functional.layer_norm(x, (c,), at("ln_1.weight"), at("ln_1.bias"), 1e-5)
        q, k, v = (part.view(b, t, shape.heads, c // shape.heads).transpose(1, 2)
                   for part in (normal @ at("attn.weight") + at("attn.bias")).split(c, dim=2))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, c)
        x = x + mixed @ at("proj.weight") + at("proj.bias")
        normal = functional.layer_norm(x, (c,), at("ln_2.weight"), at("ln_2.bias"), 1e-5)
        x = x + functional.gelu(normal @ at("fc.weight") + at("fc.bias"), approximate="tanh") @ at("down.weight") + at("down.bias")
    x = functional.layer_norm(x, (c,), p["ln_f.weight"], p["ln_f.bias"], 1e-5)
    return functional.cross_entropy((x @ p["wte"].T).view(b * t, -1), targets.view(-1), ignore_index=-1)


def forward_linear(shape, p, x):
    for i in range(shape.layers):
        x = functional.linear(x, p[f"{i}.weight"], p[f"{i}.bias"])
    return x.mean()


def torch_steps(shape, weights, inputs, sgd, clip, decay):
    p = {name: torch.tensor(value, requires_grad=True) for name, value in weights.items()}
    matrices = [value for value in p.values() if value.dim() == 2]
    vectors = [value for value in p.values() if value.dim() == 1]
    groups = [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.SGD(groups, lr=RATE) if sgd else torch.optim.AdamW(groups, lr=RATE)
    losses, first = [], None
    for given in inputs:
        optimizer.zero_grad()
        if shape.linear:
            loss = forward_linear(shape, p, torch.from_numpy(given))
        else:
            loss = forward_gpt2(shape, p, torch.from_numpy(given[0].astype(numpy.int64)), torch.from_numpy(given[1].astype(numpy.int32).astype(numpy.int64)))
        loss.backward()
        losses.append(loss.item())
        first = first or {name: value.grad.numpy().copy() for name, value in p.items()}
        if clip:
            torch.nn.utils.clip_grad_norm_(p.values(), clip)
        optimizer.step()
    return losses, first, {name: value.detach().numpy() for name, value in p.items()}


def our_steps(shape, weights, inputs, sgd, clip, decay, threads, folder, bf16=False):
    with open(folder / "in", "wb") as file:
        file.write(struct.pack("<12I", shape.linear, shape.layers, shape.width, shape.heads, shape.positions, shape.vocabulary, shape.batch,
                               1 if shape.linear else shape.sequence, threads, STEPS, sgd, bf16))
        file.write(struct.pack("<4f", RATE, decay, clip, 0.0))
        for name, _ in shape.parameters():
            file.write(weights[name].tobytes())
        for given in inputs:
            for part in ([given] if shape.linear else given):
                file.write(part.tobytes())
    result = subprocess.run([BUILD / "tests/train_probe", "steps", folder / "in", folder / "out"], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    blob = (folder / "out").read_bytes()
    losses = numpy.frombuffer(blob, numpy.float64, STEPS)
    values = numpy.frombuffer(blob, numpy.float32, offset=8 * STEPS)
    at, arrays = 0, ({}, {})
    for array in arrays:
        for name, size in shape.parameters():
            count = int(numpy.prod(size))
            array[name] = values[at:at + count].reshape(size)
            at += count
    assert at == len(values)
    return losses, *arrays


def distance(ours, theirs):
    return float(numpy.linalg.norm(ours.astype(numpy.float64) - theirs) / (numpy.linalg.norm(theirs.astype(numpy.float64)) + 1e-12))


@pytest.mark.parametrize("sgd,clip,decay,threads", [(0, 0.5, 0.1, 1), (0, 0.0, 0.0, 2), (1, 0.0, 0.1, 1)])
@pytest.mark.parametrize("linear", [False, True])
def test_steps_are_those_of_pytorch(linear, sgd, clip, decay, threads, tmp_path):
    """Loss and gradients of the first step within 1e-5, and twenty steps later still within 1e-4 (losses) and 1e-3 (what the
    weights moved by)."""
    torch.set_num_threads(1)
    shape = Shape(linear=True, layers=3, width=40, batch=6) if linear else Shape()
    weights, inputs = make_weights(shape), make_inputs(shape)
    theirs = torch_steps(shape, weights, inputs, sgd, clip, decay)
    ours = our_steps(shape, weights, inputs, sgd, clip, decay, threads, tmp_path)
    assert abs(ours[0][0] - theirs[0][0]) < 1e-5 * max(1, abs(theirs[0][0]))
    for name, _ in shape.parameters():
        assert distance(ours[1][name], theirs[1][name]) < 1e-5, name
    assert numpy.allclose(ours[0], theirs[0], rtol=1e-4, atol=1e-6)
    for name, _ in shape.parameters():
        moved, expected = ours[2][name] - weights[name], theirs[2][name] - weights[name]
        if name.endswith("attn.bias"):  # keys' biases shift all scores of a query alike: their gradient is rounding alone
            moved[shape.width:2 * shape.width] = expected[shape.width:2 * shape.width] = 0
        assert distance(moved, expected) < 1e-3, name


def test_bf16_weights_are_rounded_as_pytorch_rounds_them(tmp_path):
    """With bf16 the first step computes with rounded weights, and the master weights stay in fp32."""
    torch.set_num_threads(1)
    shape = Shape()
    weights, inputs = make_weights(shape), make_inputs(shape)
    rounded = {name: torch.tensor(value).bfloat16().float().numpy() for name, value in weights.items()}
    theirs = torch_steps(shape, rounded, inputs[:1], 0, 0.0, 0.0)
    ours = our_steps(shape, weights, inputs, 0, 0.0, 0.0, 1, tmp_path, bf16=True)
    assert abs(ours[0][0] - theirs[0][0]) < 1e-5 * theirs[0][0]
    for name, _ in shape.parameters():
        assert distance(ours[1][name], theirs[1][name]) < 1e-5, name
    moved = numpy.concatenate([(ours[2][name] - weights[name]).ravel() for name, _ in shape.parameters()])
    assert numpy.abs(moved).max() < 2 * STEPS * RATE
