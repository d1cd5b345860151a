"""Records are as frozen dataclasses are."""

from __future__ import annotations

import copy
import pickle
from functools import cached_property
from typing import ClassVar

import pytest

from orchestrator.records import Record, replace


class Point(Record):
    x: int
    y: int = 2
    unit: ClassVar[str] = "m"

    @cached_property
    def total(self) -> int:
        return self.x + self.y


class Named(Point):
    name: str = ""


def test_fields_are_given_in_order_or_by_name_and_have_defaults() -> None:
    assert (Point(1).x, Point(1).y, Point(1, 3).y, Point(y=4, x=1).y) == (1, 2, 3, 4)
    assert Named(1, 2, "a") == Named(x=1, name="a")
    assert repr(Named(1)) == "Named(x=1, y=2, name='')"


def test_equal_fields_make_equal_records_of_one_class() -> None:
    one, other = Point(1), Point(1, 2)
    assert one.total == 3
    assert one == other
    assert hash(one) == hash(other)
    assert Point(1) != Named(1)
    assert Point(1) != Point(2)


def test_a_record_is_frozen_and_replaced() -> None:
    point = Point(1)
    with pytest.raises(AttributeError):
        point.x = 5  # type: ignore[misc]
    with pytest.raises(AttributeError):
        del point.x
    assert point.total == 3
    assert replace(point, y=7).total == 8
    assert copy.deepcopy(point) == pickle.loads(pickle.dumps(point)) == point


@pytest.mark.parametrize(
    ("given", "named"), [((), {}), ((1, 2, 3), {}), ((1,), {"z": 1}), ((), {"y": 1, "z": 1}), ((1,), {"x": 1})]
)
def test_what_does_not_fit_the_fields_is_refused(given: tuple[int, ...], named: dict[str, int]) -> None:
    with pytest.raises(TypeError):
        Point(*given, **named)
