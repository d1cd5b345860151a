"""The trash of a runs folder: what was deleted, until `prune` removes it or it is put back.

    runs/.trash/<name>.<8 hex digits>/
        entry.json   what it is, where it lay, when it was deleted, and the MLflow runs that are still to be deleted
        content      the run, the sweep's folder or the checkpoint itself

It is in the runs folder, so on its disk: deleting and putting back are one rename each, and whatever is interrupted,
the thing is wholly in its place or wholly here. An entry without content is a deletion that never came to its rename,
or one whose content was removed before MLflow could be reached. Nothing is moved through a link, and a link that lies
among what is deleted is moved or removed itself, never what it leads to.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from orchestrator.errors import UserError
from orchestrator.files.stored_files import count, is_name, moment, read_object
from orchestrator.run_directory.rundir import iteration_of, sync_folder, write_atomically

FOLDER = ".trash"
"""In the runs folder."""
Kind = Literal["run", "sweep", "checkpoint"]

_ENTRY = "entry.json"
_CONTENT = "content"
_GONE = ".gone"
"""The end of a name of what is being removed."""
_SWEEPS = "sweeps"


@dataclass(frozen=True)
class Trashed:
    """Something that was deleted. `place`: where it lay, relative to the runs folder; `name`: what it was called;
    `deletion`: the same for all that was deleted together; `mlflow`: {"uri", "run_id"} of each MLflow run that is
    still to be deleted.
    """

    path: Path
    kind: Kind
    name: str
    place: str
    deletion: str
    deleted: float
    bytes: int
    mlflow: tuple[Mapping[str, Any], ...] = ()

    @property
    def content(self) -> Path:
        """What was moved here."""
        return self.path / _CONTENT

    @property
    def has_content(self) -> bool:
        """Whether it can be put back."""
        return os.path.lexists(self.content)

    @property
    def runs_dir(self) -> Path:
        """The folder of the runs that it belongs to."""
        return self.path.parent.parent

    def without_mlflow(self) -> Trashed:
        """Write down that MLflow has been told."""
        told = replace(self, mlflow=())
        _write(told)
        return told


def place_in(runs_dir: Path, path: Path) -> str:
    """Where a run, a sweep's folder or a checkpoint lies below its runs folder, as a relative path. Raises UserError
    for anything else, and for what a link on the way leads to: that is not in the folder.
    """
    root = Path(os.path.realpath(runs_dir))
    absolute = Path(os.path.abspath(path))
    real = Path(os.path.realpath(absolute.parent)) / absolute.name
    if root not in real.parents:
        raise UserError(
            f"{path} is not in {runs_dir}, or only through a link: nothing outside of it is deleted",
            code="outside_runs_folder",
        )
    place = real.relative_to(root)
    if _kind_of(place.parts) is None:
        raise UserError(f"{path} is no run, no sweep and no checkpoint of {runs_dir}", code="nothing_to_delete")
    return place.as_posix()


def move_to_trash(
    runs_dir: Path, place: str, *, name: str, size: int, deletion: str, mlflow: Sequence[Mapping[str, Any]] = ()
) -> Trashed:
    """Move what lies at a place of `place_in` into the trash, by one rename. Raises UserError where that is another
    disk, FileNotFoundError where it is gone, and OSError for what the system refuses.
    """
    trash = _trash(runs_dir, make=True)
    source = trash.parent / place
    kind = _kind_of(Path(place).parts)
    assert kind is not None, "place_in has checked it"
    while True:
        entry = Trashed(
            path=trash / f"{source.name[:200]}.{uuid.uuid4().hex[:8]}",
            kind=kind,
            name=name,
            place=place,
            deletion=deletion,
            deleted=time.time(),
            bytes=size,
            mlflow=tuple(mlflow),
        )
        entry.path.mkdir()
        try:
            _write(entry)
            os.rename(source, entry.content)
        except FileNotFoundError:
            if not os.path.lexists(source):
                _remove(entry.path)
                raise
            continue  # a prune took the entry, which was still empty
        except OSError as error:
            _remove(entry.path)
            if error.errno == errno.EXDEV:
                raise UserError(
                    f"{source} is on another disk than {runs_dir}, where no rename reaches: remove it there by hand",
                    code="trash_on_another_disk",
                ) from error
            raise
        sync_folder(source.parent)
        sync_folder(entry.path)
        return entry


def trashed(runs_dir: Path) -> list[Trashed]:
    """What is in the trash of a runs folder, the last deleted last; what makes no sense is left out."""
    trash = _trash(runs_dir)
    found = (_read(trash / name) for name in _names(trash) if not name.endswith(_GONE))
    return sorted((entry for entry in found if entry is not None), key=lambda entry: (entry.deleted, entry.path))


def entry_at(path: Path) -> Trashed | None:
    """The entry of a trash that a folder is; None for any other folder."""
    return _read(path) if path.parent.name == FOLDER else None


def names_in_trash(runs_dir: Path) -> set[str]:
    """The names of the folders that lie in the trash: no run begins under one of these, which could not be put back
    then, and whose MLflow run it would be taken for.
    """
    return {name.removesuffix(_GONE).rpartition(".")[0] for name in _names(runs_dir / FOLDER)}


def put_back(entry: Trashed) -> Path:
    """Move it to where it lay. Raises UserError where something lies there, or the run of a checkpoint is gone."""
    target = entry.runs_dir / entry.place
    if entry.kind != "checkpoint":
        target.parent.mkdir(exist_ok=True)
    try:
        place_in(entry.runs_dir, target)
        if os.path.lexists(target):
            raise UserError(
                f"{target} is there again: move that away before {entry.name} is put back", code="restored_place_taken"
            )
        os.rename(entry.content, target)
    except FileNotFoundError:
        if not entry.has_content:
            raise UserError(
                f"{entry.name} is in the trash no more: its files were removed", code="trashed_files_gone"
            ) from None
        raise UserError(
            f"{entry.name} cannot be put back: {target.parent} is gone; put that back first",
            code="restored_folder_gone",
        ) from None
    sync_folder(target.parent)
    with suppress(OSError):  # it is back; the empty entry goes with the next prune
        _remove(entry.path)
    return target


def remove_content(entry: Trashed) -> None:
    """Remove the files of an entry for good, and the entry unless MLflow is still to be told. Each is renamed first:
    one that is interrupted is nothing any more that could be put back, and the next `remove_leftovers` ends it.
    """
    gone = entry.path / f"{_CONTENT}{_GONE}" if entry.mlflow else entry.path.with_name(entry.path.name + _GONE)
    with suppress(FileNotFoundError):  # another prune was faster
        os.rename(entry.content if entry.mlflow else entry.path, gone)
    _remove(gone)


def remove_leftovers(runs_dir: Path) -> None:
    """End removals that were interrupted, and remove entries that hold nothing and tell nobody; those of others, as far
    as they may not be removed, are left to them.
    """
    trash = _trash(runs_dir)
    for name in _names(trash):
        with suppress(PermissionError):
            _remove_leftover(trash / name)


def _remove_leftover(path: Path) -> None:
    if path.name.endswith(_GONE):
        _remove(path)
        return
    _remove(path / f"{_CONTENT}{_GONE}")
    entry = _read(path)
    if not os.path.lexists(path / _CONTENT) and (entry is None or not entry.mlflow):
        _remove(path)


def _trash(runs_dir: Path, *, make: bool = False) -> Path:
    """Raises UserError where something else has that name: through a link things would be moved elsewhere."""
    trash = Path(os.path.realpath(runs_dir)) / FOLDER
    if make:
        with suppress(FileExistsError):
            trash.mkdir()
    if os.path.lexists(trash) and not _is_folder(trash):
        raise UserError(
            f"{trash} is not a folder of its own: move it away, it should hold what is deleted",
            code="trash_not_a_folder",
        )
    return trash


def _names(trash: Path) -> list[str]:
    """What is in a trash; nothing where it is none, or another's."""
    try:
        return sorted(os.listdir(trash)) if _is_folder(trash) else []
    except (FileNotFoundError, PermissionError):
        return []


