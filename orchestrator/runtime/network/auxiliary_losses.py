"""The losses that balance experts: which a job has, and what a step left of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from megatron.core.transformer.moe.moe_layer import MoELayer

from orchestrator.runtime import megatron_compat
from orchestrator.runtime.processes.process_groups import Ranks
from orchestrator.spec.job import JobSpec

_KEYS = {
    "aux_loss": "load_balancing_loss",
    "seq_aux_loss": "seq_load_balancing_loss",
    "global_aux_loss": "global_load_balancing_loss",
}
"""megatron-core's names of the losses that balance experts."""


def auxiliary_losses(job: JobSpec) -> dict[str, str]:
    """The losses that balance a job's experts: their names here, and megatron-core's."""
    model = job.model
    if not model.has_experts:
        return {}
    kinds = model.auxiliary_losses
    found = {_KEYS[kind] if len(kinds) > 1 else "load_balancing_loss": _KEYS[kind] for kind in kinds}
    if model.moe_z_loss_coeff is not None:
        found["z_loss"] = "z_loss"
    return found


class AuxiliaryLosses:
    """This rank's part of the losses that balance experts, without their weights, to be averaged over layers,
    micro-batches and replicas.
    """

    def __init__(self, job: JobSpec, modules: Iterable[Any], ranks: Ranks) -> None:
        self._keys = auxiliary_losses(job)
        self._layers = sum(isinstance(module, MoELayer) for chunk in modules for module in chunk.modules())
        # Of a load-balancing loss each of the ranks that share its tokens has a part; of the other a mean of its own.
        of_sequence = ranks.tp_size * ranks.cp_size
        self._shares = {
            _KEYS["aux_loss"]: of_sequence,
            _KEYS["seq_aux_loss"]: of_sequence,
            _KEYS["global_aux_loss"]: of_sequence * job.data_parallel_size,
        }
        self._sums: dict[str, torch.Tensor] = {}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._keys)

    def collect(self) -> None:
        """Take what the layers left of a step; on a GPU the copy to the host is under way when this returns."""
        if self._keys:
            self._sums = {
                name: value.to("cpu", non_blocking=True)
                for name, value in megatron_compat.take_auxiliary_losses().items()
            }

    def report(self, micro_batches: int) -> torch.Tensor | None:
        """Sum and count of each, [names, 2], of the last step; None where there are none."""
        if not self._keys:
            return None
        rows = []
        for key in self._keys.values():
            count = self._layers * micro_batches / self._shares.get(key, 1)
            rows.append([float(self._sums[key]) if key in self._sums else 0.0, count])
        return torch.tensor(rows, dtype=torch.float64)
