"""What our optimizers share: state that can be made before the first update, so that it can be saved."""

from __future__ import annotations

import torch


class StatefulOptimizer(torch.optim.Optimizer):
    """An optimizer whose state per parameter is tensors of the parameter's shape, zeros at first."""

    state_keys: tuple[str, ...]
    """Their names, of those that megatron-core's distributed optimizer saves: `exp_avg`, `exp_avg_sq`."""

    def prepare(self) -> None:
        """Make all state: a checkpoint may be written before the first update, which fp16 can skip for many steps."""
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state_of(parameter)

    def state_of(self, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        """The state of a parameter, made where it is not there yet."""
        state: dict[str, torch.Tensor] = self.state[parameter]
        for key in self.state_keys:
            if key not in state:
                state[key] = torch.zeros_like(parameter)
        return state
