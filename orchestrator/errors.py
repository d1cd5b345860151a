"""Every error that the orchestrator raises on purpose.

OrchestratorError            anything a person should read as one message, without a traceback
├── UserError                the input is wrong: exit code 2
│   ├── SpecError            a job spec is wrong; carries every problem found
│   ├── RunNotFound          no run matches what was asked for
│   ├── RunIsHeld            another process is writing this run
│   ├── SweepIsHeld          another process is starting the cells of this sweep
│   ├── SpecChanged          a job differs from the run that it would continue
│   ├── DataIsHeld           another process is writing this data set
│   ├── DataError            a data set is torn, or does not hold what the job needs
│   └── MissingDependency    an optional part of the product is not installed
└── JobError                 the job failed: exit code 1
    ├── LeaseLost            another incarnation of this run has taken over
    ├── ConnectionLost       the connection to a login node has ended, and not what runs there
    ├── CheckpointError      a checkpoint is missing, torn or damaged, or could not be written
    └── SchedulerError       the cluster's scheduler does not answer, or fails
        └── PerhapsSubmitted it did not say whether it took a job
"""

# ruff: noqa: N818 - these names say what happened; a suffix would only repeat the base class

from __future__ import annotations

import dataclasses
import errno
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, NamedTuple


class OrchestratorError(Exception):
    """Base of all deliberate errors. `exit_code` is what the command line returns. `code` says what is wrong, for
    programs and tests; a class that stands for one thing has its own.
    """

    exit_code = 1
    code: str | None = None

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code


class UserError(OrchestratorError):
    """The input is wrong: what, where, why and the way out are in the message."""

    exit_code = 2


class RunNotFound(UserError):
    """No run matches what was asked for."""

    code = "run_not_found"


class RunIsHeld(UserError):
    """Another live process is writing this run."""

    code = "run_is_held"


class SweepIsHeld(UserError):
    """Another process is starting the cells of this sweep."""

    code = "sweep_is_held"


class SpecChanged(UserError):
    """A job differs from the run that it would continue in changes that need a person's consent."""

    code = "spec_changed"


class DataIsHeld(UserError):
    """Another live process is writing this data set."""

    code = "data_is_held"


class DataError(UserError):
    """A data set is torn, or does not hold what the job needs: no start of the same job would do better."""


class MissingDependency(UserError):
    """An optional part of the product is not installed; the message says what to install."""

    code = "missing_dependency"


class JobError(OrchestratorError):
    """The job failed."""


class LeaseLost(JobError):
    """Another incarnation of this run has taken over; this one must not write any more."""

    code = "lease_lost"


class CheckpointError(JobError):
    """A checkpoint is missing, torn or damaged, or could not be written."""


class ConnectionLost(JobError):
    """The connection to a login node has ended, and not what runs at its other end."""

    code = "connection_lost"


class SchedulerError(JobError):
    """The cluster's scheduler does not answer, or fails."""


class PerhapsSubmitted(SchedulerError):
    """A submission went unanswered: the job may be in the queue."""

    code = "perhaps_submitted"


_FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def is_full_disk(error: OSError) -> bool:
    """Whether there was no room: on the disk, in a quota, or below a limit of the size of files."""
    return error.errno in _FULL_DISK


@contextmanager
def file_refusal(path: object, what: Literal["read", "written"] = "read") -> Iterator[None]:
    """Where the system refuses a file, raises UserError with its name and why."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{path} cannot be {what}: {error.strerror}",
            code="unreadable_file" if what == "read" else "unwritable_file",
        ) from error


class Location(NamedTuple):
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

    `paths` are dotted field paths ("parallelism.tensor_model_parallel_size"), the one to point at first. `hint` is the
    way out; it may have several lines. `code` says which problem it is, for programs and tests. A rule of a
    spec and what looks for one kind of warning may leave it out: what runs them adds it.
    """

    message: str
    paths: tuple[str, ...] = ()
    hint: str | None = None
    location: Location | None = None
    code: str | None = None

    def to_dict(self) -> dict[str, object]:
        """Plain data, for programs."""
        location = self.location
        return {
            "message": self.message,
            "path": self.paths[0] if self.paths else None,
            "paths": list(self.paths),
            "hint": self.hint,
            "source": location.source if location else None,
            "line": location.line if location else None,
            "column": location.column if location else None,
            "excerpt": location.excerpt if location else None,
            **({} if self.code is None else {"code": self.code}),
        }


_SHOWN_PROBLEMS = 100


@dataclasses.dataclass(eq=False)
class SpecError(UserError):
    """A job spec is wrong. Holds every problem found, in the order of their places in the files."""

    code = "wrong_spec"

    problems: list[Problem] = dataclasses.field(default_factory=list)

    def __str__(self) -> str:
        shown = [render_problem(problem) for problem in self.problems[:_SHOWN_PROBLEMS]]
        more = len(self.problems) - len(shown)
        return "\n\n".join([*shown, f"… and {more} more problems"] if more else shown)


_EXCERPT_WIDTH = 100
_GUTTER = 5


def render_problem(problem: Problem) -> str:
    """The problem as a person reads it: place, message, the line with a caret, the way out."""
    field_name = f"{problem.paths[0]}: " if problem.paths else ""
    place = f"{problem.location}: " if problem.location else ""
    lines = [f"{place}{field_name}{problem.message}"]
    location = problem.location
    if location and location.excerpt is not None and location.line is not None and location.column is not None:
        excerpt, caret = _window(location.excerpt, location.column - 1)
        lines.append(f"{location.line:>{_GUTTER}} | {excerpt}")
        lines.append(f"{'':>{_GUTTER}} | {' ' * caret}^")
    if problem.hint:
        lines.extend(f"{'':>{_GUTTER}} = {line}" for line in problem.hint.splitlines())
    return "\n".join(lines)


def _window(text: str, caret: int) -> tuple[str, int]:
    """The part of a line around the caret that fits a terminal, with nothing in it that could move the cursor."""
    start = max(0, caret - _EXCERPT_WIDTH // 2) if len(text) > _EXCERPT_WIDTH else 0
    shown = text[start : start + _EXCERPT_WIDTH]
    shown = "".join(character if character.isprintable() else " " for character in shown)
    before, after = "…" if start else "", "…" if start + _EXCERPT_WIDTH < len(text) else ""
    return before + shown.rstrip() + after, caret - start + len(before)
