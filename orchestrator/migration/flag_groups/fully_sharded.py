"""Megatron-LM's two ways to shard weights over replicas: its own FSDP, with a flag for what is sharded, and torch's."""

from __future__ import annotations

from orchestrator.migration.megatron_flags.flag_writer import FlagWriter
from orchestrator.migration.megatron_flags.given_flags import GivenFlags
from orchestrator.models.blocks.flags import FlagGroup
from orchestrator.spec.rules.parallelism.fully_sharded import FSDP

MEGATRON_FSDP, STRATEGY, TORCH_FSDP = "use-megatron-fsdp", "data-parallel-sharding-strategy", "use-torch-fsdp2"
_SHARED = "parallelism.use_distributed_optimizer"
_OVERLAPS = ("parallelism.overlap_grad_reduce", "parallelism.overlap_param_gather")
_WHOLE = "optim_grads_params"
_OPTIMIZER_ALONE = ("optim", "optim_grads")
_RESHARDS = "torch-fsdp2-no-reshard-after-forward"


def read_fully_sharded(given: GivenFlags) -> None:
    """Without a strategy Megatron-LM's FSDP shards nothing."""
    if given.has(TORCH_FSDP):
        given.carry(TORCH_FSDP, FSDP, "full")
        for path in (_SHARED, *_OVERLAPS):  # torch's shards and overlaps by itself
            given.migration.drop(path)
        given.no_effect(_RESHARDS, "each layer's weights are gathered again for the backward pass")
    if not given.has(MEGATRON_FSDP):
        given.no_effect(STRATEGY, f"it is for --{MEGATRON_FSDP}")
        return
    strategy = given.text(STRATEGY)
    if strategy == _WHOLE:
        given.carry(STRATEGY, FSDP, "full")
        given.migration.drop(_SHARED)
    elif strategy in _OPTIMIZER_ALONE:
        given.carry(STRATEGY, _SHARED, True)
    elif strategy == "no_shard":
        given.carry(STRATEGY, FSDP, None)
    elif given.has(STRATEGY):
        given.refuse_value(STRATEGY, FSDP, f"Megatron-LM has no_shard, {', '.join((*_OPTIMIZER_ALONE, _WHOLE))}")
    given.no_effect(MEGATRON_FSDP, f"--{STRATEGY} says what is sharded, which is nothing by default")


def write_fully_sharded(writer: FlagWriter) -> None:
    """As Megatron-LM's own FSDP, which has a checkpoint format of its own."""
    if not writer.job.is_fully_sharded:
        writer.leave(FSDP, "there is one replica")
    elif writer.job.optimizer.kind.orthogonalizes:
        writer.unsaid_value(FSDP, "Megatron-LM refuses it with its Muon")
    else:
        writer.add("MODEL_PARALLEL", MEGATRON_FSDP)
        writer.add("MODEL_PARALLEL", STRATEGY, _WHOLE)
        if writer.job.sharded_copies > 1:
            writer.add("MODEL_PARALLEL", "num-distributed-optimizer-instances", writer.job.sharded_copies)
        writer.add("CHECKPOINT", "ckpt-format", "fsdp_dtensor")
        writer.take_back("dist-ckpt-optim-fully-reshardable")  # it is of the other format
        if writer.job.checkpoint.async_save:
            writer.take_back("async-save")
            writer.say_otherwise("checkpoint.async_save", "Megatron-LM saves this format before it goes on")


FULLY_SHARDED = FlagGroup(
    {MEGATRON_FSDP: 0, STRATEGY: 1, TORCH_FSDP: 0, _RESHARDS: 0}, read_fully_sharded, write_fully_sharded, (FSDP,)
)
