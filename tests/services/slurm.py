"""A real Slurm cluster of four nodes on this machine: munged, slurmctld and slurmd n1 to n4, on free ports.

usage: tests/services/slurm.py start FOLDER | stop FOLDER
Started, it prints what to put into the environment. Everything it writes lies in FOLDER, but for munged's
socket, whose path must be short. The four nodes share one kernel, clock, page cache and file system: what
is node-local has the node's name in its path, and no skew between nodes can be seen here.

Partitions: train (the default), scavenge (its jobs are requeued for those of urgent) and urgent, all over
the same nodes; and sleepy, whose idle nodes would be powered down after 4 s if there were programs that do it.
"""
import contextlib
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import service_command  # noqa: E402
from ports import free_ports  # noqa: E402

VARIABLE = "CKPTBENCH_TEST_SLURM"
NODES = 4
PROGRAMS = ("munged", "munge", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "sinfo", "srun")
CONFIGURATION = """\
ClusterName=four
SlurmctldHost={host}
SlurmctldAddr=127.0.0.1
SlurmctldPort={controller_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={munge}/socket,cred_expire={cred_expire}
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
MpiDefault=none
SlurmdTimeout={slurmd_timeout}
KillWait=30
SchedulerParameters=bf_interval=5,batch_sched_delay=0
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdSpoolDir={folder}/spool/%n
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdLogFile={folder}/slurmd-%n.log
TmpFS={folder}/tmp/%n
{nodes}
PartitionName=train Nodes=n[1-4] Default=YES MaxTime=INFINITE State=UP PreemptMode=OFF
PartitionName=scavenge Nodes=n[1-4] MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=urgent Nodes=n[1-4] MaxTime=INFINITE State=UP PriorityTier=10
PartitionName=sleepy Nodes=n[1-4] MaxTime=INFINITE State=UP PreemptMode=OFF SuspendTime=4
"""

# Nodes that are off until a job needs them, and are switched off again SuspendTime after the last one.
POWER_SAVING = """\
PrivateData=cloud
SuspendTime={suspend_time}
SuspendTimeout=2
ResumeTimeout={resume_timeout}
ResumeRate=0
SuspendRate=0
SuspendProgram={folder}/suspend
ResumeProgram={folder}/resume
"""
# Programs that slurmctld starts inherit a blocked SIGTERM: nothing but SIGKILL ends what they started. They have no
# standard streams, either: a slurmd that inherited that would have its pipes there, and could start no job.
RESUME = """\
#!/bin/sh
export SLURM_CONF={folder}/slurm.conf
exec </dev/null >/dev/null 2>&1
for node in $({scontrol} show hostnames "$1"); do sleep {boot_s}; {slurmd} -N "$node" -b -f "$SLURM_CONF"; done
"""
SUSPEND = """\
#!/bin/sh
export SLURM_CONF={folder}/slurm.conf
for node in $({scontrol} show hostnames "$1"); do kill -9 "$(cat "{folder}/slurmd-$node.pid")"; rm -f "{folder}/slurmd-$node.pid"; done
"""


class Missing(Exception):
    """What this machine lacks for a cluster."""


def find(program):
    path = shutil.which(program) or shutil.which(program, path="/usr/sbin:/sbin")
    if not path:
        raise Missing(f"{program} is not installed (Debian: slurmctld slurmd slurm-client munge)")
    return path


def call(*words, **options):
    return subprocess.run(words, capture_output=True, text=True, timeout=120, **options)


def start_munged(folder):
    """Its own key and socket: the machine's munged, if there is one, is left alone."""
    short = Path(tempfile.mkdtemp(prefix="cb-munge-", dir="/tmp"))
    short.chmod(0o755)
    (folder / "munge").write_text(str(short))
    key = short / "key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    result = call(find("munged"), "--force", f"--socket={short}/socket", f"--key-file={key}", f"--pid-file={short}/pid",
                  f"--log-file={short}/log", f"--seed-file={short}/seed", "--num-threads=2")
    if result.returncode:
        raise RuntimeError(f"munged: {result.stderr}")
    return short


