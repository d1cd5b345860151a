"""The weights of a Hugging Face folder, read a tensor at a time from its safetensors."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from orchestrator.errors import UserError
from orchestrator.exchange.shards import DTYPES, INDEX
from orchestrator.exchange.table import Family

_SINGLE = "model.safetensors"
_DTYPES = {name: dtype for dtype, name in DTYPES.items()}
_SHOWN = 4


class PublishedWeights:
    """A context manager. Names are the family's, whether the files leave its base out or not."""

    def __init__(self, folder: Path, family: Family) -> None:
        self._folder, self._family = folder, family
        self._opened = ExitStack()
        self._files: dict[str, Any] = {}
        self._names: dict[str, str] = {}

    def __enter__(self) -> PublishedWeights:
        """Raises UserError when files are missing or damaged."""
        with self._opened as stack:
            for file in self._file_names():
                path = self._folder / file
                try:
                    opened = stack.enter_context(safe_open(path, framework="pt"))
                    names = list(opened.keys())
                except FileNotFoundError as error:
                    raise UserError(f"{path} is missing") from error
                except (OSError, SafetensorError) as error:
                    raise UserError(f"{path} is damaged: {error}") from error
                for name in names:
                    if not name.endswith(self._family.buffers):
                        full = self._full_name(name)
                        self._files[full], self._names[full] = opened, name
            self._opened = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._opened.close()

    def check(self, shapes: dict[str, tuple[int, ...]], ignored: Sequence[str]) -> None:
        """Raises UserError when the files hold anything else than tensors of these shapes."""
        missing = [name for name in shapes if name not in self._files]
        other = [name for name in self._files if name not in shapes and name not in ignored]
        wrong = [
            f"{name} is {self._shape(name)} and not {shape}"
            for name, shape in shapes.items()
            if name in self._files and self._shape(name) != shape
        ]
        strange = [name for name in shapes if name in self._files and self._dtype(name) not in _DTYPES]
        found = {
            "they lack": missing,
            f"{self._family.name} has no": other,
            "other shapes than config.json says:": wrong,
            f"not stored as {', '.join(_DTYPES)}:": strange,
        }
        said = [f"{what} {_listed(names)}" for what, names in found.items() if names]
        if said:
            raise UserError(f"the weights in {self._folder} are not those of its config.json: {'; '.join(said)}")

    def dtype(self, name: str) -> torch.dtype:
        return _DTYPES[self._dtype(name)]

    def read(self, name: str) -> torch.Tensor:
        """One tensor. Raises UserError when its file cannot be read."""
        try:
            tensor: torch.Tensor = self._files[name].get_tensor(self._names[name])
        except (OSError, SafetensorError) as error:
            raise UserError(f"{name} in {self._folder} cannot be read: {error}") from error
        return tensor

    def _shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._files[name].get_slice(self._names[name]).get_shape())

    def _dtype(self, name: str) -> str:
        return str(self._files[name].get_slice(self._names[name]).get_dtype())

    def _full_name(self, name: str) -> str:
        base = self._family.base
        return name if name.startswith((base, "lm_head.")) else base + name

    def _file_names(self) -> list[str]:
        index = self._folder / INDEX
        if not index.is_file():
            if (self._folder / _SINGLE).is_file():
                return [_SINGLE]
            raise UserError(
                f"{self._folder} has no {_SINGLE} and no {INDEX}; weights are imported from safetensors alone "
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
