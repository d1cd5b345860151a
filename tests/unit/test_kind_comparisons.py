"""What counts as a comparison of kinds, which tests/test_architecture.py keeps few."""

from __future__ import annotations

import pytest
from support.kind_comparisons import comparisons

COUNTED = (
    'x = job.model.architecture == "t5"',
    'x = model.architecture in ("gpt", "mamba")',
    'x = name != "bert"',
    "x = model.family is T5",
    'x = given.get("model.architecture") == kind',
    "x = TABLE[model.architecture]",
    "x = TABLE.get(model.architecture, ())",
    "x = model.num_experts is None",
    "x = job.task is not None",
    "x = 1 if model.vision else 2",
    "x = model.num_experts or 0",
    "x = [each for each in jobs if each.task]",
    "x = bool(data.chat)",
    "def f(job):\n    kind = job.model.architecture\n    return kind == other",
    "def f(job):\n    vision, size = job.model.vision, 1\n    return vision is None",
    "def f(job):\n    return (lora := job.model.lora) is None",
    "match model.architecture:\n    case other: pass",
    "x = isinstance(block, RoutedBlock)",
    "x = isinstance(layer[-1], registry.FeedForwardBlock)",
    "x = not isinstance(block, (AttentionBlock, StateSpaceBlock))",
    "x = isinstance(block, AttentionBlock | StateSpaceBlock)",
    "x = isinstance(block.memory, RoutedMemory)",
    "x = issubclass(kind, FeedForwardBlock)",
    "x = type(block) is RoutedBlock",
    "x = block.__class__ in (RoutedBlock, AttentionBlock)",
    "x = {RoutedBlock: seconds}",
    "match block:\n    case AttentionBlock(): pass",
)
NOT_COUNTED = (
    "x = model.family.is_hybrid",
    "x = model.has_experts and job.has_task",
    "x = TABLE.of(model.family)",
    "x = FAMILIES[model.architecture]",
    "x = request.chat is None",
    "x = command.family is None",
    "x = block.scores(model) is None",
    "x = isinstance(value, Block | dict)",
    "def f(block: AttentionBlock) -> Block: return block",
    "def f(vision):\n    return vision is None",
)


@pytest.mark.parametrize("source", COUNTED)
def test_comparisons_are_counted(source: str) -> None:
    assert len(comparisons(source)) == 1


@pytest.mark.parametrize("source", NOT_COUNTED)
def test_questions_to_a_family_or_a_property_are_not(source: str) -> None:
    assert comparisons(source) == []
