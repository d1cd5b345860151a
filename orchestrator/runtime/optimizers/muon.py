"""Muon: momentum that is orthogonalised, for matrices; Adam for all other parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from orchestrator.runtime.optimizers.adam import GroupStepAdam
from orchestrator.runtime.optimizers.matrix_exchange import HeldMatrix, MatrixExchange
from orchestrator.runtime.optimizers.newton_schulz import orthogonalize_all
from orchestrator.spec.sections.optimizer import OptimizerSpec


class Muon(GroupStepAdam):
    """Muon (Jordan et al. 2024) of the matrices that `orthogonalize` names; before that all is Adam's.

    m = momentum · m + (1 - momentum) · gradient; p = p - lr · scale · orthogonal(m), with Nesterov's momentum
    orthogonal((1 - momentum) · gradient + momentum · m). The momentum is kept as `exp_avg`, all the state of a matrix.
    Parameters may be intervals of matrices, flat.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._matrices: set[torch.Tensor] = set()

    def orthogonalize(self, matrices: Sequence[HeldMatrix], replicas: Any, spec: OptimizerSpec) -> None:
        """Take these for matrices. `replicas`: see MatrixExchange."""
        self._spec = spec
        groups = dict.fromkeys(each.matrix.group for each in matrices)
        self._exchanges = [
            MatrixExchange([each for each in matrices if each.matrix.group is group], replicas) for group in groups
        ]
        own = {parameter for group in self.param_groups for parameter in group["params"]}
        self._matrices = own.intersection(each.parameter for each in matrices)

    def keys_of(self, parameter: torch.Tensor) -> tuple[str, ...]:
        """See StatefulOptimizer."""
        return ("exp_avg",) if parameter in self._matrices else self.state_keys

    def adam_parameters(self, group: dict[str, Any]) -> list[torch.Tensor]:
        """See GroupStepAdam."""
        return [parameter for parameter in super().adam_parameters(group) if parameter not in self._matrices]

    def update(self) -> None:
        """See StatefulOptimizer."""
        super().update()
        groups = {parameter: group for group in self.param_groups for parameter in group["params"]}
        orthogonalize = partial(orthogonalize_all, spec=self._spec)
        for exchange, matrices in ((each, matrices) for each in self._exchanges for matrices in each.rounds):
            updates = [self._update_of(each.parameter, groups) for each in matrices]
            found = exchange.orthogonalized(matrices, updates, orthogonalize)
            for each, update in zip(matrices, found, strict=True):
                if each.parameter in self._matrices:
                    self._apply(each.parameter, update, groups[each.parameter])

    def _update_of(self, parameter: torch.Tensor, groups: Mapping[torch.Tensor, dict[str, Any]]) -> torch.Tensor:
        """What is orthogonalised of a parameter, flat: in bf16 on a GPU, whose iterations need no more."""
        dtype = torch.bfloat16 if parameter.is_cuda else torch.float32
        if parameter not in self._matrices:
            return parameter.to(dtype)
        [gradient] = self.scaled_gradients([parameter])
        if not self._decoupled:
            gradient.add_(parameter, alpha=groups[parameter]["weight_decay"])
        average, momentum = self.state_of(parameter)["exp_avg"], self._spec.muon_momentum
        average.lerp_(gradient, 1 - momentum)
        update = gradient.lerp(average, momentum) if self._spec.muon_use_nesterov else average
        return update.reshape(-1).to(dtype)

    def _apply(self, parameter: torch.Tensor, update: torch.Tensor, group: Mapping[str, Any]) -> None:
        if self._decoupled:
            parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.add_(update.view_as(parameter), alpha=-group["lr"])
        self.write_weights([parameter])
