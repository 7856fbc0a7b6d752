"""A cluster of tests/services/slurm.py with real accounting: MariaDB and slurmdbd beside it, on free ports.

usage: tests/services/accounting.py start FOLDER | stop FOLDER
Started, it prints what to put into the environment. Everything it writes lies in FOLDER, but for two sockets, whose
paths must be short. Slurm takes jobs of account ACCOUNT alone (it is everybody's default), and of no other.
"""
import getpass
import re
import secrets
import socket
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from services import service_command, slurm  # noqa: E402
from services.ports import free_ports  # noqa: E402

Missing = slurm.Missing
ACCOUNT = "bench"
DATABASE = """\
AuthType=auth/munge
AuthInfo=socket={munge}/socket
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser={user}
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={storage_port}
StorageUser=slurm
StoragePass={password}
StorageLoc=slurm_acct_db
PidFile={folder}/slurmdbd.pid
LogFile={folder}/slurmdbd.log
"""
CONTROLLER = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={port}
AccountingStoragePass={munge}/socket
AccountingStorageEnforce=associations
"""


def find(program, package):
    try:
        return slurm.find(program)
    except slurm.Missing:
        raise slurm.Missing(f"{program} is not installed (Debian: {package})") from None


def wait_for_port(port, process, what, log):
    deadline = time.monotonic() + 120
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        if process and process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"{what} did not come up: {log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.05)


def start_storage(folder, munge, port, password):
    """MariaDB with one user; nothing of it need outlive the machine."""
    data, log, user = folder / "mariadb", folder / "mariadb.log", getpass.getuser()
    grants = folder / "mariadb.sql"
    grants.touch(mode=0o600)
    grants.write_text(f"CREATE USER slurm@'127.0.0.1' IDENTIFIED BY '{password}';\nGRANT ALL ON slurm_acct_db.* TO slurm@'127.0.0.1';\n")
    small = ["--innodb-buffer-pool-size=32M", "--innodb-log-file-size=8M"]
    made = subprocess.run([find("mariadb-install-db", "mariadb-server-core"), "--no-defaults", f"--datadir={data}", f"--user={user}",
                           "--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve", *small],
                          capture_output=True, text=True, timeout=180)
    if made.returncode:
        raise RuntimeError(f"mariadb-install-db: {made.stdout[-2000:]}{made.stderr[-2000:]}")
    with open(log, "w") as out:
        process = subprocess.Popen([find("mariadbd", "mariadb-server-core"), "--no-defaults", f"--datadir={data}", f"--user={user}",
                                    f"--socket={munge}/mariadb", "--bind-address=127.0.0.1", f"--port={port}", "--skip-name-resolve",
                                    f"--pid-file={folder}/mariadb.pid", f"--init-file={grants}", "--innodb-flush-log-at-trx-commit=0",
                                    "--innodb-doublewrite=0", *small],
                                   stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)
    (folder / "mariadb.pid").write_text(str(process.pid))  # its own comes later: nothing may be left behind in between
    wait_for_port(port, process, "MariaDB", log)


def start_accounting(folder, munge):
    """What slurm.start does before the controller, whose configuration names it."""
    storage_port, port = free_ports(2)
    password, user = secrets.token_hex(16), getpass.getuser()
    start_storage(folder, munge, storage_port, password)
    settings = folder / "slurmdbd.conf"
    settings.touch(mode=0o600)
    settings.write_text(DATABASE.format(munge=munge, port=port, user=user, storage_port=storage_port, password=password, folder=folder))
    configuration = folder / "slurm.conf"
    text = re.sub("AccountingStorageType=.*\n", CONTROLLER.format(port=port, munge=munge), configuration.read_text())
    configuration.write_text(text)
    start_slurmdbd(folder)
    for words in (["cluster", re.search("ClusterName=(.*)", text)[1]], ["account", ACCOUNT], ["user", user, f"account={ACCOUNT}"]):
        added = slurm.call("sacctmgr", "-i", "add", *words, env=slurm.clean_environment(folder))
        if added.returncode:
            raise RuntimeError(f"sacctmgr add {words}: {added.stdout}{added.stderr}")


def start_slurmdbd(folder):
    """Also once more, after stop_slurmdbd."""
    result = slurm.call(find("slurmdbd", "slurmdbd"), env=slurm.clean_environment(folder))
    if result.returncode:
        raise RuntimeError(f"slurmdbd: {result.stdout}{result.stderr}")
    port = int(re.search(r"DbdPort=(\d+)", (folder / "slurmdbd.conf").read_text())[1])
    wait_for_port(port, None, "slurmdbd", folder / "slurmdbd.log")


def stop_slurmdbd(folder):
    slurm.end_process(Path(folder) / "slurmdbd.pid", "slurmdbd")


def start(folder, **options):
    """A cluster as slurm.start makes it, with accounting."""
    for program, package in (("slurmdbd", "slurmdbd"), ("sacctmgr", "slurm-client"), ("mariadbd", "mariadb-server-core")):
        find(program, package)
    return slurm.start(folder, before_controller=start_accounting, **options)


def stop(folder):
    """The controller first, which would tell slurmdbd of its end, and for long try to."""
    folder = Path(folder).resolve()
    slurm.stop(folder)
    stop_slurmdbd(folder)
    slurm.end_process(folder / "mariadb.pid", "mariadbd", patience_s=30)


if __name__ == "__main__":
    service_command.main(sys.modules[__name__], lambda values: {"SLURM_CONF": values[slurm.VARIABLE]})
