"""Trains a tiny model with FSDP in torchtitan, Lightning or HF Trainer on 2 CPU ranks; saves and loads in the framework's own way.

usage: framework_ranks.py FRAMEWORK FOLDER CKPTBENCH

FOLDER/VERSION/saved is what the framework saved with FSDP1 or FSDP2 and FOLDER/VERSION/held.pt what it held then, under the
names of the checkpoints; FOLDER/VERSION/converted is what `ckptbench convert` made of the former for 3 ranks. The framework loads
that into a model that has other values, and must then hold the same."""
import shutil
import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed.checkpoint import state_dict as torch_state
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor

from forked_ranks import run_ranks

WIDTH = 12


def build_layers(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, 5))  # 5 rows on 2 ranks: uneven


def shard(layers):
    for layer in layers:
        fully_shard(layer)
    fully_shard(layers)


def whole(value):
    """A copy of the whole tensor."""
    if isinstance(value, DTensor):
        return value.full_tensor().clone()
    if not isinstance(value, ShardedTensor):
        return value.detach().clone()
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, [(shard.metadata.shard_offsets, shard.tensor) for shard in value.local_shards()])
    gathered = torch.zeros(value.size(), dtype=value.dtype)
    for (row, *_), tensor in (part for held in parts for part in held):
        gathered[row:row + len(tensor)] = tensor
    return gathered


def flat(state, prefix=""):
    for key, value in state.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        elif isinstance(value, (torch.Tensor, ShardedTensor)):
            yield prefix + key, whole(value)


def held_of(model, optimizer, model_prefix, optimizer_prefix):
    """name -> tensor of the whole model and optimizer. PyTorch cannot gather FSDP1's on a CPU, it crashes."""
    states = torch_state.get_state_dict(model, optimizer)
    return dict(flat(states[0], model_prefix)) | dict(flat({"state": states[1].get("state", {})}, optimizer_prefix))


def keep(held, path):
    if dist.get_rank() == 0:
        torch.save(held, path)


def must_hold(held, path):
    if dist.get_rank() > 0:
        return
    expected = torch.load(path)
    assert held.keys() == expected.keys()
    different = [name for name, tensor in expected.items() if not torch.equal(held[name], tensor)]
    assert not different, f"of {len(held)} tensors these differ: {different}"


class Torchtitan:
    """Its checkpoint manager with its containers of optimizers and schedulers. Its trainer imports Triton, which a CPU has not."""

    versions = ("fsdp2",)

    def __init__(self, version, seed):
        from torchtitan.components.checkpoint import CheckpointManager
        from torchtitan.components.optimizer import LRSchedulersContainer, OptimizersContainer, ParamGroupConfig
        self.model = build_layers(seed)
        shard(self.model)
        groups = [ParamGroupConfig(pattern=".*", optimizer_name="AdamW", optimizer_kwargs={"lr": 0.01})]
        self.optimizers = OptimizersContainer(OptimizersContainer.Config(param_groups=groups, implementation="for-loop"), model_parts=[self.model])
        self.schedulers = LRSchedulersContainer.Config(warmup_steps=2).build(optimizers=self.optimizers, training_steps=10)
        self.step = 0
        self.manager = lambda folder: CheckpointManager(
            CheckpointManager.Config(enable=True, folder=str(folder), interval=2, last_save_model_only=False), dataloader=DataPosition(),
            model_parts=[self.model], optimizers=self.optimizers, lr_schedulers=self.schedulers, states={"train_state": self}, sd_adapter=None)

    def state_dict(self):
        return {"step": torch.tensor(self.step, dtype=torch.int32)}

    def load_state_dict(self, state):
        self.step = int(state["step"])

    def held(self):
        return held_of(self.model, self.optimizers.optimizers[0], "", "optimizer.") | {"train_state.step": torch.tensor(self.step, dtype=torch.int32)}

    def save(self, folder):
        for _ in range(2):
            self.step += 1
            self.optimizers.zero_grad()
            self.model(torch.ones(4, WIDTH) + dist.get_rank()).square().mean().backward()
            self.optimizers.step()
            self.schedulers.step()
        manager = self.manager(folder)
        manager.save(self.step)
        manager.close()

    def load(self, folder):
        manager = self.manager(folder)
        assert manager.load()
        manager.close()
        assert self.schedulers.schedulers[0].last_epoch == 2 and DataPosition.loaded == [100 + dist.get_rank()]


class DataPosition:
    """A data loader's state is of its rank, as torchtitan's."""

    loaded = []

    def state_dict(self):
        return {f"dp_rank_{dist.get_rank()}": 100 + dist.get_rank()}

    def load_state_dict(self, state):
        self.loaded.append(state[f"dp_rank_{dist.get_rank()}"])


