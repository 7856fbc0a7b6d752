"""Keeps our variables out of the environment of programs that are not Python and start none.

A program that a Python process starts loses them if it is a binary other than Python, a shell or a launcher."""
import functools
import os
import shutil
import subprocess

from .recorder import watch

LAUNCHERS = {"sh", "bash", "dash", "zsh", "ksh", "env", "nice", "ionice", "nohup", "numactl", "setsid", "stdbuf", "sudo", "taskset", "time",
             "timeout", "mpiexec", "mpirun", "orted", "orterun", "srun", "ssh", "apptainer", "singularity", "enroot", "docker", "podman"}


def may_start_python(program, path):
    found = shutil.which(program, path=path)
    if found is None:
        return True  # it fails, or is found in a way that is not ours to know
    name = os.path.basename(found)
    if name in LAUNCHERS or name.startswith("python"):
        return True
    with open(os.path.realpath(found), "rb") as file:
        return file.read(4) != b"\x7fELF"


def without_ours(variables):
    kept = {name: value for name, value in variables.items() if not name.startswith("CKPTBENCH_WATCH")}
    ours = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    folders = [folder for folder in kept.get("PYTHONPATH", "").split(os.pathsep) if folder and not folder.startswith(ours)]
    kept.pop("PYTHONPATH", None)
    return {**kept, "PYTHONPATH": os.pathsep.join(folders)} if folders else kept


def install():
    original = subprocess.Popen.__init__

    @functools.wraps(original)
    def hooked(self, args, bufsize=-1, executable=None, *rest, **keywords):
        try:
            if watch.broken is None and not keywords.get("shell") and len(rest) < 6:  # of which the sixth would be shell
                program = executable or (args if isinstance(args, (str, bytes, os.PathLike)) else args[0])
                variables = os.environ if keywords.get("env") is None else keywords["env"]  # {} is an environment
                if not may_start_python(os.fsdecode(program), variables.get("PATH")):
                    keywords["env"] = without_ours(variables)
        except (OSError, TypeError, LookupError):
            pass  # a program that cannot be read, or words that cannot be indexed: it gets our variables
        except Exception as failure:
            watch.fail("Popen", failure)
        original(self, args, bufsize, executable, *rest, **keywords)

    subprocess.Popen.__init__ = hooked
