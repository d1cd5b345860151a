"""Which layer implementation a run uses."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from orchestrator.errors import MissingDependency, UserError
from orchestrator.kernel_selection.layers import against_engine, asked_layers, layers_of_run
from orchestrator.runtime.layers.rank_machine import machine_and_estimates
from orchestrator.runtime.layers.transformer_engine.availability import has_engine, trouble
from orchestrator.runtime.processes.device import Device
from orchestrator.runtime.processes.process_groups import Ranks
from orchestrator.runtime.processes.rank_agreement import Control, of_any
from orchestrator.spec.job import JobSpec
from orchestrator.spec.sections.runtime import Layers

_WHOSE: dict[Layers, str] = {"torch": "torch's", "transformer_engine": "Transformer Engine's"}


def choose_layers(
    job: JobSpec,
    device: Device,
    padded_vocab: int,
    ranks: Ranks,
    control: Control,
    start_seconds: float,
    before: str | None,
) -> Layers:
    """The same on all ranks. `auto` takes what the run had `before`, whose steps it is to go on with to the bit. A run
    that begins has Transformer Engine's on a GPU where it is installed, unless the plan for that GPU, and for a host
    that starts a kernel in `start_seconds`, has torch's faster. Rank 0 says where they are others than it would expect.

    Raises MissingDependency when Transformer Engine is asked for where it cannot be had.
    """
    asked = asked_layers(job)
    if asked == "transformer_engine" and not has_engine(device):
        reason = trouble() or "it is not installed"
        if not device.is_cuda:
            reason = "it needs a GPU, but this process computes on the CPU"
        raise MissingDependency(f"runtime.layers is transformer_engine, but {reason}; use auto or torch")
    if asked != "auto":
        return asked
    if lacks_engine := control.any(not has_engine(device)):
        own = trouble() if device.is_cuda else None
    else:
        own = _against_engine(job, device, padded_vocab, start_seconds)
    found = layers_of_run(job, of_any(control, own), before, lacks_engine=lacks_engine)
    if ranks.is_first and (found.why or (before in _WHOSE and before != found.layers)):
        were = "" if before in (None, found.layers) else ", and were others in the last start"
        why = "" if found.why is None else f": {found.why}"
        print(f"the layers are {_WHOSE[found.layers]}{were}{why}", flush=True)
    return found.layers


def _against_engine(job: JobSpec, device: Device, padded_vocab: int, start_seconds: float) -> str | None:
    try:
        machine, estimates = machine_and_estimates(device, padded_vocab)
    except UserError:  # nothing can be estimated
        return None
    return against_engine(job, machine, estimates.behind(start_seconds))


def block_spec_function(layers: Layers) -> Callable[..., Any]:
    """The chosen module's `block_spec`."""
    function: Callable[..., Any] = _module(layers).block_spec
    return function


def column_and_norm(layers: Layers) -> tuple[Any, Any]:
    """The chosen module's linear layer whose outputs tensor-parallel ranks split, and its norm."""
    linear, norm = _module(layers).column_and_norm()
    return linear, norm


def encoder_attention(layers: Layers) -> Any:
    """What the layers of one chunk of an encoder attend with: its class, or a specification of megatron-core's."""
    return _module(layers).encoder_attention()


def _module(layers: Layers) -> Any:
    """Only the chosen one is imported: the other's library may be absent."""
    name = "torch_layers" if layers == "torch" else "transformer_engine_layers"
    return importlib.import_module(f"orchestrator.runtime.layers.{name}")
