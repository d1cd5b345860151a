"""What all ranks agree on once per step, without waiting for it: stop requests, losses, finished and due checkpoints.

One small all-reduce over gloo carries everything. It is started at the end of a step and its result is taken at the
end of the next one, so it never makes the GPU or the host wait; a stop therefore takes effect one step later.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from orchestrator.errors import UserError

_FIELDS = 3
_POLL_SECONDS = 0.05

Sums = tuple[tuple[float, float], ...]
"""For each part of the loss, and then for each metric of the step, its sum and how many count."""


@dataclass(frozen=True)
class Losses:
    """Means over the global batch."""

    total: float
    """The sum of the parts: what is minimised."""
    parts: dict[str, float]
    auxiliary: Mapping[str, float] = field(default_factory=dict)
    """Other means of the same batch, such as the losses that balance experts."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """What the step measures beside the loss."""

    @classmethod
    def of(
        cls,
        names: Sequence[str],
        sums: Sums,
        auxiliary_names: Sequence[str] = (),
        auxiliary: Sums = (),
        metrics: Sequence[str] = (),
    ) -> Losses:
        """From what all ranks agreed on; NaN where nothing counts. Raises UserError, on all ranks alike, where a count
        is no number: it comes from a training step of a user's own.
        """
        for name, (_, count) in zip((*names, *metrics), sums, strict=True):
            if math.isnan(count):
                raise UserError(
                    f"runtime.train_step: its loss gives a part {name} whose count is NaN or, in a loss per token, not "
                    "a whole number; count what the total is summed over (what weighs tokens belongs into the total)",
                    code="loss_count_not_whole",
                )
        means = _means(sums)
        others = dict(zip(auxiliary_names, _means(auxiliary), strict=True))
        parts, measured = means[: len(names)], means[len(names) :]
        return cls(sum(parts), dict(zip(names, parts, strict=True)), others, dict(zip(metrics, measured, strict=True)))


def _means(sums: Sums) -> list[float]:
    return [total / count if count else math.nan for total, count in sums]


@dataclass(frozen=True)
class Agreement:
    """Sums over all ranks of what each said."""

    iteration: int
    stop: bool
    sums: Sums
    """Of the loss, over the global batch."""
    writers_busy: int
    """Ranks that are still writing a checkpoint."""
    save: bool
    """Some rank finds that a checkpoint is due by the clock."""
    auxiliary: Sums = ()
    """Of the auxiliary losses."""


class Control:
    """The exchange itself. `begin_all_reduce` starts one, `wait` ends it; `exchange` does both at once.

    `parts` is how many parts and metrics a step has, `auxiliary` how many auxiliary losses there are.
    """

    def __init__(self, group: dist.ProcessGroup, parts: int = 1, auxiliary: int = 0) -> None:
        self._group, self._parts, self._auxiliary = group, parts, auxiliary
        self._pending: tuple[int, torch.Tensor, Any] | None = None

    def begin_all_reduce(
        self,
        iteration: int,
        *,
        stop: bool,
        loss: torch.Tensor | None,
        writer_busy: bool,
        save: bool = False,
        auxiliary: torch.Tensor | None = None,
    ) -> None:
        """Say this rank's part for a step. `loss` is [parts, 2], sums and counts, on one rank of each replica;
        `auxiliary` the same of the auxiliary losses, on any rank.
        """
        end = _FIELDS + 2 * self._parts
        values = torch.zeros(end + 2 * self._auxiliary, dtype=torch.float64)
        values[:_FIELDS] = torch.tensor([float(stop), float(writer_busy), float(save)])
        if loss is not None:
            values[_FIELDS:end] = loss.to("cpu", torch.float64).view(-1)
        if auxiliary is not None:
            values[end:] = auxiliary.to("cpu", torch.float64).view(-1)
        work = dist.all_reduce(values, group=self._group, async_op=True)
        self._pending = (iteration, values, work)

    def wait(self) -> Agreement | None:
        """What all ranks said in the last `begin_all_reduce`; None when there was none since."""
        if self._pending is None:
            return None
        iteration, values, work = self._pending
        self._pending = None
        work.wait()
        stop, busy, save, *rest = values.tolist()
        sums = tuple(zip(rest[::2], rest[1::2], strict=True))
        parts = self._parts
        return Agreement(iteration, stop > 0, sums[:parts], round(busy), save > 0, sums[parts:])

    def exchange(self, iteration: int, *, stop: bool = False, loss: torch.Tensor | None = None) -> Agreement:
        """`begin_all_reduce` and `wait` at once, for the places that must know before they go on."""
        self.begin_all_reduce(iteration, stop=stop, loss=loss, writer_busy=False)
        agreement = self.wait()
        assert agreement is not None
        return agreement

    def any(self, flag: bool) -> bool:
        """Whether any rank says so; waits for all."""
        value = torch.tensor([float(flag)], dtype=torch.float64)
        dist.all_reduce(value, group=self._group)
        return bool(value.item() > 0)

    def met(self, within: float | None = None) -> bool:
        """Wait for all ranks; False where they have not all come after so many seconds."""
        work = dist.all_reduce(torch.zeros(1), group=self._group, async_op=True)
        if within is not None:
            latest = time.monotonic() + within
            while not work.is_completed():
                if time.monotonic() > latest:
                    return False
                time.sleep(_POLL_SECONDS)
        work.wait()
        return True

    def from_first(self, value: Any) -> Any:
        """Rank 0's value, on every rank."""
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self._group)
        return box[0]

    def gather_to_first(self, value: Any) -> list[Any] | None:
        """Every rank's value on rank 0, None elsewhere."""
        is_first = dist.get_rank() == 0
        box: list[Any] | None = [None] * dist.get_world_size() if is_first else None
        dist.gather_object(value, box, dst=0, group=self._group)
        return box

    def barrier(self) -> None:
        """Wait for all ranks."""
        self.any(False)


def of_any(control: Control, why: str | None) -> str | None:
    """What the first rank says that says something, on all ranks."""
    found = control.gather_to_first(why) or []
    first = next((f"{each} (rank {rank})" for rank, each in enumerate(found) if each), None)
    said: str | None = control.from_first(first)
    return said
