"""libckptbench as a program uses it: installed, linked by the example and by nothing else of ours; its checkpoints and
PyTorch's load each other's way."""
import os
import re
import subprocess
from types import SimpleNamespace

import pytest

from harness import BUILD, ROOT, is_mpich, mpirun
from s3_harness import server  # noqa: F401

# The example would need the sanitizers' own libraries before it; tests/unit/test_library.c runs the same under them.
pytestmark = [pytest.mark.without_sanitizers, pytest.mark.xdist_group("library")]

def run(*words, code=0, **more):
    result = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL, **more)
    assert result.returncode == code, f"{words}: {result.returncode}\n{result.stdout}\n{result.stderr}"
    return result


@pytest.fixture(scope="module")
def torch_checkpoint():
    """Saves or loads what the example does, by PyTorch alone."""
    torch = pytest.importorskip("torch", reason="missing: PyTorch (make test installs it)")
    import torch.distributed.checkpoint as dcp
    state = {
        "model.weight": torch.arange(96000, dtype=torch.float32).reshape(1000, 96),
        "model.bias": torch.arange(96, dtype=torch.float32),
        "step": torch.tensor(100),
    }

    def save(path):
        dcp.save(state, checkpoint_id=path, no_dist=True)

    def load(path):
        found = {name: torch.full_like(tensor, 7) for name, tensor in state.items()}
        dcp.load(found, checkpoint_id=path, no_dist=True)
        assert all(torch.equal(found[name], state[name]) for name in state)

    return SimpleNamespace(save=save, load=load)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    prefix = tmp_path_factory.mktemp("installed")
    run("make", "-s", "-C", ROOT, "install-library", f"BUILD={BUILD}", f"PREFIX={prefix}", "DESTDIR=")
    return prefix


def compile_example(installed, name, compiler):
    environment = {**os.environ, "PKG_CONFIG_PATH": str(installed / "lib/pkgconfig")}
    words = run("pkg-config", "--cflags", "--libs", "ckptbench", env=environment).stdout.split()
    program = installed / name
    run(compiler, "-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", ROOT / f"examples/{name}.c", *words,
        f"-Wl,-rpath,{installed}/lib", "-o", program)
    return program


@pytest.fixture(scope="module")
def example(installed):
    return compile_example(installed, "ckptbench_example", "gcc")


def test_the_library_exports_only_its_own_versioned_functions(installed):
    header = (installed / "include/ckptbench.h").read_text()
    declared = set(re.findall(r"^CKPTBENCH_API [^;]*?\b(ckptbench_\w+)\(", header, re.M))
    listed = run("nm", "-D", "--defined-only", installed / "lib/libckptbench.so").stdout
    exported = set(re.findall(r"T (\w+)@@CKPTBENCH_1$", listed, re.M))
    assert exported == declared and len(declared) > 15
    assert set(re.findall(r" (\w) \S", listed)) <= {"T", "A"}
    assert "libmpi" not in run("ldd", installed / "lib/libckptbench.so").stdout


# Functions that end a process or change what its signals do; and why the library imports some of them all the same.
ENDS_OR_HANDLES = {"exit", "_exit", "_Exit", "quick_exit", "abort", "raise", "kill", "tgkill", "pthread_kill", "sigqueue", "err", "errx", "error", "alarm",
                   "setitimer", "signal", "bsd_signal", "sysv_signal", "__sysv_signal", "sigaction", "sigset", "signalfd", "atexit", "on_exit", "__assert_fail"}
REASONS = {
    "_exit": "core/child.c, in a child that was forked and cannot be executed",
    "signal": "core/child.c, in such a child; core/process.c, in process_begin, which programs call and the library does not",
    "kill": "core/child.c ends a child; core/process.c sends signal 0 to see whether a process exists; a store fault:powercut_at=… kills, as it is asked to",
    "abort": "store/fault/power_cut.c, of a store fault:powercut_at=… that cannot follow the disk",
    "__assert_fail": "a bug of the library",
}


def test_the_library_imports_nothing_that_ends_the_process_or_handles_signals(installed):
    listed = run("nm", "-D", "--undefined-only", installed / "lib/libckptbench.so").stdout
    imported = set(re.findall(r" U (\w+)", listed))
    assert imported & ENDS_OR_HANDLES == REASONS.keys() and "pthread_create" in imported


def test_the_header_is_valid_in_cpp(installed):
    run("clang", "-std=c++11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-x", "c++", installed / "include/ckptbench.h")