def start_controller(folder):
    """slurmctld, also once more after stop_controller; returns when it answers."""
    result = call(find("slurmctld"), "-f", str(folder / "slurm.conf"), env=clean_environment(folder))
    if result.returncode:
        raise RuntimeError(f"slurmctld: {result.stdout}{result.stderr}")
    deadline = time.monotonic() + 120
    while " is UP" not in call(find("scontrol"), "ping", env=clean_environment(folder)).stdout:
        if time.monotonic() > deadline:
            raise RuntimeError("slurmctld was started and does not answer")
        time.sleep(0.1)


def apart_words(folder, name):
    """In front of slurmd: a view of its own, in which the hidden folders are empty and the local one is the node's alone."""
    if not (folder / "apart.json").exists():
        return []
    apart = json.loads((folder / "apart.json").read_text())
    own = folder / "locals" / name
    own.mkdir(parents=True, exist_ok=True)
    script = 'local=$1 own=$2; shift 2; mount --bind "$own" "$local"; while [ "$1" != -- ]; do mount -t tmpfs none "$1"; shift; done; shift; exec "$@"'
    return ["unshare", "--mount", "sh", "-ec", script, "sh", apart["local"], str(own), *apart["hidden"], "--"]


def start_node(folder, name):
    result = call(*apart_words(folder, name), find("slurmd"), "-N", name, "-f", str(folder / "slurm.conf"), env=clean_environment(folder))
    if result.returncode:
        raise RuntimeError(f"slurmd {name}: {result.stdout}{result.stderr}")


def clean_environment(folder):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_", "MUNGE"))}
    return dict(kept, SLURM_CONF=str(folder / "slurm.conf"))


def idle_nodes(folder):
    out = call("sinfo", "-h", "-p", "train", "-t", "idle", "-o", "%D", env=clean_environment(folder)).stdout
    return sum(int(line) for line in out.split() if line.isdigit())


def write_power_programs(folder, boot_s):
    for name, text in (("resume", RESUME), ("suspend", SUSPEND)):
        program = folder / name
        program.write_text(text.format(folder=folder, scontrol=find("scontrol"), slurmd=find("slurmd"), boot_s=boot_s))
        program.chmod(0o755)


def start(folder, slurmd_timeout=20, power_saving=None, hidden=None, prolog=None, before_controller=None):
    """With power_saving={"boot_s": …, "suspend_time": …, "resume_timeout": …} the nodes are off at first. With hidden=[FOLDER…]
    nodes find nothing in those, and each has FOLDER/local for itself (locals/NAME from outside); needs root.
    slurmd runs the program prolog before the first process of a job on its node. before_controller(FOLDER, MUNGE) may
    change what is configured by then; munged's socket is in MUNGE."""
    folder = Path(folder).resolve()
    if hidden is not None:
        (folder / "local").mkdir()
        (folder / "apart.json").write_text(json.dumps({"local": str(folder / "local"), "hidden": [str(path) for path in hidden]}))
    for program in PROGRAMS:
        find(program)
    names = [f"n{number}" for number in range(1, NODES + 1)]
    for name in names:
        for place in ("spool", "tmp"):
            (folder / place / name).mkdir(parents=True, exist_ok=True)
    (folder / "state").mkdir(exist_ok=True)
    munge = start_munged(folder)
    controller_port, *ports = free_ports(1 + NODES)
    nodes = "\n".join(f"NodeName={name} NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 Port={port} CPUs=2 State={'CLOUD' if power_saving else 'UNKNOWN'}"
                      for name, port in zip(names, ports))
    text = CONFIGURATION if not power_saving else "".join(line for line in CONFIGURATION.splitlines(True) if "=sleepy " not in line)
    (folder / "slurm.conf").write_text(text.format(
        host=socket.gethostname(), controller_port=controller_port, user=pwd.getpwuid(os.geteuid()).pw_name, munge=munge, folder=folder,
        nodes=nodes, slurmd_timeout=slurmd_timeout,
        cred_expire=power_saving.get("cred_expire", 120) if power_saving else 5))  # also how long a requeued job waits; a boot may not outlast it
    if prolog:
        with open(folder / "slurm.conf", "a") as file:
            file.write(f"Prolog={prolog}\n")
    if before_controller:
        before_controller(folder, munge)
    if power_saving:
        write_power_programs(folder, power_saving["boot_s"])
        with open(folder / "slurm.conf", "a") as file:
            file.write(POWER_SAVING.format(folder=folder, **power_saving))
        start_controller(folder)
        return {VARIABLE: str(folder / "slurm.conf")}
    start_controller(folder)
    for name in names:
        start_node(folder, name)
    deadline = time.monotonic() + 120
    while idle_nodes(folder) < NODES:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the nodes did not come up: see {folder}/slurmctld.log and {folder}/slurmd-*.log")
        time.sleep(0.05)
    return {VARIABLE: str(folder / "slurm.conf")}


