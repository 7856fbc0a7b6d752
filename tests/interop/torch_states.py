"""States for tests of the Python package: the same tensors in any of the layouts that PyTorch's parallelisms produce."""
import collections
import inspect
import io

import torch
import torch.distributed as dist
import torch.distributed.fsdp as fsdp
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed.device_mesh import init_device_mesh

try:
    from torch.distributed import tensor as dtensors
    DTensor = dtensors.DTensor
except AttributeError:  # PyTorch 2.4
    from torch.distributed import _tensor as dtensors
    DTensor = dtensors.DTensor
Replicate, Shard = dtensors.Replicate, dtensors.Shard
_StridedShard = getattr(dtensors.placement_types, "_StridedShard", None)



def splits_strided():
    """Whether this PyTorch makes strided shards of any tensor: 2.4 has none, and 2.6 only even ones."""
    try:
        return bool(_StridedShard(0, split_factor=2)._split_tensor(torch.zeros(5, 2), 2))
    except (AssertionError, TypeError):
        return False


LAYOUTS = ["replicated", "fsdp", "tp", "hybrid", "fsdp-tp", *(["strided", "runs"] if splits_strided() else [])]
if hasattr(torch.cpu.Stream, "record_event"):  # else FSDP2 needs CUDA: in 2.4 and 2.6
    KINDS, FULLY_SHARDED = ["ddp", "fsdp1", "fsdp2", "fsdp1-hybrid", "fsdp2-tp", "plain"], "fsdp2"
else:
    KINDS, FULLY_SHARDED = ["ddp", "fsdp1", "fsdp1-hybrid", "plain"], "fsdp1"
# get_optimizer_state_dict of 2.4 fails if one of the ranks has no part of any parameter of an FSDP1 module that another has.
NO_FSDP1_RANKS = 4 if torch.__version__.startswith("2.4.") else None
STAGED = sorted({"fsdp1", FULLY_SHARDED})  # whose states dcp.async_save copies: ShardedTensors, and DTensors where it can


def can_be_stored(dtype):
    """Whether this PyTorch itself can: 2.4 has unsigned integers, but knows no files with them."""
    try:
        torch.save(torch.zeros(1).to(dtype), io.BytesIO())
        return True
    except KeyError:
        return False


DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.int64,
          torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool,
          torch.complex64]
DTYPES = [dtype for dtype in DTYPES if can_be_stored(dtype)]
SHAPES = {"even": (8, 8), "prime": (13, 7), "few": (5, 3), "one": (1, 6), "cube": (6, 4, 5), "vector": (10,), "row": (3,),
          "conv": (4, 2, 3, 3, 2), "wide": (16, 4096), "none": (0, 4)}


def whole(name, shape, dtype):
    """The values of a tensor, which its name alone determines."""
    generator = torch.Generator().manual_seed(sum(ord(letter) * (index + 1) for index, letter in enumerate(name)))
    elements = torch.randint(0, 256, (*shape, torch.empty(0, dtype=dtype).element_size()), dtype=torch.uint8, generator=generator)
    if dtype == torch.bool:
        return elements[..., 0] % 2 == 1
    return elements.view(dtype).reshape(shape)


def tensors():
    """name -> the whole tensor."""
    made = {f"layers.{kind}": whole(kind, shape, torch.float32) for kind, shape in SHAPES.items()}
    made |= {f"types.{str(dtype)[6:]}": whole(str(dtype), (6, 4), dtype) for dtype in DTYPES}
    return made


def placements(layout, dims, mesh_dims):
    """The placements of a tensor of so many dimensions, and of which mesh ("line" or "grid")."""
    last = Shard(max(dims - 1, 0))
    if layout == "fsdp":
        return "line", [Shard(0)]
    if layout == "tp":
        return "line", [last]
    if layout == "hybrid":
        return "grid", [Replicate(), Shard(0)]
    if layout == "fsdp-tp":
        return "grid", [Shard(0), last] if dims > 1 else [Shard(0), Replicate()]
    if layout == "strided":
        return "grid", [_StridedShard(0, split_factor=mesh_dims[1]), Shard(0)]
    if layout == "runs":
        return "grid", [Shard(0), _StridedShard(0, split_factor=2)]
    raise ValueError(layout)


def distribute(value, mesh, places):
    """A DTensor of `value`, which every rank has whole."""
    if "src_data_rank" in inspect.signature(dtensors.distribute_tensor).parameters:
        return dtensors.distribute_tensor(value, mesh, places, src_data_rank=None)
    # In 2.4 and 2.6 rank 0 would send the parts, by gloo, which knows fewer types.
    local = value
    for place, size, index in zip(places, mesh.shape, mesh.get_coordinate()):
        if place.is_shard():
            chunks = local.chunk(size, place.dim)
            local = chunks[index] if index < len(chunks) else local.narrow(place.dim, local.size(place.dim), 0)
    return DTensor.from_local(local.clone(), mesh, places, run_check=False, shape=value.shape, stride=value.stride())