@pytest.mark.parametrize("ranks", [2, 4])
def test_what_the_example_saves_it_loads_on_other_ranks_and_pytorch_loads(example, torch_checkpoint, ranks, tmp_path):
    step = tmp_path / "new/step-100"
    saved = run(example, "save", step, ranks)
    assert saved.stderr == "" and re.fullmatch(rf"(saved \d+ bytes in [^\n]*\n){{{ranks}}}", saved.stdout)  # the example's own lines
    assert len(list(step.glob("*.distcp"))) == ranks
    for readers in (1, ranks + 1):
        assert run(example, "load", step, readers).stderr == ""
    torch_checkpoint.load(step)


def test_messages_of_the_program_over_mpi_carry_saves_and_loads(installed, tmp_path):
    program = compile_example(installed, "ckptbench_mpi_example", "mpicc.mpich" if is_mpich() else "mpicc")
    for ranks in (1, 3):
        said = run(*mpirun(), "-n", ranks, program, tmp_path / f"step-{ranks}").stdout
        lines = sorted(line for line in said.splitlines() if line.startswith("rank "))
        assert lines == [f"rank {rank} of {ranks}: saved and loaded" for rank in range(ranks)]
        assert len(list((tmp_path / f"step-{ranks}").glob("*.distcp"))) == ranks


def test_the_example_loads_what_pytorch_saved(example, torch_checkpoint, tmp_path):
    torch_checkpoint.save(tmp_path / "step")
    for readers in (1, 2, 4):
        run(example, "load", tmp_path / "step", readers)


def test_a_second_save_to_the_same_path_fails_on_every_rank_with_the_reason(example, tmp_path):
    run(example, "save", tmp_path / "step", 2)
    first = (tmp_path / "step/.metadata").read_bytes()
    said = run(example, "save", tmp_path / "step", 2, code=1).stderr
    assert sorted(line.split(":")[0] for line in said.splitlines()) == ["rank 0", "rank 1"]
    assert "holds a complete checkpoint" in said and "rank 0 failed (exists)" in said
    assert (tmp_path / "step/.metadata").read_bytes() == first


def test_a_bucket_is_a_place_for_checkpoints(example, server):  # noqa: F811
    environment = {**os.environ, **server.environment(), "AWS_ENDPOINT_URL": server.endpoint}
    step = f"s3://{server.bucket}/run/step-100"
    run(example, "save", step, 2, env=environment)
    assert sorted(server.client.keys(server.bucket, "run/")) == [f"run/step-100/{name}" for name in (".metadata", "__0_0.distcp", "__1_0.distcp")]
    run(example, "load", step, 3, env=environment)
    assert "holds a complete checkpoint" in run(example, "save", step, 2, code=1, env=environment).stderr
    run(example, "save", f"s3://{server.bucket}", 1, code=1, env=environment)


def test_a_save_in_the_place_of_a_program_that_died_ends_its_uploads(example, server, tmp_path):  # noqa: F811
    sealed = tmp_path / "attempts/1/manifest.json"
    sealed.parent.mkdir(parents=True)
    sealed.touch()
    server.client.put(server.bucket, "died/.ckptbench-saving-step/.ckptbench-run", f"other\ntemporary\ntoken=0\nattempt=1\nrun_folder={tmp_path}\n".encode())
    others = ["step-1/__0_0.distcp", "step/__0_0.bin", "step/optim/.metadata", "step/optim/__0_0.distcp"]  # of other programs
    for name in ("step/.metadata", "step/__0_0.distcp", "step/copy-1/d00001/__0_0.distcp", *others):
        server.client.begin_upload(server.bucket, f"died/{name}")
    run(example, "save", f"s3://{server.bucket}/died/step", 1, env={**os.environ, **server.environment(), "AWS_ENDPOINT_URL": server.endpoint})
    assert [key for key, _ in server.client.uploads(server.bucket, "died/")] == [f"died/{name}" for name in others]


def test_a_store_with_faults_and_one_that_keeps_nothing_are_places_too(example, tmp_path):
    run(example, "save", f"fault:delay=1ms:{tmp_path}/step", 2)
    run(example, "load", tmp_path / "step", 2)
    run(example, "save", "null:", 2)
    assert "no space" in run(example, "save", f"fault:enospc_after=1KiB:{tmp_path}/full", 2, code=1).stderr.lower()
    assert not (tmp_path / "full/.metadata").exists()
