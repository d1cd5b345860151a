"""Which layer implementation a run uses."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any, cast, get_args

from orchestrator.errors import MissingDependency, UserError
from orchestrator.plain_megatron import ENGINE_TROUBLE
from orchestrator.planning.hardware import device_named
from orchestrator.planning.layers import WORTH, demands_engine, saved_by_torch
from orchestrator.runtime.processes.control import Control
from orchestrator.runtime.processes.device import Device
from orchestrator.runtime.processes.host import with_host
from orchestrator.runtime.processes.process_groups import Ranks
from orchestrator.spec.job import JobSpec
from orchestrator.spec.runtime import Layers

_KINDS = get_args(Layers)


def choose_layers(
    job: JobSpec, device: Device, padded_vocab: int, ranks: Ranks, control: Control, launch: float, before: str | None
) -> Layers:
    """The same on all ranks. `auto` takes what the run had `before`, whose steps it is to go on with to the bit. A run
    that begins has Transformer Engine's on a GPU where it is installed, unless the plan for that GPU, and for a host
    that starts a kernel in `launch` seconds, has torch's faster. Rank 0 says where they are not what it would expect.

    Raises MissingDependency when Transformer Engine is asked for where it cannot be had.
    """
    asked = "torch" if job.model.lora is not None else job.runtime.layers
    installed = device.is_cuda and importlib.util.find_spec("transformer_engine") is not None
    if asked == "transformer_engine" and not installed:
        reason = _not_installed() if device.is_cuda else "needs a GPU and this process computes on the CPU"
        raise MissingDependency(f"runtime.layers is transformer_engine, but it {reason}; use auto or torch")
    if asked != "auto":
        return asked
    if control.any(not installed):
        if ENGINE_TROUBLE is not None and device.is_cuda and ranks.is_first:
            print(f"the layers are torch's: Transformer Engine {_not_installed()}", flush=True)
        elif before == "transformer_engine" and ranks.is_first:
            print(
                "the layers are torch's: this run had Transformer Engine's, which is not there on every rank",
                flush=True,
            )
        return "torch"
    if before in _KINDS and not (before == "torch" and demands_engine(job)):
        return cast("Layers", before)
    saved = _saved_by_torch(job, device, padded_vocab, launch)
    if not control.any(saved >= WORTH):
        return "transformer_engine"
    if ranks.is_first and saved >= WORTH:
        print(
            "the layers are torch's: by the plan for this GPU and this host Transformer Engine's would wait, and a "
            f"step takes {saved:.0%} less; runtime.layers pins them",
            flush=True,
        )
    return "torch"


def _not_installed() -> str:
    return "is not installed" if ENGINE_TROUBLE is None else f"is installed, but does not load ({ENGINE_TROUBLE})"


def _saved_by_torch(job: JobSpec, device: Device, padded_vocab: int, launch: float) -> float:
    try:
        known = device_named(device.name)
    except UserError:  # it is in no list, or its calibrated profile cannot be read
        return 0.0
    return saved_by_torch(job, padded_vocab, with_host(known, launch))


def block_spec_function(layers: Layers) -> Callable[..., Any]:
    """The chosen module's `block_spec`."""
    function: Callable[..., Any] = _module(layers).block_spec
    return function


def encoder_attention(layers: Layers) -> Any:
    """What the layers of one chunk of an encoder attend with: its class, or a specification of megatron-core's."""
    return _module(layers).encoder_attention()


def _module(layers: Layers) -> Any:
    """Only the chosen one is imported: the other's library may be absent."""
    name = "torch_layers" if layers == "torch" else "transformer_engine_layers"
    return importlib.import_module(f"orchestrator.runtime.layers.{name}")
