"""Tensor parallelism that sends while it multiplies: whether this machine can, and setting it up."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import torch

from orchestrator.errors import JobError, UserError
from orchestrator.kernel_selection.tensor_overlap import overlaps_tensor_parallel, wants_overlap
from orchestrator.runtime.layers.config import LayerConfig
from orchestrator.runtime.processes.device import Device
from orchestrator.runtime.processes.process_groups import Ranks
from orchestrator.runtime.processes.rank_agreement import Control, of_any
from orchestrator.spec.job import JobSpec
from orchestrator.spec.rules.parallelism.tensor_overlap import OVERLAP
from orchestrator.spec.sections.runtime import Layers

_OTHERS_ARE_BACK_WITHIN = 120.0
"""Seconds. All ranks begin to open their buffers together, which takes some seconds; one that is refused its own leaves
those who share layers with it in a collective of Transformer Engine's, for torch's ten minutes.
"""


def begin_overlap(
    job: JobSpec,
    config: LayerConfig,
    layers: Layers,
    device: Device,
    ranks: Ranks,
    control: Control,
    closing: ExitStack,
) -> None:
    """Before layers are built from the configuration, set it up for them where the job's tensor parallelism overlaps.

    Where the machine has no way the run goes on without, and rank 0 says why. Raises UserError, on all ranks, where the
    job demands it, and JobError on a rank that alone is refused its buffers.
    """
    if not wants_overlap(job):
        return
    demanded = job.parallelism.tp_comm_overlap is True
    able = device.is_cuda and overlaps_tensor_parallel(job, layers)
    if not able and not demanded:
        return
    why = of_any(control, _obstacle(device, ranks) if able else "it needs Transformer Engine's layers, on GPUs")
    if why is None:
        # Only imported here: without Transformer Engine there is no such module.
        user_buffers = importlib.import_module("orchestrator.runtime.layers.transformer_engine.user_buffers")
        own = user_buffers.open_buffers(job)
        if not control.met(within=None if own is None else _OTHERS_ARE_BACK_WITHIN):
            raise JobError(
                f"tensor parallelism does not overlap: {own}. This is not so on all ranks, and the others wait for "
                f"this one and cannot be told: check its GPU and machine, or train without it (--set {OVERLAP}=false)",
                code="overlap_differs_across_ranks",
            )
        why = of_any(control, own)
        if why is None:
            closing.push(_closing(control, user_buffers))
            config.tp_comm_overlap = True
            config.tp_comm_overlap_rs_dgrad = True
            return
        user_buffers.close_buffers()
    if demanded:
        raise UserError(f"{OVERLAP} is true, but not available here: {why}; leave it out", code="unavailable_overlap")
    if ranks.is_first:
        print(f"tensor parallelism does not overlap: {why}", flush=True)


def _closing(control: Control, user_buffers: Any) -> Callable[..., None]:
    def close(kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        # Other ranks may still read a failed one's buffers; they go with its process.
        if kind is None:
            control.barrier()
            user_buffers.close_buffers()

    return close


def _obstacle(device: Device, ranks: Ranks) -> str | None:
    """What rules it out for the ranks that share layers with this one: they are to be on its machine, each with a GPU
    that this one's can open.
    """
    if not hasattr(importlib.import_module("transformer_engine.pytorch"), "UserBufferQuantizationMode"):
        return "this version of Transformer Engine has no buffers for it"
    own, together = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    first = own - ranks.tp
    if first < 0 or first + ranks.tp_size > min(together, torch.cuda.device_count()):
        return "the ranks of a layer cannot access each other's GPUs on one machine"
    peers = [peer for peer in range(first, first + ranks.tp_size) if peer != own]
    closed = [peer for peer in peers if not torch.cuda.can_device_access_peer(device.torch_device, peer)]
    return f"GPU {own} cannot open the memory of GPU {closed[0]}" if closed else None
