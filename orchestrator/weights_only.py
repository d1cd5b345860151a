"""Reading a checkpoint in torch's distributed format without running anything that is in it.

Three of its parts are pickles, which could name any function to call: the list of tensors (`.metadata`), which torch
reads with plain pickle; objects between the tensors (`__0_0.distcp`), which torch asks to be read so; and what all
ranks share (`common.pt`), which is read so where the environment says so. Within `weights_only()` all three can name
only what tensors, numbers and texts are made of, and what is wrong is said with the file that it is in.
"""

from __future__ import annotations

import enum
import io
import os
import pickle
import re
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem
from torch.futures import Future

from orchestrator.errors import CheckpointError

_OF_TORCH = "torch.distributed.checkpoint."
_KNOWN = {
    "pathlib": {"PosixPath"},
    "pathlib._local": {"PosixPath"},
    "torch": {"Size", *(name for name, value in vars(torch).items() if isinstance(value, torch.dtype))},
    "torch.serialization": {"_get_layout"},
    f"{_OF_TORCH}filesystem": {"_StorageInfo"},
    f"{_OF_TORCH}metadata": {
        *("BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta"),
        *("TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING"),
    },
    f"{_OF_TORCH}planner": {"BytesIOWriteData", "SavePlan", "TensorWriteData", "WriteItem", "WriteItemType"},
}
"""What the list of a checkpoint's tensors is made of."""
_ATTRIBUTES: dict[type, dict[str, type]] = {
    _StorageInfo: {"relative_path": str, "offset": int, "length": int},
    MetadataIndex: {"fqn": str},
    TensorStorageMetadata: {"properties": TensorProperties, "size": torch.Size, "chunks": list},
    TensorProperties: {"dtype": torch.dtype},
    ChunkStorageMetadata: {"offsets": torch.Size, "sizes": torch.Size},
    BytesStorageMetadata: {},
}
"""Attributes that torch reads without asking; a pickle may leave any of them out."""
_NAMED = re.compile(r"(?:Unsupported global: GLOBAL|Unsupported class|unsupported GLOBAL) ([\w.]+)")
"""In torch's refusal of a pickle."""
_FAILED = re.compile(r"WeightsUnpickler error:\s+(.+)")
"""What went wrong, in torch's advice on pickles that fail."""
_ALWAYS, _NEVER = "TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"
_MOST_THREADS = 8
DAMAGES = (
    *(pickle.UnpicklingError, RuntimeError, EOFError, ValueError, TypeError, AttributeError, LookupError),
    *(AssertionError, OverflowError, MemoryError),
)
"""What torch and pickle raise for bytes that are something else than they should be."""


@contextmanager
def weights_only() -> Iterator[list[CheckpointError]]:
    """Within it, what torch reads of checkpoints runs nothing, whatever the caller or the environment ask for.

    What cannot be read raises CheckpointError with the file and the reason, and is put into the list that this gives:
    torch wraps such errors, or says something else in their place.
    """
    said: list[CheckpointError] = []
    before = {name: os.environ.pop(name, None) for name in (_ALWAYS, _NEVER)}
    os.environ[_ALWAYS] = "1"
    reader: Any = FileSystemReader
    own = reader.read_metadata, reader.read_data
    reader.read_metadata = _remembering(said, _read_metadata)
    reader.read_data = _remembering(said, _reading_files_by_name(own[1]))
    try:
        with torch.serialization.safe_globals(list(_spellings_of_members())):
            yield said
    finally:
        reader.read_metadata, reader.read_data = own
        del os.environ[_ALWAYS]
        os.environ.update({name: value for name, value in before.items() if value is not None})


