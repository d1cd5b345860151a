"""Megatron-LM's Muon, whose name says whether its state is shared out."""

from __future__ import annotations

from orchestrator.migration.combined_flags.base import FlagGroup
from orchestrator.migration.megatron_flags.flag_writer import FlagWriter
from orchestrator.migration.megatron_flags.given_flags import GivenFlags

_SHARED = "parallelism.use_distributed_optimizer"
_NOT_WITH_MUON = ("--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather")


def read_muon(given: GivenFlags) -> None:
    """A row reads --optimizer; dist_muon also shares out the state."""
    if given.text("optimizer") == "dist_muon":
        given.migration.drop(_SHARED)


def write_muon(writer: FlagWriter) -> None:
    """Megatron-LM's Muon shares out its state as dist_muon, and refuses what goes with the distributed optimizer."""
    if writer.job.optimizer.name != "muon":
        return
    name = "dist_muon" if writer.value(_SHARED) else "muon"
    for flags in writer.groups.values():
        kept = [flag for flag in flags if flag[0] not in _NOT_WITH_MUON]
        flags[:] = [["--optimizer", name] if flag[0] == "--optimizer" else flag for flag in kept]
    for path in ("parallelism.overlap_grad_reduce", "parallelism.overlap_param_gather"):
        if writer.value(path):
            writer.unsaid_value(path, "Megatron-LM refuses it with its Muon")


MUON = (FlagGroup({}, read_muon, write_muon, ()),)
