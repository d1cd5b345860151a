"""Train transformers from one YAML spec: jobs, their plans, and their runs.

The public interface is what `__all__` names, with the attributes and methods that docs/how-to/python.md lists. Every
other module and name is private, even without an underscore, and may change in any version.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from orchestrator.version import __version__ as __version__

if TYPE_CHECKING:
    from orchestrator.api.jobs import Job as Job
    from orchestrator.api.jobs import TunedJob as TunedJob
    from orchestrator.api.jobs import load_job as load_job
    from orchestrator.api.jobs import parse_job as parse_job
    from orchestrator.api.planned_job import PlannedJob as PlannedJob
    from orchestrator.api.runs import Run as Run
    from orchestrator.api.runs import delete as delete
    from orchestrator.api.runs import find_run as find_run
    from orchestrator.api.runs import prune as prune
    from orchestrator.api.runs import runs as runs
    from orchestrator.api.runs import undelete as undelete
    from orchestrator.data.written_text import DataSource as DataSource
    from orchestrator.errors import JobError as JobError
    from orchestrator.errors import OrchestratorError as OrchestratorError
    from orchestrator.errors import RunNotFound as RunNotFound
    from orchestrator.errors import SchedulerError as SchedulerError
    from orchestrator.errors import SpecChanged as SpecChanged
    from orchestrator.errors import SpecError as SpecError
    from orchestrator.errors import UserError as UserError
    from orchestrator.inference import load as load_model
    from orchestrator.launch.executor_protocol import Executor as Executor
    from orchestrator.launch.executor_protocol import JobState as JobState
    from orchestrator.launch.executor_protocol import Scripts as Scripts
    from orchestrator.launch.executor_protocol import Start as Start
    from orchestrator.launch.executor_protocol import SubmittedIds as SubmittedIds
    from orchestrator.tracking.stream import Sink as TrackerSink
    from orchestrator.tracking.trackers import TrackerFactory as TrackerFactory

# Where each name is: a module is imported when one of its names is first asked for.
_HOMES = {
    "DataSource": "orchestrator.data.written_text",
    "Executor": "orchestrator.launch.executor_protocol",
    "Job": "orchestrator.api.jobs",
    "JobError": "orchestrator.errors",
    "JobState": "orchestrator.launch.executor_protocol",
    "OrchestratorError": "orchestrator.errors",
    "PlannedJob": "orchestrator.api.planned_job",
    "Run": "orchestrator.api.runs",
    "RunNotFound": "orchestrator.errors",
    "SchedulerError": "orchestrator.errors",
    "Scripts": "orchestrator.launch.executor_protocol",
    "SpecChanged": "orchestrator.errors",
    "SpecError": "orchestrator.errors",
    "Start": "orchestrator.launch.executor_protocol",
    "SubmittedIds": "orchestrator.launch.executor_protocol",
    "TrackerFactory": "orchestrator.tracking.trackers",
    "TrackerSink": "orchestrator.tracking.stream",
    "TunedJob": "orchestrator.api.jobs",
    "UserError": "orchestrator.errors",
    "delete": "orchestrator.api.runs",
    "find_run": "orchestrator.api.runs",
    "load_job": "orchestrator.api.jobs",
    "load_model": "orchestrator.inference",
    "parse_job": "orchestrator.api.jobs",
    "prune": "orchestrator.api.runs",
    "runs": "orchestrator.api.runs",
    "undelete": "orchestrator.api.runs",
}
_NAMED_OTHERWISE = {"TrackerSink": "Sink", "load_model": "load"}

__all__ = [
    "DataSource",
    "Executor",
    "Job",
    "JobError",
    "JobState",
    "OrchestratorError",
    "PlannedJob",
    "Run",
    "RunNotFound",
    "SchedulerError",
    "Scripts",
    "SpecChanged",
    "SpecError",
    "Start",
    "SubmittedIds",
    "TrackerFactory",
    "TrackerSink",
    "TunedJob",
    "UserError",
    "delete",
    "find_run",
    "load_job",
    "load_model",
    "parse_job",
    "prune",
    "runs",
    "undelete",
]


if not TYPE_CHECKING:  # a type checker would take every name for one that is there

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from orchestrator.imports import without_pydantic_plugins

        with without_pydantic_plugins():
            module = importlib.import_module(_HOMES[name])
        found = getattr(module, _NAMED_OTHERWISE.get(name, name))
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
