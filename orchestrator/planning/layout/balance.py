"""Stages of a pipeline that take equally long: the last has the output layer and the loss as well, the first what
encodes images, and with as many layers as the others these keep all of them waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Literal, NamedTuple

from orchestrator.spec.job import JobSpec
from orchestrator.spec.layout.parallelism import ParallelismSpec
from orchestrator.spec.layout.stage_letters import EMBEDDING, END, LAYER, LOSS
from orchestrator.spec.layout.stages import layers_of_chunks
from orchestrator.spec.rules import refusals

_SPLIT = (
    "num_layers_in_first_pipeline_stage",
    "num_layers_in_last_pipeline_stage",
    "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split",
    "pipeline_model_parallel_layout",
)
WORTH = 0.01
"""Share of a step that stages of another length are to save before they are named or taken: less is no matter."""


class LayerSplit(NamedTuple):
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
        return job.changed(parallelism=fields)


class BalancedSplit(NamedTuple):
    """A split that takes less time than the even one."""

    split: LayerSplit
    step_seconds: float


def balanced(
    job: JobSpec, step_seconds: Callable[[JobSpec], float], fits: Callable[[JobSpec], bool]
) -> BalancedSplit | None:
    """The fastest split that is legal and fits, of those whose last stage has fewer layers, and where images are
    encoded of those whose first one has; None where it saves next to nothing over the even one, or the job says how its
    layers are dealt out.
    """
    if next(splits(job), None) is None:
        return None
    even = step_seconds(job)
    best, found = _fastest(job, splits(job), even, step_seconds, fits)
    # What images take of the first stage hides what a shorter last one saves.
    ends: tuple[Literal[0, -1], ...] = (0, -1) if job.model.has_vision else ()
    for end in ends:
        best, better = _fastest(job, splits_for_images(job, found, end), best, step_seconds, fits)
        found = better or found
    return None if found is None or best > (1 - WORTH) * even else BalancedSplit(found, best)


def _fastest(
    job: JobSpec,
    tried: Iterable[LayerSplit],
    best: float,
    step_seconds: Callable[[JobSpec], float],
    fits: Callable[[JobSpec], bool],
) -> tuple[float, LayerSplit | None]:
    """Of splits of which each takes a layer more from the same stage, with its seconds; None where none takes less than
    `best`.
    """
    found = None
    for split in tried:
        other = split.of(job)
        if any(refusals(other)):
            continue
        seconds = step_seconds(other)
        if seconds > best or not fits(other):  # from here on another stage is the slowest, or too full
            break
        if seconds < best:
            best, found = seconds, split
    return best, found


def splits(job: JobSpec) -> Iterator[LayerSplit]:
    """Splits whose last stage has a layer less than in an even one, two less, and so on. The others take them from the
    back: the first holds the most activations.
    """
    degrees, model = job.parallelism, job.model
    stages = degrees.pipeline_model_parallel_size
    if stages == 1 or model.family.is_encoder_decoder or is_written(degrees):
        return
    for last in range(model.num_layers // stages - 1, 0, -1):
        yield _split(model.num_layers, stages, degrees.num_model_chunks, last)


def splits_for_images(job: JobSpec, found: LayerSplit | None, end: Literal[0, -1]) -> Iterator[LayerSplit]:
    """Those whose first or last stage (`end`) has a layer less than it has in the split that was `found`, two less, and
    so on. The other of the two keeps what it has there, unless there are no more stages.
    """
    layers, degrees = job.model.num_layers, (job if found is None else found.of(job)).parallelism
    held = [sum(chunks) for chunks in layers_of_chunks(layers, degrees)]
    for less in range(held[end] - 1, 0, -1):
        first, last = (less, held[-1]) if end == 0 else (held[0], less)
        between = _shared_out(layers - first - last, len(held) - 2) if len(held) > 2 else []
        if not between:
            first, last = (less, layers - less) if end == 0 else (layers - less, less)
        yield _in_letters([first, *between, last], degrees.num_model_chunks)


def is_written(degrees: ParallelismSpec) -> bool:
    """Whether the spec says how the layers are dealt out."""
    return any(getattr(degrees, name) not in (None, False) for name in _SPLIT)


def _split(layers: int, stages: int, chunks: int, last: int) -> LayerSplit:
    others = stages - 1
    if (layers - last) % (others * chunks) == 0 and last % chunks == 0:
        return LayerSplit(last=last)
    return _in_letters([*_shared_out(layers - last, others), last], chunks)


def _shared_out(layers: int, stages: int) -> list[int]:
    """As evenly as it goes, with more at the back."""
    least, more = divmod(layers, stages)
    return [least + (stage >= stages - more) for stage in range(stages)]


def _in_letters(held: list[int], chunks: int) -> LayerSplit:
    """Stages of so many layers."""
    # In the order in which a micro-batch passes them; the shortest chunks of a stage are its last.
    lengths = [count // chunks + (chunk < count % chunks) for chunk in range(chunks) for count in held]
    return LayerSplit(letters=_letters(lengths))


def _letters(lengths: list[int]) -> str:
    first, *between, last = lengths
    text = EMBEDDING + _repeated(first) + END
    for length, alike in groupby(between):
        count = len(list(alike))
        text += f"({_repeated(length)}{END})*{count}" if count > 1 else _repeated(length) + END
    return text + _repeated(last) + LOSS


def _repeated(length: int) -> str:
    return {0: "", 1: LAYER}.get(length, f"{LAYER}*{length}")
