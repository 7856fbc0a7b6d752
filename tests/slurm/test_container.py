"""Ranks in an image of a site: a root folder of its own that has the worker, started by Charliecloud as an ordinary user's is."""
import os
import subprocess

import pytest
from harness import BUILD
from image_harness import NO_RUNTIME, RUNTIME, make_image
from site_harness import Laptop
from slurm_harness import MISSING, TINY, VARIABLE

pytestmark = [pytest.mark.skipif(not os.environ.get(VARIABLE), reason=MISSING),
              pytest.mark.skipif(not RUNTIME, reason=NO_RUNTIME)]
assert VARIABLE == "CKPTBENCH_TEST_SLURM"  # tests/run.py looks for the name in this file


@pytest.fixture
def laptop(tmp_path):
    """Whose site has no worker outside of the image."""
    laptop = Laptop(tmp_path, os.environ[VARIABLE])
    (laptop.prefix / "bin/ckptbench-worker").unlink()
    yield laptop
    laptop.end_all()


@pytest.fixture
def container(tmp_path):
    return make_image(tmp_path / "image")


def test_ranks_start_in_the_image_of_a_site(laptop, container):
    added = laptop.call("site", "add", "tor", *laptop.words_of_site(), f"container={container}", "--nodes", "2").stdout
    assert "has ckptbench-worker" in added and "1 of 1 pairs" in added and "site tor is ready" in added
    assert laptop.document("site", "show", "tor")["container"] == container
    sent = laptop.submit("tor", "model=gpt2-tiny", "nodes=2", "ranks_per_node=1", "baseline=false", "iterations=1", "warmup=0", "repeat=2")
    lines = laptop.wait_final(sent["sweep"])
    assert [line["outcome"] for line in lines.values()] == ["pass"] * 2, lines
    run = laptop.submit("tor", *TINY, "ops=save", "launcher=mpirun")["runs"][0]["run"]
    assert laptop.wait_final(run)[run]["outcome"] == "pass"


def test_an_image_without_the_worker_is_said_before_and_after(laptop, container):
    bare = container.replace("/opt/bench:", "")
    said = laptop.call("site", "add", "tor", *laptop.words_of_site(), f"container={bare}", code=4).stdout
    assert "container= must start ckptbench-worker of this release" in said and "No such file" in said
    run = laptop.submit("tor", *TINY, "ops=save")["runs"][0]["run"]
    line = laptop.wait_final(run)[run]
    assert line["outcome"] == "infrastructure" and "ckptbench-worker" in laptop.call("logs", run).stdout


def test_words_reach_no_shell(laptop, container):
    hostile = container.replace(" --set-env", f" --set-env=A=$(touch$IFS{laptop.folder}/hacked);touch${{IFS}}{laptop.folder}/hacked|x --set-env", 1)
    site = laptop.write_site("tor", container=hostile)
    run = laptop.submit(site, *TINY, "ops=save")["runs"][0]["run"]
    assert laptop.wait_final(run)[run]["outcome"] == "pass"
    assert not list(laptop.folder.rglob("hacked"))
    refused = laptop.call("site", "add", "tor", "container=run 'quoted words'", code=2).stderr
    assert "no shell reads it" in refused


def test_words_are_checked_where_they_are_given(laptop):
    for words, said in (("--bind /a", "first word"), ('a "b"', "quotes"), ("a " * 50, "more than 40 words")):
        answer = subprocess.run([BUILD / "ckptbench", "plan", *TINY, f"container={words}"], capture_output=True, text=True, timeout=120)
        assert answer.returncode == 2 and said in answer.stderr, answer
