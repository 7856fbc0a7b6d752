"""What the Python package says a rank holds, against PyTorch's own planner and against the elements themselves."""
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from conftest import BUILD, call
from torch_states import LAYOUTS

LIBRARY = {"CKPTBENCH_LIBRARY": str(BUILD / "libckptbench.so")}


@pytest.fixture(scope="module")
def found():
    def of(ranks, known={}):
        if ranks not in known:
            known[ranks] = None  # ranks that fail or hang do so once
            result = call(sys.executable, Path(__file__).with_name("torch_plan_ranks.py"), ranks, timeout=280, **LIBRARY)
            assert result.returncode == 0, result.stderr
            known[ranks] = json.loads(result.stdout)
        assert known[ranks], f"{ranks} ranks failed in an earlier test"
        return known[ranks]
    return of


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("ranks", [2, 4])
def test_regions_are_those_of_pytorchs_planner_and_make_up_every_tensor(found, ranks, layout):
    assert found(ranks)[layout] == "ok"


def test_the_library_is_told_of_cuda_tensors_their_device_and_stream_and_others_are_copied(tmp_path):
    """Without a GPU: stand-ins for two CUDA tensors, of which one is on the current device, and a plugin that is a file."""
    (tmp_path / "plugin.so").touch()
    program = textwrap.dedent("""
        import ctypes, sys, types, torch
        sys.path.insert(0, sys.argv[1])
        from ckptbench import _library, _state
        class OnDevice:
            layout, is_quantized, is_meta, dtype, shape = torch.strided, False, False, torch.float32, (4,)
            def __init__(self, index): self.device = torch.device("cuda", index)
            def data_ptr(self): return 4096
            def stride(self): return (1,)
            def detach(self): return torch.arange(4.0)
        torch.version.cuda = "13.0"
        torch.cuda.current_device = lambda: 1
        torch.cuda.current_stream = lambda device: types.SimpleNamespace(cuda_stream=77)
        waited, empty = [], torch.empty
        torch.cuda.synchronize = waited.append
        torch.empty = lambda shape, dtype, pin_memory: empty(shape, dtype=dtype)
        here, there, host = OnDevice(1), OnDevice(0), torch.ones(4)
        tensors = [_state.Tensor(f"t{number}", torch.float32, (4,), [_state.Region((0,), memory)]) for number, memory in enumerate((here, there, host))]
        reached = _state.reachable(tensors)
        (first,), (second,), (third,) = (tensor.regions for tensor in reached)
        assert first.memory is here and third.memory is host and second.memory.tolist() == [0, 1, 2, 3] and waited == [there.device]
        state = _library.State(reached, {}, {})
        rows = state.kept[1][1]
        width = len(rows) // 3
        print([tuple(rows[start + width - 10 : start + width - 8]) for start in range(0, len(rows), width)])  # before the splits
        """)
    result = subprocess.run([sys.executable, "-c", program, str(Path(__file__).resolve().parents[2] / "python")], capture_output=True, text=True,
                            timeout=120, env={**os.environ, **LIBRARY, "CKPTBENCH_CUDA_PLUGIN": str(tmp_path / "plugin.so")})
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "[(2, 77), (0, 0), (0, 0)]"


def test_splits_are_what_the_boxes_are_or_are_left_out():
    """For every rank of meshes whose dimensions shard one dimension in turn, evenly or not, and strided in ways that no
    parallelism makes. Even ones have splits on all ranks."""
    program = textwrap.dedent("""
        import itertools, sys, torch
        sys.path.insert(0, sys.argv[1])
        from ckptbench import _boxes
        class Mesh:
            def __init__(self, shape):
                self.shape, self.mesh = shape, torch.arange(shape[0] * shape[1]).flip(0).reshape(shape)
            def get_coordinate(self): return list(self.at)
        strided = [_boxes._StridedShard(0, split_factor=factor) for factor in (2, 3)] if _boxes._StridedShard else []
        kinds, told = [_boxes.Replicate(), _boxes.Shard(0), _boxes.Shard(-1), *strided], set()
        for mesh, places, size in itertools.product([Mesh((2, 2)), Mesh((1, 3)), Mesh((3, 2))], itertools.product(kinds, repeat=2), range(13)):
            has_all = True
            for mesh.at in itertools.product(*map(range, mesh.shape)):
                held, splits = _boxes.placed(mesh, places, (size, 5))
                if splits is None:
                    has_all = False
                    continue
                parts = [split.part(whole, int(mesh.mesh[tuple(mesh.at)])) if split else (0, whole) for split, whole in zip(splits, (size, 5))]
                assert [box[:2] for box in held] == [tuple(zip(*parts))] or (not held and 0 in [length for _, length in parts]), (mesh.shape, places, size)
            if has_all:
                told.add((mesh.shape, places, size))
        for mesh, size in (((2, 2), 8), ((1, 3), 7), ((3, 2), 12)):
            assert all((mesh, places, size) in told for places in itertools.product(kinds[:2], repeat=2)), mesh
        """)
    result = subprocess.run([sys.executable, "-c", program, str(Path(__file__).resolve().parents[2] / "python")], capture_output=True, text=True,
                            timeout=120, env={**os.environ, **LIBRARY})
    assert result.returncode == 0, result.stderr
