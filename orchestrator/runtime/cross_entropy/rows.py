"""What the cross entropy needs of each row of logits, by torch's operations or, on a GPU, by one kernel per pass."""

from __future__ import annotations

import sys
from typing import Any, Protocol, cast

import torch

from orchestrator.runtime.triton_kernels.loading import kernels

LOWEST = torch.finfo(torch.float32).min
"""The largest of no logits."""


class Rows(Protocol):
    """Logits are [n, v] of one dtype; the columns from `valid` on are padding, without probability. `targets`, [n], are
    columns; those outside of [0, valid) are on another rank, or nowhere.
    """

    def statistics(self, logits: torch.Tensor, targets: torch.Tensor, valid: int) -> torch.Tensor:
        """[3, n] in fp32: the largest logit, the sum of exp(logit - largest), and the target's logit or 0."""
        ...

    def turn_into_gradient(
        self, logits: torch.Tensor, targets: torch.Tensor, valid: int, found: torch.Tensor, gradient: torch.Tensor
    ) -> None:
        """Replace the logits by (exp(logit - largest) / sum - [column is the target]) · gradient, rounded once. `found`
        are the statistics of whole rows, [3, n], and `gradient` is the loss's, [n], in fp32.
        """
        ...


def rows_on(device: torch.device) -> Rows:
    """By what rows are computed on a device. On a GPU that is Triton, which comes with torch's builds for GPUs; raises
    MissingDependency where it did not.
    """
    if device.type == "cuda":
        return cast(Rows, kernels("cross_entropy", "the cross entropy"))
    return cast(Rows, sys.modules[__name__])


def statistics(logits: torch.Tensor, targets: torch.Tensor, valid: int) -> torch.Tensor:
    """See Rows."""
    found = torch.zeros(3, logits.size(0), dtype=torch.float32, device=logits.device)
    if valid == 0:
        found[0] = LOWEST
        return found
    values = logits[:, :valid].float()
    torch.amax(values, dim=-1, out=found[0])
    here, columns = _here(targets, valid)
    found[2] = values.gather(1, columns[:, None])[:, 0].where(here, 0.0)
    found[1] = (values - found[0, :, None]).exp_().sum(dim=-1)
    return found


def turn_into_gradient(
    logits: torch.Tensor, targets: torch.Tensor, valid: int, found: torch.Tensor, gradient: torch.Tensor
) -> None:
    """See Rows."""
    values = (logits[:, :valid].float() - found[0, :, None]).exp_().mul_((gradient / found[1])[:, None])
    if valid > 0:
        here, columns = _here(targets, valid)
        values.scatter_add_(1, columns[:, None], -(gradient * here)[:, None])
    logits[:, :valid] = values
    logits[:, valid:] = 0


def _here(targets: torch.Tensor, valid: int) -> tuple[torch.Tensor, Any]:
    """Whether each target is a column, and which; 0 where it is not."""
    here = (targets >= 0) & (targets < valid)
    return here, targets.where(here, 0)
