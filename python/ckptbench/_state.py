"""What a rank holds of a state: its tensors as boxes with addresses, and its other values as bytes.

Names, and what counts as a value, are those of torch.distributed.checkpoint, whose own functions flatten the state."""
import io

import torch
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint._sharded_tensor_utils import _flatten_sharded_tensors

from . import _library
from ._boxes import DTensor, placed


class Region:
    """A box of a tensor, and the tensor in memory that has its elements. splits: what other ranks hold, as _boxes.placed has
    it. device, stream: for the library, which counts CUDA devices from 1; 0 is the host."""

    __slots__ = ("offsets", "memory", "splits", "device", "stream")

    def __init__(self, offsets, memory, splits=None, device=0, stream=0):
        self.offsets, self.memory, self.splits, self.device, self.stream = offsets, memory, splits, device, stream


class Tensor:
    """A tensor of the whole job, and this rank's regions of it."""

    __slots__ = ("name", "dtype", "shape", "regions")

    def __init__(self, name, dtype, shape, regions):
        self.name, self.dtype, self.shape, self.regions = name, dtype, shape, regions


class Pieces:
    """A tensor of which this rank holds boxes: in a state, a value for distributed tensors of other kinds than PyTorch's.

    shape and dtype are those of the whole tensor; `boxes` are (offsets, tensor), where the tensor has the elements. A
    load fills them in place. A rank that holds nothing of a tensor leaves its name out."""

    __slots__ = ("shape", "dtype", "boxes")

    def __init__(self, shape, dtype, boxes):
        self.shape, self.dtype, self.boxes = tuple(shape), dtype, list(boxes)

    def size(self):
        return self.shape


def _dtensor_regions(name, tensor):
    mesh, local, shape = tensor.device_mesh, tensor._local_tensor, tuple(tensor.shape)
    if mesh.get_coordinate() is None or tensor.numel() == 0:
        return []
    try:
        held, splits = placed(mesh, tensor.placements, shape)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    if len(held) == 1 and tuple(local.shape) == held[0][1]:
        return [Region(held[0][0], local, splits)]
    if not held and splits:  # no elements, and the splits tell so
        rank = mesh.get_rank()
        offsets, sizes = zip(*(split.part(size, rank) if split else (0, size) for split, size in zip(splits, shape)))
        return [Region(offsets, local.new_empty(sizes), splits)]
    regions = []
    for offsets, sizes, starts in held:
        part = local
        for dim, (start, size) in enumerate(zip(starts, sizes)):
            part = part.narrow(dim, start, size)
        regions.append(Region(offsets, part))
    return regions


def describe_tensor(name, tensor):
    """The Tensor that describes `tensor`, of whichever kind it is. ValueError if it cannot be stored."""
    if isinstance(tensor, Pieces):
        regions = [Region(tuple(offsets), part) for offsets, part in tensor.boxes]
    elif isinstance(tensor, DTensor):
        regions = _dtensor_regions(name, tensor)
    elif isinstance(tensor, ShardedTensor):
        regions = [Region(tuple(shard.metadata.shard_offsets), shard.tensor) for shard in tensor.local_shards()
                   if shard.tensor.numel() > 0]
    else:
        regions = [Region((0,) * tensor.dim(), tensor)]
    shape = tuple(tensor.size())
    dtype = tensor.dtype
    for region in regions:
        memory = region.memory
        if memory.layout != torch.strided or memory.is_quantized:
            raise ValueError(f"{name}: a tensor with layout {memory.layout} cannot be saved or loaded")
        if memory.is_meta:
            raise ValueError(f"{name}: a tensor on the meta device has no values")
        if memory.is_conj() or memory.is_neg():
            raise ValueError(f"{name}: a lazy conjugate or negative cannot be saved or loaded; resolve_conj() makes it plain")
    return Tensor(name, dtype, shape, regions)


def flatten(state):
    """(name -> value, name -> path) of a nested state, as dcp.save and dcp.load name them."""
    flat, paths = flatten_state_dict(state)
    if any(isinstance(value, ShardedTensor) for value in flat.values()):
        flat = _flatten_sharded_tensors(flat)
    return flat, paths


def split(flat):
    """(tensors, values): the Tensors, and name -> any other value, of a flat state."""
    tensors, values = [], {}
    for name, value in flat.items():
        if isinstance(value, (torch.Tensor, ShardedTensor, Pieces)):
            tensors.append(describe_tensor(name, value))
        else:
            values[name] = value
    return tensors, values


def _is_for_library(memory):
    """Whether the library copies from and to this device memory itself: with its plugin, for the current CUDA device."""
    return (memory.device.type == "cuda" and torch.version.cuda is not None and _library.find_plugin() is not None
            and memory.device.index == torch.cuda.current_device())


def _settle(devices):
    """Waits until copies that PyTorch has queued have ended."""
    for device in devices:
        if device.type == "cuda":
            torch.cuda.synchronize(device)


def reachable(tensors, is_load=False):
    """The tensors with memory that the library reaches. What it does not is replaced by memory of the host: a copy, which
    is pinned if the device is CUDA's, or in a load room for from_host to copy from."""
    devices = set()

    def region(source):
        memory = source.memory
        if memory.device.type == "cpu":
            return source
        if _is_for_library(memory):
            return Region(source.offsets, memory, source.splits, memory.device.index + 1,
                          torch.cuda.current_stream(memory.device).cuda_stream)
        is_cuda = memory.device.type == "cuda"
        room = torch.empty(memory.shape, dtype=memory.dtype, pin_memory=is_cuda)
        if not is_load:
            room.copy_(memory.detach(), non_blocking=is_cuda)
            devices.add(memory.device)
        return Region(source.offsets, room, source.splits)
    found = [Tensor(tensor.name, tensor.dtype, tensor.shape, [region(source) for source in tensor.regions]) for tensor in tensors]
    _settle(devices)
    return found


def from_host(tensors, loaded):
    """Copies what was loaded to the host's memory to the device memory of `tensors`."""
    devices = set()
    with torch.no_grad():
        for tensor, host in zip(tensors, loaded):
            for region, copy in zip(tensor.regions, host.regions):
                if copy.memory is not region.memory:
                    region.memory.copy_(copy.memory, non_blocking=region.memory.device.type == "cuda")
                    devices.add(region.memory.device)
    _settle(devices)


def to_bytes(name, value):
    """The bytes of a value that is no tensor, as dcp.save stores it."""
    buffer = io.BytesIO()
    try:
        torch.save(value, buffer)
    except Exception as error:
        raise ValueError(f"{name}: a {type(value).__name__} that cannot be pickled: {error}") from error
    return buffer.getvalue()


def from_bytes(stored):
    return torch.load(io.BytesIO(stored), weights_only=False)
