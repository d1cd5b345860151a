"""The kinds of files that people write, and how messages speak of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from orchestrator.errors import Problem
from orchestrator.fields.base import Section
from orchestrator.spec.job import JobSpec
from orchestrator.spec.rules import check
from orchestrator.spec.schema.foreign_names import foreign_names
from orchestrator.spec.schema.shape import Shape

Root = TypeVar("Root", bound=Section)


def _no_rules(view: Any) -> list[Problem]:
    return []


@dataclass(frozen=True)
class Document(Generic[Root]):
    """A kind of file: the section that is its root, and the words for it."""

    root: type[Root]
    noun: str
    """What it is called, without an article: `job spec`."""
    such_as: str
    """Some of its keys, for somebody who wrote something else altogether."""
    written_by: str
    """The command that writes one."""
    also_called: Mapping[str, str] = field(default_factory=dict)
    """What other tools call its fields, beside the names in their declarations; see schema/foreign_names.py."""
    set_apart: tuple[str, ...] = ("extends",)
    """Keys at the top that are no fields of the root."""
    check: Callable[[Any], list[Problem]] = _no_rules
    """What is wrong between the fields of one, or of the part that is known (see documents/partial_validation.py)."""

    @property
    def foreign_names(self) -> Mapping[str, str]:
        """What other tools call its fields."""
        return {**foreign_names(self.root), **self.also_called}

    @property
    def shape(self) -> Shape:
        """The shape of the whole file."""
        return Shape("section", self.root)


JOB_SPEC = Document(
    JobSpec,
    noun="job spec",
    such_as="`name:` and `model:`",
    written_by="orchestrator init",
    set_apart=("extends", "base", "sweep"),
    check=check,
)
