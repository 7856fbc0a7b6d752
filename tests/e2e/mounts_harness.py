"""A store in folders of two mounts, and runs in it."""
import os
import subprocess

from harness import BUILD


class Mounts:
    def __init__(self, folder, a=None, b=None):
        self.folder = folder
        self.a, self.b = a or folder / "a", b or folder / "b"
        self.store = f"{a}+{b}" if a else "./a+./b"
        self.environment = dict(os.environ, CKPTBENCH_HOME=str(folder / "home"))

    def call(self, *words, code=0):
        result = subprocess.run([BUILD / "ckptbench", *map(str, words)], cwd=self.folder, env=self.environment, capture_output=True,
                                text=True, timeout=120)
        assert code is None or result.returncode == code, result.stdout + result.stderr
        return result

    def run(self, *words, store=None, code=0):
        return self.call("run", "model=gpt2-tiny", "ranks=2", f"store={store or self.store}", "baseline=false", "iterations=1", "warmup=0",
                         "verify=full", *words, "--json", code=code)

    def files(self, *where):
        return {root.name: sorted(str(path.relative_to(root)) for path in root.glob("*/**/*") if path.is_file()) for root in where}
