"""A cluster by name, used from a laptop that has no Slurm: CKPTBENCH_TEST_SLURM behind a site on this machine."""
import json
import os
import shutil
import subprocess
import time
import uuid

import pytest
from harness import BUILD, PROGRAM
from site_harness import Laptop, fake_program
from slurm_harness import MISSING, TINY, VARIABLE

pytestmark = pytest.mark.skipif(not os.environ.get(VARIABLE), reason=MISSING)
assert VARIABLE == "CKPTBENCH_TEST_SLURM"  # tests/run.py looks for the name in this file
SLOW = ("iterations=2000", "ops=save", "verify=none")


@pytest.fixture
def laptop(tmp_path):
    laptop = Laptop(tmp_path, os.environ[VARIABLE])
    yield laptop
    laptop.end_all()


def test_a_site_is_added_checked_and_shown(laptop):
    added = laptop.call("site", "add", "tor", "partition=train", *laptop.words_of_site(), "--nodes", "2")
    assert "site tor is ready" in added.stdout
    assert "2 nodes met on the rendezvous port, 1 of 1 pairs exchanged messages over MPI" in added.stdout
    shown = laptop.document("site", "show", "tor")
    assert shown["partition"] == "train" and shown["prefix"] == str(laptop.prefix)
    assert shown["environment"]["OMPI_MCA_btl"] == "self,tcp"
    assert [site["site"] for site in laptop.document("site", "show")] == ["tor"]
    again = laptop.call("site", "add", "tor", "account=", "partition=")  # keeps the prefix that was named
    assert "site tor is ready" in again.stdout and "building" not in again.stderr
    shown = laptop.document("site", "show", "tor")
    assert shown["prefix"] == str(laptop.prefix) and shown["partition"] is None
    checks = laptop.document("site", "doctor", "tor")
    node = next(check["found"] for check in checks["checks"] if check["name"] == "compute node")
    _, well, _, of, *_ = node.split()
    assert (well == of) != ("; not: " in node), node  # the others are named
    assert checks["ok"] and {check["name"] for check in checks["checks"]} >= {"programs", "Slurm", "accounting", "shared file system", "compute node"}


def test_a_sweep_is_submitted_followed_collected_once_and_compared(laptop):
    site = laptop.write_site("tor", partition="train")
    sent = laptop.submit(site, *TINY, "ops=save", "io.depth=1,2", "repeat=2")
    assert sent["site"] == "tor" and len(sent["runs"]) == 4 and all(run["job"] for run in sent["runs"])
    assert [line["site"] for line in laptop.document("list", sent["sweep"])] == ["tor"] * 4
    lines = laptop.wait_final(sent["sweep"])
    assert [line["outcome"] for line in lines.values()] == ["pass"] * 4
    assert all(line["site"] == "tor" and line["queue_s"] is not None and line["run_s"] > 0 for line in lines.values())
    shown = laptop.document("show", sent["runs"][0]["run"])
    assert shown["outcome"] == "pass" and shown["metrics"]["save_s"]["n"] == 1
    assert shown["experiment"]["slurm.partition"] == "train"
    before = laptop.document("sql", "select count(*) as n from sample")
    for _ in range(2):
        assert "0 ingested, 4 known, 0 not sealed, 0 failed" in laptop.call("collect").stdout
    assert laptop.document("sql", "select count(*) as n from sample") == before
    compared = laptop.call("compare", sent["sweep"], "--by", "io.depth", "--json").stdout
    assert json.loads(compared)
    rebuilt = laptop.call("collect", "--rebuild").stdout
    assert "4 ingested" in rebuilt and [line["site"] for line in laptop.document("list", "site=tor")] == ["tor"] * 4


def test_waiting_gives_the_exit_code_of_runs_on_a_site(laptop):
    site = laptop.write_site("tor")
    laptop.call("submit", "--site", site, "--wait", *TINY, f"store={laptop.folder}/login/store")
    failed = laptop.call("submit", "--site", site, "--wait", *TINY, f"store=fault:error_at=3/EIO:{laptop.folder}/login/store", code=3)
    assert "benchmark_failed" in failed.stderr
    run = laptop.submit(site, *TINY, "slurm.extra=--hold")["runs"][0]["run"]
    (line,) = laptop.document("cancel", "LATEST")
    assert line["run"] == run


def test_a_load_there_comes_after_its_save(laptop):
    site = laptop.write_site("tor")
    save = laptop.submit(site, *TINY, "ops=save")["runs"][0]["run"]
    load = laptop.submit(site, *TINY, "ops=load", "--after", save)["runs"][0]["run"]
    lines = laptop.wait_final(save, load)
    assert [lines[run]["outcome"] for run in (save, load)] == ["pass", "pass"]
    assert laptop.document("show", load)["experiment"]["suffix"] == save