def _kind_of(parts: Sequence[str]) -> Kind | None:
    """What lies at a place below a runs folder."""
    if any(part.startswith(".") or not is_name(part) for part in parts):
        return None
    match tuple(parts):
        case (folder, _) if folder == _SWEEPS:
            return "sweep"
        case (_, _):
            return "run"
        case (_, _, "checkpoints", last) if iteration_of(Path(last)) is not None:
            return "checkpoint"
    return None


def _read(path: Path) -> Trashed | None:
    if not _is_folder(path):
        return None
    record = read_object(path / _ENTRY, path)
    match record:
        case {"name": str(name), "place": str(place), "deletion": str(deletion)}:
            kind = _kind_of(Path(place).parts)
            if kind is None or Path(place).as_posix() != place:
                return None
            mlflow = record.get("mlflow")
            return Trashed(
                path=path,
                kind=kind,
                name=name,
                place=place,
                deletion=deletion,
                deleted=moment(record.get("time")) or 0.0,
                bytes=count(record.get("bytes")) or 0,
                mlflow=tuple(each for each in mlflow if isinstance(each, dict)) if isinstance(mlflow, list) else (),
            )
    return None


def _write(entry: Trashed) -> None:
    record = {
        "time": entry.deleted,
        "kind": entry.kind,
        "name": entry.name,
        "place": entry.place,
        "deletion": entry.deletion,
        "bytes": entry.bytes,
        "mlflow": list(entry.mlflow),
    }
    write_atomically(entry.path / _ENTRY, json.dumps(record, indent=1) + "\n")


def _is_folder(path: Path) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return False


def _remove(path: Path) -> None:
    """Remove a file, a link or a folder with all that is in it; no link is followed. Nothing where nothing is."""
    try:
        if _is_folder(path):
            shutil.rmtree(path)
        else:
            path.unlink()
    except FileNotFoundError:
        pass
    except OSError as error:  # up to Python 3.12, rmtree has but the last part of the path in it
        if isinstance(error.filename, str):
            error.filename = str(path / error.filename)
        raise
