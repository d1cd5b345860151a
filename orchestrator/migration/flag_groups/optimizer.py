"""Megatron-LM's Muon, whose name says whether its state is shared out, the formats of Adam's moments, and the part of
them that is in host memory.
"""

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
        if writer.value(FRACTION) > 0:
            writer.unsaid_value(path, "Megatron-LM's moments are in fp32 where they are in host memory")
        elif writer.value(_SHARED):
            _write_precision_aware(writer)
            writer.add("TRAINING", flag, writer.value(path))
        else:
            writer.unsaid_value(path, "Megatron-LM has it with --use-distributed-optimizer only")


OFFLOAD, OFFLOADED_PART, FRACTION = "optimizer-cpu-offload", "optimizer-offload-fraction", "optimizer.offload_fraction"
OVERLAP = "overlap-cpu-optimizer-d2h-h2d"
_PINNED = ("no-pin-cpu-grads", "no-pin-cpu-params")
_TORCHS = "use-torch-optimizer-for-cpu-offload"


def read_offloading(given: GivenFlags) -> None:
    """One flag says that, another how much; Megatron-LM updates on the host's cores."""
    given.no_effect(OVERLAP, "state comes, is updated and goes at the same time")
    given.no_effect(_TORCHS, "the GPU updates all of it, with the same kernel")
    given.no_effect(_PINNED, "only state is on the host, in page-locked memory")
    if not given.has(OFFLOAD):
        given.no_effect(OFFLOADED_PART, f"it is for --{OFFLOAD}")
    elif not given.has(OFFLOADED_PART):
        given.carry(OFFLOAD, FRACTION, 1.0)
    else:
        given.no_effect(OFFLOAD, f"--{OFFLOADED_PART} says how much")
        _read_fraction(given)


def _read_fraction(given: GivenFlags) -> None:
    text = given.text(OFFLOADED_PART)
    if text is None:
        given.write_it(OFFLOADED_PART, FRACTION)
        return
    try:
        fraction = float(text)
    except ValueError:
        fraction = -1.0
    if 0.0 <= fraction <= 1.0:
        given.carry(OFFLOADED_PART, FRACTION, fraction)
    else:
        given.refuse_value(OFFLOADED_PART, FRACTION, f"{text!r} is not a number from 0 to 1")


def write_offloading(writer: FlagWriter) -> None:
    """Megatron-LM has it for AdamW, with the flag that lets its optimizer have the main copies."""
    fraction = writer.value(FRACTION)
    if fraction == 0:
        return
    if not writer.value("optimizer.decoupled_weight_decay"):
        writer.unsaid_value(FRACTION, "Megatron-LM has it with decoupled weight decay only")
        return
    _write_precision_aware(writer)
    writer.add("TRAINING", OFFLOAD)
    writer.add("TRAINING", OFFLOADED_PART, fraction)
    writer.add("TRAINING", OVERLAP)


def _write_precision_aware(writer: FlagWriter) -> None:
    if [f"--{PRECISION_AWARE}"] not in writer.groups.get("TRAINING", []):
        writer.add("TRAINING", PRECISION_AWARE)


OPTIMIZER = (
    FlagGroup({}, read_muon, write_muon, ()),
    FlagGroup({PRECISION_AWARE: 0, **dict.fromkeys(MOMENTS, 1)}, read_moments, write_moments, tuple(MOMENTS.values())),
    FlagGroup(
        {OFFLOAD: 0, OFFLOADED_PART: 1, OVERLAP: 0, _TORCHS: 0, **dict.fromkeys(_PINNED, 0)},
        read_offloading,
        write_offloading,
        (FRACTION,),
    ),
)
