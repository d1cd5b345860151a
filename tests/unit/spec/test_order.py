"""Where inherited fields are listed."""

from typing import Annotated

from pydantic import ConfigDict

from orchestrator.fields.base import Section
from orchestrator.fields.metadata import ListedAfter
from orchestrator.fields.order import in_listed_order


class Deferred(Section):
    model_config = ConfigDict(defer_build=True)


class Heads(Deferred):
    heads: Annotated[int, ListedAfter("hidden")] = 1
    groups: int = 2
    bias: Annotated[bool, ListedAfter("width")] = False


class Widths(Deferred):
    width: Annotated[int, ListedAfter("heads")] = 3


class Gates(Deferred):
    gate: bool = True
    cap: float = 0.5


@in_listed_order
class Model(Gates, Heads, Widths):
    layers: int
    hidden: int = 4
    length: int = 5


ORDER = ["layers", "hidden", "heads", "width", "bias", "groups", "length", "gate", "cap"]


def test_fields_are_listed_after_those_that_they_name_and_others_last() -> None:
    assert list(Model.model_fields) == ORDER


def test_what_is_written_and_described_has_that_order() -> None:
    assert list(Model(layers=1).model_dump()) == ORDER
    assert list(Model.model_json_schema()["properties"]) == ORDER
