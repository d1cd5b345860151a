"""Every block is registered, and its rules are among those that a job is checked by."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from orchestrator.models import blocks
from orchestrator.models.blocks.registry import BLOCKS, Block
from orchestrator.spec.rules import RULES


def test_every_folder_is_registered() -> None:
    folders = {path.parent.name for path in Path(blocks.__path__[0]).glob("*/__init__.py")}
    assert folders == {block.name for block in BLOCKS}


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.name)
def test_the_rules_of_a_block_are_run(block: Block) -> None:
    module = block.part("rules")
    functions = inspect.getmembers(module, inspect.isfunction)
    own = {function for name, function in functions if function.__module__ == module.__name__ and name[0] != "_"}
    listed = [rule for rules in block.rules.RULES.values() for rule in rules]
    assert own
    assert own <= set(listed) <= set(RULES)
    assert set(block.rules.TENSOR_PARALLEL) <= set(listed)