class Meshes:
    def __init__(self, ranks):
        self.grid_shape = (2, ranks // 2)
        self.line = init_device_mesh("cpu", (ranks,))
        self.grid = init_device_mesh("cpu", self.grid_shape, mesh_dim_names=("dp", "tp"))

    def place(self, layout, tensor):
        """The tensor in a layout; every second matrix transposed in memory."""
        if layout == "replicated":
            return tensor.clone()
        kind, places = placements(layout, tensor.dim(), self.grid_shape)
        return distribute(tensor, getattr(self, kind), places)


def state(meshes, layout, blank=False):
    """A nested state in a layout. `blank`: of the same types and shapes with other values, to be loaded into."""
    parts = {name: meshes.place(layout, value) for name, value in tensors().items()}
    nested = collections.OrderedDict(model={}, optimizer={"state": {}, "groups": [{"lr": 0.1, "betas": (0.9, 0.99)}, {"lr": 3}]})
    for number, (name, value) in enumerate(parts.items()):
        if number % 3 == 1 and layout == "replicated" and value.dim() == 2:
            value = value.t().contiguous().t()
        nested["model"][name] = value
    nested["optimizer"]["state"]["step"] = torch.tensor(7.5)
    nested["optimizer"]["list"] = [torch.arange(5), torch.arange(3).to(torch.float64)]
    nested["text"], nested["nothing"], nested["odd 'name'\n\u00e9"] = "words", None, {"inner \"q\"": (1, 2.5, True)}
    nested["numbers"], nested["sizes"] = [1, 2, 3], torch.Size((4, 5))
    return blanked(nested) if blank else nested


def zeros_like(tensor):
    return torch.zeros_like(tensor) if tensor.numel() else tensor.clone()  # PyTorch 2.4 cannot fill an empty fp8 tensor


def blanked(value):
    """The same structure with zeros, in the same memory layouts."""
    if isinstance(value, dict):
        return {key: blanked(inner) for key, inner in value.items()}
    if isinstance(value, list) and any(isinstance(inner, (torch.Tensor, dict)) for inner in value):
        return [blanked(inner) for inner in value]
    if isinstance(value, DTensor):
        local = value._local_tensor
        return DTensor.from_local(zeros_like(local), value.device_mesh, value.placements, run_check=False, shape=value.shape,
                                  stride=value.stride())
    if isinstance(value, torch.Tensor):
        return zeros_like(value)
    return "blank"


def leaves(value):
    """All tensors of a nested state."""
    if isinstance(value, torch.Tensor):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [leaf for part in inner for leaf in leaves(part)]


def raw(tensor):
    """The bytes of a tensor: one dimension more, which has the bytes of an element."""
    return tensor.detach().contiguous().unsqueeze(-1).view(torch.uint8)


def difference(expected, found, path="state"):
    """Where two states differ, as a text; None if they are equal bit for bit."""
    if isinstance(expected, dict):
        if not isinstance(found, dict) or sorted(map(str, expected)) != sorted(map(str, found)):
            return f"{path}: keys differ"
        return next(filter(None, (difference(value, found[key], f"{path}.{key}") for key, value in expected.items())), None)
    if isinstance(expected, list) and not isinstance(expected, torch.Size) and any(
            isinstance(inner, (torch.Tensor, dict)) for inner in expected):
        return next(filter(None, (difference(*pair, f"{path}.{index}") for index, pair in enumerate(zip(expected, found)))), None)
    if isinstance(expected, DTensor):
        expected, found = expected._local_tensor, found._local_tensor
    if isinstance(expected, ShardedTensor):
        mine, theirs = expected.local_shards(), found.local_shards()
        if len(mine) != len(theirs):
            return f"{path}: {len(mine)} shards, {len(theirs)}"
        return next(filter(None, (difference(one.tensor, other.tensor, path) for one, other in zip(mine, theirs))), None)
    if isinstance(expected, torch.Tensor):
        if expected.dtype != found.dtype or expected.shape != found.shape:
            return f"{path}: {expected.dtype} {tuple(expected.shape)}, {found.dtype} {tuple(found.shape)}"
        return None if torch.equal(raw(expected), raw(found)) else f"{path}: values differ"
    return None if expected == found else f"{path}: {expected!r}, {found!r}"


_left = []


def leave():
    """Ends the process group and keeps the object: in PyTorch 2.4 its destructor, with Python's lock, can wait for a thread
    that waits for the lock."""
    _left.append(dist.group.WORLD)
    dist.destroy_process_group()


def gather(value):
    """One object of every rank."""
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, value)
    return everyone