class Lightning:
    versions = ("fsdp1", "fsdp2")

    def __init__(self, version, seed):
        import lightning.pytorch as lightning
        from lightning.pytorch.strategies import FSDPStrategy, ModelParallelStrategy

        class Module(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.layers = build_layers(seed)

            def configure_model(self):
                if version == "fsdp2":
                    shard(self.layers)
                else:
                    self.layers = FullyShardedDataParallel(self.layers, auto_wrap_policy=ModuleWrapPolicy({nn.Linear}), use_orig_params=True,
                                                           device_id=torch.device("cpu"))

            def training_step(self, batch):
                return self.layers(batch[0]).square().mean()

            def configure_optimizers(self):
                optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
                return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

        class OnCpu(FSDPStrategy):
            """Lightning refuses its own class, FSDPStrategy, without a GPU."""
        self.prefix = "model." if version == "fsdp1" else "state_dict."
        self.module = Module()
        strategy = OnCpu(state_dict_type="sharded") if version == "fsdp1" else \
            ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1)
        self.trainer = lightning.Trainer(accelerator="cpu", devices=2, strategy=strategy, max_steps=2, logger=False,
                                         enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
        self.batches = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.arange(8.0 * WIDTH).reshape(8, WIDTH) / 50), batch_size=2)

    def held(self):
        model = self.trainer.strategy.model
        return held_of(model, self.trainer.optimizers[0], self.prefix, "optimizer_0.")

    def save(self, folder):
        self.trainer.fit(self.module, self.batches)
        self.trainer.save_checkpoint(folder / "last.ckpt")

    def load(self, folder):
        self.trainer.fit(self.module, self.batches, ckpt_path=folder / "last.ckpt")  # its steps are already made
        assert self.trainer.global_step == 2


class HfTrainer:
    versions = ("fsdp2",)  # of FSDP1, which it calls deprecated, it does not restore the optimizer from its own checkpoint

    def __init__(self, version, seed):
        self.version, self.seed = version, seed

    def train(self, folder, resume):
        import accelerate_on_cpu
        from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
        arguments = TrainingArguments(
            output_dir=folder, max_steps=2, save_steps=2, per_device_train_batch_size=2, use_cpu=True, ddp_backend="gloo", report_to=[],
            disable_tqdm=True, fsdp=True, fsdp_config={"version": int(self.version[-1]), "state_dict_type": "SHARDED_STATE_DICT",
                                                       "transformer_layer_cls_to_wrap": ["GPT2Block"], "sync_module_states": False})
        accelerate_on_cpu.turn_fsdp_on(arguments)
        torch.manual_seed(self.seed)
        model = GPT2LMHeadModel(GPT2Config(vocab_size=17, n_positions=8, n_embd=WIDTH, n_layer=2, n_head=2))
        data = [{"input_ids": tokens, "labels": tokens} for tokens in torch.arange(64).reshape(8, 8) % 17]
        self.trainer = Trainer(model=model, args=arguments, train_dataset=data)
        self.trainer.train(resume_from_checkpoint=str(resume) if resume else None)

    def held(self):
        return held_of(self.trainer.model_wrapped, self.trainer.optimizer.optimizer, "model.", "optimizer.")

    def save(self, folder):
        self.train(folder, None)

    def load(self, folder):
        self.train(folder, folder / "checkpoint-2")
        assert self.trainer.state.global_step == 2


FRAMEWORKS = {"torchtitan": Torchtitan, "lightning": Lightning, "hf_trainer": HfTrainer}


def save(framework, version, folder):
    training = framework(version, seed=1)
    training.save(folder / "saved")
    keep(training.held(), folder / "held.pt")


def load(framework, version, folder):
    training = framework(version, seed=2)
    training.load(folder / "converted")
    must_hold(training.held(), folder / "held.pt")


def convert(folder, program):
    """Checkpoints by ckptbench convert, other files as they are."""
    for marker in (folder / "saved").rglob(".metadata"):
        target = folder / "converted" / marker.parent.relative_to(folder / "saved")
        target.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([program, "convert", marker.parent, target, "format=dcp", "ranks=3", "sharding=full"], check=True)
    shutil.copytree(folder / "saved", folder / "converted", ignore=shutil.ignore_patterns("*.distcp", ".metadata"), dirs_exist_ok=True)


def main():
    framework = FRAMEWORKS[sys.argv[1]]
    for version in framework.versions:
        folder = Path(sys.argv[2], version)
        folder.mkdir()
        run_ranks(2, save, framework, version, folder)
        convert(folder, sys.argv[3])
        run_ranks(2, load, framework, version, folder)


if __name__ == "__main__":
    main()