def test_a_file_and_hostile_values_travel_as_they_are(laptop):
    site = laptop.write_site("tor")
    label = "$(touch hacked) `touch hacked` 'a' \"b\" ;&|\\ 2..8"
    (laptop.folder / "n.yaml").write_text(f"model: gpt2-tiny\nranks: 2\nbaseline: false\niterations: 1\nwarmup: 0\nio.depth: [4]\nlabel.x: {json.dumps(label)}\n")
    sent = laptop.submit(site, "n.yaml", "io.depth=8")
    run = sent["runs"][0]["run"]
    assert laptop.wait_final(run)[run]["outcome"] == "pass"
    shown = laptop.document("show", run)
    assert shown["labels"]["x"] == label and shown["experiment"]["io.depth"] == 8
    assert not list(laptop.folder.rglob("hacked"))
    wrong = laptop.call("submit", "--site", site, "io.dept=8", code=2)
    assert "did you mean 'io.depth'" in wrong.stderr


def test_logs_follow_a_run_there_and_cancel_ends_it(laptop):
    site = laptop.write_site("tor")
    sent = laptop.submit(site, *TINY, *SLOW, f"store=fault:delay=300ms:{laptop.folder}/login/store")
    run = sent["runs"][0]["run"]
    laptop.wait_state(run, "running")
    follower = subprocess.Popen([PROGRAM, "logs", run, "-f"], cwd=laptop.folder, env=laptop.environment, stdout=subprocess.PIPE, text=True)
    try:
        lines = {line["run"]: line for line in laptop.document("cancel", run)}
        assert run in lines
        out, _ = follower.communicate(timeout=120)
    finally:
        follower.kill()
    line = laptop.wait_final(run)[run]
    assert line["outcome"] == "cancelled" and line["state"] == "cancelled"
    # Slurm's file and mpirun's grow at once: followed, lines come as they are written; later, file by file.
    assert sorted(laptop.call("logs", run).stdout.splitlines()) == sorted(out.splitlines())


def test_the_same_submission_twice_is_one(laptop):
    site = laptop.write_site("tor")
    sweep = f"nightly-{uuid.uuid4().hex[:8]}"  # Slurm remembers names of jobs for a while
    words = (*TINY, "ops=save", "repeat=2", "--id", sweep)
    first, second = laptop.submit(site, *words), laptop.submit(site, *words)
    assert first["sweep"] == second["sweep"] == sweep and first["runs"] == second["runs"]
    laptop.wait_final(sweep)
    assert [len(laptop.jobs_named(f"{sweep}.0{n}")) for n in (1, 2)] == [1, 1]