def _remembering(said: list[CheckpointError], function: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except CheckpointError as error:
            said.append(error)
            raise

    return call


def reason_of(error: BaseException) -> str:
    """Why a pickle could not be read, in a few words."""
    named = _NAMED.search(str(error))
    if named is not None:
        return f"it names {named[1]}, which weights never contain"
    if (failed := _FAILED.search(str(error))) is not None:
        return failed[1].strip()
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__


def _read_metadata(self: Any, *args: Any, **kwargs: Any) -> Metadata:
    """In place of FileSystemReader.read_metadata."""
    folder = Path(self.path)
    path = folder / ".metadata"
    try:
        with open(path, "rb") as file:
            metadata = _Unpickler(file).load()
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing", code="file_not_found") from error
    except DAMAGES as error:
        raise CheckpointError(
            f"{path} is not the list of a checkpoint's tensors: {reason_of(error)}", code="unreadable_tensor_list"
        ) from error
    if not isinstance(metadata, Metadata):
        raise CheckpointError(f"{path} is not the list of a checkpoint's tensors", code="unreadable_tensor_list")
    said = vars(metadata)  # a pickle may leave any of it out
    if not isinstance(said.get("storage_data"), dict) or not isinstance(said.get("state_dict_metadata"), dict):
        raise CheckpointError(
            f"{path} is not the list of a checkpoint's tensors: it has no table of them", code="unreadable_tensor_list"
        )
    for index, place in metadata.storage_data.items():
        if not _is_whole(index, MetadataIndex) or not _is_whole(place, _StorageInfo):
            raise CheckpointError(
                f"{path} is not the list of a checkpoint's tensors: it does not say in which files",
                code="unreadable_tensor_list",
            )
        if Path(place.relative_path).name != place.relative_path:
            raise CheckpointError(
                f"{path} leads out of its folder, to {place.relative_path}", code="tensor_list_leads_out"
            )
    for name, entry in metadata.state_dict_metadata.items():
        if not _is_whole(entry, BytesStorageMetadata) and not _is_whole_tensor(entry):
            raise CheckpointError(
                f"{path} is not the list of a checkpoint's tensors: it does not describe {name}",
                code="unreadable_tensor_list",
            )
    metadata.storage_meta = metadata.storage_meta or StorageMeta()
    metadata.storage_meta.load_id = self.load_id
    return metadata


def _is_whole(value: object, kind: type) -> bool:
    """Whether a value is of this kind, with its attributes."""
    return isinstance(value, kind) and all(
        isinstance(vars(value).get(name), wanted) for name, wanted in _ATTRIBUTES[kind].items()
    )


def _is_whole_tensor(value: object) -> bool:
    return (
        isinstance(value, TensorStorageMetadata)
        and _is_whole(value, TensorStorageMetadata)
        and _is_whole(value.properties, TensorProperties)
        and all(_is_whole(chunk, ChunkStorageMetadata) for chunk in value.chunks)
    )


def _reading_files_by_name(read_data: Any) -> Any:
    """FileSystemReader.read_data, with a thread per file, so that an error can say which."""

    def read(self: Any, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        by_file: dict[str, list[ReadItem]] = {}
        for item in plan.items:
            place = self.storage_data.get(item.storage_index)
            if place is None:
                raise CheckpointError(
                    f"{Path(self.path) / '.metadata'} does not say where {item.storage_index.fqn} is",
                    code="tensor_not_listed",
                )
            by_file.setdefault(place.relative_path, []).append(item)

        def read_file(name: str) -> None:
            path, items = Path(self.path) / name, by_file[name]
            try:
                read_data(self, replace(plan, items=items), planner).wait()
            except FileNotFoundError as error:
                raise CheckpointError(f"{path} is missing", code="file_not_found") from error
            except DAMAGES as error:
                keys = ", ".join(sorted({item.storage_index.fqn for item in items})[:1])
                raise CheckpointError(
                    f"{path} cannot be read ({keys} …): {reason_of(error)}", code="unreadable_pickle"
                ) from error

        with ThreadPoolExecutor(_MOST_THREADS) as pool:
            for _ in pool.map(read_file, by_file):
                pass
        done: Future[None] = Future()
        done.set_result(None)
        return done

    return read


class _Unpickler(pickle.Unpickler):
    """A pickle may set attributes of what it names: of a class they would stay, for whoever uses it next."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file)
        self._attributes: dict[type, dict[str, Any]] = {}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == _READS_MEMBERS:
            return _member
        if name not in _KNOWN.get(module, ()):
            raise pickle.UnpicklingError(f"it names {module}.{name}, which weights never contain")
        found = super().find_class(module, name)
        if isinstance(found, type):
            self._attributes.setdefault(found, dict(vars(found)))
        return found

    def load(self) -> Any:
        try:
            return super().load()
        finally:
            changed = [found for found, before in self._attributes.items() if _restore(found, before)]
            if changed:
                raise pickle.UnpicklingError(f"it changes {changed[0].__name__} itself, which weights never do")


def _restore(changed: type, before: dict[str, Any]) -> bool:
    """Give a class the attributes that it had; whether it had others."""
    others = [name for name in {**before, **vars(changed)} if vars(changed).get(name) is not before.get(name)]
    for name in others:
        if name in before:
            setattr(changed, name, before[name])
        else:
            delattr(changed, name)
    return bool(others)


class UnknownEnumeration:
    """In place of an enumeration whose values are not known here: a member is its value, or its name."""

    def __call__(self, value: Any) -> Any:
        return value


_READS_MEMBERS = ("builtins", "getattr")
"""How Python 3.11.0 to 3.11.3 write the member of an enumeration, and later ones a tuple that is one."""


def _spellings_of_members() -> Iterator[tuple[Any, str]]:
    """What torch may find in a pickle of those Pythons: signals are written by their names in the module."""
    yield _member, ".".join(_READS_MEMBERS)
    for number in signal.Signals:
        yield number, f"signal.{number.name}"


_RECIPES = "transformer_engine.common.recipe"
_DERIVED = ("megatron.core.extensions.transformer_engine", "TEDelayedScaling")
_OF_STATES = {
    "collections": {"OrderedDict"},
    "torch._utils": {"_rebuild_tensor_v2"},
    "torch": _KNOWN["torch"],
}
"""What the state of a layer that multiplies in FP8 is made of, beside its recipe and the storages of tensors."""
_STORAGES = {("torch.storage", "_load_from_bytes"), ("megatron.core.safe_globals", "safe_load_from_bytes")}
"""What reads a storage, by name: torch's function, which megatron-core 0.19 replaces by its own."""


def require_plain_state(content: bytes, what: str) -> None:
    """See that a layer's extra state, a pickle within a tensor, names nothing but tensors and Transformer Engine's
    recipes: Transformer Engine reads it with plain pickle. Raises CheckpointError.
    """
    try:
        _StateUnpickler(io.BytesIO(content)).load()
    except DAMAGES as error:
        raise CheckpointError(f"{what} cannot be read: {reason_of(error)}", code="unreadable_pickle") from error


class _StateUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _STORAGES:
            return _storage
        if (module, name) == _READS_MEMBERS:
            return _member
        if (recipe := _recipe(module, name)) is not None:
            return recipe
        if name not in _OF_STATES.get(module, ()):
            raise pickle.UnpicklingError(f"it names {module}.{name}, which weights never contain")
        return super().find_class(module, name)


def _recipe(module: str, name: str) -> type | None:
    """A class of Transformer Engine's recipes, or the one that megatron-core derives from them."""
    found = (
        vars(sys.modules.get(module, pickle)).get(name) if module == _RECIPES or (module, name) == _DERIVED else None
    )
    if not isinstance(found, type) or found.__module__ != module:
        return None
    return found if any(base.__module__ == _RECIPES for base in found.__mro__) else None


def _storage(content: bytes) -> Any:
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)


def _member(owner: Any, name: str) -> Any:
    if isinstance(owner, UnknownEnumeration):
        return name
    if not (isinstance(owner, enum.EnumMeta) and name in owner.__members__):
        raise pickle.UnpicklingError("it names builtins.getattr, which weights never contain")
    return owner.__members__[name]
