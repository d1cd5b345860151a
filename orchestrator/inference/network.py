"""A loaded network under tensor and pipeline parallelism: what a rank holds, and how its stage talks to the others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import torch
import torch.distributed as dist

from orchestrator.runtime.processes.device import Device
from orchestrator.runtime.processes.process_groups import Groups, Ranks
from orchestrator.spec.job import JobSpec


@dataclass(frozen=True)
class Network:
    """This rank's stage, and where it stands. There is one replica: the ranks are TP · PP."""

    module: Any
    job: JobSpec
    vocab_size: int
    """Tokens of the vocabulary; its padding is cut off everything that leaves the network."""
    ranks: Ranks
    groups: Groups
    device: Device

    def emptied(self) -> Network:
        """What stays known of the model after it was unloaded: no weights, and no groups."""
        return replace(self, module=None, groups=cast(Groups, None))

    @property
    def source(self) -> int:
        """The rank whose word counts where all ranks of the last stage have computed the same."""
        return (self.ranks.pp_size - 1) * self.ranks.tp_size

    def tensor(self, values: Any, dtype: torch.dtype = torch.long) -> torch.Tensor:
        """Numbers from the host, on this rank's device."""
        return torch.tensor(values, dtype=dtype, device=self.device.torch_device)

    def empty(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        """Memory on this rank's device."""
        return torch.empty(*shape, dtype=dtype, device=self.device.torch_device)

    def hidden(self, length: int, batch: int) -> torch.Tensor:
        """Memory for [s, b, h], what stages hand to each other."""
        config = self.module.config
        return self.empty(length, batch, config.hidden_size, dtype=config.pipeline_dtype)

    def receive(self, length: int, batch: int, stage: int | None = None) -> torch.Tensor | None:
        """What the stage before, or another one, has sent, [s, b, h]; None on the first stage."""
        if self.ranks.pp == 0:
            return None
        hidden = self.hidden(length, batch)
        dist.recv(hidden, group=self.groups.pipeline, group_src=self.ranks.pp - 1 if stage is None else stage)
        return hidden

    def send(self, hidden: torch.Tensor, stage: int | None = None) -> None:
        """Hand [s, b, h] to the next stage, or to another one."""
        to = self.ranks.pp + 1 if stage is None else stage
        dist.send(hidden.contiguous(), group=self.groups.pipeline, group_dst=to)

    def from_stage(self, hidden: torch.Tensor, stage: int) -> torch.Tensor:
        """A stage's tensor on all stages, written into that of the others, which has its shape."""
        if self.ranks.pp_size > 1:
            dist.broadcast(hidden, group=self.groups.pipeline, group_src=stage)
        return hidden

    def from_source(self, tensor: torch.Tensor) -> torch.Tensor:
        """The source's tensor on every rank, written into that of the others, which has its shape."""
        if self.ranks.world_size > 1:
            dist.broadcast(tensor, src=self.source)
        return tensor
