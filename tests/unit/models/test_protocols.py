"""A block's parts have what their protocols ask for, which no type checker sees: they are imported by name."""

from __future__ import annotations

from orchestrator import plain_megatron  # noqa: F401 - before anything that imports megatron-core

# isort: split
import inspect
from functools import cached_property
from typing import Any

import pytest

from orchestrator.models.blocks import protocols
from orchestrator.models.blocks.block import Block
from orchestrator.models.blocks.registry import BLOCKS

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:megatron")


def _parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.name)
def test_parts_have_what_is_asked_of_them(block: Block) -> None:
    parts = inspect.getmembers(type(block), lambda value: isinstance(value, cached_property))
    assert {"rules", "weights", "layers"} <= {name for name, _ in parts}
    for name, part in parts:
        protocol = getattr(protocols, inspect.signature(part.func).return_annotation)
        asked = {each: value for each, value in inspect.getmembers(protocol) if each[0] != "_"}
        functions = {each: _parameters(value)[1:] for each, value in asked.items() if inspect.isfunction(value)}
        module = block.part(name)
        assert asked.keys() <= vars(module).keys(), name
        assert {each: _parameters(getattr(module, each)) for each in functions} == functions, name
