"""Whether the files of a task are there. Light: what reads them is in files.py."""

from __future__ import annotations

from pathlib import Path

from orchestrator.errors import Problem
from orchestrator.spec.sections.task import TaskSpec

_MAY_BE_FOLDERS = frozenset(("race",))
_HINTS = {
    "mnli": "name the TSV files of MNLI, as GLUE ships them",
    "race": "name the folders of RACE, or files in them",
}


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
                message = f"{path} is a folder, but {task.name} is read from files"
                problems.append(Problem(message, place, _HINTS[task.name], code="data"))
    return problems
