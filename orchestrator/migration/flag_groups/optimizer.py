"""Megatron-LM's Muon, whose name says whether its state is shared out, and the formats of Adam's moments."""

from __future__ import annotations

from orchestrator.fields.flag_values import same
from orchestrator.migration.megatron_flags.flag_writer import FlagWriter
from orchestrator.migration.megatron_flags.given_flags import GivenFlags
from orchestrator.models.blocks.flags import FlagGroup

_SHARED = "parallelism.use_distributed_optimizer"
_NOT_WITH_MUON = ("--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather")


def read_muon(given: GivenFlags) -> None:
    """A row reads --optimizer; dist_muon also shares out the state."""
    if given.text("optimizer") == "dist_muon":
        given.migration.drop(_SHARED)


def write_muon(writer: FlagWriter) -> None:
    """Megatron-LM's Muon shares out its state as dist_muon, and refuses what goes with the distributed optimizer."""
    if not writer.job.optimizer.kind.orthogonalizes:
        return
    name = "dist_muon" if writer.value(_SHARED) else "muon"
    for flags in writer.groups.values():
        kept = [flag for flag in flags if flag[0] not in _NOT_WITH_MUON]
        flags[:] = [["--optimizer", name] if flag[0] == "--optimizer" else flag for flag in kept]
    for path in ("parallelism.overlap_grad_reduce", "parallelism.overlap_param_gather"):
        if writer.value(path):
            writer.unsaid_value(path, "Megatron-LM refuses it with its Muon")


PRECISION_AWARE = "use-precision-aware-optimizer"
MOMENTS = {"exp-avg-dtype": "optimizer.exp_avg_dtype", "exp-avg-sq-dtype": "optimizer.exp_avg_sq_dtype"}
_DTYPES = same("fp32", "bf16")


def read_moments(given: GivenFlags) -> None:
    """One flag allows others to say the formats."""
    given.no_effect(PRECISION_AWARE, "the formats of the moments say it")
    for flag, path in MOMENTS.items():
        if not given.has(flag):
            continue
        text = given.text(flag)
        if text is None:
            given.write_it(flag, path)
            continue
        try:
            given.carry(flag, path, _DTYPES.read(text))
        except ValueError as error:
            given.refuse_value(flag, path, str(error))


def write_moments(writer: FlagWriter) -> None:
    """Megatron-LM takes them with its distributed optimizer only."""
    for flag, path in MOMENTS.items():
        if writer.value(path) == "fp32":
            continue
        if writer.value(_SHARED):
            if [f"--{PRECISION_AWARE}"] not in writer.groups.get("TRAINING", []):
                writer.add("TRAINING", PRECISION_AWARE)
            writer.add("TRAINING", flag, writer.value(path))
        else:
            writer.unsaid_value(path, "Megatron-LM has it with --use-distributed-optimizer only")


OPTIMIZER = (
    FlagGroup({}, read_muon, write_muon, ()),
    FlagGroup({PRECISION_AWARE: 0, **dict.fromkeys(MOMENTS, 1)}, read_moments, write_moments, tuple(MOMENTS.values())),
)
