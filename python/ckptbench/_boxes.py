"""Which boxes of a tensor a rank holds, computed from a mesh and placements without communication.

A box is (offsets, sizes, local offsets): a rectangle of the whole tensor, and where it begins in the local one. Most
placements give one box. Strided shards whose rows are apart give several, and a rank without rows has none."""
import functools
import itertools

try:
    from torch.distributed.tensor import DTensor, placement_types
except ImportError:  # PyTorch 2.4
    from torch.distributed._tensor import DTensor, placement_types

__all__ = ["DTensor", "boxes"]
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
