"""What all ranks compute at once: rank 0 says what, and every rank calls the same function with the same arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from orchestrator.inference import Model
from orchestrator.runtime.processes.rank_agreement import Control
from orchestrator.runtime.steps.task import RightAnswer


class RankCalls:
    """Rank 0's hand on all ranks. As a context, it lets the others go at its end, unless a common computation failed:
    then they know, or wait for what does not come until the launcher ends them.
    """

    def __init__(self, model: Model) -> None:
        self._model, self._control = model, Control(model.network.groups.control)
        self._is_whole = True

    def __enter__(self) -> RankCalls:
        return self

    def __exit__(self, *error: object) -> None:
        if self._is_whole:
            self._control.from_first(None)

    def call(self, name: str, *arguments: Any) -> list[Any]:
        """The answer of one of OPERATIONS, a value for each item, in JSON."""
        self._is_whole = False
        self._control.from_first((name, arguments))
        answer = OPERATIONS[name](self._model, *arguments)
        self._is_whole = True
        return answer


def follow(model: Model) -> None:
    """Do what rank 0 says, until it says that this was all."""
    control = Control(model.network.groups.control)
    while (said := control.from_first(None)) is not None:
        name, arguments = said
        OPERATIONS[name](model, *arguments)


def score(model: Model, tokens: Sequence[Sequence[int]], firsts: Sequence[int]) -> list[tuple[float, bool]]:
    """Of each list: the sum of the log-probabilities of its tokens from `first` on, and whether each was the
    likeliest.
    """
    likelihoods, likeliest = model.log_probabilities(tokens)
    found = []
    for row, (ids, first) in enumerate(zip(tokens, firsts, strict=True)):
        scored = slice(first - 1, len(ids) - 1)
        found.append((float(likelihoods[row, scored].double().sum()), bool(likeliest[row, scored].all())))
    return found


@torch.no_grad()
def answer(model: Model, examples: Sequence[Mapping[str, Any]]) -> list[tuple[float, bool]]:
    """Of each example: the cross entropy of its right answer, and whether this has the highest score."""
    network, task = model.network, model.job.labelled_task
    step = RightAnswer(task)
    stacked = {name: np.stack([example[name] for example in examples]) for name in ("text", "types", "padding_mask")}
    labels = network.tensor([example["label"] for example in examples])
    batch = step.get_batch({**{name: network.tensor(value) for name, value in stacked.items()}, "label": labels})
    sequences, length = batch["text"].shape
    received = network.receive(length, sequences)
    if received is not None:
        network.module.set_input_tensor([received])
    output = step.forward(network.module, batch)
    scores = network.empty(len(examples), task.classes, dtype=torch.float32)
    if network.ranks.is_last_stage:
        scores = output.float().view(-1, task.classes)
    else:
        network.send(output)
    scores = network.from_source(scores.contiguous())
    losses = functional.cross_entropy(scores, labels, reduction="none").tolist()
    return list(zip(losses, (scores.argmax(dim=1) == labels).tolist(), strict=True))


def write(model: Model, prompts: Sequence[Sequence[int]], options: Sequence[Mapping[str, Any]]) -> list[str]:
    """The text that follows each prompt."""
    written = model.generate(prompts, options, batch_size=len(prompts))
    return [continuation.text for continuation in written]


OPERATIONS: dict[str, Callable[..., list[Any]]] = {"score": score, "answer": answer, "write": write}