def process_of(pid_file, program):
    """The process that a pid file names, if it is still that program, and not what is left of it."""
    try:
        pid = int(pid_file.read_text())
        name, _, state = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
        return pid if program in name and not state.startswith(" Z") else None
    except (OSError, ValueError):
        return None


def end_process(pid_file, program, number=signal.SIGTERM, patience_s=5):
    pid = process_of(pid_file, program)
    if not pid:
        return
    os.kill(pid, number)
    deadline = time.monotonic() + patience_s
    while process_of(pid_file, program) == pid and Path(f"/proc/{pid}").exists():
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            break
        time.sleep(0.02)


def stop_controller(folder, number=signal.SIGTERM):
    end_process(Path(folder) / "slurmctld.pid", "slurmctld", number)


def running_nodes(folder):
    return sum(process_of(path, "slurmd") is not None for path in Path(folder).glob("slurmd-*.pid"))


def restart_controller(folder):
    """After stop_controller: returns when every node that runs has reported again, and can be asked for."""
    start_controller(folder)
    running = running_nodes(folder)
    deadline = time.monotonic() + 120
    while True:
        asked = call(find("sbatch"), "--test-only", "-N", str(running), "--exclusive", "--wrap=true", env=clean_environment(folder))
        if asked.returncode == 0:
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"the nodes did not come back: {asked.stderr}")
        time.sleep(0.1)


def forget_jobs(folder):
    """A controller that has lost its state knows no job, and gives their numbers once more. Nodes have reported again."""
    folder = Path(folder)
    stop_controller(folder)
    shutil.rmtree(folder / "state")
    (folder / "state").mkdir()
    start_controller(folder)
    deadline = time.monotonic() + 120
    while call("sinfo", "-h", "-r", "-p", "train", "-t", "idle", "-o", "%D", env=clean_environment(folder)).stdout.strip() != str(running_nodes(folder)):
        if time.monotonic() > deadline:
            raise RuntimeError("the nodes did not come back")
        time.sleep(0.1)


def stop_node(folder, name, number=signal.SIGTERM):
    end_process(Path(folder) / f"slurmd-{name}.pid", "slurmd", number)


def end_steps(folder, node=None):
    """What jobs run: slurmstepd and all below it, known by the configuration they were given; of one node or of all."""
    wanted = f"SLURM_CONF={folder}/slurm.conf".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            variables = (entry / "environ").read_bytes().split(b"\0")
            in_job = any(variable.startswith(b"SLURM_JOB_ID=") for variable in variables)
            here = node is None or f"SLURMD_NODENAME={node}".encode() in variables
            if wanted in variables and here and (in_job or "slurmstepd" in (entry / "comm").read_text()):
                os.kill(int(entry.name), signal.SIGKILL)


def stop(folder):
    folder = Path(folder).resolve()
    if (folder / "slurm.conf").exists():
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            call("scancel", "-u", pwd.getpwuid(os.geteuid()).pw_name, env=clean_environment(folder))
    stop_controller(folder)
    for pid_file in folder.glob("slurmd-*.pid"):
        end_process(pid_file, "slurmd")
    end_steps(folder)
    if (folder / "munge").exists():
        short = Path((folder / "munge").read_text())
        end_process(short / "pid", "munged")
        shutil.rmtree(short, ignore_errors=True)


if __name__ == "__main__":
    service_command.main(sys.modules[__name__], lambda values: {"SLURM_CONF": values[VARIABLE]})
