"""Which layer implementation a run uses."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any, Literal

from orchestrator.errors import MissingDependency
from orchestrator.runtime.processes.device import Device
from orchestrator.spec.runtime import Layers


def choose_layers(choice: Literal["auto", "torch", "transformer_engine"], device: Device) -> Layers:
    """`auto` takes Transformer Engine on a GPU where it is installed.

    Raises MissingDependency when Transformer Engine is asked for where it cannot be had.
    """
    installed = device.is_cuda and importlib.util.find_spec("transformer_engine") is not None
    if choice == "auto":
        return "transformer_engine" if installed else "torch"
    if choice == "transformer_engine" and not installed:
        reason = "it is not installed" if device.is_cuda else "it needs a GPU and this process computes on the CPU"
        raise MissingDependency(f"runtime.layers is transformer_engine, but {reason}; use auto or torch")
    return choice


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
