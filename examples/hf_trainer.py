"""HF Trainer with FSDP2, whose sharded checkpoints ckptbench's engine writes and reads.

    torchrun --nproc-per-node 2 examples/hf_trainer.py --folder /lustre/run --steps 20
    torchrun --nproc-per-node 2 examples/hf_trainer.py --folder /lustre/run --steps 30 --load /lustre/run/checkpoint-20

The layout is Trainer's own: Trainer loads these checkpoints as well. accelerate's FSDP needs GPUs. `pip install .`
installs ckptbench."""
import argparse
import functools
from unittest import mock

import torch
import torch.distributed.checkpoint as dcp
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

import ckptbench.checkpoint as checkpoint


def plugged_in(function):
    """While `function` runs, accelerate's saves and loads by torch.distributed.checkpoint use ckptbench's engine."""
    writer = functools.partial(checkpoint.Writer, folder="overwrite")  # as accelerate does
    return mock.patch.multiple(dcp, FileSystemWriter=writer, FileSystemReader=checkpoint.Reader)(function)


class CheckpointTrainer(Trainer):
    _save_optimizer_and_scheduler = plugged_in(Trainer._save_optimizer_and_scheduler)  # saves the model, too
    _load_from_checkpoint = plugged_in(Trainer._load_from_checkpoint)
    _load_optimizer_and_scheduler = plugged_in(Trainer._load_optimizer_and_scheduler)


class PrintLoss(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **more):
        if state.is_world_process_zero and "loss" in logs:
            print(f"step {state.global_step} loss {logs['loss']:.12f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--steps", type=int, default=20, help="the last step")
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument("--load", help="a checkpoint to continue from")
    words = parser.parse_args()

    arguments = TrainingArguments(
        output_dir=words.folder, max_steps=words.steps, save_steps=words.save_every, logging_steps=1, report_to=[], disable_tqdm=True,
        per_device_train_batch_size=4, lr_scheduler_type="constant", use_cpu=not torch.cuda.is_available(), fsdp=True,
        fsdp_config={"version": 2, "state_dict_type": "SHARDED_STATE_DICT", "transformer_layer_cls_to_wrap": ["GPT2Block"]})
    torch.manual_seed(1)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=65, n_positions=32, n_embd=64, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0))
    text = torch.randint(0, 3, (4096, 32), generator=torch.Generator().manual_seed(1)).cumsum(1) % 65
    data = [{"input_ids": tokens, "labels": tokens} for tokens in text]
    trainer = CheckpointTrainer(model=model, args=arguments, train_dataset=data, callbacks=[PrintLoss()])
    trainer.train(resume_from_checkpoint=words.load)


if __name__ == "__main__":
    main()
