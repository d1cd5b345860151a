"""What a job names that other packages have: whether it is there, and whether it takes the options that it is given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator import plugins
from orchestrator.errors import Problem, UserError
from orchestrator.spec.job import JobSpec


def plugin_problems(job: JobSpec) -> list[Problem]:
    """Everything that is wrong with them. Imports those that the job names, and nothing where it names none."""
    found = []
    for name, options in job.tracking.plugins.items():
        problem = _refused(plugins.TRACKERS, name, options)
        if problem is not None:
            found.append(Problem(problem, (f"tracking.plugins.{name}",), code="plugin_refused"))
    return found


def _refused(group: str, name: str, options: Mapping[str, Any]) -> str | None:
    """Why a plugin cannot be used with these options; None where it can."""
    try:
        plugin = plugins.load(group, name)
    except UserError as error:
        return str(error)
    try:
        plugin.Options(**options)
    except Exception as error:  # a ValueError of pydantic's, a TypeError of a dataclass's
        said = " ".join(str(error).split()) or type(error).__name__
        return f"{plugins.described(group, name)} does not take these options: {said}"
    return None
