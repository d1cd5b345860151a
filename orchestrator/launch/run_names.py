"""What runs are called: their shown names, those that they had before, and how one is named that cannot be read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from orchestrator.errors import UserError
from orchestrator.run_directory.labels import read_labels
from orchestrator.run_directory.rundir import RunDir


def shown_name(run: RunDir) -> str:
    """What a run is called: the name that it was given, else that of its folder."""
    return read_labels(run.path).name or run.name


def shown_label(run: RunDir) -> str:
    """name/run_id, by its shown name."""
    return f"{shown_name(run)}/{run.run_id}"


def called(name: str, runs: Iterable[RunDir]) -> list[RunDir]:
    """The runs that were given this name, the longest known first; where none has it now, those that had it before."""
    labels = [(run, read_labels(run.path)) for run in runs]
    now = [run for run, each in labels if each.name == name]
    return now or [run for run, each in labels if name in each.former_names]


def not_renamed(runs: Sequence[RunDir]) -> list[RunDir]:
    """Those of a job's runs that still have its name; all where none has."""
    kept = [run for run in runs if read_labels(run.path).name in (None, run.name)]
    return kept or list(runs)


@contextmanager
def must_be_readable(run: RunDir) -> Iterator[None]:
    """Where the system refuses a file of a run that was asked for, raises UserError with its name, why, and the way
    out; FileNotFoundError as it is.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        way_out = "ask its owner for permission to read it" if isinstance(error, PermissionError) else "put that right"
        raise UserError(
            f"run {run.name}/{run.run_id} cannot be read: {error.filename}: {error.strerror}; {way_out}",
            code="unreadable_run",
        ) from error
