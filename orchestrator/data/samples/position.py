"""How far a training is in its data: what it has drawn from each source, so that a changed job continues there. Light.

A source gives its samples in one order for the whole run: first the order that megatron-core makes for the samples that
the run was to draw when it began, or of one epoch where the run began to draw from it later; then whole epochs, one by
one (`data/samples/continued_samples.py`). A blend draws from its sources from the sample at which it came into force.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from orchestrator.data.samples.predicted_blend import (
    asked_of_blend,
    blend_counts,
)
from orchestrator.spec.job_sections import JobSections

_MOST = 1 << 48
"""Samples, more than any training has."""
_MOST_SOURCES = 32_766
"""Most sources of a blend, by megatron-core's integer type."""


@dataclass(frozen=True)
class SourcePosition:
    """One source, cut into samples in one way."""

    path: str
    copy: int
    """0, or how often the blend names the same path before."""
    cut: str
    """The settings that decide which samples there are and how they are shuffled."""
    tokens: int
    """Tokens of text in a sample."""
    first: int
    """Samples that megatron-core's order was made for; it consists of full epochs, shuffled together."""
    drawn: int
    """Samples drawn before the blend in force began."""

    @property
    def key(self) -> tuple[str, int, str]:
        """Equal where the same samples are meant, however the path is spelled."""
        return os.path.abspath(self.path), self.copy, self.cut


@dataclass(frozen=True)
class DataPosition:
    """What determines the order of a run's samples from `since` on, together with `data.seed`."""

    since: int
    """Samples that the run had consumed when this blend came into force."""
    samples: int
    """Samples that the blend had to provide from then on."""
    weights: tuple[float, ...]
    sources: tuple[SourcePosition, ...]
    """Of the blend, in its order."""
    others: tuple[SourcePosition, ...] = ()
    """Sources drawn from earlier, by other blends or cut in another way."""
    larger_surplus: bool = False
    """Whether blends ask their sources for more samples than Megatron-LM's do, as those of earlier versions did."""

    def to_dict(self) -> dict[str, Any]:
        """For a checkpoint's marker."""
        return asdict(self)

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> DataPosition:
        """The position that `to_dict` wrote. Raises KeyError, TypeError or ValueError for anything else."""
        since, samples = _count(record["since"]), _count(record["samples"])
        if len(record["sources"]) > _MOST_SOURCES:
            raise ValueError("megatron-core blends no more sources")
        sources, others = (tuple(_source(each, since) for each in record[name]) for name in ("sources", "others"))
        weights = tuple(float(weight) for weight in record["weights"])
        if len(weights) != len(sources) or not sources or not all(0 < weight < math.inf for weight in weights):
            raise ValueError("a blend has a weight for each source")
        larger = record.get("larger_surplus", True)  # earlier versions did not write it
        if not isinstance(larger, bool):
            raise TypeError("it is so or not")
        return cls(since, samples, weights, sources, others, larger)


def _source(record: Mapping[str, Any], since: int) -> SourcePosition:
    if not isinstance(record["path"], str) or not isinstance(record["cut"], str):
        raise TypeError("a source has a path and the settings that cut it")
    numbers = {name: _count(record[name]) for name in ("copy", "tokens", "first", "drawn")}
    if numbers["tokens"] == 0 or numbers["drawn"] > since:
        raise ValueError("a sample has tokens, and no source gave more samples than there were")
    return SourcePosition(path=record["path"], cut=record["cut"], **numbers)


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MOST:
        raise ValueError("a count is a whole number")
    return value


def has_sources(job: JobSections) -> bool:
    """Whether a training draws from sources: not where its tokens are random or a task's examples."""
    return not job.data.random_tokens and not job.has_task and bool(job.data.blend)


def beginning(job: JobSections, samples: int, since: int = 0, larger_surplus: bool = False) -> DataPosition:
    """The position of a job that starts to draw `samples` samples from its sources after sample `since` of a run."""
    return _of_blend(job, since, samples, {}, larger_surplus)


def position_of(job: JobSections, before: DataPosition | None, consumed: int, end: int) -> DataPosition | None:
    """That of a job which goes on after `consumed` samples, the last of them drawn at `before`, and ends after `end`.
    None where it has no sources.

    The same blend goes on. Another one begins here, and each of its sources goes on behind what was drawn from it.
    """
    if not has_sources(job):
        return None
    there = beginning(job, end - consumed, consumed)
    if before is None or consumed == 0:
        return there
    if (there.weights, _keys(there)) == (before.weights, _keys(before)):
        return before
    given = zip(before.sources, blend_counts(before.weights, consumed - before.since), strict=True)
    drawn = [*(replace(source, drawn=source.drawn + count) for source, count in given), *before.others]
    return _of_blend(job, consumed, end - consumed, {source.key: source for source in drawn}, before.larger_surplus)


def _keys(position: DataPosition) -> list[tuple[str, int, str]]:
    return [source.key for source in position.sources]


def _of_blend(
    job: JobSections, since: int, samples: int, known: Mapping[tuple[str, int, str], SourcePosition], larger: bool
) -> DataPosition:
    blend = job.data.blend or []
    weights = [entry.weight for entry in blend]
    asked = [samples] * len(blend)
    if since > 0:
        asked = [1] * len(blend)  # for one sample it makes one whole epoch
    elif len(blend) > 1:
        asked = asked_of_blend(weights, samples, larger)
    sources: list[SourcePosition] = []
    copies: Counter[str] = Counter()
    for entry, first in zip(blend, asked, strict=True):
        place = os.path.abspath(entry.path)
        source = SourcePosition(entry.path, copies[place], cut(job), job.model.seq_length, first, 0)
        sources.append(known.get(source.key, source))
        copies[place] += 1
    here = {source.key for source in sources}
    others = tuple(source for key, source in known.items() if key not in here)
    return DataPosition(since, samples, tuple(weights), tuple(sources), others, larger)


def cut(job: JobSections) -> str:
    """What decides which samples a source has and how they are shuffled, as `key=value` words."""
    model, data = job.model, job.data
    settings: dict[str, object] = {"seq_length": model.seq_length, "part": data.training_share, "seed": data.seed}
    if model.reads_sentences:
        settings |= {"short_seq_prob": data.short_seq_prob, "sentences": model.family.name}
        settings["pairs"] = model.bert_binary_head
    if data.has_conversations:
        settings |= {"packing": data.conversations.packing, "long_conversations": data.conversations.long_conversations}
    if model.has_vision:
        settings["images_per_sequence"] = model.image_encoder.images_per_sequence
    return " ".join(f"{name}={value}" for name, value in settings.items())


def seen_again(position: DataPosition, end: int, held: Mapping[str, int | None]) -> int | None:
    """Samples, about, of those up to `end` that repeat text of the same epoch, because the run has read their source
    cut in another way as well. None where the tokens that a source holds (`held`, by absolute path) are not known.
    """
    total = 0.0
    places = [os.path.abspath(each.path) for each in position.others]
    for source, weight in zip(position.sources, position.weights, strict=True):
        here = os.path.abspath(source.path)
        others = zip(places, position.others, strict=True)
        elsewhere = [each for place, each in others if place == here and each.cut != source.cut]
        if not elsewhere:
            continue
        tokens = held.get(here)
        if not tokens:
            return None
        seen = sum(each.drawn * each.tokens for each in elsewhere) / tokens % 1
        to_come = weight / sum(position.weights) * (end - position.since)
        total += seen * min(to_come, tokens / source.tokens)
    return round(total)
