"""Numbers that were fitted to measurements are data, and each says where it comes from."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pytest

from orchestrator.planning.hardware import device_named, shipped, shipped_names
from orchestrator.planning.hardware.fitted_constants import ANY, entries, fitted_constants

ROOT = Path(__file__).resolve().parents[4]
TIME = ROOT / "orchestrator" / "planning" / "time"
BASES = ("counted", "assumed")
# Module constants with numbers that are no measurement's, each with its reason.
NOT_FITTED = {
    "adapters.MATRICES": "matrices of an adapter",
    "attention._BLOCK": "tokens of a kernel's block",
    "attention._STATED_LENGTH": "what efficiencies are stated for, by definition",
    "attention._STATED_WIDTH": "the same",
    "attention._STATED_KEYS": "the same",
    "attention._RECOMPUTATION": "five products for two",
    "elementwise._NARROW": "bytes of reading and writing bf16",
    "elementwise._STATE": "bytes of reading and writing fp32",
    "fitting._FACTORS": "priors of a fit",
    "fitting._NOISE": "the same",
    "fitting._STEP": "how a slope is taken",
    "fitting._ROUNDS": "of the search",
    "fitting._SETTLED": "the same",
    "gemm._RATES": "products of FP8 and FP4 for one of bf16, by the datasheets",
    "host.NOTHING": "zero",
    "passes._ADDED": "bytes of reading bf16 and fp32, and writing fp32",
    "roofline.IDEAL": "the least that can be moved",
    "pipeline_schedule._MOST_PASSES": "limit of what is played through",
    "muon._MOVED": "bytes of reading and writing what its kernels pass through, counted",
    "step._WEIGHTS_PER_LAYER": "four matrices",
}
# Factors of formulas: halves and means, 2 FLOPs of a multiply-add, the products of attention and of its backward pass,
# units of what is shown.
OF_FORMULAS = {0.0, 0.5, 1.0, 2.0, 2.5, 4.0, 1e6, 1e9, 1e12}

ALL = [
    pytest.param(entry, id=f"{group}.{subject}.{name}")
    for group, subjects in entries().items()
    for subject, found in subjects.items()
    for name, entry in found.items()
]


@pytest.mark.parametrize("entry", ALL)
def test_every_number_says_what_it_is_and_where_it_comes_from(entry: dict[str, str]) -> None:
    assert entry.keys() == {"value", "unit", "measured_on", "date", "source", "meaning"}
    assert entry["unit"]
    assert entry["meaning"].endswith(".")
    assert date.fromisoformat(entry["date"]) >= date(2026, 11, 20)
    source, basis = entry["source"], entry["measured_on"]
    assert source
    assert basis in BASES or shipped(basis) is not None
    if basis not in BASES:
        assert re.fullmatch(r"docs/benchmarks/[\w.-]+\.md#[\w-]+", source)  # tests/test_docs.py follows it
    if "/" in source:
        assert (ROOT / source.partition("#")[0]).exists()


def test_numbers_of_a_generation_stand_over_those_of_any_gpu() -> None:
    generations = {device_named(name).generation for name in shipped_names()}
    assert entries().keys() - {ANY} <= generations
    for generation in entries().keys() - {ANY}:
        for subject, found in entries()[generation].items():
            assert found.keys() <= entries()[ANY][subject].keys()
    assert fitted_constants("Hopper").attention.gathered_slowdown == 1.85
    assert fitted_constants("Ampere").attention.gathered_slowdown == 1.0
    assert fitted_constants("Hopper").gemm.tiles == fitted_constants().gemm.tiles


def test_the_numbers_cannot_be_changed() -> None:
    with pytest.raises(AttributeError, match="gap is read from"):
        fitted_constants().host.gap = 0.0


def test_a_number_without_a_place_in_the_code_is_an_error() -> None:
    kind = type(fitted_constants().step)
    with pytest.raises(TypeError, match="spread"):
        kind({"spread": 0.02, "overhead_seconds": 0.0})


def _numbers(node: ast.AST) -> Iterator[int | float]:
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, int | float) and not isinstance(part.value, bool):
            yield part.value


def test_the_model_of_time_has_no_fitted_numbers_of_its_own() -> None:
    constants, floats = set(), set()
    for path in TIME.rglob("*.py"):
        for statement in ast.parse(path.read_text(encoding="utf-8")).body:
            numbers = list(_numbers(statement))
            targets: list[ast.expr] = []
            if isinstance(statement, ast.Assign):
                targets = statement.targets
            elif isinstance(statement, ast.AnnAssign):
                targets = [statement.target]
            names = {name.id for each in targets for name in ast.walk(each) if isinstance(name, ast.Name)}
            if names and numbers:
                constants |= {f"{path.stem}.{name}" for name in names}
            else:
                floats |= {(path.stem, each) for each in numbers if isinstance(each, float) and each not in OF_FORMULAS}
    assert constants == NOT_FITTED.keys()
    assert floats == set()
