"""Tensor parallelism that sends while it multiplies, for a run that asks for it: whether this machine can."""

from __future__ import annotations

import importlib
import os
from contextlib import ExitStack
from types import TracebackType

import torch

from orchestrator.errors import UserError
from orchestrator.runtime.control import Control
from orchestrator.runtime.device import Device
from orchestrator.runtime.layers.config import LayerConfig
from orchestrator.runtime.process_groups import Ranks
from orchestrator.spec.job import JobSpec
from orchestrator.spec.runtime import Layers
from orchestrator.spec.tensor_overlap import OVERLAP, overlaps_tensor_parallel


def begin_overlap(
    job: JobSpec,
    config: LayerConfig,
    layers: Layers,
    device: Device,
    ranks: Ranks,
    control: Control,
    closing: ExitStack,
) -> None:
    """Before layers are built from the configuration, set it up for them where the job asks for it.

    Raises UserError, on all ranks, where the machine has no way.
    """
    if not overlaps_tensor_parallel(job):
        return
    able = layers == "transformer_engine" and device.is_cuda and _reaches_its_peers(device, ranks)
    if control.any(not able):
        raise UserError(
            f"{OVERLAP} is true, but it needs Transformer Engine's layers, and GPUs of one machine that can open each "
            "other's memory; leave it out"
        )
    # Only imported here: without Transformer Engine there is no such module.
    user_buffers = importlib.import_module("orchestrator.runtime.layers.user_buffers")
    user_buffers.open_buffers(job)

    def close(kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        # Other ranks may still read a failed one's buffers; they go with its process.
        if kind is None:
            control.barrier()
            user_buffers.close_buffers()

    closing.push(close)
    config.tp_comm_overlap = True
    config.tp_comm_overlap_rs_dgrad = True


def _reaches_its_peers(device: Device, ranks: Ranks) -> bool:
    """Whether the ranks that share layers with this one are on its machine, each with a GPU that its own can open."""
    own, together = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    first = own - ranks.tp
    peers = [peer for peer in range(first, first + ranks.tp_size) if peer != own]
    if first < 0 or first + ranks.tp_size > min(together, torch.cuda.device_count()):
        return False
    return all(torch.cuda.can_device_access_peer(device.torch_device, peer) for peer in peers)
