"""The weights of a Hugging Face folder, read a tensor at a time from its safetensors."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

import torch

from orchestrator.conversion.tensors import fp8, mxfp4
from orchestrator.conversion.tensors.blobs import mapped
from orchestrator.conversion.tensors.headers import Header, read_headers
from orchestrator.conversion.tensors.names import ADAPTER, INDEX, SINGLE
from orchestrator.conversion.tensors.shards import DTYPES
from orchestrator.conversion.weight_mapping import MXFP4, Family
from orchestrator.errors import UserError

_DTYPES = {name: dtype for dtype, name in DTYPES.items()}
_STORED = {**_DTYPES, mxfp4.STORED: torch.uint8, fp8.STORED: torch.float8_e4m3fn}
_SHOWN = 4
_PICKLED = {".bin", ".pt", ".pth"}


_Dequantized: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class _Quantized(NamedTuple):
    """Two tensors that stand for one."""

    numbers: Header
    scales: Header
    dequantized: _Dequantized


class PublishedWeights:
    """Names are the family's, whether the files leave its base out or not. Any thread may read."""

    def __init__(self, folder: Path, family: Family, fp8_block: tuple[int, int] | None = None) -> None:
        """`fp8_block`: rows and columns for which matrices in FP8 have a scale. Raises UserError when files are missing
        or damaged.
        """
        self._folder, self.family = folder, family
        self._headers: dict[str, Header] = {}
        for path, listed in self._files().items():
            stored = read_headers(path)
            if missing := listed - {header.name for header in stored}:
                raise UserError(
                    f"{path} lacks {_listed(sorted(missing))}, which {INDEX} says it holds", code="missing_tensors"
                )
            for header in stored:
                if not header.name.endswith(family.buffers):
                    name = self._full_name(header.name)
                    if name in self._headers:
                        raise UserError(
                            f"{self._headers[name].path} and {path} both hold {name}", code="duplicate_tensor"
                        )
                    self._headers[name] = header
        self._quantized: dict[str, _Quantized] = {}
        if MXFP4 in family.quantizations:
            self._take_mxfp4()
        if fp8_block is not None:
            self._take_fp8(fp8_block)

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
            raise UserError(
                f"the weights in {self._folder} are not those of its config.json: {'; '.join(said)}",
                code="network_differs",
            )

    def __contains__(self, name: str) -> bool:
        return name in self._headers

    def __iter__(self) -> Iterator[str]:
        return iter(self._headers)

    def dtype(self, name: str) -> torch.dtype:
        return _DTYPES[self._headers[name].dtype]

    def bytes(self, name: str) -> int:
        return self._headers[name].bytes

    def read(self, name: str, at: int | None = None) -> torch.Tensor:
        """One tensor, or the part at a place along its first dimension, as a view of its file where it is stored in no
        quantized format. Raises UserError when that cannot be read.
        """
        if name in self._quantized:
            numbers, scales, dequantized = self._quantized[name]
            parts = (self._view(numbers), self._view(scales))
            return dequantized(*(part if at is None else part[at] for part in parts))
        whole = self._view(self._headers[name])
        return whole if at is None else whole[at]

    def _view(self, header: Header) -> torch.Tensor:
        dtype = _STORED[header.dtype]
        if header.bytes == 0:
            return torch.empty(header.shape, dtype=dtype)
        try:
            content = mapped(header.path, header.offset, header.bytes)
        except OSError as error:
            raise UserError(f"{header.path} cannot be read: {error.strerror}", code="unreadable_file") from error
        except ValueError as error:
            raise UserError(f"{header.path} has become shorter while it was read", code="file_shrank") from error
        return torch.frombuffer(content, dtype=dtype).view(header.shape)

    def _take_mxfp4(self) -> None:
        """Pairs of tensors that stand for one in MXFP4, which is known by that one's name afterwards."""
        for name in [each.removesuffix(mxfp4.BLOCKS) for each in self._headers if each.endswith(mxfp4.BLOCKS)]:
            keys = f"{name}{mxfp4.BLOCKS}", f"{name}{mxfp4.SCALES}"
            blocks, scales = map(self._headers.get, keys)
            if blocks is None or scales is None or {blocks.dtype, scales.dtype} != {mxfp4.STORED}:
                continue  # what is no such pair is refused as a weight that the family does not have
            shape = mxfp4.shape_of(blocks.shape, scales.shape)
            if shape is not None and name not in self._headers:
                self._take(name, keys, shape, mxfp4.DTYPE, mxfp4.dequantized)

    def _take_fp8(self, block: tuple[int, int]) -> None:
        """Matrices in FP8, each with its scales. Raises UserError where these cannot be multiplied with."""
        for name in [each.removesuffix(fp8.SCALES) for each in self._headers if each.endswith(fp8.SCALES)]:
            keys = name, f"{name}{fp8.SCALES}"
            matrix, scales = self._headers.get(name), self._headers[keys[1]]
            if matrix is None or matrix.dtype != fp8.STORED or scales.dtype not in fp8.STORED_SCALES:
                continue
            if keys[1] in self._quantized:  # it says another dtype than it is stored in
                continue
            if not fp8.fits(matrix.shape, scales.shape, block):
                continue
            if not fp8.are_usable(self._view(scales)):
                raise UserError(
                    f"{scales.path} is damaged: {scales.name} has numbers that scale no weights",
                    code="unusable_scales",
                )
            self._take(name, keys, matrix.shape, fp8.DTYPE, functools.partial(fp8.dequantized, block=block))

    def _take(
        self, name: str, keys: tuple[str, str], shape: tuple[int, ...], dtype: str, dequantized: _Dequantized
    ) -> None:
        """Know the tensors of two keys, numbers and scales, as one."""
        numbers, scales = map(self._headers.pop, keys)
        size = math.prod(shape) * _DTYPES[dtype].itemsize
        self._headers[name] = Header(numbers.path, name, shape, dtype, numbers.offset, size)
        self._quantized[name] = _Quantized(numbers, scales, dequantized)

    def _full_name(self, name: str) -> str:
        base = self.family.base
        for old, new in self.family.moved.items():
            if name.startswith(old) and not name.startswith(new):
                name = new + name.removeprefix(old)
        for old, new in self.family.renamed.items():
            if name.endswith(old):
                name = name.removesuffix(old) + new
        return name if name.startswith((base, *self.family.heads)) else base + name

    def _files(self) -> dict[Path, set[str]]:
        """The files, each with the names that the index says it holds."""
        single, index = self._folder / SINGLE, self._folder / INDEX
        if single.is_file():  # transformers takes it, too, where there is an index beside it
            return {single: set()}
        if not index.is_file():
            raise UserError(
                f"{self._folder} has no {SINGLE} and no {INDEX}{_instead(self._folder)}", code="missing_weights"
            )
        try:
            places = json.loads(index.read_bytes())["weight_map"].items()
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise UserError(f"{index} is damaged: it has no weight_map", code="damaged_safetensors_index") from error
        files: dict[Path, set[str]] = {}
        for name, file in places:
            if not isinstance(file, str) or Path(file).name != file or file == ".." or "\0" in file:
                raise UserError(
                    f"{index} names {json.dumps(file)} for {name}, which is no file of its folder",
                    code="safetensors_index_leads_out",
                )
            files.setdefault(self._folder / file, set()).add(name)
        return dict(sorted(files.items()))


def _instead(folder: Path) -> str:
    """What else is there, and what to do with it."""
    if (folder / ADAPTER).is_file():
        return f"; {ADAPTER} is an adapter: merge it into its model first (peft's merge_and_unload), and save that"
    pickled = [path.name for path in sorted(folder.iterdir()) if path.suffix in _PICKLED]
    there = f"; there is {_listed(pickled)}" if pickled else ""
    return (
        f"{there}; weights are imported only from safetensors (pickled files can run code): convert them with "
        "transformers' save_pretrained"
    )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
