"""Adam with one step count per parameter group.

torch's Adam keeps a step count per parameter, which megatron-core's distributed checkpoints cannot represent; apex and
Transformer Engine keep it in the group, and so does this. The arithmetic is torch's fused kernel, on CPU and CUDA.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from orchestrator.runtime.stateful import StatefulOptimizer


class GroupStepAdam(StatefulOptimizer):
    """Adam, with the keyword names of FusedAdam of apex.

    `adam_w_mode`: decoupled weight decay (Loshchilov and Hutter 2019); else it is added to the gradient.
    """

    state_keys = ("exp_avg", "exp_avg_sq")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        adam_w_mode: bool = True,
        capturable: bool = False,
    ) -> None:
        if capturable:
            raise ValueError("only updates outside CUDA graphs are implemented")
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "step": 0})
        self._update = torch._fused_adamw_ if adam_w_mode else torch._fused_adam_

    # torch types it with and without a closure, and a loss; megatron-core calls it without and takes none.
    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update all parameters that have a gradient."""
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if not params:
                continue
            group["step"] += 1
            beta1, beta2 = group["betas"]
            step = torch.full((), float(group["step"]), dtype=torch.float32, device=params[0].device)
            self._update(
                params,
                [p.grad for p in params],
                [self.state_of(p)["exp_avg"] for p in params],
                [self.state_of(p)["exp_avg_sq"] for p in params],
                [],
                [step] * len(params),
                lr=group["lr"],
                beta1=beta1,
                beta2=beta2,
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                amsgrad=False,
                maximize=False,
            )
