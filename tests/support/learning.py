"""For ranks of trainings that save nothing: which weights were trained, and how uncertain what is asked for is.

A gradient that is 0 in theory is seldom 0 in floats, and Adam divides it by its size: so that a weight moved says
little. Here an element was trained if it moved, and had a gradient at some step of more than a millionth of the largest
in its weight, which was more than that of the largest in the network so far.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from orchestrator.run_directory.rundir import RunDir
from orchestrator.runtime.callbacks.saving import CheckpointSaving
from orchestrator.runtime.session import Session
from orchestrator.runtime.steps.base import Batch, Part

_FILE = "learned.json"
_ROUNDING = 1e-6


class Learned(NamedTuple):
    """What one process has seen of its training."""

    trained: dict[str, float]
    """The share of each weight's elements that were trained."""
    entropy: dict[str, float]
    """That of what each part of the loss asks for, in nats: what who knows how often each answer comes has at best."""


def learned(run: RunDir) -> Learned:
    """Of a completed training."""
    return Learned(**json.loads(run.path.joinpath(_FILE).read_text()))


class _Watch:
    """From the first step of a training to its last."""

    def __init__(self, session: Session) -> None:
        self._weights = {
            name: weight for module in session.network.modules for name, weight in module.named_parameters()
        }
        self._first = {name: weight.detach().clone() for name, weight in self._weights.items()}
        self._had_gradient = {name: torch.zeros_like(weight, dtype=torch.bool) for name, weight in self._first.items()}
        self._answers: dict[str, Counter[int]] = {part: Counter() for part in session.network.step.parts}
        self._largest = 0.0
        step: Any = session.network.step
        self._loss = step.loss
        step.loss = self._count
        session.mark = self._look

    def _count(self, output: torch.Tensor, batch: Batch) -> Mapping[str, Part]:
        for part, answers in self._answers.items():
            answers.update(_asked(part, batch).tolist())
        found: Mapping[str, Part] = self._loss(output, batch)
        return found

    def _look(self, moment: str) -> None:
        if moment != "update":
            return
        gradients = {name: weight.main_grad.abs() for name, weight in self._weights.items()}
        largest = {name: gradient.max() for name, gradient in gradients.items()}
        self._largest = max(self._largest, *(each.item() for each in largest.values()))
        for name, gradient in gradients.items():
            self._had_gradient[name] |= (gradient > _ROUNDING * largest[name]) & (
                largest[name] > _ROUNDING * self._largest
            )

    def learned(self) -> Learned:
        moved = {name: weight.detach() != self._first[name] for name, weight in self._weights.items()}
        trained = {name: (moved[name] & had).float().mean().item() for name, had in self._had_gradient.items()}
        return Learned(trained, {part: _entropy(answers) for part, answers in self._answers.items()})


def _asked(part: str, batch: Batch) -> torch.Tensor:
    if part == "lm":
        return batch["labels"][batch["loss_mask"] > 0]
    return batch["is_random" if part == "order" else "label"]


def _entropy(answers: Counter[int]) -> float:
    shares = [count / answers.total() for count in answers.values()]
    return -sum(share * math.log(share) for share in shares)


def install() -> None:
    """For all trainings that this process begins."""
    saving: Any = CheckpointSaving

    def begin(callback: Any, session: Session) -> None:
        callback.watch = _Watch(session)

    def end(callback: Any, session: Session) -> None:
        session.launch.run.path.joinpath(_FILE).write_text(json.dumps(callback.watch.learned()._asdict()))

    saving.on_start, saving.on_end = begin, end
