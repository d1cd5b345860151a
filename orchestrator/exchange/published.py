"""The weights of a Hugging Face folder, read a tensor at a time from its safetensors."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from orchestrator.errors import UserError
from orchestrator.exchange.names import INDEX, SINGLE
from orchestrator.exchange.shards import DTYPES
from orchestrator.exchange.table import Family

_DTYPES = {name: dtype for dtype, name in DTYPES.items()}
_SHOWN = 4
_BYTES_KEPT = 64 << 20


@dataclass(frozen=True)
class _Header:
    """Where a tensor is, and what it is; `stored` is its name there."""

    path: Path
    stored: str
    shape: tuple[int, ...]
    dtype: str


class PublishedWeights:
    """A context manager. Names are the family's, whether the files leave its base out or not."""

    def __init__(self, folder: Path, family: Family) -> None:
        self._folder, self.family = folder, family
        self._headers: dict[str, _Header] = {}
        self._opened = ExitStack()
        self._file: Any = None
        self._open_path: Path | None = None
        self._bytes_read = 0

    def __enter__(self) -> PublishedWeights:
        """Raises UserError when files are missing or damaged."""
        for file_name in self._file_names():
            path = self._folder / file_name
            try:
                with safe_open(path, framework="pt") as file:
                    for stored in file.keys():  # noqa: SIM118 - it is no dictionary
                        if not stored.endswith(self.family.buffers):
                            part = file.get_slice(stored)
                            header = _Header(path, stored, tuple(part.get_shape()), str(part.get_dtype()))
                            name = self._full_name(stored)
                            if name in self._headers:
                                raise UserError(f"{self._headers[name].path} and {path} both hold {name}")
                            self._headers[name] = header
            except FileNotFoundError as error:
                raise UserError(f"{path} is missing") from error
            except (OSError, SafetensorError) as error:
                raise UserError(f"{path} is damaged: {error}") from error
        return self

    def __exit__(self, *error: object) -> None:
        self._opened.close()

    def check(self, shapes: dict[str, tuple[int, ...]], ignored: Sequence[str]) -> None:
        """Raises UserError when the files hold anything else than tensors of these shapes."""
        missing = [name for name in shapes if name not in self._headers]
        other = [name for name in self._headers if name not in shapes and name not in ignored]
        wrong = [
            f"{name} is {self._headers[name].shape} and not {shape}"
            for name, shape in shapes.items()
            if name in self._headers and self._headers[name].shape != shape
        ]
        strange = [name for name in shapes if name in self._headers and self._headers[name].dtype not in _DTYPES]
        found = {
            "they lack": missing,
            f"{self.family.name} has no": other,
            "other shapes than config.json says:": wrong,
            f"not stored as {', '.join(_DTYPES)}:": strange,
        }
        said = [f"{what} {_listed(names)}" for what, names in found.items() if names]
        if said:
            raise UserError(f"the weights in {self._folder} are not those of its config.json: {'; '.join(said)}")

    def __contains__(self, name: str) -> bool:
        return name in self._headers

    def dtype(self, name: str) -> torch.dtype:
        return _DTYPES[self._headers[name].dtype]

    def read(self, name: str) -> torch.Tensor:
        """One tensor. Raises UserError when its file cannot be read."""
        header = self._headers[name]
        try:
            self._open(header.path)
            tensor: torch.Tensor = self._file.get_tensor(header.stored)
        except (OSError, SafetensorError) as error:
            raise UserError(f"{name} in {header.path} cannot be read: {error}") from error
        self._bytes_read += tensor.nbytes
        return tensor

    def _open(self, path: Path) -> None:
        """What was read of a file stays in memory while it is open: it is opened anew now and then."""
        if path != self._open_path or self._bytes_read > _BYTES_KEPT:
            self._opened.close()
            self._opened = ExitStack()
            self._file = self._opened.enter_context(safe_open(path, framework="pt"))
            self._open_path, self._bytes_read = path, 0

    def _full_name(self, name: str) -> str:
        base = self.family.base
        for old, new in self.family.renamed.items():
            if name.endswith(old):
                name = name.removesuffix(old) + new
        return name if name.startswith((base, *self.family.heads)) else base + name

    def _file_names(self) -> list[str]:
        if (self._folder / SINGLE).is_file():  # transformers takes it, too, where there is an index beside it
            return [SINGLE]
        index = self._folder / INDEX
        if not index.is_file():
            raise UserError(
                f"{self._folder} has no {SINGLE} and no {INDEX}; weights are imported from safetensors alone "
                "(pickled files can run code): convert them with transformers' save_pretrained"
            )
        try:
            files = set(json.loads(index.read_bytes())["weight_map"].values())
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise UserError(f"{index} is damaged: it has no weight_map") from error
        if not all(isinstance(file, str) and Path(file).name == file for file in files):
            raise UserError(f"{index} names files outside of its folder")
        return sorted(files)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
