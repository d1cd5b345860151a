"""The sample indices of a job: where they are kept, and what a program that builds them is asked and answers. Light."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orchestrator.spec.model import ModelSpec
from orchestrator.spec.sections.data import DataSpec


def sample_index_dir(data: DataSpec, runs_dir: Path) -> Path:
    """Where the trainings of a folder of runs keep their sample indices."""
    return Path(data.cache_dir) if data.cache_dir else runs_dir.absolute() / ".cache" / "index"


@dataclass(frozen=True)
class IndexRequest:
    """Build what a training would build when it starts."""

    data: DataSpec
    model: ModelSpec
    train_samples: int
    validation_samples: int
    cache_dir: Path

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        sections = {name: getattr(self, name).model_dump(mode="json") for name in ("data", "model")}
        return {**vars(self), **sections, "cache_dir": str(self.cache_dir)}

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> IndexRequest:
        """The request that `to_dict` wrote."""
        sections = {"data": DataSpec.model_validate(record["data"]), "model": ModelSpec.model_validate(record["model"])}
        return cls(**{**record, **sections, "cache_dir": Path(record["cache_dir"])})


@dataclass(frozen=True)
class IndexFiles:
    """What rank 0 found and built."""

    folder: Path
    built: int
    """Files that were not there."""
    seconds: float

    def __str__(self) -> str:
        """One line for a log."""
        if not self.built:
            return f"sample indices: found in {self.folder}"
        return f"sample indices: {self.built} files built in {self.seconds:.1f} s in {self.folder}"


@dataclass(frozen=True)
class IndexedSource:
    """What the index of one source holds."""

    path: str
    samples: int
    """Samples that the job draws from here."""
    tokens_held: int
    documents: int
    epochs_built: int
    samples_built: int
    second_epoch_at: int | None
    """Which sample of the whole set, counted from 0, is the first that this source's first epoch does not give."""
    samples_per_epoch: int | None = None
    """Of conversations, which are packed anew in no epoch; None where samples run on from one epoch into the next."""


@dataclass(frozen=True)
class IndexedSet:
    """What the index of one data set holds."""

    part: str
    name: str
    samples: int
    sources: tuple[IndexedSource, ...]

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> IndexedSet:
        """The set that `asdict` wrote."""
        return cls(**{**record, "sources": tuple(IndexedSource(**source) for source in record["sources"])})


@dataclass(frozen=True)
class IndexAnswer:
    """What was built, and what is in it."""

    folder: str
    built: int
    seconds: float
    sets: tuple[IndexedSet, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> IndexAnswer:
        """The answer that `to_dict` wrote."""
        return cls(**{**record, "sets": tuple(IndexedSet.from_dict(each) for each in record["sets"])})
