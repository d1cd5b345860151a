"""What a visitor asks to start: a job or a sweep of a file of the project, or a run again with changes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from orchestrator.errors import UserError
from orchestrator.fields.formatting import shorten
from orchestrator.profile_files import PROFILE_NAME
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.documents.composition import compose_files

HERE, SUBMIT, ON = "here", "submit", "cluster:"
"""Where: on this machine, as the job says, or `cluster:NAME`."""
_ENDINGS = (".yaml", ".yml")
_MOST_CHANGES = 100
_MOST_FOLDERS, _MOST_FILES = 50, 200


@dataclass(frozen=True)
class StartRequest:
    """`changes`: KEY=VALUE. `folder` is where the command is given: paths of the spec begin there."""

    file: Path
    folder: Path
    is_sweep: bool
    changes: tuple[str, ...]
    is_here: bool
    cluster: str | None
    is_new: bool
    allows_warnings: bool

    def command(self, runs_dir: Path) -> list[str]:
        """What starts it, and returns at once."""
        name = "run" if self.is_here else "submit"
        detach = ["--detach"] if self.is_sweep or self.is_here else []
        more = {"--new": self.is_new, "--allow-warnings": self.allows_warnings}
        options = [option for option, is_wanted in more.items() if is_wanted]
        return [*(("sweep", "run") if self.is_sweep else (name,)), *self._job(), *detach, *options, *_runs(runs_dir)]

    def preview(self, runs_dir: Path) -> list[str]:
        """What shows what would be started, and its warnings: a plan, or the cells of a sweep."""
        if self.is_sweep:
            return ["sweep", "run", *self._job(), "--dry-run", *_runs(runs_dir)]
        return ["plan", *self._job()]

    def _job(self) -> list[str]:
        words = [str(self.file), *(word for change in self.changes for word in ("--set", change))]
        if self.cluster is not None:
            return [*words, "--cluster", self.cluster]
        return [*words, "--local"] if self.is_sweep and self.is_here else words


def _runs(runs_dir: Path) -> list[str]:
    return ["--runs-dir", str(runs_dir)]


def start_request(fields: Mapping[str, str], folder: Path, again: RunDir | None) -> StartRequest:
    """What a form asks for. `again`: the run that is started once more, with changes; else the form names a file below
    `folder`.

    Raises UserError for a file that is no spec of this folder, and for changes and places that no command would take.
    """
    file = _spec_of(again) if again is not None else _file(fields.get("file", "").strip(), folder)
    changes = tuple(line.strip() for line in fields.get("changes", "").splitlines() if line.strip())
    if len(changes) > _MOST_CHANGES:
        raise UserError(
            f"{len(changes)} changes: write a job file for more than {_MOST_CHANGES}", code="too_many_changes"
        )
    for change in changes:
        if "=" not in change or change.startswith("-"):
            raise UserError(
                f"{shorten(change)!r} is no change: write KEY=VALUE, e.g. lr=1e-4, one on each line",
                code="malformed_assignment",
            )
    place = fields.get("place", HERE)
    cluster = place.removeprefix(ON) if place.startswith(ON) else None
    if place not in (HERE, SUBMIT) and (cluster is None or PROFILE_NAME.fullmatch(cluster) is None):
        raise UserError(f"{shorten(place)!r} is no place to start a run", code="unknown_launch_place")
    return StartRequest(
        file=file,
        folder=folder,
        is_sweep=again is None and compose_files([folder / file]).sweep is not None,
        changes=changes,
        is_here=place == HERE,
        cluster=cluster,
        is_new=again is not None or "new" in fields,
        allows_warnings="allow_warnings" in fields,
    )


def _spec_of(run: RunDir) -> Path:
    """The spec of a run. What is wrong with a spec is told with its lines: those of a file that a link leads to, or
    that it extends, are nobody's to see. Raises UserError.
    """
    path = run.resolved().absolute()
    stored = run.read_object(path)
    if not stored or "extends" in stored:
        raise UserError(
            f"{path} is damaged: it holds no spec; start the job from its own file, with `orchestrator run`",
            code="damaged_stored_spec",
        )
    return path


def _file(name: str, folder: Path) -> Path:
    """A spec below the folder, as a path from there."""
    path = Path(os.path.normpath(folder / name)) if name and name.isprintable() else folder
    if not path.resolve().is_relative_to(folder.resolve()) or path.suffix not in _ENDINGS or not path.is_file():
        raise UserError(f"{shorten(name)!r} is no YAML file below {folder}", code="not_a_job_file")
    return path.relative_to(folder)


def job_files(folder: Path) -> list[str]:
    """Names of YAML files in a folder, and in the folders there, for a person to choose from."""
    visible = [path for path in _listed(folder) if not path.name.startswith(".")]
    inside = [path for each in islice(filter(Path.is_dir, visible), _MOST_FOLDERS) for path in _listed(each)]
    found = [path for path in (*visible, *inside) if path.suffix in _ENDINGS and path.is_file()]
    return [str(path.relative_to(folder)) for path in found[:_MOST_FILES]]


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
