"""Each cell of families, layouts and precisions is run, refused with its reason, or held by what is run."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.matrix import CELLS, FAMILIES, IN_TESTS, LAYOUTS, REFUSED, TOLERANCE, Cell
from support.matrix_cover import LIKE_IN_BF16, PARTS, RUNS, does, has, holders, parts_of

from orchestrator.errors import Problem, SpecError

ALL = [Cell(family, name, dtype) for family in FAMILIES for name in LAYOUTS for dtype in TOLERANCE]


def refusals(cell: Cell) -> list[Problem]:
    """What the rules of jobs say of a cell."""
    try:
        cell.training.job("sentences")
    except SpecError as refusal:
        return refusal.problems
    return []


def test_every_cell_is_run_or_refused_or_held() -> None:
    run = {each.cell for each in RUNS}
    refused = {cell for cell in ALL if refusals(cell)}
    assert {(cell.family, cell.layout) for cell in refused} == REFUSED.keys()
    assert run & refused == set()
    held = {cell.name: holders(cell) for cell in ALL if cell not in run | refused}
    missing = {what: name for name, by in held.items() for what, test in by.items() if test is None}
    assert missing == {}, "nothing that runs has these, in cells such as these"
    assert {name for name, by in held.items() if not by} == set()


@pytest.mark.parametrize(("family", "name"), REFUSED)
def test_refused_cell(family: str, name: str) -> None:
    """What cannot be had is known before anything starts, in each precision, with the reason and the way out."""
    for dtype in TOLERANCE:
        problems = refusals(Cell(family, name, dtype))
        assert REFUSED[family, name] in " ".join(f"{each.message} {each.hint} {each.paths}" for each in problems)
        assert all(each.hint for each in problems)


def test_all_that_a_family_has_of_its_own_is_in_a_part() -> None:
    assert {trait for family in FAMILIES for trait in has(family) if not parts_of(trait)} == set()
    used = {(part, trait) for family in FAMILIES for trait in has(family) for part in parts_of(trait)}
    assert {part for part, _ in used} == PARTS.keys()
    done = {action for name in LAYOUTS for action in does(name)}
    assert {action for part in PARTS.values() for action in part.touched_by} <= done
    assert {action for pair in LIKE_IN_BF16.items() for action in pair} <= done


def test_the_last_run_that_holds_something_is_missed() -> None:
    """Without capped scores on ranks that share a sequence in fp32, nothing holds them in bf16."""
    left = [each for each in RUNS if each.cell != Cell("gemma2", "cp2", "fp32")]
    by = holders(Cell("gemma2", "cp2", "bf16"), left)
    assert [what for what, test in by.items() if test is None] == [
        "attention_logit_softcapping (tokens of a sequence) at context_parallel_size"
    ]


def test_tests_that_run_cells_are_there() -> None:
    """tests/distributed/test_matrix.py generates those of `CELLS`; others are a function and a name in its file."""
    assert len(set(CELLS)) == len(CELLS)
    for test, cells in IN_TESTS.items():
        path, _, function = test.partition("::")
        text = (Path(__file__).parents[2] / path).read_text()
        assert f"def {function}(" in text
        assert [name for name in cells if name and f'"{name}": ' not in text and "IN_TESTS" not in text] == []
