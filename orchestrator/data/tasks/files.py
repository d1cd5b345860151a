"""The examples of a task's files. Light."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from orchestrator.data.tasks.examples import Example
from orchestrator.data.tasks.mnli import read_mnli
from orchestrator.data.tasks.race import read_race
from orchestrator.errors import Problem, UserError
from orchestrator.spec.sections.task import TaskSpec

_READERS: Final[dict[str, Callable[[Path], Iterator[Example]]]] = {"mnli": read_mnli, "race": read_race}
_MAY_BE_FOLDERS = frozenset(("race",))
_HINTS = {
    "mnli": "name the TSV files of MNLI, as GLUE ships them",
    "race": "name the folders of RACE, or files in them",
}


def read_examples(task: TaskSpec, paths: Sequence[str]) -> list[Example]:
    """All examples of some files, in their order. Raises UserError, with file and line, for what cannot be read."""
    examples = [example for path in paths for example in _READERS[task.name](Path(path))]
    if not examples:
        raise UserError(f"{', '.join(paths)}: there is no labelled example of {task.name}")
    return examples


def task_problems(task: TaskSpec | None) -> list[Problem]:
    """Which files of a task are not there, or are folders; what is in them is not looked at."""
    if task is None:
        return []
    problems = []
    for name, paths in (("train", task.train), ("validation", task.validation or [])):
        for path in paths:
            place = (f"task.{name}", "task")
            if not Path(path).exists():
                problems.append(Problem(f"{path} is not there", place, _HINTS[task.name], code="data"))
            elif Path(path).is_dir() and task.name not in _MAY_BE_FOLDERS:
                message = f"{path} is a folder, and {task.name} is read from files"
                problems.append(Problem(message, place, _HINTS[task.name], code="data"))
    return problems
