"""The whole path: `ckptbench run` saves, verifies and keeps, in every layout; stock PyTorch loads at 1, 2 and 3
ranks, in other layouts than were saved, and finds the values that numpy computes from the documented formula."""
import json
import os
import re
import sys
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from conftest import Place, call, verify_checkpoint
from payload import weights

SEED = 5
WORLDS = (1, 2, 3)

# Vocabularies are odd, so that tp, zero and sharding cut unevenly: gpt2-tiny has 257, this one GPT-2's 50257.
GPT2_VOCABULARY = {"model_type": "gpt2", "vocab_size": 50257, "n_embd": 24, "n_layer": 1, "n_head": 12, "n_positions": 32}
MIXTRAL = {
    "model_type": "mixtral", "vocab_size": 257, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4, "tie_word_embeddings": False,
}
MODELS = {"gpt2-vocabulary": GPT2_VOCABULARY, "mixtral": MIXTRAL}

RUNS = [
    "ranks=1 io.direct=true",
    "ranks=2 tp=2 io.direct=true",
    "ranks=4 tp=4 io.direct=false",
    "ranks=2 pp=2 io.direct=false",
    "ranks=3 pp=3 pp.split=1+1+2 layers=4 io.direct=true",
    "ranks=2 dp=2 io.direct=true",
    "ranks=3 dp=3 io.direct=false",
    "ranks=3 dp=3 save.dedup=lowest_rank",
    "ranks=3 dp=3 save.dedup=none",
    "ranks=2 zero=1 io.direct=true",
    "ranks=3 zero=1 io.direct=false",
    "ranks=4 zero=2",
    "ranks=2 zero=3 io.direct=false",
    "ranks=3 zero=3 io.direct=true",
    "ranks=3 sharding=full io.direct=true",
    "ranks=4 sharding=full io.direct=false",
    "ranks=4 sharding=hybrid(2) io.direct=true",
    "ranks=4 tp=2 pp=2",
    "ranks=4 tp=2 dp=2 zero=1",
    "ranks=4 pp=2 dp=2 zero=3",
    "ranks=4 tp=2 dp=2 sharding=full",
    "ranks=2 tp=2 io.files=3 io.direct=true",
    "ranks=3 zero=1 io.files=item io.direct=false",
    "ranks=2 zero=3 io.files=item io.direct=true",
    "ranks=3 sharding=full io.files=shared io.direct=true",
    "ranks=2 tp=2 io.files=shared io.direct=false io.engine=psync",
    "ranks=2 tp=2 checksum=none io.direct=true",
    "ranks=3 zero=1 checksum=none io.direct=false",
    "ranks=2 zero=3 dtype=fp32 io.block=16KiB io.depth=2",
    "ranks=2 tp=2 state=weights",
    "ranks=2 tp=2 iterations=3 folder=overwrite",
    "ranks=2 model=gpt2-vocabulary layers=1 tp=2 io.direct=true",
    "ranks=3 model=gpt2-vocabulary layers=1 tp=3 io.direct=false",
    "ranks=4 model=gpt2-vocabulary layers=1 tp=4 io.direct=true",
    "ranks=3 model=gpt2-vocabulary layers=1 zero=3 io.direct=true",
    "ranks=3 model=gpt2-vocabulary layers=1 sharding=full io.files=shared io.direct=false",
    "ranks=4 model=mixtral ep=2 tp=2",
    "ranks=4 model=mixtral ep=2 zero=1",
]

# All in one process when tests run side by side: the checkpoints are made once and loaded in one go.
pytestmark = pytest.mark.xdist_group("stock_load")


def suffix_of(words):
    return re.sub("[^a-z0-9]+", "-", words).strip("-")


def takes_direct(folder):
    """Whether files under a folder can be opened with O_DIRECT."""
    path = folder / "probe"
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o600))
    except OSError:
        return False
    finally:
        path.unlink(missing_ok=True)
    return True


