"""Which layer implementation a run uses."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple, cast, get_args

from orchestrator.errors import MissingDependency, UserError
from orchestrator.planning.hardware import device_named
from orchestrator.planning.layers import WORTH, demands_of_engine, saved_by_torch
from orchestrator.runtime.layers.engine import has_engine, trouble
from orchestrator.runtime.processes.control import Control, of_any
from orchestrator.runtime.processes.device import Device
from orchestrator.runtime.processes.host import with_host
from orchestrator.runtime.processes.process_groups import Ranks
from orchestrator.spec.job import JobSpec
from orchestrator.spec.runtime import Layers

_KINDS = get_args(Layers)
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
    asked = "torch" if job.model.has_adapters else job.runtime.layers
    if asked == "transformer_engine" and not has_engine(device):
        reason = trouble() or "it is not installed"
        if not device.is_cuda:
            reason = "it needs a GPU and this process computes on the CPU"
        raise MissingDependency(f"runtime.layers is transformer_engine, but {reason}; use auto or torch")
    if asked != "auto":
        return asked
    if control.any(not has_engine(device)):
        lost = "Transformer Engine is not there on every rank" if before == "transformer_engine" else None
        found = _Found("torch", of_any(control, trouble() if device.is_cuda else None) or lost)
    else:
        own = _against_engine(job, device, padded_vocab, start_seconds)
        why = of_any(control, own)
        found = _Found("transformer_engine" if why is None else "torch", why)
        demanded = before == "torch" and demands_of_engine(job)
        if before in _KINDS and before != found.layers and not demanded:
            found = _Found(cast("Layers", before), "this run began with them, and runtime.layers changes that")
    if ranks.is_first and (found.why or (before in _KINDS and before != found.layers)):
        were = "" if before in (None, found.layers) else ", and were others in the last start"
        why = "" if found.why is None else f": {found.why}"
        print(f"the layers are {_WHOSE[found.layers]}{were}{why}", flush=True)
    return found.layers


class _Found(NamedTuple):
    layers: Layers
    why: str | None = None
    """Where it is not what one would expect."""


def _against_engine(job: JobSpec, device: Device, padded_vocab: int, start_seconds: float) -> str | None:
    """Why this rank's plan has torch's layers in place of Transformer Engine's."""
    try:
        known = device_named(device.name)
    except UserError:  # it is in no list, or its calibrated profile cannot be read
        return None
    saved = saved_by_torch(job, padded_vocab, with_host(known, start_seconds))
    if saved < WORTH:
        return None
    return f"with Transformer Engine's this GPU would wait for its host, by the plan, and a step takes {saved:.0%} less"


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
