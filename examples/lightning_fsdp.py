"""Lightning's FSDP2 with checkpoints that ckptbench writes in the background and reads.

    torchrun --nproc-per-node 2 examples/lightning_fsdp.py --folder /lustre/run --steps 20
    torchrun --nproc-per-node 2 examples/lightning_fsdp.py --folder /lustre/run --steps 30 --load /lustre/run/step=20.ckpt

The layout is Lightning's own: ModelParallelStrategy loads these checkpoints as well. `pip install .` installs
ckptbench."""
import argparse
import os
from pathlib import Path

import lightning.pytorch as lightning
import torch
from lightning.pytorch import callbacks, strategies
from torch import nn
from torch.distributed.fsdp import fully_shard

import ckptbench.checkpoint as checkpoint


class CheckpointStrategy(strategies.ModelParallelStrategy):
    """Saves and loads with ckptbench: pass it as the trainer's strategy."""

    def save_checkpoint(self, state, filepath, storage_options=None):
        path = Path(self.broadcast(filepath))
        sharded = {"state_dict": state.pop("state_dict")}
        for number, optimizer in enumerate(state.pop("optimizer_states", [])):
            sharded[f"optimizer_{number}"] = optimizer
        if self.is_global_zero:  # before the save, whose last file makes the checkpoint a complete one
            path.mkdir(parents=True, exist_ok=True)
            torch.save(state, path / "meta.pt")
        checkpoint.save(path, sharded, async_checkpoint=True, folder="overwrite")

    def load_checkpoint(self, checkpoint_path, weights_only=False):
        path = Path(self.broadcast(checkpoint_path))
        checkpoint.load(path, {"state_dict": self.model} | {f"optimizer_{number}": optimizer
                                                            for number, optimizer in enumerate(self.optimizers)})
        return torch.load(path / "meta.pt", weights_only=bool(weights_only))

    def teardown(self):
        checkpoint.close()  # waits for the last save, and raises if it failed
        super().teardown()


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 1))

    def configure_model(self):
        for layer in self.layers:
            fully_shard(layer, mesh=self.device_mesh["data_parallel"])
        fully_shard(self.layers, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch):
        inputs, targets = batch
        loss = nn.functional.mse_loss(self.layers(inputs), targets)
        mean = self.trainer.strategy.reduce(loss.detach().clone())
        if self.global_rank == 0:
            print(f"step {self.global_step + 1} loss {mean.item():.12f}", flush=True)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--steps", type=int, default=20, help="the last step")
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument("--load", help="a checkpoint to continue from")
    words = parser.parse_args()

    ranks, local_ranks = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
    inputs = torch.randn(64, 32, generator=torch.Generator().manual_seed(1))
    # One batch is an epoch: in the middle of one, Lightning continues at its begin unless the loader has a state.
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=64 // ranks)
    saver = callbacks.ModelCheckpoint(dirpath=words.folder, filename="{step}", every_n_train_steps=words.save_every, save_top_k=-1)
    trainer = lightning.Trainer(devices=local_ranks, num_nodes=ranks // local_ranks, max_steps=words.steps, callbacks=[saver], logger=False,
                                strategy=CheckpointStrategy(data_parallel_size=ranks, tensor_parallel_size=1),
                                enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(Model(), data, ckpt_path=words.load)


if __name__ == "__main__":
    main()
