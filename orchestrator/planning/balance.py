"""Stages of a pipeline that take equally long: the last has the output layer and the loss as well, and with as many
layers as the others it keeps all of them waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from orchestrator.spec.job import JobSpec
from orchestrator.spec.parallelism import ParallelismSpec
from orchestrator.spec.rules import refusals
from orchestrator.spec.stage_letters import EMBEDDING, END, LAYER, LOSS

_SPLIT = (
    "num_layers_in_first_pipeline_stage",
    "num_layers_in_last_pipeline_stage",
    "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split",
    "pipeline_model_parallel_layout",
)
WORTH = 0.01
"""Share of a step that stages of another length are to save before they are named or taken: less is no matter."""


class Uneven(NamedTuple):
    """A split, as one field of `parallelism` says it; the other is None."""

    last: int | None = None
    """num_layers_in_last_pipeline_stage: the other stages share the rest evenly."""
    letters: str | None = None
    """pipeline_model_parallel_layout."""

    @property
    def override(self) -> str:
        """As `--set` takes it, unquoted."""
        if self.letters is not None:
            return f"parallelism.pipeline_model_parallel_layout={self.letters}"
        return f"parallelism.num_layers_in_last_pipeline_stage={self.last}"

    def of(self, job: JobSpec) -> JobSpec:
        """The job with this split."""
        fields = {"num_layers_in_last_pipeline_stage": self.last, "pipeline_model_parallel_layout": self.letters}
        return job.model_copy(update={"parallelism": job.parallelism.model_copy(update=fields)})


@dataclass(frozen=True)
class Balanced:
    """A split that takes less time than the even one."""

    split: Uneven
    step_seconds: float


def balanced(
    job: JobSpec, step_seconds: Callable[[JobSpec], float], fits: Callable[[JobSpec], bool]
) -> Balanced | None:
    """The fastest split that is legal and fits, of those whose last stage has fewer layers; None where it saves next to
    nothing over the even one, or the job says how its layers are dealt out.
    """
    if next(splits(job), None) is None:
        return None
    found = None
    best = even = step_seconds(job)
    for split in splits(job):
        other = split.of(job)
        if any(refusals(other)):
            continue
        seconds = step_seconds(other)
        if seconds > best or not fits(other):  # from here on another stage is the slowest, or too full
            break
        if seconds < best:
            best, found = seconds, Balanced(split, seconds)
    return found if best <= (1 - WORTH) * even else None


def splits(job: JobSpec) -> Iterator[Uneven]:
    """Splits whose last stage has a layer less than in an even one, two less, and so on. The others take them from the
    back: the first holds the most activations.
    """
    degrees, model = job.parallelism, job.model
    stages = degrees.pipeline_model_parallel_size
    if stages == 1 or model.architecture == "t5" or is_written(degrees):
        return
    for last in range(model.num_layers // stages - 1, 0, -1):
        yield _split(model.num_layers, stages, degrees.num_model_chunks, last)


def is_written(degrees: ParallelismSpec) -> bool:
    """Whether the spec says how the layers are dealt out."""
    return any(getattr(degrees, name) not in (None, False) for name in _SPLIT)


def _split(layers: int, stages: int, chunks: int, last: int) -> Uneven:
    others = stages - 1
    if (layers - last) % (others * chunks) == 0 and last % chunks == 0:
        return Uneven(last=last)
    least, more = divmod(layers - last, others)
    held = [*(least + (stage >= others - more) for stage in range(others)), last]
    # In the order in which a micro-batch passes them; the shortest chunks of a stage are its last.
    lengths = [count // chunks + (chunk < count % chunks) for chunk in range(chunks) for count in held]
    return Uneven(letters=_letters(lengths))


def _letters(lengths: list[int]) -> str:
    first, *between, last = lengths
    text = EMBEDDING + _repeated(first) + END
    for length, alike in groupby(between):
        count = len(list(alike))
        text += f"({_repeated(length)}{END})*{count}" if count > 1 else _repeated(length) + END
    return text + _repeated(last) + LOSS


def _repeated(length: int) -> str:
    return {0: "", 1: LAYER}.get(length, f"{LAYER}*{length}")
