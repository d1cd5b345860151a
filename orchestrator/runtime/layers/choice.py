"""Which layer implementation a run uses."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

from orchestrator.errors import MissingDependency, UserError
from orchestrator.planning.hardware import device_named
from orchestrator.planning.layers import WORTH, saved_by_torch
from orchestrator.runtime.processes.control import Control
from orchestrator.runtime.processes.device import Device
from orchestrator.runtime.processes.process_groups import Ranks
from orchestrator.spec.job import JobSpec
from orchestrator.spec.runtime import Layers


def choose_layers(job: JobSpec, device: Device, padded_vocab: int, ranks: Ranks, control: Control) -> Layers:
    """The same on all ranks. `auto` takes Transformer Engine on a GPU where it is installed, unless the plan for that
    GPU has torch's faster, which rank 0 says.

    Raises MissingDependency when Transformer Engine is asked for where it cannot be had.
    """
    asked = "torch" if job.model.lora is not None else job.runtime.layers
    installed = device.is_cuda and importlib.util.find_spec("transformer_engine") is not None
    if asked == "transformer_engine" and not installed:
        reason = "it is not installed" if device.is_cuda else "it needs a GPU and this process computes on the CPU"
        raise MissingDependency(f"runtime.layers is transformer_engine, but {reason}; use auto or torch")
    if asked != "auto":
        return asked
    if control.any(not installed):
        return "torch"
    saved = _saved_by_torch(job, device, padded_vocab)
    if not control.any(saved >= WORTH):
        return "transformer_engine"
    if ranks.is_first and saved >= WORTH:
        print(
            "the layers are torch's: by the plan for this GPU Transformer Engine's would wait for the host, and a step "
            f"takes {saved:.0%} less; runtime.layers pins them",
            flush=True,
        )
    return "torch"


def _saved_by_torch(job: JobSpec, device: Device, padded_vocab: int) -> float:
    try:
        known = device_named(device.name)
    except UserError:  # it is in no list, or its calibrated profile cannot be read
        return 0.0
    return saved_by_torch(job, padded_vocab, known)


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
