"""What our optimizers share: state that can be made before the first update, so that it can be saved, and updates that
clip gradients and write the model's weights.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import torch


class StatefulOptimizer(torch.optim.Optimizer):
    """An optimizer whose state per parameter is tensors of the parameter's shape, zeros at first."""

    state_keys: tuple[str, ...]
    """Their names, of those that megatron-core's distributed optimizer saves: `exp_avg`, `exp_avg_sq`."""

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any]) -> None:
        super().__init__(params, defaults)
        self.factor = 1.0
        """What gradients are multiplied by as they are applied. They themselves may be scaled by it, or left alone."""
        self.dtypes: dict[str, torch.dtype] = {}
        """Of state that is in another format than its parameter, by its name."""
        self.weights: dict[torch.Tensor, torch.Tensor] = {}
        """Of a parameter that is the fp32 copy of a weight, the weight: an update writes it too."""

    # torch types it with and without a closure, and a loss; megatron-core calls it without and takes none.
    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update all parameters that have a gradient."""
        self.update()

    @abstractmethod
    def update(self) -> None:
        """What `step` does, without gradients of its own."""

    def look_up(self) -> None:
        """Find what the next update takes, while the GPU is busy: behind the norm it would wait for the host. Gradients
        stay where they are until that update.
        """

    def prepare(self) -> None:
        """Make all state: a checkpoint may be written before the first update, which fp16 can skip for many steps."""
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state_of(parameter)

    def state_of(self, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        """The state of a parameter, made where it is not there yet."""
        state: dict[str, torch.Tensor] = self.state[parameter]
        for key in self.keys_of(parameter):
            if key not in state:
                state[key] = torch.zeros_like(parameter, dtype=self.dtypes.get(key))
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's, which would bring all state into the parameters' formats."""
        states = state_dict["state"]
        super().load_state_dict({**state_dict, "state": {}})
        for saved, group in zip(state_dict["param_groups"], self.param_groups, strict=True):
            for number, parameter in zip(saved["params"], group["params"], strict=True):
                for key, value in states.get(number, {}).items():
                    dtype = self.dtypes.get(key, parameter.dtype)
                    self.state[parameter][key] = value.to(device=parameter.device, dtype=dtype)

    def keys_of(self, parameter: torch.Tensor) -> tuple[str, ...]:
        """The names of its state."""
        return self.state_keys

    def scaled_gradients(self, parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Their gradients, times `factor`."""
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if self.factor != 1.0:
            torch._foreach_mul_(gradients, self.factor)
        return gradients

    def write_weights(self, parameters: Sequence[torch.Tensor]) -> None:
        """Round updated parameters to the weights that they are copies of."""
        copied = [parameter for parameter in parameters if parameter in self.weights]
        if copied:
            torch._foreach_copy_([self.weights[parameter] for parameter in copied], copied)
