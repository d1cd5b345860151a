"""`launch.snapshot: true`: a copy of the code as it is when a job is submitted, which later edits do not reach.

    <run>/code/1/repository/  the repository of the working directory: all that git tracks or does not ignore; of a run
                              that is submitted from another machine, the project that was sent
    <run>/code/1/package/     this package, where it is a checkout outside that repository

What git ignores (data, built files, an environment) is linked, not copied, so that relative paths of the job still lead
to it. Each submission gets the next number, and none is changed afterwards.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from orchestrator import version
from orchestrator.errors import UserError
from orchestrator.launch.code.repository_files import check_size, listed, repository_of
from orchestrator.launch.code.sent_project import SentProject, sent_project
from orchestrator.launch.executor_protocol import Place
from orchestrator.resources import resource_root
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec

MAX_BYTES = 500_000_000
MAX_FILES = 50_000
_NEVER_LINKED = ("__pycache__", ".git")
_RESOURCES: tuple[Literal["templates", "jobs"], ...] = ("templates", "jobs")


@dataclass(frozen=True)
class Snapshot:
    """Where a run works that has a copy of the code, and what goes before everything else on its PYTHONPATH."""

    working_directory: Path
    python_path: str

    def moved(self, home: Path, to: Path) -> Snapshot:
        """The same, once its folder lies elsewhere."""
        path = [_moved(Path(entry), home, to) for entry in filter(None, self.python_path.split(os.pathsep))]
        return Snapshot(_moved(self.working_directory, home, to), os.pathsep.join(map(str, path)))


def _moved(path: Path, home: Path, to: Path) -> Path:
    return to / path.relative_to(home) if path.is_relative_to(home) else path


def place_of(run: RunDir, job: JobSpec, *, copy: bool = True) -> Place:
    """Where a run that is submitted from here works: here, or in a copy of the code if the job asks for one or another
    machine has sent it. Without `copy` none is made, as for a dry run.
    """
    if copy and (job.launch.snapshot or sent_project() is not None):
        snapshot = take_snapshot(run)
        return Place(run, snapshot.working_directory, sys.executable, snapshot.python_path)
    return Place(run, Path.cwd(), sys.executable)


def take_snapshot(run: RunDir, folder: Path | None = None) -> Snapshot:
    """Copy the repository of a folder (the working directory by default) into the run directory.

    Raises UserError when it is in no git repository, when that is too large to be only code, and when it cannot be
    copied.
    """
    folder = (folder or Path.cwd()).resolve()
    sent = sent_project()
    root = sent.tree if sent is not None else _root_of(folder)
    try:
        (run.path / "code").mkdir(exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=".new-", dir=run.path / "code"))
        try:
            draft.chmod(0o755)
            taken = _copied(root, folder, draft, run)
            home = _settle(draft, run.path / "code")
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
    except OSError as error:
        raise UserError(
            f"launch.snapshot: {root} could not be copied to {run.path / 'code'}: {error}", code="failed_snapshot"
        ) from error
    return taken.moved(draft, home)


def copy_code(run: RunDir, target: Path) -> Snapshot:
    """The code of the working directory, copied into an empty folder: its repository, where it is in one, and this
    package as above. Raises UserError and OSError.
    """
    folder = Path.cwd().resolve()
    return _copied(repository_of(folder), folder, target, run)


def _copied(root: Path | None, folder: Path, target: Path, run: RunDir) -> Snapshot:
    work = target / "repository"
    if root is None:
        work.mkdir()
        root = folder = work  # nothing is in there
    elif (sent := sent_project()) is not None and sent.tree == root:
        _copy_sent(sent, work)
    else:
        _copy_repository(root, work, _runs_inside(root, run))
    package = _copy_package(root, target)
    path = [*_search_path(root, work, without_ours=package is not None), *([target / package] if package else [])]
    return Snapshot(work / folder.relative_to(root), os.pathsep.join(dict.fromkeys(str(entry) for entry in path)))


def _root_of(folder: Path) -> Path:
    root = repository_of(folder)
    if root is None:
        raise UserError(
            f"launch.snapshot copies the git repository of the working directory, but git finds none at {folder}.\n"
            "      Submit from a repository, or leave launch.snapshot out.",
            code="no_repository",
        )
    return root


def _copy_sent(sent: SentProject, target: Path) -> None:
    """Copy the code, and link what the project's folder has beside it where that lies."""
    target.mkdir()
    for name in sent.names():
        _copy(sent.tree, name, target)
    for link in sent.links():
        (target / link).parent.mkdir(parents=True, exist_ok=True)
        (target / link).symlink_to((sent.tree / link).readlink())


