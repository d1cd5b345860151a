"""Adam with one step count per parameter group.

torch's Adam keeps a step count per parameter, which megatron-core's distributed checkpoints cannot represent; apex and
Transformer Engine keep it in the group, and so does this. The arithmetic is that of torch's fused kernel: on the CPU it
is that kernel, on a GPU one that clips and writes the model's weights too. Moments may be in 16 bits: torch's kernel
then updates copies in fp32, on a GPU as well.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from orchestrator.planning.narrow_moments import ROUND_ELEMENTS
from orchestrator.runtime.optimizers.stateful import StatefulOptimizer
from orchestrator.runtime.triton_kernels.loading import kernels


class UpdatedTensors(NamedTuple):
    """What an update reads and writes of a parameter, or of an interval of its elements."""

    parameter: torch.Tensor
    """In fp32."""
    gradient: torch.Tensor
    first: torch.Tensor
    second: torch.Tensor
    weight: torch.Tensor | None
    """Of which the parameter is the fp32 copy, where there is one."""


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
        self._decoupled = adam_w_mode
        self.round_elements = ROUND_ELEMENTS
        """Of parameters whose moments are brought to fp32 at a time."""
        self._launches: dict[Hashable, tuple[list[tuple[int, ...]], list[Any]]] = {}
        """Of a group, or a part of it, where its tensors were, and the kernels that update them there."""
        self.looked_up = False
        """For the next update."""

    def update(self) -> None:
        """See StatefulOptimizer."""
        for index, group in enumerate(self.param_groups):
            if all(p.grad is None for p in group["params"]):
                continue
            group["step"] += 1
            params = self.adam_parameters(group)
            if not params:
                continue
            if self.is_one_kernel(params[0].device):
                if not self.looked_up:
                    self.find(self._tensors_of(params), index)
                self.update_in_one_pass(group, index)
            else:
                self.update_in_passes(self._tensors_of(params), group)
        self.looked_up = False

    def look_up(self) -> None:
        """See StatefulOptimizer."""
        for index, group in enumerate(self.param_groups):
            params = self.adam_parameters(group)
            if params and self.is_one_kernel(params[0].device):
                self.find(self._tensors_of(params), index)
        self.looked_up = True

    def adam_parameters(self, group: dict[str, Any]) -> list[torch.Tensor]:
        """Those of a group that are to be updated."""
        return [parameter for parameter in group["params"] if parameter.grad is not None]

    def _tensors_of(self, params: Iterable[torch.Tensor]) -> list[UpdatedTensors]:
        found = []
        for parameter in params:
            state, gradient = self.state_of(parameter), parameter.grad
            assert gradient is not None, "only such parameters are updated"
            first, second = (state[key] for key in self.state_keys)
            found.append(UpdatedTensors(parameter, gradient, first, second, self.weights.get(parameter)))
        return found

    def is_one_kernel(self, device: torch.device) -> bool:
        """Whether our kernel does all of an update: on a GPU, of moments in fp32."""
        return device.type == "cuda" and not self.dtypes

    def update_in_passes(self, tensors: Sequence[UpdatedTensors], group: dict[str, Any]) -> None:
        """By torch's kernel, with a pass before it to clip and one behind it to write the weights."""
        params, gradients, first, second = (list(each) for each in list(zip(*tensors, strict=True))[:4])
        if self.factor != 1.0:
            torch._foreach_mul_(gradients, self.factor)
        if not self.dtypes:
            self._update_in_fp32(params, gradients, first, second, group)
        else:
            for some, of_some, firsts, seconds in _rounds(self.round_elements, params, gradients, first, second):
                wide = [each.float() for each in firsts], [each.float() for each in seconds]
                self._update_in_fp32(some, of_some, *wide, group)
                torch._foreach_copy_(firsts + seconds, wide[0] + wide[1])
        written = {each.weight: each.parameter for each in tensors if each.weight is not None}
        if written:
            torch._foreach_copy_([*written], [*written.values()])

    def _update_in_fp32(
        self,
        params: list[torch.Tensor],
        gradients: list[torch.Tensor],
        first: list[torch.Tensor],
        second: list[torch.Tensor],
        group: dict[str, Any],
    ) -> None:
        update = torch._fused_adamw_ if self._decoupled else torch._fused_adam_
        beta1, beta2 = group["betas"]
        step = torch.full((), float(group["step"]), dtype=torch.float32, device=params[0].device)
        update(
            params,
            gradients,
            first,
            second,
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

    def find(self, tensors: Iterable[UpdatedTensors], key: Hashable) -> None:
        """Say to our kernel where the tensors that go by a key are, if that has changed."""
        kernel = _kernel()
        found = [kernel.Tensors(*each) for each in tensors]
        places = [each.addresses for each in found]
        known, launches = self._launches.get(key, ([], []))
        if places != known:
            launches = list(kernel.launches_of(found, launches))
            self._launches[key] = places, launches

    def update_in_one_pass(self, group: dict[str, Any], key: Hashable) -> None:
        """By our kernel, once it has been said where the tensors are."""
        _, launches = self._launches[key]
        for launch in launches:
            _kernel().update(
                launch,
                step=group["step"],
                factor=self.factor,
                lr=group["lr"],
                betas=group["betas"],
                eps=group["eps"],
                weight_decay=group["weight_decay"],
                decoupled=self._decoupled,
            )


def _rounds(elements: int, *tensors: Sequence[torch.Tensor]) -> Iterator[list[list[torch.Tensor]]]:
    """Views of at most so many elements at a time, of lists of tensors of the same sizes."""
    held: list[tuple[torch.Tensor, ...]] = []
    for same in zip(*tensors, strict=True):
        for pieces in zip(*(each.detach().view(-1).split(elements) for each in same), strict=True):
            if held and sum(one[0].numel() for one in held) + pieces[0].numel() > elements:
                yield [list(each) for each in zip(*held, strict=True)]
                held = []
            held.append(pieces)
    yield [list(each) for each in zip(*held, strict=True)]


def _kernel() -> Any:
    return kernels("adam", "Adam")
