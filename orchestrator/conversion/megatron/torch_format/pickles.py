"""Reading the file of a rank without running anything that is in it.

It is one pickle of weights, arguments, and the states of the optimizer and of random generators. Beside what torch
takes for weights it may name what is listed here; of Megatron-LM's own classes, which moved from module to module, it
gets stand-ins that hold what is stored.
"""

from __future__ import annotations

import argparse
import pickle
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from orchestrator.errors import UserError
from orchestrator.weights_only import DAMAGES, UnknownEnumeration, reason_of, weights_only

_ENUM_MODULES = (
    *("megatron.enums", "megatron.model.enums", "megatron.legacy.model.enums", "megatron.core.enums"),
    *("megatron.core.transformer.enums", "megatron.model.transformer", "megatron.model"),
)
_ENUMS = (
    *("ModelType", "LayerType", "AttnType", "AttnMaskType", "PositionEmbeddingType", "AttnBackend"),
    *("Fp8Recipe", "Fp4Recipe", "CudaGraphScope", "CudaGraphModule", "InferenceCudaGraphScope"),
)
_SCALER_MODULES = (
    *("fp16.loss_scaler", "megatron.fp16.loss_scaler", "megatron.fp16_deprecated.loss_scaler"),
    *("megatron.legacy.fp16_deprecated.loss_scaler", "apex.fp16_utils.loss_scaler"),
)
_SCALERS = ("LossScaler", "DynamicLossScaler")
_NUMPY_MODULES = ("numpy.core.multiarray", "numpy._core.multiarray")
_NUMBERS = "biuf"
"""Kinds of numpy's types that are numbers."""


class StoredObject:
    """What a file holds of an object of one of Megatron-LM's classes."""


def _scalar(dtype: Any, content: bytes) -> Any:
    if not isinstance(dtype, np.dtype) or dtype.kind not in _NUMBERS:
        raise pickle.UnpicklingError("it names a numpy scalar that is no number, which weights never contain")
    return np.frombuffer(content, dtype)[0].item()


def _array(*arguments: Any) -> Any:
    """An empty array, which its state then fills: that of a random generator."""
    return np.ndarray((0,), np.uint8)


def _allowed() -> Iterator[tuple[Callable[..., Any], str]]:
    yield argparse.Namespace, "argparse.Namespace"
    for module, name in product(_ENUM_MODULES, _ENUMS):
        yield UnknownEnumeration(), f"{module}.{name}"
    for module, name in product(_SCALER_MODULES, _SCALERS):
        yield StoredObject, f"{module}.{name}"
    for module in _NUMPY_MODULES:
        yield _scalar, f"{module}.scalar"
        yield _array, f"{module}._reconstruct"
    yield np.ndarray, "numpy.ndarray"
    yield np.dtype, "numpy.dtype"
    for kind in "?bhilqBHILQefd":
        of_number = type(np.dtype(kind))
        yield of_number, f"{of_number.__module__}.{of_number.__qualname__}"


def read_pickle(path: Path) -> dict[str, Any]:
    """What the file of a rank holds; tensors are read when they are used, where the file allows it.

    Raises UserError when it is damaged, or names anything that is not listed here.
    """
    load = partial(torch.load, path, map_location="cpu", weights_only=True)
    try:
        with weights_only(), torch.serialization.safe_globals(list(_allowed())):
            found = load(mmap=True) if zipfile.is_zipfile(path) else load()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}", code="unreadable_file") from error
    except DAMAGES as error:
        raise UserError(f"{path} cannot be read: {reason_of(error)}", code="unreadable_pickle") from error
    if not isinstance(found, dict):
        raise UserError(
            f"{path} is no checkpoint of Megatron-LM: it holds a {type(found).__name__}",
            code="not_a_megatron_checkpoint",
        )
    return found
