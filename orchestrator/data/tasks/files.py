"""The examples of a task's files. Light."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from orchestrator.data.tasks.examples import Example
from orchestrator.data.tasks.mnli import read_mnli
from orchestrator.data.tasks.race import read_race
from orchestrator.errors import UserError
from orchestrator.spec.sections.task import TaskSpec

_READERS: Final[dict[str, Callable[[Path], Iterator[Example]]]] = {"mnli": read_mnli, "race": read_race}


def read_examples(task: TaskSpec, paths: Sequence[str]) -> list[Example]:
    """All examples of some files, in their order. Raises UserError, with file and line, for what cannot be read."""
    examples = [example for path in paths for example in _READERS[task.name](Path(path))]
    if not examples:
        raise UserError(f"{', '.join(paths)}: there is no labelled example of {task.name}", code="no_labelled_examples")
    return examples
