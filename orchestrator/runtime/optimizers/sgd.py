"""Stochastic gradient descent with momentum, in torch's fused kernel, on CPU and CUDA."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from orchestrator.runtime.optimizers.stateful import StatefulOptimizer


class MomentumSGD(StatefulOptimizer):
    """v = momentum · v + gradient + weight_decay · p; p = p - lr · v. Bitwise torch's SGD, whose state has other names.

    The momentum is kept as `exp_avg`, one of the names that megatron-core's distributed optimizer saves. Without
    momentum there is no state.
    """

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, momentum: float = 0.0, weight_decay: float = 0.0
    ) -> None:
        self.state_keys = ("exp_avg",) if momentum > 0 else ()
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    def update(self) -> None:
        """See StatefulOptimizer."""
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if not params:
                continue
            torch._fused_sgd_(
                params,
                self.scaled_gradients(params),
                [self.state_of(p)["exp_avg"] for p in params] if self.state_keys else [],
                lr=group["lr"],
                momentum=group["momentum"],
                weight_decay=group["weight_decay"],
                dampening=0.0,
                nesterov=False,
                maximize=False,
                is_first_step=False,  # what comes before the first gradient is zeros
            )
            self.write_weights(params)
