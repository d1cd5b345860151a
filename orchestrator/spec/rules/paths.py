"""Paths stand for themselves: nothing in them is replaced."""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterator

from orchestrator.errors import Problem
from orchestrator.fields.refusals import Unavailable
from orchestrator.spec.job_sections import JobSections

_FIELDS = (
    *("data.tokenizer.path", "data.tokenizer.merges", "data.cache_dir"),
    *("launch.runs_dir", "launch.python", "launch.template", "launch.slurm_template"),
)
_HOME = re.compile(r"~(?:[a-z_][\w-]*)?(?:/|$)")
_VARIABLE = re.compile(r"\$[A-Z_][A-Z0-9_]*\b")


def plain_paths(job: JobSections) -> Iterator[Problem]:
    """No path begins with `~` or holds a variable of the environment: a folder of that very name would be made."""
    for place, path in _paths(job):
        home, variable = _HOME.match(path), _VARIABLE.search(path)
        if home or variable:
            part = home.group().rstrip("/") if home else variable.group() if variable else ""
            meant = os.path.expandvars(os.path.expanduser(path))
            hint = f"write {meant}" if not (_HOME.match(meant) or _VARIABLE.search(meant)) else "write the whole path"
            yield Problem(f"{part} in {path} is not expanded: paths are taken literally", (place,), hint)


def _paths(job: JobSections) -> Iterator[tuple[str, str]]:
    for place in _FIELDS:
        section, *names = place.split(".")
        try:
            value = getattr(job, section)
            for name in names:
                value = getattr(value, name)
        except Unavailable:
            continue
        if value is not None:
            yield place, value
    for name, sources in (("blend", job.data.blend), ("validation", job.data.validation), ("test", job.data.test)):
        for number, entry in enumerate(sources or ()):
            yield f"data.{name}[{number}].path", entry.path
            for text in entry.text or ():
                yield f"data.{name}[{number}].text", text
    if job.has_task:
        for name, texts in (("train", job.labelled_task.train), ("validation", job.labelled_task.validation)):
            yield from ((f"task.{name}", text) for text in texts or ())


RULES = (plain_paths,)
