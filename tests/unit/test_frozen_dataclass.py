"""Classes of `frozen_dataclass` are what the standard library makes of the same declaration."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import subprocess
import sys
from collections.abc import Callable
from functools import cached_property
from typing import Any, ClassVar

import pytest
from support.shipped import SHIPPED

from orchestrator import frozen_dataclass


def declared(dataclass: Callable[..., Any]) -> tuple[type[Any], type[Any], type[Any], type[Any]]:
    @dataclass(frozen=True)
    class Base:
        """Fields of each kind."""

        first: int
        second: str = "two"
        third: list[int] = dataclasses.field(default_factory=list, compare=False)
        fourth: float | None = dataclasses.field(default=None, repr=False)
        shared: ClassVar[int] = 7

        @cached_property
        def doubled(self) -> int:
            return 2 * self.first

    @dataclass(frozen=True)
    class Inheriting(Base):
        """More of them."""

        fifth: tuple[int, ...] = ()

    @dataclass(frozen=True)
    class Own:
        """Methods of its own."""

        value: int

        def __eq__(self, other: object) -> bool:
            return True

        def __repr__(self) -> str:
            return "mine"

    @dataclass(frozen=True)
    class Empty:
        """No field."""

    return Base, Inheriting, Own, Empty


OURS, STANDARD = declared(frozen_dataclass.dataclass), declared(dataclasses.dataclass)


@pytest.mark.parametrize("which", range(4))
@pytest.mark.parametrize(
    "arguments", [(), (1,), (1, "b"), (1, "b", [3], 4.0), (1, "b", [3], 4.0, (5,)), (1, "b", [3], 4.0, (5,), 6)]
)
def test_instances_are_those_of_the_standard_library(which: int, arguments: tuple[Any, ...]) -> None:
    def outcome(of: type[Any]) -> Any:
        try:
            made = of(*arguments)
        except TypeError:
            return TypeError
        try:
            hashed = hash(made) == hash(of(*arguments))
        except TypeError:
            hashed = False
        found = repr(made).rpartition(".")[2], vars(made), hashed, made == of(*arguments), made == arguments
        return (*found, dataclasses.asdict(made), copy.deepcopy(made) == made, of.__match_args__)

    assert outcome(OURS[which]) == outcome(STANDARD[which])


def test_what_differs_is_unequal_and_hashed_by_what_is_compared() -> None:
    base, inheriting, own, _ = OURS
    assert base(1) == base(1, third=[2])
    assert hash(base(1)) == hash(base(1, third=[2]))
    assert base(1) != base(2)
    assert base(1) != inheriting(1)
    assert {base(1): "found"}[base(1)] == "found"
    assert hash(own(1)) == hash(own(1))
    assert base(1).third is not base(1).third


def test_nothing_is_assigned_or_deleted_and_what_is_cached_is_no_field() -> None:
    base = OURS[0](3)
    assert (base.doubled, base.doubled) == (6, 6)
    assert base == OURS[0](3)
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'first'"):
        base.first = 1
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'first'"):
        del base.first
    changed = dataclasses.replace(base, first=4, fourth=1.5)
    assert (changed.first, changed.second, changed.fourth, changed.doubled) == (4, "two", 1.5, 8)


def test_what_refers_to_itself_is_described() -> None:
    base = OURS[0](3)
    base.third.append(base)
    assert repr(base).endswith("(first=3, second='two', third=[...])")


def test_instances_are_pickled() -> None:
    from orchestrator.errors import Problem

    problem = Problem("wrong", ("a.b",), "a hint")
    assert pickle.loads(pickle.dumps(problem)) == problem


def test_validate_imports_no_other_frozen_classes() -> None:
    """Each takes three times as long, which is a five-hundredth of the time of the command."""
    program = f"""
import dataclasses, sys
from orchestrator.cli.main import main
assert main(["validate", {str(SHIPPED["gpt-1.7b"])!r}]) == 0
for name, module in list(sys.modules.items()):
    for of in vars(module).values() if name.startswith("orchestrator.") else ():
        if isinstance(of, type) and of.__module__ == name and dataclasses.is_dataclass(of):
            if of.__dataclass_params__.frozen and "__slots__" not in vars(of):
                print("found", name, of.__name__)
"""
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert [line for line in shown.splitlines() if line.startswith("found")] == []
