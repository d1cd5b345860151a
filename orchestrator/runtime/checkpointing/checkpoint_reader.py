"""Reading checkpoints through megatron-core: nothing in them is run, and what is wrong is said with the file."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import torch
from megatron.core import dist_checkpointing
from torch.distributed.checkpoint.api import CheckpointException

from orchestrator.errors import CheckpointError
from orchestrator.weights_only import DAMAGES, reason_of, require_plain_state, weights_only

_OF_MEGATRON = dist_checkpointing.core.CheckpointingException


def load(wanted: dict[str, Any], path: Path, *, whole: bool = True) -> dict[str, Any]:
    """What `dist_checkpointing.load` makes of a state dict; collective.

    `whole`: the ranks want each part of a tensor once.

    Raises CheckpointError when the checkpoint has something else than what is wanted, or cannot be read.
    """
    shared(path)
    said: list[CheckpointError] = []
    try:
        with weights_only() as said:
            loaded: dict[str, Any] = dist_checkpointing.load(wanted, str(path), validate_access_integrity=whole)
    except CheckpointException as error:  # torch's own is no Exception
        raise _first(said, error, path) from error
    except (_OF_MEGATRON, KeyError, ValueError, OSError) as error:
        raise CheckpointError(f"{path} does not fit this job: {error}", code="checkpoint_does_not_fit_job") from error
    if sys.modules.get("transformer_engine") is not None:  # it is None where it does not load
        _check_extra_states(loaded, path)
    return loaded


def _check_extra_states(loaded: Any, path: Path) -> None:
    """See that Transformer Engine, which unpickles the extra states of its layers, runs nothing."""
    parts = loaded.items() if isinstance(loaded, dict) else enumerate(loaded) if isinstance(loaded, list) else ()
    for key, value in parts:
        if not str(key).endswith("_extra_state"):
            _check_extra_states(value, path)
        elif isinstance(value, torch.Tensor):
            if value.numel():
                require_plain_state(value.detach().cpu().numpy().tobytes(), f"{key} of {path}")
        elif isinstance(value, io.BytesIO):
            raise CheckpointError(
                f"{key} of {path} is from a version of Transformer Engine that is too old to read",
                code="checkpoint_too_old",
            )


def tensors_of(path: Path) -> dict[str, Any]:
    """The tensors of a checkpoint by key, with global shapes and without data. Raises CheckpointError."""
    with weights_only():
        found: dict[str, Any] = dist_checkpointing.load_tensors_metadata(str(path))
    return found


def shared(path: Path) -> dict[str, Any]:
    """What is the same on all ranks: `common.pt`, or what stands in its place. Raises CheckpointError."""
    said: list[CheckpointError] = []
    try:
        with weights_only() as said:
            found = dist_checkpointing.load_common_state_dict(str(path))
    except CheckpointException as error:  # where it is an object among the tensors
        raise _first(said, error, path) from error
    except (_OF_MEGATRON, OSError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}", code="unreadable_checkpoint") from error
    except DAMAGES as error:
        raise CheckpointError(
            f"{path / 'common.pt'} cannot be read: {reason_of(error)}", code="unreadable_checkpoint"
        ) from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} holds no state that all ranks share", code="checkpoint_without_state")
    return found


def _first(said: list[CheckpointError], error: CheckpointException, path: Path) -> CheckpointError:
    """What went wrong: as this rank said it, or another, or in torch's words."""
    causes = [failure for failure, _ in error.failures.values()]
    ours = [*said, *(cause for cause in causes if isinstance(cause, CheckpointError))]
    return (
        ours[0]
        if ours
        else CheckpointError(
            f"{path} does not fit this job: {causes[0] if causes else error}", code="checkpoint_does_not_fit_job"
        )
    )
