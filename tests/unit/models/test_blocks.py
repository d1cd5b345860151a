"""Every block is registered, and its rules are among those that a job is checked by."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from orchestrator.models import blocks
from orchestrator.models.blocks.block import Block
from orchestrator.models.blocks.flags import BlockFlags
from orchestrator.models.blocks.registry import ATTENTIONS, BLOCKS, FEATURES, MLP, block_flags
from orchestrator.models.features import OF_JOBS
from orchestrator.spec.rules import RULES
from orchestrator.spec.schema.shape import leaf_paths


def test_every_folder_is_registered() -> None:
    folders = {path.parent.name for path in Path(blocks.__path__[0]).glob("*/__init__.py")}
    assert folders == {block.name for block in BLOCKS}


def test_attentions_list_features_that_there_are() -> None:
    offered = [each.name for offers in (*(block.offers for block in BLOCKS), OF_JOBS) for each in offers]
    assert list(FEATURES) == offered, "each is there once"
    assert any(block.features for block in ATTENTIONS)
    for block in ATTENTIONS:
        assert (block.features or frozenset()) <= FEATURES.keys()


def test_features_that_rule_kernels_out_are_asked_for_in_a_field() -> None:
    known = set(leaf_paths())
    paths = {each.path for each in FEATURES.values() if each.path}
    assert {path for path in paths if not any(leaf.startswith(path) for leaf in known)} == set()
    assert all(each.path for each in FEATURES.values() if each.rules_out)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.name)
def test_the_rules_of_a_block_are_run(block: Block) -> None:
    module = block.part("rules")
    functions = inspect.getmembers(module, inspect.isfunction)
    own = {function for name, function in functions if function.__module__ == module.__name__ and name[0] != "_"}
    listed = [rule for rules in block.rules.RULES.values() for rule in rules]
    assert own
    assert own <= set(listed) <= set(RULES)
    assert set(block.rules.TENSOR_PARALLEL) <= set(listed)


def test_each_flag_is_of_one_block() -> None:
    known = {path for leaf in leaf_paths() for path in (leaf, leaf.rpartition(".")[0])}
    flags = [flag for block in block_flags() for each in block.translated for flag in each.flags]
    flags += [
        name.rstrip("=*") for block in block_flags() for each in block.without_field for name in each.names.split()
    ]
    assert len(flags) == len(set(flags)) > 0
    for block in block_flags():
        opened = [each.path for each in block.without_field if each.path is not None]
        assert {*opened, *(path for each in block.translated for path in each.paths)} <= known


def test_a_block_whose_folder_says_nothing_of_flags_has_none() -> None:
    assert MLP.flags == BlockFlags()
