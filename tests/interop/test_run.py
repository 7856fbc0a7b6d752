"""The whole path: `ckptbench run` with MPI ranks saves and keeps, stock PyTorch loads, `verify` agrees."""
import os
import subprocess

from conftest import BUILD


def test_what_a_run_kept_is_loaded_by_stock_pytorch(tmp_path, load_with_torch, verify):
    store = tmp_path / "store"
    store.mkdir()
    words = f"model=gpt2-tiny ranks=2 tp=2 iterations=1 warmup=0 seed=3 keep=true suffix=kept store={store}"
    environment = dict(os.environ, CKPTBENCH_HOME=str(tmp_path / "home"))
    result = subprocess.run(
        [BUILD / "ckptbench", "run", *words.split()], env=environment, capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stdout + result.stderr
    (folder,) = [marker.parent for marker in store.rglob(".metadata")]
    assert verify(folder).returncode == 0
    load_with_torch([folder], 1, seed=3)
