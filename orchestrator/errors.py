"""Every error that the orchestrator raises on purpose.

OrchestratorError            anything a person should read as one message, without a traceback
├── UserError                the input is wrong: exit code 2
│   ├── SpecError            a job spec is wrong; carries every problem found
│   ├── RunNotFound          no run matches what was asked for
│   ├── RunIsHeld            another process is writing this run
│   └── MissingDependency    an optional part of the product is not installed
└── JobError                 the job failed: exit code 1
    ├── LeaseLost            another incarnation of this run has taken over
    ├── CheckpointError      a checkpoint is missing, torn or damaged, or could not be written
    └── DataError            a data set does not hold what the job needs
"""

from __future__ import annotations

from dataclasses import dataclass, field


class OrchestratorError(Exception):
    """Base of all deliberate errors. `exit_code` is what the command line returns."""

    exit_code = 1


class UserError(OrchestratorError):
    """The input is wrong: what, where, why and the way out are in the message."""

    exit_code = 2


class RunNotFound(UserError):
    """No run matches what was asked for."""


class RunIsHeld(UserError):
    """Another live process is writing this run."""


class MissingDependency(UserError):
    """An optional part of the product is not installed; the message says what to install."""


class JobError(OrchestratorError):
    """The job failed."""


class LeaseLost(JobError):
    """Another incarnation of this run has taken over; this one must not write any more."""


class CheckpointError(JobError):
    """A checkpoint is missing, torn or damaged, or could not be written."""


class DataError(JobError):
    """A data set does not hold what the job needs."""


@dataclass(frozen=True)
class Location:
    """Where a value was written. `line` and `column` count from 1; None for a value that was not in a file."""

    source: str
    line: int | None = None
    column: int | None = None
    excerpt: str | None = None

    def __str__(self) -> str:
        if self.line is None:
            return self.source
        return f"{self.source}:{self.line}:{self.column}"


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a spec.

    `paths` are dotted field paths ("parallelism.tensor_model_parallel_size"), the one to point at first.
    """

    message: str
    paths: tuple[str, ...] = ()
    hint: str | None = None
    location: Location | None = None


@dataclass
class SpecError(UserError):
    """A job spec is wrong. Holds every problem found, in the order of their places in the file."""

    problems: list[Problem] = field(default_factory=list)

    def __str__(self) -> str:
        return "\n\n".join(render_problem(problem) for problem in self.problems)


def render_problem(problem: Problem) -> str:
    """The problem as a person reads it: place, message, the line with a caret, the way out."""
    lines = []
    field_name = f"{problem.paths[0]}: " if problem.paths else ""
    place = f"{problem.location}: " if problem.location else ""
    lines.append(f"{place}{field_name}{problem.message}")
    location = problem.location
    if location and location.excerpt is not None and location.line is not None and location.column is not None:
        gutter = f"{location.line:>5} | "
        lines.append(gutter + location.excerpt)
        lines.append(" " * (len(gutter) - 2) + "| " + " " * (location.column - 1) + "^")
    if problem.hint:
        lines.append(f"      {problem.hint}")
    return "\n".join(lines)
