"""AdamW with one step count per parameter group.

torch's AdamW keeps a step count per parameter, which megatron-core's distributed checkpoints cannot represent; apex and
Transformer Engine keep it in the group, and so does this. The arithmetic is torch's fused kernel, on CPU and CUDA.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


class GroupStepAdam(torch.optim.Optimizer):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019), with the keyword names of FusedAdam of apex."""

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
        if not adam_w_mode or capturable:
            raise ValueError("only decoupled weight decay outside CUDA graphs is implemented")
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "step": 0})

    def prepare(self) -> None:
        """Make all state, so that it can be saved before the first update (which fp16 can skip for many steps)."""
        for group in self.param_groups:
            for parameter in group["params"]:
                self._state(parameter)

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
            torch._fused_adamw_(
                params,
                [p.grad for p in params],
                [self._state(p)["exp_avg"] for p in params],
                [self._state(p)["exp_avg_sq"] for p in params],
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

    def _state(self, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        state: dict[str, torch.Tensor] = self.state[parameter]
        if not state:
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        return state
