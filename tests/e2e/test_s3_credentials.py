"""Where credentials come from, and that they go nowhere else."""
import json
import stat
import subprocess
import time
from pathlib import Path

import pytest
from harness import PROGRAM
from s3_harness import Client, call, clean_environment
from s3_faults import FaultServer  # its folder is put in the path by the harness

ACCESS, SECRET, TOKEN = "ACCESSfromElsewhere", "SecretFromElsewhere0123456789", "TokenFromElsewhere0123456789"
RUN = ("run", "--json", "model=gpt2-tiny", "ranks=1", "launcher=none", "iterations=1", "warmup=0", "baseline=false", "store=s3://bucket/p")


@pytest.fixture(scope="module")
def shared():
    with FaultServer() as faults:
        Client(faults.endpoint, faults.access_key, faults.secret_key).make_bucket("bucket")
        yield faults


@pytest.fixture
def faults(shared):
    """Takes temporary credentials alone: which access key was used is seen by its working at all."""
    shared.tell(rules=[], credentials={ACCESS: {"secret": SECRET, "token": TOKEN}, "permanent": {"secret": SECRET}}, metadata=None)
    shared.clear()
    return shared


def run(faults, home, *words, code=0, **environment):
    environment = {"HOME": str(home), "CKPTBENCH_HOME": str(home / "ckptbench"), "AWS_ENDPOINT_URL": faults.endpoint} | environment
    return call(PROGRAM, *RUN, f"suffix=s{time.monotonic_ns()}", *words, code=code, timeout=120, **environment)


def write(path, text):
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(stat.S_IRUSR | stat.S_IWUSR)
    return str(path)


def used(result):
    """What the run says it used."""
    return result.stdout + result.stderr


def test_from_the_environment_with_a_session_token(faults, tmp_path):
    run(faults, tmp_path, AWS_ACCESS_KEY_ID=ACCESS, AWS_SECRET_ACCESS_KEY=SECRET, AWS_SESSION_TOKEN=TOKEN)
    run(faults, tmp_path, AWS_ACCESS_KEY_ID="permanent", AWS_SECRET_ACCESS_KEY=SECRET)


def test_a_token_that_is_missing_or_expired_is_named(faults, tmp_path):
    said = run(faults, tmp_path, code=3, AWS_ACCESS_KEY_ID=ACCESS, AWS_SECRET_ACCESS_KEY=SECRET)
    assert "InvalidToken" in used(said)
    faults.tell(credentials={ACCESS: {"secret": SECRET, "token": TOKEN, "expires": 1}})
    said = run(faults, tmp_path, code=3, AWS_ACCESS_KEY_ID=ACCESS, AWS_SECRET_ACCESS_KEY=SECRET, AWS_SESSION_TOKEN=TOKEN)
    assert "ExpiredToken" in used(said)


def test_from_the_shared_files_and_profiles(faults, tmp_path):
    keys = f"aws_access_key_id = {ACCESS}\naws_secret_access_key={SECRET}\naws_session_token = {TOKEN}\n"
    write(tmp_path / ".aws/credentials", f"# mine\n[default]\n{keys}\n[nightly]\naws_access_key_id=permanent\naws_secret_access_key={SECRET}\n")
    run(faults, tmp_path)
    run(faults, tmp_path, "s3.profile=nightly")
    run(faults, tmp_path, AWS_PROFILE="nightly")
    assert "absent" in used(run(faults, tmp_path, "s3.profile=absent", code=3, AWS_EC2_METADATA_DISABLED="true"))
    elsewhere = write(tmp_path / "other", f"[default]\n{keys}")
    run(faults, tmp_path, HOME=str(tmp_path / "nowhere"), AWS_SHARED_CREDENTIALS_FILE=elsewhere)


def test_the_profile_may_name_region_and_endpoint(faults, tmp_path):
    write(tmp_path / ".aws/credentials", f"[default]\naws_access_key_id=permanent\naws_secret_access_key={SECRET}\n")
    write(tmp_path / ".aws/config", f"[default]\nregion = eu-west-3\nendpoint_url = {faults.endpoint}\n")
    faults.tell(region="eu-west-3")
    run(faults, tmp_path, AWS_ENDPOINT_URL="")
    faults.tell(region=None)


def test_from_a_process(faults, tmp_path):
    answer = {"Version": 1, "AccessKeyId": ACCESS, "SecretAccessKey": SECRET, "SessionToken": TOKEN}
    script = tmp_path / "give keys"
    script.write_text(f"#!/bin/sh\necho '{json.dumps(answer)}'\n")
    script.chmod(0o755)
    write(tmp_path / ".aws/config", f"[profile job]\ncredential_process = \"{script}\" --for ckptbench\n")
    run(faults, tmp_path, "s3.profile=job")
    script.write_text("#!/bin/sh\necho broken >&2; exit 3\n")
    said = used(run(faults, tmp_path, "s3.profile=job", code=3))
    assert "credential_process" in said


def metadata(**more):
    return {"access_key": ACCESS, "secret_key": SECRET, "token": TOKEN} | more


