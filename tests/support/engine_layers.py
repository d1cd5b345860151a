"""The layers of Transformer Engine where it is not installed: megatron-core's own stand in for its specs."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from orchestrator.models.blocks.registry import GROUPED_QUERY
from orchestrator.runtime.layers import torch_layers
from orchestrator.runtime.layers.config import LayerKind


class DotProductAttention(torch.nn.Module):
    """Gives back what it was called with."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__()

    def forward(self, *given: Any, **named: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return given, named


def transformer_engine_layers(
    monkeypatch: pytest.MonkeyPatch, attention: type[torch.nn.Module] = DotProductAttention
) -> Any:
    """The module that builds them, until the test is over. `attention`: what stands for its core."""
    engine: Any = ModuleType("megatron.core.extensions.transformer_engine")
    engine.TENorm = engine.TEColumnParallelLinear = engine.TERowParallelLinear = torch.nn.Identity
    engine.TEDotProductAttention = attention
    monkeypatch.setitem(sys.modules, engine.__name__, engine)
    for each in ("attention.padded", "transformer_engine_layers"):
        name = f"orchestrator.runtime.layers.{each}"
        monkeypatch.setitem(sys.modules, name, ModuleType(name))  # so that what is imported now is gone afterwards
        del sys.modules[name]
    monkeypatch.setattr(
        "megatron.core.models.gpt.gpt_layer_specs.get_gpt_layer_with_transformer_engine_spec",
        lambda moe_grouped_gemm, **options: torch_layers.get_gpt_layer_local_spec(**options),
    )
    module: Any = importlib.import_module(name)
    have_layers(monkeypatch, module, [False])
    return module


def have_layers(monkeypatch: pytest.MonkeyPatch, module: Any, experts: list[bool]) -> None:
    """Have chunks that a module builds consist of these layers: whether each has experts."""
    kinds = [LayerKind(GROUPED_QUERY.name, has_experts) for has_experts in experts]
    monkeypatch.setattr(module, "layers_of_chunk", lambda config, stage: kinds)
