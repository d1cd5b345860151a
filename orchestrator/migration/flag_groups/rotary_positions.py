"""Rotary positions: how they are scaled, and layers without them."""

from __future__ import annotations

from orchestrator.migration.megatron_flags.flag_writer import FlagWriter
from orchestrator.migration.megatron_flags.given_flags import GivenFlags
from orchestrator.migration.megatron_flags.programs import PROGRAMS
from orchestrator.migration.report import WRITE_IT
from orchestrator.models.blocks.flags import FlagGroup

SCALING, NO_ROPE = "model.rope_scaling", "model.no_rope_freq"
LLAMA_SCALING = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""Megatron-LM's --use-rope-scaling has these figures of Llama 3.1."""


def read_scaling(given: GivenFlags) -> None:
    llama, factor, linear = "use-rope-scaling", "rope-scaling-factor", "rotary-seq-len-interpolation-factor"
    if given.get("model.position_embedding_type") not in ("rope", WRITE_IT):
        given.no_effect((llama, factor, linear), "it is for rotary positions")
        return
    if not given.family.scales_positions:
        given.no_effect((llama, factor, linear), f"Megatron-LM's {given.family.name} scales no positions")
        return
    if given.has("multi-latent-attention"):
        given.no_effect((llama, factor, linear), "multi-latent attention scales by --rotary-scaling-factor")
        return
    if given.family.trains.is_hybrid:
        given.no_effect((llama, factor), "Megatron-LM's hybrids have no scaling of Llama's kind")
    if not given.has(llama) or llama in given.settled:
        given.no_effect(factor, "Megatron-LM takes it with --use-rope-scaling only")
        if given.has(linear) and given.number(linear) == 1:
            given.settle(linear, "default", SCALING, None, "a factor of 1 is none")
        elif given.has(linear):
            _carry_scaling(given, linear, linear, "linear")
        return
    if given.has(linear):
        given.not_supported(linear, "one kind of scaling holds, and --use-rope-scaling is another", SCALING)
    _carry_scaling(given, llama, factor, "llama3")
    if given.has(factor) and factor not in given.settled:
        given.settle(factor, "carried", f"{SCALING}.factor", given.text(factor))


def _carry_scaling(given: GivenFlags, flag: str, factor: str, kind: str) -> None:
    """The section of a kind of scaling, whose factor another flag may say."""
    text = given.text(factor) if given.has(factor) else "8.0"
    try:
        value = float(text or "")
    except ValueError:
        value = 0.0
    if 1.0 <= value < float("inf"):
        figures = LLAMA_SCALING if kind == "llama3" else {}
        given.carry(flag, SCALING, {"type": kind, "factor": value, **figures})
    else:
        given.write_it(flag, SCALING, f"--{factor} is no number from 1")
        if factor != flag:
            given.settle(factor, "not_known", SCALING)


def write_scaling(writer: FlagWriter) -> None:
    scaling, own_flags = writer.job.model.rope_scaling, writer.job.model.attention.flags.translated
    if scaling is None or any(SCALING in each.paths for each in own_flags):
        return
    if not PROGRAMS.of(writer.job.model.family).scales_positions:
        writer.unsaid_value(SCALING, f"Megatron-LM's {PROGRAMS.of(writer.job.model.family).name} scales no positions")
    elif scaling.type == "linear" and scaling.factor.is_integer():
        writer.add("MODEL", "rotary-seq-len-interpolation-factor", int(scaling.factor))
    elif scaling.type == "llama3" and all(getattr(scaling, name) == value for name, value in LLAMA_SCALING.items()):
        writer.add("MODEL", "use-rope-scaling")
        writer.add("MODEL", "rope-scaling-factor", scaling.factor)
    else:
        writer.unsaid_value(SCALING, "Megatron-LM has whole linear factors, and llama3 with Llama 3.1's own figures")


def read_unrotated(given: GivenFlags) -> None:
    name = "no-rope-freq"
    if not given.has(name):
        return
    if given.get("model.position_embedding_type") not in ("rope", WRITE_IT):
        given.no_effect(name, "it is for rotary positions")
    elif (layers := given.number(name)) is None:
        given.refuse_value(name, NO_ROPE, "a list of layers is not in this version: write a number")
    else:
        given.carry(name, NO_ROPE, layers)


def write_unrotated(writer: FlagWriter) -> None:
    model = writer.job.model
    if model.no_rope_freq is None:
        return
    if model.num_layers % model.no_rope_freq:
        writer.unsaid_value(NO_ROPE, "Megatron-LM wants as many layers as make up whole rounds")
    else:
        writer.add("MODEL", "no-rope-freq", model.no_rope_freq)


SCALED_POSITIONS = (
    FlagGroup(
        {"use-rope-scaling": 0, "rope-scaling-factor": 1, "rotary-seq-len-interpolation-factor": 1},
        read_scaling,
        write_scaling,
        (SCALING,),
    ),
)
UNROTATED_LAYERS = (FlagGroup({"no-rope-freq": 1}, read_unrotated, write_unrotated, (NO_ROPE,)),)