def test_from_the_metadata_of_an_instance(faults, tmp_path):
    faults.tell(metadata=metadata())
    run(faults, tmp_path, AWS_EC2_METADATA_DISABLED="false", AWS_EC2_METADATA_SERVICE_ENDPOINT=faults.control)
    asked = faults.ask("/control/metadata")
    assert "token" in asked and "/latest/meta-data/iam/security-credentials/tester" in asked


def test_from_a_container_with_its_token(faults, tmp_path):
    faults.tell(metadata=metadata(authorization="Basic abc"))
    place = {"AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{faults.control}/container"}
    run(faults, tmp_path, AWS_CONTAINER_AUTHORIZATION_TOKEN="Basic abc", **place)
    token = write(tmp_path / "token", "Basic abc\n")
    run(faults, tmp_path, AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE=token, **place)
    run(faults, tmp_path, code=3, AWS_CONTAINER_AUTHORIZATION_TOKEN="Basic wrong", **place)


def test_what_expires_soon_is_asked_for_again(faults, tmp_path):
    """Credentials good for less than a client keeps them in reserve: every store that is opened asks again, and the run passes."""
    faults.tell(metadata=metadata(expires_s=30))
    run(faults, tmp_path, "iterations=2", AWS_EC2_METADATA_DISABLED="false", AWS_EC2_METADATA_SERVICE_ENDPOINT=faults.control)
    assert faults.ask("/control/metadata").count("/latest/meta-data/iam/security-credentials/tester") >= 3


def test_what_ends_in_the_middle_of_a_save_is_replaced(faults, tmp_path):
    """A program hands out other keys each time; the server refuses those of one part as ended, as it would an hour later."""
    faults.tell(credentials={f"key{index}": {"secret": SECRET, "token": f"{TOKEN}{index}"} for index in range(1, 30)})
    script = tmp_path / "keys"
    script.write_text(f"""#!/bin/sh
n=$(($(cat {tmp_path}/count) + 1))
echo $n >{tmp_path}/count
printf '{{"Version":1,"AccessKeyId":"key%d","SecretAccessKey":"{SECRET}","SessionToken":"{TOKEN}%d"}}' $n $n
""")
    script.chmod(0o755)
    (tmp_path / "count").write_text("0")
    write(tmp_path / ".aws/config", f"[default]\ncredential_process = {script}\n")
    run(faults, tmp_path, "ops=save", "verify=none")
    before = int((tmp_path / "count").read_text())
    faults.fail({"operation": "UploadPart", "part": 2, "fault": "error", "status": 400, "code": "ExpiredToken", "message": "The provided token has expired."})
    run(faults, tmp_path, "ops=save", "verify=none")
    assert [row for row in faults.log("UploadPart") if row["fault"]]
    assert int((tmp_path / "count").read_text()) == 2 * before + 1


def test_without_any_the_message_says_where_it_looked(faults, tmp_path):
    said = used(run(faults, tmp_path, code=3))
    assert "AWS_ACCESS_KEY_ID" in said


# ---- and nowhere else ----


def command_lines(home):
    """Those of the processes that work for this home: other tests run beside this one."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if f"CKPTBENCH_HOME={home}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                yield (entry / "cmdline").read_bytes()
        except OSError:
            pass


def test_no_secret_is_in_a_log_a_record_the_run_folder_a_process_list_or_the_database(faults, tmp_path):
    faults.fail({"operation": "PutObject", "fault": "error", "times": 2})
    home = tmp_path / "ckptbench"
    environment = clean_environment() | {"HOME": str(tmp_path), "CKPTBENCH_HOME": str(home), "AWS_ENDPOINT_URL": faults.endpoint, "AWS_ACCESS_KEY_ID": ACCESS,
                                         "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_SESSION_TOKEN": TOKEN}
    secrets = [SECRET.encode(), TOKEN.encode(), b"Signature="]
    seen = b""
    for words in (["ranks=2", "launcher=auto", "tp=2"], ["ops=load", "suffix=absent"]):
        process = subprocess.Popen([str(PROGRAM), *RUN, *words, "-v"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        lines = []
        while process.poll() is None:
            lines += command_lines(home)
            time.sleep(0.02)
        out, err = process.communicate(timeout=120)
        seen += out + err + b"".join(lines)
    assert b"ckptbench-worker" in seen
    failed = subprocess.run([str(PROGRAM), *RUN, "suffix=z"], env=environment | {"AWS_SECRET_ACCESS_KEY": SECRET[::-1]}, capture_output=True, timeout=120)
    assert failed.returncode != 0
    seen += failed.stdout + failed.stderr
    for verb in (["doctor", "store=s3://bucket/p"], ["export", "LATEST", "--json"], ["show", "LATEST"], ["s3", "clean", "s3://bucket/p"]):
        result = subprocess.run([str(PROGRAM), *verb], env=environment, capture_output=True, timeout=120)
        seen += result.stdout + result.stderr
    files = [path for path in home.rglob("*") if path.is_file()]
    assert any(path.name == "history.db" for path in files) and any(path.name == "records" for path in files)
    for path in files:
        seen += path.read_bytes()
    for secret in secrets + [SECRET[::-1].encode()]:
        assert secret not in seen, f"{secret} is somewhere"
