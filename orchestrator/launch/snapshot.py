"""`launch.snapshot: true`: a copy of the code as it is when a job is submitted, which later edits do not reach.

    <run>/code/1/repository/  the repository of the working directory: all that git tracks or does not ignore
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
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from orchestrator import version
from orchestrator.errors import UserError
from orchestrator.launch.code_version import git
from orchestrator.launch.executor import Place
from orchestrator.quantities import disk_size
from orchestrator.resources import resource_root
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec

MAX_BYTES = 500_000_000
MAX_FILES = 50_000
_SHOWN = 3
_NEVER_LINKED = ("__pycache__", ".git")
_RESOURCES: tuple[Literal["templates", "jobs"], ...] = ("templates", "jobs")


@dataclass(frozen=True)
class Snapshot:
    """Where a run works that has a copy of the code, and what goes before everything else on its PYTHONPATH."""

    working_directory: Path
    python_path: str


def place_of(run: RunDir, job: JobSpec, *, copy: bool = True) -> Place:
    """Where a run that is submitted from here works: here, or in a copy of the code if the job asks for one. Without
    `copy` none is made, as for a dry run.
    """
    if copy and job.launch.snapshot:
        snapshot = take_snapshot(run)
        return Place(run, snapshot.working_directory, sys.executable, snapshot.python_path)
    return Place(run, Path.cwd(), sys.executable)


def take_snapshot(run: RunDir, folder: Path | None = None) -> Snapshot:
    """Copy the repository of a folder (the working directory by default) into the run directory.

    Raises UserError when it is in no git repository, when that is too large to be only code, and when it cannot be
    copied.
    """
    folder = (folder or Path.cwd()).resolve()
    root = _root_of(folder)
    try:
        (run.path / "code").mkdir(exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=".new-", dir=run.path / "code"))
        try:
            draft.chmod(0o755)
            _copy_repository(root, draft / "repository", _runs_inside(root, run))
            package = _copy_package(root, draft)
            home = _settle(draft, run.path / "code")
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
    except OSError as error:
        raise UserError(f"launch.snapshot: {root} could not be copied to {run.path / 'code'}: {error}") from error
    work = home / "repository"
    working_directory = work / folder.relative_to(root)
    path = [*_search_path(root, work), *([home / package] if package else [])]
    return Snapshot(working_directory, os.pathsep.join(dict.fromkeys(str(entry) for entry in path)))


def _root_of(folder: Path) -> Path:
    top = git(folder, "rev-parse", "--show-toplevel")
    if top is None:
        raise UserError(
            f"launch.snapshot copies the git repository of the working directory, but git finds none at {folder}.\n"
            "      Submit from a repository, or leave launch.snapshot out."
        )
    return Path(os.fsdecode(top).removesuffix("\n")).resolve()


def _runs_inside(root: Path, run: RunDir) -> Path:
    """The folder of runs; the job's own where that holds the whole repository, or is it."""
    job_folder = run.path.resolve().parent
    return job_folder if root.is_relative_to(job_folder.parent) else job_folder.parent


def _copy_repository(root: Path, target: Path, runs: Path) -> None:
    """Copy what is code and link what git ignores, and the runs, whether it ignores those or not."""

    def is_no_run(name: str) -> bool:
        return not (root / name).is_relative_to(runs)

    names = [name for name in _listed(root, "--cached", "--others", "--exclude-standard") if is_no_run(name)]
    _check_size(root, names)
    target.mkdir()
    for name in names:
        _copy(root, name, target)
    listed = _listed(root, "--others", "--ignored", "--exclude-standard", "--directory")
    ignored = [Path(name) for name in listed if is_no_run(name)]
    if runs.is_relative_to(root):
        ignored.append(runs.relative_to(root))
    for path in ignored:
        if path.name not in _NEVER_LINKED and not (target / path).exists():
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            (target / path).symlink_to(root / path)


def _listed(root: Path, *options: str) -> list[str]:
    """Names that `git ls-files` gives, relative to the root and without a last slash; of repositories inside it too."""
    said = git(root, "ls-files", "-z", *options)
    if said is None:
        raise UserError(f"launch.snapshot: git cannot list the files of {root}; what does `git status` say there?")
    found: list[str] = []
    for name in dict.fromkeys(os.fsdecode(each).rstrip("/") for each in said.split(b"\0") if each):
        inside = root / name
        if (inside / ".git").exists() and not inside.is_symlink():  # a submodule, or another repository
            found += [f"{name}/{each}" for each in _listed(inside, *options)]
        else:
            found.append(name)
    return found


def _check_size(root: Path, names: Iterable[str]) -> None:
    """Raises UserError, naming what is largest, when this is more than code can be."""
    sizes: Counter[str] = Counter()
    for name in names:
        try:
            sizes[name] = (root / name).lstat().st_size
        except FileNotFoundError:
            continue
    total = sizes.total()
    if total <= MAX_BYTES and len(sizes) <= MAX_FILES:
        return
    folders: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for name, size in sizes.items():
        top = name.partition("/")[0]
        folders[top] += size
        counts[top] += 1
    largest = folders if total > MAX_BYTES else counts
    shown = ", ".join(
        f"{name} ({disk_size(folders[name])}, {counts[name]} files)" for name, _ in largest.most_common(_SHOWN)
    )
    raise UserError(
        f"launch.snapshot: {root} holds {disk_size(total)} in {len(sizes)} files that git does not ignore; "
        f"a snapshot takes at most {disk_size(MAX_BYTES)} and {MAX_FILES} files.\n"
        f"      The largest: {shown}. List what is not code in .gitignore: it is then linked, not copied."
    )


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


def _search_path(root: Path, work: Path) -> list[Path]:
    """Where Python finds modules now because PYTHONPATH or an editable installation says so: the copies of folders of
    the repository, and what PYTHONPATH names beside them.
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
        elif path in asked:
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