def test_a_laptop_that_died_before_the_answer_finds_its_runs(laptop):
    site = laptop.write_site("tor")
    real = laptop.prefix / "bin/ckptbench-real"
    shutil.copy2(BUILD / "ckptbench", real)
    # It has submitted, and then takes its time to say so.
    fake_program(laptop.prefix, f'#!/bin/sh\n"{real}" "$@" || exit\ncase "$1" in submit) touch "{laptop.folder}/sent"; sleep 60;; esac\n')
    sender = subprocess.Popen([PROGRAM, "submit", "--site", site, *TINY, f"store={laptop.folder}/login/store"], cwd=laptop.folder,
                              env=laptop.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not (laptop.folder / "sent").exists():
        assert sender.poll() is None
        try:
            sender.wait(0.05)
        except subprocess.TimeoutExpired:
            pass
    sender.kill()
    sender.wait()
    fake_program(laptop.prefix, f'#!/bin/sh\nexec "{real}" "$@"\n')
    asked, = (path.name for path in (laptop.home / "asked").iterdir())
    lines = laptop.wait_final()
    assert list(lines) == [asked] and lines[asked]["outcome"] == "pass" and len(laptop.jobs_named(asked)) == 1
    assert not list((laptop.home / "asked").iterdir())


def test_runs_that_others_submitted_there_are_taken_in(laptop):
    site = laptop.write_site("tor")
    sent = json.loads(laptop.there_call("submit", "--json", *TINY, f"store={laptop.folder}/login/store"))
    run = sent["runs"][0]["run"]
    assert laptop.document("status") == []
    lines = laptop.document("status", "--site", site)
    assert [line["run"] for line in lines] == [run]
    assert laptop.wait_final(run)[run]["outcome"] == "pass"


def test_a_run_folder_that_does_not_match_its_manifest_is_not_taken(laptop):
    site = laptop.write_site("tor")
    run = laptop.submit(site, *TINY, "ops=save")["runs"][0]["run"]
    deadline = time.monotonic() + 200
    while json.loads(laptop.there_call("status", "--json", run))[0]["state"] != "done":
        assert time.monotonic() < deadline
        time.sleep(0.2)
    records = laptop.there / "runs" / run / "attempts/1/records"
    good = records.read_bytes()
    records.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    line, = laptop.document("status", run)
    assert line["state"] == "sealing" and "not fetched" in line["note"] and "records" in line["note"]
    records.write_bytes(good)
    assert laptop.wait_final(run)[run]["outcome"] == "pass"


def test_a_site_that_does_not_exist_names_the_nearest(laptop):
    laptop.write_site("tor")
    for verb in (("status",), ("submit", *TINY), ("logs", "x"), ("cancel", "x"), ("collect",), ("clean",), ("render", *TINY)):
        assert "no site 'tro': did you mean 'tor'?" in laptop.call(*verb, "--site", "tro", code=2).stderr


def test_programs_that_are_missing_or_of_another_release_are_refused(laptop):
    site = laptop.write_site("tor")
    fake_program(laptop.prefix, "#!/bin/sh\necho 'ckptbench 0.0.9 (abc)'\n")
    old = laptop.call("submit", "--site", site, *TINY, code=2).stderr
    assert "site tor has ckptbench 0.0.9" in old and "`ckptbench site add tor` installs" in old
    assert not laptop.call("site", "doctor", site, code=4).stdout.count("Slurm")
    assert "an empty prefix= to have it built" in laptop.call("site", "add", site, code=2).stderr
    (laptop.prefix / "bin/ckptbench").unlink()
    gone = laptop.call("status", "--site", site, code=2).stderr
    assert "has no programs in" in gone and "`ckptbench site add tor` installs them" in gone


def test_a_site_that_does_not_answer_keeps_local_work_alive(laptop):
    site = laptop.write_site("tor")
    run = laptop.submit(site, *TINY, "ops=save")["runs"][0]["run"]
    deadline = time.monotonic() + 200
    while json.loads(laptop.there_call("status", "--json", run))[0]["state"] != "done":  # which needs them until then
        assert time.monotonic() < deadline
        time.sleep(0.2)
    (laptop.prefix / "bin").rename(laptop.prefix / "gone")
    result = laptop.call("status", code=4)
    assert run in result.stdout and "has no programs in" in result.stderr
    (laptop.prefix / "gone").rename(laptop.prefix / "bin")
    assert laptop.wait_final(run)[run]["outcome"] == "pass"


def test_rendering_and_cleaning_happen_there(laptop):
    site = laptop.write_site("tor", account="acct")
    script = laptop.call("render", "--site", site, *TINY, f"store={laptop.folder}/login/store").stdout
    assert "#SBATCH --account=acct" in script and str(laptop.there) in script
    assert laptop.call("clean", "--site", site).stdout == ""


def test_a_removed_site_is_asked_no_more(laptop):
    site = laptop.write_site("tor")
    run = laptop.submit(site, *TINY, "ops=save")["runs"][0]["run"]
    assert "given up" in laptop.call("site", "remove", site).stderr
    assert laptop.document("status", run)[0]["state"] == "failed"
    assert "no site 'tor'" in laptop.call("site", "show", "tor", code=2).stderr


def test_modules_and_mpi_are_prepared_before_anything_runs(laptop):
    profile, loaded, path = (laptop.folder / name for name in ("profile", "loaded", "path"))
    profile.write_text(f'module() {{ [ "$2" != missing ] || {{ echo "module $2 is not known" >&2; return 1; }}; echo "$@" >> "{loaded}"; }}\n')
    site = laptop.write_site("tor", modules="gcc/12 openmpi/4.1", mpi="/opt/an mpi", **{"environment.BASH_ENV": str(profile)})
    real = laptop.prefix / "bin/ckptbench-real"
    shutil.copy2(BUILD / "ckptbench", real)
    fake_program(laptop.prefix, f'#!/bin/sh\necho "$PATH|$LD_LIBRARY_PATH" > "{path}"\nexec "{real}" "$@"\n')
    assert laptop.document("status", "--site", site) == []
    assert loaded.read_text().splitlines()[:2] == ["load gcc/12", "load openmpi/4.1"]
    programs, libraries = path.read_text().strip().split("|")
    assert programs.startswith("/opt/an mpi/bin:") and libraries.startswith("/opt/an mpi/lib")
    laptop.write_site("tor", modules="missing", **{"environment.BASH_ENV": str(profile)})
    refused = laptop.call("status", "--site", site, code=2)
    assert "loading its modules (missing) failed: module missing is not known" in refused.stderr
