"""What to change so that a job fits into its GPUs, and what that costs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from orchestrator.planning.memory.stages import Memory, estimate_memory
from orchestrator.planning.suggestions.axes import Change, apply, axes_of, fields_of
from orchestrator.planning.suggestions.changes import overrides
from orchestrator.planning.vocabulary import padded_vocab_size
from orchestrator.spec.documents.partial_validation import without_fields
from orchestrator.spec.job import JobSpec
from orchestrator.spec.rules import refusals, undecided
from orchestrator.spec.sections.runtime import Layers

Planner = Callable[[JobSpec], tuple[Memory, float]]
"""What a job needs and the seconds of its step, with all that a run would settle for it, as its own plan has them."""

_MOST_CHANGES = 3
_MOST_PRICED = 90
"""A price takes milliseconds; of the combinations that fit, the smallest come first."""
_ABOUT_THE_SAME = 0.02
"""Of a step's GPU-seconds."""


@dataclass(frozen=True)
class Remedy:
    """Changes with which a job fits."""

    words: str
    overrides: tuple[str, ...]
    """As `--set` takes them."""
    job: JobSpec
    memory: Memory
    gpus: int
    """GPUs that the changed job takes; more than before where model parallelism needs more of them."""
    step_seconds: float
    slower: float
    """GPU-seconds of a step over those of the job as it is, less 1: 0.1 is 10 % slower per GPU."""
    rounds: bool
    """Whether the training comes out otherwise, by its rounding."""

    @property
    def cost(self) -> float:
        """To sort by: what leaves the training as it is goes before what costs about as much."""
        return (1 + self.slower) * (1 + _ABOUT_THE_SAME if self.rounds else 1)


def remedies(
    job: JobSpec, vocab_size: int, layers: Layers, limit_bytes: int, planned: Planner, machine: int = 8
) -> list[Remedy]:
    """The cheapest single changes and small combinations with which every stage takes at most `limit_bytes`.

    The global batch stays as it is, and no more than `machine` GPUs (or those that the job takes) are taken of one
    machine; of several machines no more than the job takes of each. Of those that change the same things, the cheapest
    is named. Cheapest first, by GPU-seconds per step, but what rounds the training otherwise after what costs about as
    much; none where nothing here helps. `vocab_size` counts the tokens before padding.
    """
    machine = max(machine, job.processes_per_node)
    fitting = list(itertools.islice(_fitting(job, vocab_size, layers, limit_bytes, planned, machine), _MOST_PRICED))
    if not fitting:
        return []
    before = planned(job)[1] * job.world_size
    cheapest: dict[frozenset[str], Remedy] = {}
    for changes, changed, fields, memory, seconds in fitting:
        remedy = Remedy(
            words=", ".join(change.words for change in changes),
            overrides=overrides(fields),
            job=changed,
            memory=memory,
            gpus=changed.world_size,
            step_seconds=seconds,
            slower=seconds * changed.world_size / before - 1,
            rounds=any(change.rounds for change in changes),
        )
        axes = frozenset(change.axis for change in changes)
        if axes not in cheapest or remedy.slower < cheapest[axes].slower:
            cheapest[axes] = remedy
    worth = [
        (axes, remedy)
        for axes, remedy in cheapest.items()
        if not any(fewer < axes and other.cost <= remedy.cost for fewer, other in cheapest.items())
    ]
    worth.sort(key=lambda each: (each[1].cost, len(each[0])))
    return [remedy for _, remedy in worth]


def _fitting(
    job: JobSpec, vocab_size: int, layers: Layers, limit: int, planned: Planner, machine: int
) -> Iterator[tuple[tuple[Change, ...], JobSpec, dict[str, Any], Memory, float]]:
    """What fits, fewest changes first; nothing that does more than something before it along the same axes."""
    axes = axes_of(job, machine, layers)
    rules = undecided(without_fields(job, fields_of(axes)))  # to all others none of the changes matters
    found: list[frozenset[str]] = []
    for count in range(1, _MOST_CHANGES + 1):
        for chosen in itertools.combinations(axes, count):
            for changes in itertools.product(*(axes[axis] for axis in chosen)):
                words = frozenset(change.words for change in changes)
                if any(fewer <= words for fewer in found):
                    continue
                applied = apply(job, changes, machine)
                if applied is None or any(refusals(applied[0], rules)):
                    continue
                changed, fields = applied
                tp = changed.parallelism.tensor_model_parallel_size
                padded = padded_vocab_size(vocab_size, job.model.make_vocab_size_divisible_by, tp)
                # Most are too large with what the job leaves open still open, which is a tenth of a plan's work.
                if estimate_memory(changed, padded, layers).device_bytes > limit:
                    continue
                memory, seconds = planned(changed)
                if memory.device_bytes <= limit:
                    found.append(words)
                    yield changes, changed, fields, memory, seconds
