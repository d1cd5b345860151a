"""What a training takes from each source of its blend, told from the index headers alone."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.data.checks import split_weights
from orchestrator.data.index import IndexHeader
from orchestrator.data.preparation import Source, find, survey
from orchestrator.spec.data import BlendEntry, DataSpec


@dataclass(frozen=True)
class SourcePlan:
    """One source of the training blend. Counts are None when the data is not on this machine."""

    path: str
    share: float
    """Part of the training samples that comes from here; the shares add up to 1."""
    tokens_used: int
    """Tokens that the training takes from here."""
    tokens_held: int | None
    """Tokens of the training split, estimated from the split of its sequences."""
    sequences: tuple[int, int, int] | None
    """Sequences (documents) in the training, validation and test splits."""
    epochs: float | None
    """How often each token of the training split is seen."""
    note: str | None
    """Why the counts are missing, or what is wrong with the data."""
    made_first: bool = False
    """Whether it is not there yet and is made from text before the training starts."""


def plan_blend(data: DataSpec, train_tokens: int, there: list[Source] | None = None) -> tuple[SourcePlan, ...]:
    """The sources of the training blend, for a training of `train_tokens` tokens. `there`: what `survey` found."""
    if data.blend is None:
        return ()
    there = survey(data) if there is None else there
    total = sum(entry.weight for entry in data.blend)
    split = split_shares(data)
    return tuple(
        _source(entry, find(there, entry.path), entry.weight / total, split, train_tokens) for entry in data.blend
    )


def split_shares(data: DataSpec) -> tuple[float, float, float]:
    """Parts of each source of `blend` that are for training, validation and test: 0 for what has its own sources."""
    weights = split_weights(data)
    train, validation, test = (weight / (sum(weights) or 1.0) for weight in weights)
    return (train, validation, test)


def _source(
    entry: BlendEntry, found: Source, share: float, split: tuple[float, float, float], train_tokens: int
) -> SourcePlan:
    used = round(share * train_tokens)
    header = found.header
    if header is None:
        return SourcePlan(entry.path, share, used, None, None, None, found.note, made_first=found.is_to_be_made)
    sequences = _split_sequences(header, split)
    held = round(header.tokens * sequences[0] / header.sequences) if header.sequences else 0
    return SourcePlan(
        path=entry.path,
        share=share,
        tokens_used=used,
        tokens_held=held,
        sequences=sequences,
        epochs=used / held if held else None,
        note=found.note or (None if held else _empty(header)),
    )


def _split_sequences(header: IndexHeader, split: tuple[float, float, float]) -> tuple[int, int, int]:
    """Sequences per split, cut where megatron-core cuts: at the rounded cumulative shares."""
    train, validation, _ = split
    first = round(train * header.sequences)
    second = round((train + validation) * header.sequences)
    return (first, second - first, header.sequences - second)


def _empty(header: IndexHeader) -> str:
    if header.tokens == 0:
        return "it holds no tokens"
    return f"its {header.sequences} documents leave none for training after the split"
