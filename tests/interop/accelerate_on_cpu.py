"""accelerate turns FSDP on for GPUs alone. With this, HF Trainer has the state on a CPU that accelerate has then; all else is theirs."""
import torch
from accelerate.state import AcceleratorState, DistributedType, PartialState
from accelerate.utils import FullyShardedDataParallelPlugin, TorchDynamoPlugin
from transformers import Trainer


def turn_fsdp_on(arguments):
    state = AcceleratorState(cpu=True, dynamo_plugin=TorchDynamoPlugin(), _from_accelerator=True)
    PartialState._shared_state.update(distributed_type=DistributedType.FSDP, device=torch.device("cpu"))
    state.distributed_type = DistributedType.FSDP
    state.fsdp_plugin = FullyShardedDataParallelPlugin(**arguments.fsdp_plugin_args)


def patch_trainer(make=Trainer.__init__):
    def begin(self, *, args, **more):
        turn_fsdp_on(args)
        make(self, args=args, **more)
    Trainer.__init__ = begin
