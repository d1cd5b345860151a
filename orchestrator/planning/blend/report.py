"""The blend report: what a job takes from each source of its data, and what is to be said about it."""

from __future__ import annotations

from typing import Any, NamedTuple


class Conversations(NamedTuple):
    """How the conversations of one part of a source become samples."""

    kept: int
    """Those that the training sees, once an epoch each."""
    cut: int
    """Those among them that are longer than a sample and lose their end."""
    dropped: int
    """Those that are left out, for their length or their images."""
    filled: float
    """Part of the samples' positions that they take; the rest is filled up."""
    crowded: int = 0
    """Those of the dropped that have more images than a sequence may have."""
    images: int = 0
    """Images of those that the training sees."""


class SourcePlan(NamedTuple):
    """One source of a blend. Counts are None when the data is not on this machine."""

    path: str
    share: float
    """Part of the samples that comes from here by its weight; the shares add up to 1."""
    samples: int
    """Samples that are drawn from here: by the whole training, or by one evaluation."""
    samples_alone: int | None
    """Samples that one evaluation draws from here when the source is evaluated by itself as well."""
    tokens_used: int
    """Tokens that are drawn from here: samples · seq_length, of the larger of both draws."""
    tokens_held: int | None
    """Tokens of this part (train, validation or test) of the source."""
    samples_held: int | None
    """Samples that these tokens give, read once."""
    documents: int | None
    """Documents (sequences of the index) of this part."""
    epochs: float | None
    """How often each token of this part is seen."""
    second_epoch_step: int | None
    """First step that needs more samples than one epoch gives; None where one epoch is enough, and for evaluation."""
    epochs_are_mixed: bool
    """Whether its epochs are shuffled together, so that a document can come again before all others were read."""
    note: str | None
    """Why the counts are missing, or what is wrong with the data."""
    made_first: bool = False
    """Whether it is not there yet and is made from text before the training starts."""
    conversations: Conversations | None = None
    """Of conversations, how they become samples."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        conversations = None if self.conversations is None else self.conversations._asdict()
        return {**self._asdict(), "conversations": conversations}


class PartPlan(NamedTuple):
    """What a job takes for training, validation or test."""

    part: str
    samples: int
    """Samples of the whole training, or of one evaluation; 0 where none are read."""
    evaluations: int
    """How often these samples of a validation part are read over the whole job."""
    sources: tuple[SourcePlan, ...]

    @property
    def samples_before_repeats(self) -> int | None:
        """Samples that the blend gives before a source begins anew; None where a source is not on this machine."""
        limits = []
        for source in self.sources:
            if source.samples_held is None:
                return None
            if source.share > 0:
                limits.append(int(source.samples_held / source.share))
        return min(limits, default=None)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        sources = [source.to_dict() for source in self.sources]
        return {**self._asdict(), "sources": sources, "samples_before_repeats": self.samples_before_repeats}


class BlendReport(NamedTuple):
    """What a job takes from its data, and what is to be said about it."""

    train: PartPlan
    validation: PartPlan
    test: PartPlan
    stops: tuple[str, ...]
    """What makes the job fail when it opens its data."""
    warnings: tuple[str, ...]
    """What is hardly meant so."""
    notes: tuple[str, ...]
    """What is worth knowing and may well be meant so."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            **{part.part: part.to_dict() for part in (self.train, self.validation, self.test)},
            "stops": list(self.stops),
            "warnings": list(self.warnings),
            "notes": list(self.notes),
        }
