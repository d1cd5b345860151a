"""What a login node is sent: this package, and the project of the working directory, each once as long as it is the
same.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal

from orchestrator import version
from orchestrator.launch.code.code_version import code_state
from orchestrator.launch.code.repository_files import check_size, listed, repository_of
from orchestrator.resources import resource_root

MAX_BYTES = 100_000_000
MAX_FILES = 20_000
_RESOURCES: tuple[Literal["templates", "jobs"], ...] = ("templates", "jobs")


@dataclass(frozen=True)
class Archive:
    """Files by their names in the archive, and contents that are no files here."""

    files: Mapping[str, Path]
    contents: Mapping[str, bytes] = field(default_factory=dict)

    def key(self) -> str:
        """What it is called there: another one as soon as a file is changed."""
        digest = hashlib.sha256()
        for name, path in sorted(self.files.items()):
            about = path.lstat()
            link = os.readlink(path) if path.is_symlink() else ""
            digest.update(f"{name}\0{about.st_mode}\0{about.st_size}\0{about.st_mtime_ns}\0{link}\0".encode())
        for name, content in sorted(self.contents.items()):
            digest.update(name.encode() + b"\0" + content)
        return digest.hexdigest()[:32]

    def pack(self, target: IO[bytes]) -> None:
        """Write it as a compressed tar archive. A file that is gone in the meantime was deleted by its owner."""
        with tarfile.open(fileobj=target, mode="w:gz", compresslevel=1) as packed:
            for name, path in self.files.items():
                if path.is_symlink() or path.is_file():
                    packed.add(path, name, recursive=False)
            for name, content in self.contents.items():
                about = tarfile.TarInfo(name)
                about.size = len(content)
                packed.addfile(about, io.BytesIO(content))


@dataclass(frozen=True)
class Project:
    """The project of the working directory."""

    archive: Archive
    root: Path
    """Its folder here: the git repository, or the working directory itself."""
    working_directory: str
    """Where the command is typed, relative to it."""


def package_archive() -> Archive:
    """This package, so that both sides have the same version of it."""
    package = Path(version.__file__).resolve().parent
    files = {f"{package.name}/{name}": path for name, path in _below(package)}
    for kind in _RESOURCES:
        if not (resources := resource_root(kind)).is_relative_to(package):
            files |= {f"{kind}/{name}": path for name, path in _below(resources)}
    return Archive(files)


def project_of(folder: Path, runs_dir: Path, more: Mapping[str, Path]) -> Project:
    """The project that a folder is in: its git repository, all that git tracks or does not ignore; without one, what is
    in the folder but for hidden folders and the runs. `more`: further files, by their names in the archive.

    Raises UserError when that is too large to be only code.
    """
    folder = folder.resolve()
    root = repository_of(folder)
    if root is not None:
        names = listed(root, "--cached", "--others", "--exclude-standard")
    else:
        root = folder
        names = [name for name, path in _below(root, apart_from=runs_dir.resolve())]
    runs = runs_dir.resolve()
    names = [name for name in names if os.path.lexists(root / name) and not (root / name).is_relative_to(runs)]
    check_size(root, names, MAX_BYTES, MAX_FILES, "what is sent to the login node")
    files = {f"tree/{name}": root / name for name in names} | dict(more)
    state = code_state(folder, apart_from=runs_dir)
    sent = (name.removeprefix("tree/") for name in files if name.startswith("tree/"))
    contents = {
        "names": b"".join(os.fsencode(name) + b"\0" for name in sent),
        "code.json": json.dumps(state.record).encode(),
        "code.diff": state.diff,
    }
    return Project(Archive(files, contents), root, os.path.relpath(folder, root))


def _below(folder: Path, apart_from: Path | None = None) -> Iterator[tuple[str, Path]]:
    """The files below a folder by their names relative to it, without hidden folders and caches."""
    for parent, folders, files in os.walk(folder):
        within = Path(parent)
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".") and name != "__pycache__" and within / name != apart_from
        )
        for name in sorted(files):
            yield os.path.relpath(within / name, folder), within / name
