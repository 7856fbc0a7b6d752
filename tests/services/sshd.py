"""A real sshd on 127.0.0.1 with keys of its own, for whoever runs it.

usage: tests/services/sshd.py start FOLDER | stop FOLDER
CKPTBENCH_TEST_SSHD is the folder. In it: port, id_ed25519 (the user's key), known_hosts, config (for ssh -F, with the
names node-a to node-d for this machine), bin/ssh (ssh with that config: put bin first in PATH). For what else can happen
to a login: id_ecdsa and id_rsa, which may log in, too; id_locked, which may, but has the passphrase "open"; id_stranger,
which may not; id_noisy, whose home is home/, where .bashrc and .profile print and set PATH; id_slurm, whose environment has
variables of Slurm; id_closed, which runs nothing; id_slow, whose shell takes 3 s to come to its line (slow-done is then
there). Host keys of three kinds.
"""
import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import service_command  # noqa: E402
from ports import free_ports  # noqa: E402

VARIABLE = "CKPTBENCH_TEST_SSHD"
NAMES = ("node-a", "node-b", "node-c", "node-d")
SERVER = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_ed25519
HostKey {folder}/host_ecdsa
HostKey {folder}/host_rsa
Banner {folder}/banner
PermitUserEnvironment HOME,SLURM_*,SBATCH_*
AcceptEnv CKPTBENCH_CUDA_PLUGIN CUDA_ON_CPU_*
PidFile {folder}/sshd.pid
AuthorizedKeysFile {folder}/authorized_keys
StrictModes no
UsePAM no
PermitRootLogin yes
PasswordAuthentication no
KbdInteractiveAuthentication no
AllowTcpForwarding yes
MaxStartups 200
PrintMotd no
Subsystem sftp internal-sftp
{environment}
"""
CLIENT = """\
Host {names}
    HostName 127.0.0.1
    Port {port}
    HostKeyAlias ckptbench-test
    User {user}
    IdentityFile {folder}/id_ed25519
    IdentitiesOnly yes
    UserKnownHostsFile {folder}/known_hosts
    GlobalKnownHostsFile /dev/null
    StrictHostKeyChecking yes
Host *
    UserKnownHostsFile {folder}/known_hosts
    GlobalKnownHostsFile /dev/null
    IdentityFile {folder}/id_ed25519
    IdentitiesOnly yes
"""


class Missing(Exception):
    """What this machine lacks for an sshd."""


def find(program):
    path = shutil.which(program) or shutil.which(program, path="/usr/sbin:/sbin")
    if not path:
        raise Missing(f"{program} is not installed (Debian: openssh-server openssh-client)")
    return path


NOISY_RC = """\
echo 'Welcome to the cluster!'; echo 'mesg: no tty' >&2
printf 'no line feed'
"""
NOISY_PROFILE = """\
. ~/.bashrc
echo 'Your quota is 97 % full.'
PATH="$HOME/login-bin:$PATH"
"""


def make_key(path, kind="ed25519", passphrase=""):
    size = ["-b", "2048"] if kind == "rsa" else []
    subprocess.run([find("ssh-keygen"), "-q", "-t", kind, *size, "-N", passphrase, "-C", f"ckptbench-{path.name}", "-f", str(path)],
                   check=True, timeout=60)
    return Path(f"{path}.pub").read_text()


def write_noisy_home(folder):
    home = folder / "home"
    (home / "login-bin").mkdir(parents=True)
    (home / ".bashrc").write_text(NOISY_RC)
    (home / ".profile").write_text(NOISY_PROFILE)
    tool = home / "login-bin/only-after-login"
    tool.write_text("#!/bin/sh\necho here\n")
    tool.chmod(0o755)
    return home


def write_files(folder, port):
    user = pwd.getpwuid(os.geteuid()).pw_name
    host_key = make_key(folder / "host_ed25519")
    for kind in ("ecdsa", "rsa"):
        make_key(folder / f"host_{kind}", kind)
    keys = [make_key(folder / "id_ed25519"), make_key(folder / "id_ecdsa", "ecdsa"), make_key(folder / "id_rsa", "rsa"),
            make_key(folder / "id_locked", passphrase="open"),
            f'environment="HOME={write_noisy_home(folder)}" {make_key(folder / "id_noisy")}',
            f'environment="SLURM_NTASKS=64",environment="SBATCH_X=1",environment="SLURM_CONF=/x" {make_key(folder / "id_slurm")}',
            f'command="sleep 3; : > {folder}/slow-done; eval \\"$SSH_ORIGINAL_COMMAND\\"" {make_key(folder / "id_slow")}',
            f'command="echo this machine is closed for today; exit 1" {make_key(folder / "id_closed")}']
    make_key(folder / "id_stranger")
    (folder / "authorized_keys").write_text("".join(keys))
    (folder / "banner").write_text("Authorised use only.\n")
    (folder / "known_hosts").write_text(f"ckptbench-test {host_key}[127.0.0.1]:{port} {host_key}")
    (folder / "port").write_text(str(port))
    (folder / "sshd_config").write_text(SERVER.format(port=port, folder=folder, environment=sanitizers()))
    (folder / "config").write_text(CLIENT.format(port=port, folder=folder, user=user, names=" ".join(NAMES)))
    (folder / "bin").mkdir()
    wrapper = folder / "bin/ssh"
    wrapper.write_text(f'#!/bin/sh\nexec {find("ssh")} -F {folder}/config "$@"\n')
    wrapper.chmod(0o755)


def answers(folder):
    result = subprocess.run([str(folder / "bin/ssh"), "-o", "BatchMode=yes", "-o", "ConnectTimeout=5", NAMES[0], "true"],
                            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    return result.returncode == 0


def sanitizers():
    """What sanitizers are told must reach programs on the other side, too."""
    names = [name for name in ("ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS", "LSAN_OPTIONS") if os.environ.get(name)]
    return "SetEnv " + " ".join(f'"{name}={os.environ[name]}"' for name in names) if names else ""


def start(folder):
    folder = Path(folder).resolve()
    server = find("sshd")
    folder.mkdir(parents=True, exist_ok=True)
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # where sshd puts what it trusts least
    port, = free_ports(1)
    write_files(folder, port)
    log = folder / "sshd.log"
    command = [server, "-f", str(folder / "sshd_config"), "-E", str(log)]
    subprocess.run(command, check=True, timeout=120)
    deadline = time.monotonic() + 120
    while not answers(folder):
        said = log.read_text() if log.exists() else ""
        if time.monotonic() > deadline:
            raise RuntimeError(f"sshd does not let us in: {said[-2000:]}")
        if "Cannot bind any address" in said:  # another process had the port for a while: sshd finds that out after it has gone to the background
            log.unlink()
            subprocess.run(command, check=True, timeout=120)
        time.sleep(0.1)
    return {VARIABLE: str(folder)}


def children_of(pid):
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            if int(path.read_text().rsplit(")", 1)[1].split()[1]) == pid:
                found.append(int(path.parent.name))
    return found


def stop(folder):
    """The server, its sessions, and what those run."""
    try:
        pid = int((Path(folder) / "sshd.pid").read_text())
        if "sshd" not in Path(f"/proc/{pid}/comm").read_text():
            return
    except (OSError, ValueError):
        return
    doomed, index = [pid], 0
    while index < len(doomed):
        doomed += children_of(doomed[index])
        index += 1
    for one in doomed:
        with contextlib.suppress(OSError):
            os.kill(one, signal.SIGKILL if one != pid else signal.SIGTERM)


if __name__ == "__main__":
    service_command.main(sys.modules[__name__])
