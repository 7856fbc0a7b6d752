"""Which boxes of a tensor a rank holds, computed from a mesh and placements without communication.

A box is (offsets, sizes, local offsets): a rectangle of the whole tensor, and where it begins in the local one. Most
placements give one box. Strided shards whose rows are apart give several, and a rank without rows has none."""
import functools
import itertools
import math
import weakref

try:
    from torch.distributed.tensor import DTensor, placement_types
except ImportError:  # PyTorch 2.4
    from torch.distributed._tensor import DTensor, placement_types

__all__ = ["DTensor", "Split", "boxes", "placed"]
Replicate, Shard = placement_types.Replicate, placement_types.Shard
_StridedShard = getattr(placement_types, "_StridedShard", ())  # an older PyTorch has no such shards


def _chunk(ranges, pieces, index):
    """The part number `index` of `pieces` of the rows in `ranges`, as torch.chunk splits them."""
    length = sum(stop - start for start, stop in ranges)
    step = -(-length // pieces)
    first, last = min(index * step, length), min((index + 1) * step, length)
    part, position = [], 0
    for start, stop in ranges:
        begin, end = max(first - position, 0), min(last - position, stop - start)
        if begin < end:
            part.append((start + begin, start + end))
        position += stop - start
    return part


def _split(ranges, placement, pieces, index):
    if isinstance(placement, _StridedShard):
        factor = placement.split_factor
        parts = (_chunk(_chunk(ranges, factor, number), pieces, index) for number in range(factor))
        return [rows for part in parts for rows in part]
    return _chunk(ranges, pieces, index)


def _join(ranges):
    """Merges ranges that follow each other; returns (start, length, local start) of each."""
    runs, local = [], 0
    for start, stop in ranges:
        if runs and runs[-1][0] + runs[-1][1] == start:
            runs[-1][1] += stop - start
        else:
            runs.append([start, stop - start, local])
        local += stop - start
    return [tuple(run) for run in runs]


@functools.lru_cache(maxsize=65536)
def boxes(shape, mesh_shape, coordinate, placements):
    """The boxes of the rank at `coordinate` of a mesh. ValueError for placements that no checkpoint can store."""
    ranges = [[(0, size)] for size in shape]
    for placement, pieces, index in zip(placements, mesh_shape, coordinate):
        if isinstance(placement, (Shard, _StridedShard)):
            ranges[placement.dim] = _split(ranges[placement.dim], placement, pieces, index)
        elif not isinstance(placement, Replicate):
            raise ValueError(f"a tensor placed as {placement} is not reduced yet and cannot be saved or loaded")
    runs = [_join(rows) for rows in ranges]
    return tuple(tuple(zip(*box)) if box else ((), (), ()) for box in itertools.product(*runs))


class Split:
    """How all ranks of a mesh divide a dimension: in `pieces` steps as torch.chunk does; `index` says which each rank holds."""

    __slots__ = ("pieces", "index")

    def __init__(self, pieces, index):
        self.pieces, self.index = pieces, index

    def part(self, size, rank):
        """(offset, size) of a rank's step."""
        step = -(-size // self.pieces)
        start = min(self.index[rank] * step, size)
        return start, min(step, size - start)


class _Mesh:
    """What is needed of a DeviceMesh, which this does not keep alive."""

    def __init__(self, mesh):
        self.shape = tuple(mesh.shape)
        self.rank_of = dict(zip(itertools.product(*map(range, self.shape)), mesh.mesh.flatten().tolist()))


_meshes = weakref.WeakKeyDictionary()


@functools.lru_cache(maxsize=4096)
def _split_of(mesh, placements, dim, dims):
    """The Split of a dimension; None if the part of some rank is not one step."""
    shares = [isinstance(placement, (Shard, _StridedShard)) and placement.dim % dims == dim for placement in placements]
    pieces = math.prod(size for size, share in zip(mesh.shape, shares) if share)
    steps = tuple(pieces if number == dim else 1 for number in range(dims))
    own = tuple(placement if share else Replicate() for placement, share in zip(placements, shares))
    index = {}
    for coordinate, rank in mesh.rank_of.items():
        held = boxes(steps, mesh.shape, coordinate, own)
        if len(held) != 1 or held[0][1][dim] != 1:
            return None
        index[rank] = held[0][0][dim]
    return Split(pieces, index)


@functools.lru_cache(maxsize=65536)
def _placed(mesh, coordinate, placements, shape):
    held, dims, splits = boxes(shape, mesh.shape, coordinate, placements), len(shape), [None] * len(shape)
    rank = mesh.rank_of[coordinate]
    for dim in {placement.dim % dims for placement in placements if not isinstance(placement, Replicate)}:
        splits[dim] = _split_of(mesh, placements, dim, dims)
        if splits[dim] is None:
            return held, None
    parts = [split.part(size, rank) if split else (0, size) for split, size in zip(splits, shape)]
    # Steps of steps are steps only if nothing is left over. Each rank looks at its own: splits that tell what all hold are used
    # if all ranks have them.
    is_so = [part[:2] for part in held] == [tuple(zip(*parts))] if held else any(size == 0 for _, size in parts)
    return held, tuple(splits) if is_so else None


def placed(mesh, placements, shape):
    """(boxes, splits) of this rank's part of a tensor; splits: for each dimension the Split that tells what all ranks of the
    mesh hold, or None where each has it whole; None for all if splits cannot tell. ValueError as boxes()."""
    known = _meshes.get(mesh)
    if known is None:
        known = _meshes[mesh] = _Mesh(mesh)
    return _placed(known, tuple(mesh.get_coordinate()), tuple(placements), tuple(shape))
