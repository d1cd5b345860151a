"""Numbers of the models of time and memory that were fitted to measurements, counted or assumed, from
`fitted_constants.json`: each with its unit, what it was measured on, when, and where that is written down.

The file has those that hold for any GPU, and over them those of a generation. What each says is in the file and in
docs/reference/fitted-constants.md. The names here are the file's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

from orchestrator.models.blocks.base import ForwardBackward

ANY = "any"
"""The group of numbers that hold where a GPU's generation has none of its own."""


class _Constants:
    """Values by the names that a subclass declares. A NamedTuple takes ten times as long to make."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        if given.keys() != self.__annotations__.keys():
            raise TypeError(f"{type(self).__name__}: {sorted(given.keys() ^ self.__annotations__.keys())}")
        vars(self).update(given)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name} is read from fitted_constants.json, and stays")


class Gemm(_Constants):
    """Matrix products."""

    tiles: tuple[tuple[int, int, float], ...]
    prologue_steps: int
    splits: tuple[tuple[int, float], ...]
    fp8_of_bf16: float
    shortest_seconds: float


class Attention(_Constants):
    """The core of attention."""

    softmax_width: float
    query_keys: ForwardBackward
    last_heads: float
    widths: tuple[tuple[int, float, float], ...]
    softcapping: ForwardBackward
    masked_slowdown: float
    gathered_slowdown: float
    flash_attention_speedup: float
    sink_gradient_seconds: float
    window_ends: float


class Elementwise(_Constants):
    """What only moves memory, whichever layers compute."""

    frozen_norm: float
    residual: ForwardBackward
    activation: ForwardBackward
    gated: ForwardBackward


class Accumulation(_Constants):
    """Gradients that are not added by their product."""

    behind_products: float
    behind_products_in_16_bits: float


class Quantization(_Constants):
    """Matrix products in FP8 and FP4."""

    cast_bytes: Mapping[str, float]
    block_cast_bytes: Mapping[str, float]
    launches: ForwardBackward


class Experts(_Constants):
    """Layers with experts."""

    moved: ForwardBackward
    sorted: ForwardBackward
    unfused_moved: ForwardBackward
    unfused_sorted: ForwardBackward
    routed: ForwardBackward
    streamed_routing: ForwardBackward
    biased: ForwardBackward
    clamped: ForwardBackward
    joined_biased: ForwardBackward
    joined_products: ForwardBackward
    joined_gradients: float
    launches: ForwardBackward
    launches_of_expert: ForwardBackward
    launches_of_bias: ForwardBackward
    counting_seconds: float
    joined_counting_seconds: float


class Adapters(_Constants):
    """Low-rank adapters."""

    added: ForwardBackward
    joined: float
    dropout: ForwardBackward
    launches: ForwardBackward
    frozen_launches: float


class Host(_Constants):
    """The host, which starts kernels."""

    starts_of_kernel: float
    gap: float
    gap_in_graph: float
    collectives_in_parallel: ForwardBackward
    collectives: ForwardBackward
    dropout: ForwardBackward
    recomputed: Mapping[str, float]
    slow_host: float
    starts_of_round: float


class Hybrid(_Constants):
    """Layers of which each is a half."""

    launches: float


class StateSpace(_Constants):
    """What is between a state space layer's matrices, in mamba-ssm's kernels."""

    copied: ForwardBackward
    convolved: ForwardBackward
    normed: ForwardBackward
    scan_rate: float
    scan_backward: float


class LinearAttention(_Constants):
    """What is between a gated delta net's matrices, in torch's operations."""

    projected: ForwardBackward
    inner: ForwardBackward
    scan_rate: float
    scan_backward: float
    chunked: float
    convolved: ForwardBackward


class EncoderDecoder(_Constants):
    """A T5's layers."""

    launches: Mapping[str, float]
    bias: ForwardBackward


class Vision(_Constants):
    """Encoding images."""

    numbers: float
    placed: ForwardBackward
    layers_beside: int
    in_windows: ForwardBackward
    filled_up: ForwardBackward
    native_launches: float


class Communication(_Constants):
    """Collectives, and copies to the host's memory."""

    contention: float
    host_copies: float


class Step(_Constants):
    """A step as a whole."""

    gpu_spread: float
    overhead_seconds: float


class Calibration(_Constants):
    """From kernels that run alone to those of a training step."""

    gemm_in_training: float
    gemm_at_power_limit: float
    cpu_launch: float


class Memory(_Constants):
    """What a process takes on a GPU beyond what torch has allocated."""

    context_mib: int
    communicator_mib: int
    fragmentation: float


class FittedConstants(_Constants):
    """All of them, by subject. Those of `Efficiency` and `Kernels` are read where these are declared."""

    gemm: Gemm
    attention: Attention
    elementwise: Elementwise
    accumulation: Accumulation
    quantization: Quantization
    experts: Experts
    adapters: Adapters
    host: Host
    hybrid: Hybrid
    state_space: StateSpace
    linear_attention: LinearAttention
    encoder_decoder: EncoderDecoder
    vision: Vision
    communication: Communication
    step: Step
    calibration: Calibration
    memory: Memory


@cache
def fitted_constants(generation: str | None = None) -> FittedConstants:
    """Those for GPUs of a generation; None: what holds for any."""
    kinds: dict[str, type[_Constants]] = get_type_hints(FittedConstants)
    return FittedConstants({subject: kind(values(subject, generation)) for subject, kind in kinds.items()})


def values(subject: str, generation: str | None = None) -> dict[str, Any]:
    """The values of a subject by name: those that hold for any GPU, and over them those of a generation."""
    groups = entries()
    own = groups.get(generation, {}) if generation else {}
    found = {**groups[ANY][subject], **own.get(subject, {})}
    return {name: _value(entry["value"]) for name, entry in found.items()}


@cache
def entries() -> Mapping[str, Mapping[str, Mapping[str, Mapping[str, Any]]]]:
    """The file: what is said of each number, by group ("any", or a generation), subject and name."""
    read: dict[str, Any] = json.loads(Path(__file__).with_name("fitted_constants.json").read_text(encoding="utf-8"))
    return read


def _value(value: Any) -> Any:
    if isinstance(value, dict) and value.keys() == {"forward", "backward"}:
        return ForwardBackward(**value)
    if isinstance(value, list):
        return tuple(map(tuple, value))
    return value