class Kept:
    """Checkpoints of runs, each made when it is first asked for."""

    def __init__(self, folder):
        self.place, self.documents, self.direct = Place(folder), {}, takes_direct(folder)
        for name, config in MODELS.items():
            (folder / name).mkdir()
            (folder / name / "config.json").write_text(json.dumps(config))

    def run(self, words):
        if "io.direct=true" in words and not self.direct:
            pytest.skip(f"missing: a file system with O_DIRECT at {self.place.folder}")
        if words not in self.documents:
            self.documents[words] = None  # one try: a run that failed is not repeated by each test
            given = re.sub("model=([^ ]*)", lambda found: f"model={self.place.folder}/{found[1]}", words)
            document = self.place.run(f"seed={SEED} keep=true suffix={suffix_of(words)} {given}")
            self.documents[words] = document
        return self.documents[words]

    def folder(self, words):
        assert self.run(words), "its run failed"
        return self.place.checkpoint(suffix_of(words))


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    return Kept(tmp_path_factory.mktemp("kept"))


@pytest.fixture(scope="module")
def loaded(kept):
    """What each rank of each world found in each folder, once all runs are done."""
    folders = [str(kept.folder(words)) for words in RUNS if kept.documents.get(words)]
    script = Path(__file__).with_name("load_ranks.py")
    result = call(sys.executable, script, SEED, ",".join(map(str, WORLDS)), *folders, timeout=800)
    answers = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    return answers, result.stderr[-3000:]


@pytest.mark.parametrize("words", RUNS)
def test_a_run_verifies_what_it_keeps(kept, words):
    document = kept.run(words)
    assert document["outcome"] == "pass"
    iterations = document["experiment"]["iterations"]
    assert document["verified"] == {"iterations": iterations, "of": iterations}
    assert document["metrics"]["save_s"]["n"] == document["metrics"]["load_s"]["n"] == iterations
    flags = ["--seed", str(SEED)] if "state=weights" in words else []
    result = verify_checkpoint(kept.folder(words), "--json", *flags)
    assert result.returncode == 0, result.stdout
    answer = json.loads(result.stdout)
    assert answer["verified"] and answer["values_checked"] >= answer["tensors"] - 10 > 0
    wanted = {"3": 6, "item": answer["items"], "shared": 1, "rank": document["experiment"]["ranks"]}
    one_rank_writes = "save.dedup" in words  # or is the one whose copy the metadata names
    assert answer["files"] == (1 if one_rank_writes else wanted[document["experiment"]["io.files"]])


@pytest.mark.parametrize("ranks", WORLDS)
@pytest.mark.parametrize("words", RUNS)
def test_stock_pytorch_loads_the_right_values(kept, loaded, words, ranks):
    folder, (answers, errors) = str(kept.folder(words)), loaded
    mine = [answer for answer in answers if answer["folder"] == folder and answer["ranks"] == ranks]
    assert len(mine) == ranks, errors
    for answer in mine:
        assert answer["error"] is None
        assert answer["tensors"] >= 12 and answer["tensors"] == mine[0]["tensors"]
        if "state=weights" not in words:
            assert answer["objects"]["train.seed"] == SEED
            assert answer["objects"]["optimizer.param_groups.lr"] == 0.0003


@pytest.mark.parametrize("words", ["ranks=4 tp=2 dp=2 zero=1", "ranks=3 model=gpt2-vocabulary layers=1 tp=3 io.direct=false"])
def test_pytorch_converts_a_checkpoint_into_one_nested_file(kept, tmp_path, words):
    dcp_to_torch_save(kept.folder(words), tmp_path / "one.pt")
    state = torch.load(tmp_path / "one.pt", weights_only=True)
    assert state.keys() == {"model", "optimizer", "train"}
    assert state["train"]["seed"] == SEED
    for fqn, tensor in state["model"].items():
        assert torch.equal(tensor, weights(f"model.{fqn}", tensor.dtype, tensor.shape, SEED)), fqn
    assert state["optimizer"]["state"].keys() == state["model"].keys()
    for fqn, kinds in state["optimizer"]["state"].items():
        assert kinds.keys() == {"master", "exp_avg", "exp_avg_sq"}
        for kind, tensor in kinds.items():
            right = weights(f"optimizer.state.{fqn}.{kind}", tensor.dtype, tensor.shape, SEED)
            assert torch.equal(tensor, right), (fqn, kind)