def _runs_inside(root: Path, run: RunDir) -> Path:
    """The folder of runs; the job's own where that holds the whole repository, or is it."""
    job_folder = run.path.resolve().parent
    return job_folder if root.is_relative_to(job_folder.parent) else job_folder.parent


def _copy_repository(root: Path, target: Path, runs: Path) -> None:
    """Copy what is code and link what git ignores, and the runs, whether it ignores those or not."""

    def is_no_run(name: str) -> bool:
        return not (root / name).is_relative_to(runs)

    names = [name for name in listed(root, "--cached", "--others", "--exclude-standard") if is_no_run(name)]
    check_size(root, names, MAX_BYTES, MAX_FILES, "launch.snapshot")
    target.mkdir()
    for name in names:
        _copy(root, name, target)
    passed_over = listed(root, "--others", "--ignored", "--exclude-standard", "--directory")
    ignored = [Path(name) for name in passed_over if is_no_run(name)]
    if runs.is_relative_to(root):
        ignored.append(runs.relative_to(root))
    for path in ignored:
        if path.name not in _NEVER_LINKED and not (target / path).exists():
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            (target / path).symlink_to(root / path)


def _copy(root: Path, name: str, target: Path) -> None:
    """Copy one file or symbolic link; one that is gone in the meantime was deleted by its owner."""
    source, copy = root / name, target / name
    if not source.is_symlink() and not source.is_file():
        return
    copy.parent.mkdir(parents=True, exist_ok=True)
    try:
        if not source.is_symlink():
            shutil.copy2(source, copy)
            return
        leads_to = Path(os.path.normpath(source.parent / os.readlink(source)))
        # A link within the repository leads to the copy, every other one where it led before.
        inside = leads_to.is_relative_to(root)
        copy.symlink_to(os.path.relpath(leads_to, source.parent) if inside else leads_to)
    except FileNotFoundError:
        return


def _copy_package(root: Path, draft: Path) -> str | None:
    """Copy this package where it is a checkout and not in the repository; the name of the folder that it is then in."""
    package = Path(version.__file__).resolve().parent
    installed = {Path(sysconfig.get_path(kind)).resolve() for kind in ("purelib", "platlib")}
    if installed & set(package.parents):
        return None
    if package.is_relative_to(root):
        inside = Path("repository", package.relative_to(root))
        return str(inside.parent) if (draft / inside / "__init__.py").exists() else None
    target = draft / "package"
    without_caches = shutil.ignore_patterns("__pycache__")
    shutil.copytree(package, target / package.name, ignore=without_caches)
    for kind in _RESOURCES:
        resources = resource_root(kind)
        if not resources.is_relative_to(package):
            shutil.copytree(resources, target / kind, ignore=without_caches)
    return "package"


def _search_path(root: Path, work: Path, *, without_ours: bool) -> list[Path]:
    """Where Python finds modules now because PYTHONPATH or an editable installation says so: the copies of folders of
    the repository, and what PYTHONPATH names beside them; `without_ours`, not this package, which has been copied.
    """
    asked = {Path(entry).resolve() for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry}
    found = []
    for entry in sys.path:
        path = Path(entry).resolve()
        if path.is_relative_to(root):
            copy = work / path.relative_to(root)
            # Not an environment inside the repository: that is linked.
            if copy.is_dir() and copy.resolve().is_relative_to(work.resolve()):
                found.append(copy)
        elif path in asked and not (without_ours and path == Path(version.__file__).resolve().parents[1]):
            found.append(path)
    return found


def _settle(draft: Path, folder: Path) -> Path:
    """Give the finished copy the next free number."""
    number = 1
    while True:
        home = folder / str(number)
        if not home.exists():
            try:
                return draft.rename(home)
            except OSError:
                if not home.exists():
                    raise
        number += 1
