"""Losses beside that of the next token: which a job has, and what a step left of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from megatron.core.transformer.moe.moe_layer import MoELayer

from orchestrator.models.layers import blocks_of, prediction_layers
from orchestrator.runtime import megatron_compat
from orchestrator.runtime.processes.process_groups import Ranks
from orchestrator.spec.job import JobSpec


def auxiliary_losses(job: JobSpec) -> tuple[str, ...]:
    """The names under which they are reported: those that blocks have, and those of further tokens."""
    further = range(1, len(prediction_layers(job.model)) + 1)
    return (*_of_blocks(job), *(f"mtp/loss_{depth}" for depth in further))


def _of_blocks(job: JobSpec) -> dict[str, str]:
    """By the names under which they are reported, megatron-core's names."""
    return {name: key for block in blocks_of(job.model) for name, key in block.losses(job.model).items()}


class AuxiliaryLosses:
    """This rank's part of these losses, without their weights: those that balance experts are to be averaged over
    layers, micro-batches and replicas, those of further tokens over the tokens that count.
    """

    def __init__(self, job: JobSpec, modules: Sequence[Any], ranks: Ranks) -> None:
        self.names = auxiliary_losses(job)
        self._keys = _of_blocks(job)
        self._depths = len(prediction_layers(job.model))
        self._predicting = [chunk for chunk in modules if getattr(chunk, "mtp_process", False)]
        self._layers = sum(isinstance(module, MoELayer) for chunk in modules for module in chunk.modules())
        # Of a load-balancing loss each of the ranks that share its tokens has a part; of the other a mean of its own.
        of_sequence = ranks.tp_size * ranks.cp_size
        self._shares = {
            "load_balancing_loss": of_sequence,
            "seq_load_balancing_loss": of_sequence,
            "global_load_balancing_loss": of_sequence * job.data_parallel_size,
        }
        self._sums: dict[str, torch.Tensor] = {}
        self._further: list[torch.Tensor] = []

    def collect(self) -> None:
        """Take what the layers left of a step; on a GPU the copy to the host is under way when this returns."""
        if self._keys:
            self._sums = {
                name: value.to("cpu", non_blocking=True)
                for name, value in megatron_compat.take_auxiliary_losses().items()
            }
        taken = (chunk.take_further_losses() for chunk in self._predicting)
        self._further = [losses.to("cpu", non_blocking=True) for losses in taken if losses is not None]

    def report(self, micro_batches: int) -> torch.Tensor | None:
        """Sum and count of each, [names, 2], of the last step; None where there are none."""
        if not self.names:
            return None
        rows = []
        for key in self._keys.values():
            count = self._layers * micro_batches / self._shares.get(key, 1)
            rows.append([float(self._sums[key]) if key in self._sums else 0.0, count])
        further = sum(self._further, torch.zeros(self._depths, 2, dtype=torch.float64))
        return torch.cat([torch.tensor(rows, dtype=torch.float64).view(-1, 2), further])
