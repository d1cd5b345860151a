"""Saving as Megatron-LM's training does, by a rank of a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch.distributed as dist

from orchestrator.runtime import megatron_compat
from orchestrator.runtime.host_copies import HostCopies


def save_at_once(state: dict[str, Any], folder: Path, content: dict[str, Any]) -> None:
    """Write a checkpoint into a folder that is there, and return once it is complete (collective). `content`: the
    metadata that sharded its state.
    """
    request = megatron_compat.begin_save(state, str(folder), content, HostCopies())
    if request.async_fn is not None:
        arguments = list(request.async_fn_args)
        arguments[1] = request.preload_fn()
        request.async_fn(*arguments, **request.async_fn_kwargs)
    dist.barrier()
    for finish in request.finalize_fns:
        finish()


def save_as_training(state: dict[str, Any], save: Path, content: dict[str, Any]) -> None:
    """Write what `save_checkpoint` does below `save`: the checkpoint of the state's iteration, and which is the last
    (collective).
    """
    folder = save / f"iter_{state['iteration']:07d}"
    if dist.get_rank() == 0:
        folder.mkdir(parents=True)
    dist.barrier()
    save_at_once(state, folder, {name: value for name, value in content.items() if name != "dp_cp_group"})
    if dist.get_rank() == 0:
        (save / "latest_checkpointed_iteration.txt").write_text(str(state["iteration"]))
