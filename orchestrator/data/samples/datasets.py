"""Training, validation and test data sets of a job, built with megatron-core."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import Dataset

from orchestrator.data.chat.conversation_packing import loss_mask_prefix
from orchestrator.data.chat.stored_images import has_images, images_prefix
from orchestrator.data.checks import (
    BLEND,
    PARTS,
    check_data,
    source_names,
    sources_read,
    split_fractions,
)
from orchestrator.data.damage import refuse_damage
from orchestrator.data.families.registry import dataset_family
from orchestrator.data.indexed_dataset.header import bin_path, idx_path
from orchestrator.data.indexed_dataset.locking import locked
from orchestrator.data.samples.blend_builder import BlendBuilder
from orchestrator.data.samples.continued_samples import continued_samples
from orchestrator.data.samples.index_requests import IndexFiles
from orchestrator.data.samples.position import DataPosition
from orchestrator.data.samples.predicted_blend import SURPLUS, asked_of_blend
from orchestrator.data.tokenizers.tokenizer import Tokenizer
from orchestrator.errors import DataError, UserError
from orchestrator.spec.model import ModelSpec
from orchestrator.spec.sections.data import BlendEntry, DataSpec

Samples = Dataset[dict[str, torch.Tensor]]
"""Item i holds the fields that the family's training step reads; `families/` says which."""

SPLIT = "validation"
"""Name of the validation set that the split cuts from the training sources."""


@dataclass(frozen=True)
class Datasets:
    """What a job reads; None or no entry where no samples were asked for."""

    train: Samples | None = None
    validation: dict[str, Samples] = field(default_factory=dict)
    test: Samples | None = None
    index: IndexFiles | None = None
    """What rank 0 found and built; None on the others."""
    position: DataPosition | None = None
    """The one asked for, with the samples that the sources were built of."""


def build_datasets(
    data: DataSpec,
    *,
    model: ModelSpec,
    tokenizer: Tokenizer,
    train_samples: int,
    validation_samples: int,
    test_samples: int,
    cache_dir: Path,
    group: torch.distributed.ProcessGroup | None = None,
    position: DataPosition | None = None,
) -> Datasets:
    """Build the data sets on every rank: rank 0 builds the sample indices, the others find them in `cache_dir`.

    Each data set holds at least as many samples as asked for; sources are repeated where they are too small. Without
    `data.validation` there is one validation set, "validation". With it there is "blend" and, of several sources, each
    by itself under its short name. The training set of a run that goes on has the samples from `position.since` on, up
    to `train_samples`, at their numbers in the run. torch.distributed must be initialised; every rank must call this.
    Over `group`, the default group otherwise, all ranks hear what the first rank of each node finds damaged.

    Raises UserError or DataError, on all ranks alike, when the data are missing or do not fit the job.
    """
    if data.blend is None:
        raise UserError("data.blend is not set: name at least one data set", code="no_blend")
    samples = (train_samples, validation_samples, test_samples)
    _refuse_damage(sources_read(data, samples), group)
    check_data(
        data,
        family=model.family,
        sequence_length=model.seq_length,
        vocab_size=tokenizer.vocab_size,
        tokenizer_hash=tokenizer.content_hash,
        samples=samples,
        vision=model.vision,
    )
    cache = _cache_folder(cache_dir, data)
    build = _Builder(data, model, tokenizer, cache, position is not None and position.larger_surplus)
    started = time.monotonic()
    with _alone(cache) as before:
        validation: dict[str, Samples] = {}
        if validation_samples and data.validation:
            validation[BLEND] = build(data.validation, 1, validation_samples, whole=True)
            if len(data.validation) > 1:
                for name, entry in zip(source_names(data.validation), data.validation, strict=True):
                    validation[name] = build([entry], 1, validation_samples, whole=True)
        elif validation_samples:
            validation[SPLIT] = build(data.blend, 1, validation_samples)
        train = None
        if train_samples:
            train, position = build.training(data.blend, train_samples, position)
        test = None
        if test_samples:
            test = build(data.test or data.blend, 2, test_samples, whole=data.test is not None)
        files = None
        if before is not None:
            files = IndexFiles(cache, len(_index_files(cache) - before), round(time.monotonic() - started, 3))
    return Datasets(train, validation, test, files, position)


def _refuse_damage(paths: Sequence[str], group: torch.distributed.ProcessGroup | None) -> None:
    """Raises DataError on all ranks alike where an index is damaged within. One rank of each node reads them, as a node
    may have a copy of its own."""
    found = None
    if int(os.environ.get("LOCAL_RANK", "0")) == 0:
        try:
            refuse_damage(Path(path) for path in paths)
        except DataError as error:
            found = str(error)
    said: list[str | None] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(said, found, group=group)
    if messages := dict.fromkeys(message for message in said if message is not None):
        raise DataError("\n".join(messages), code="damaged_data_set")


@dataclass(frozen=True)
class _Builder:
    data: DataSpec
    model: ModelSpec
    tokenizer: Tokenizer
    cache: Path
    larger_surplus: bool
    """Whether blends ask their sources for as much as those of earlier versions did."""

    def __call__(
        self,
        blend: Sequence[BlendEntry],
        part: int,
        samples: int,
        whole: bool = False,
        asked: Sequence[int] | None = None,
    ) -> Samples:
        """One data set. Only its own part is built: megatron-core never ends on an empty part, even an unused one.

        `asked`: samples that each source of a blend is asked for.
        """
        weights = [float(number == part) for number in range(len(PARTS))] if whole else self.data.split_weights
        settings = {
            "random_seed": self.data.seed,
            "sequence_length": self.model.seq_length,
            "blend": ([entry.path for entry in blend], _blend_weights(blend)),
            "split": "1,1,1",  # takes no part: the matrix set below decides
            "path_to_cache": str(self.cache),
            "tokenizer": self.tokenizer,
            "num_dataset_builder_threads": self.data.num_dataset_builder_threads,
            "mid_level_dataset_surplus": SURPLUS,
        }
        kind, config = dataset_family(self.model).dataset(self.model, self.data, settings)
        fractions = split_fractions(weights)
        config.split_matrix = [fractions[number] if number == part else None for number in range(len(PARTS))]
        sizes = [samples if number == part else 0 for number in range(len(PARTS))]
        asked = asked or asked_of_blend([entry.weight for entry in blend], samples, self.larger_surplus)
        built: Samples = BlendBuilder(kind, sizes, config, asked).build()[part]
        return built

    def training(
        self, blend: Sequence[BlendEntry], end: int, position: DataPosition | None
    ) -> tuple[Samples, DataPosition | None]:
        """The training set, and the position as it was built. For a new run, within the samples that its order was made
        for, it is megatron-core's."""
        if position is None:
            return self(blend, 0, end), None
        if position.since == 0:
            samples = self(blend, 0, position.samples, asked=[source.first for source in position.sources])
            position = _as_built(position, samples)
            if end <= len(cast(Sized, samples)):
                return samples, position
        later = continued_samples(position, end, lambda path, count: self([BlendEntry(path=path)], 0, count))
        return later, position


def _as_built(position: DataPosition, samples: Any) -> DataPosition:
    """Where a source would have fallen short, it was asked for more."""
    if len(position.sources) == 1:
        return position
    built = zip(position.sources, samples.datasets, strict=True)
    return replace(position, sources=tuple(replace(source, first=index.num_samples) for source, index in built))


def _blend_weights(blend: Sequence[BlendEntry]) -> list[float] | None:
    return [entry.weight for entry in blend] if len(blend) > 1 else None


def _cache_folder(cache_dir: Path, data: DataSpec) -> Path:
    """A folder for exactly these files. megatron-core names its indices by path alone, so that data made anew at the
    same path would be read through the old ones."""
    digest = hashlib.sha256()
    for blend in (data.blend, data.validation, data.test):
        for entry in blend or ():
            prefixes = [Path(entry.path)]
            if data.has_conversations:  # which conversations are cut depends on what counts
                prefixes.append(loss_mask_prefix(prefixes[0]))
                if has_images(prefixes[0]):  # and left out, on how many images there are
                    prefixes.append(images_prefix(prefixes[0]))
            for path in [name(prefix) for prefix in prefixes for name in (idx_path, bin_path)]:
                status = path.stat()
                digest.update(f"{path.absolute()} {status.st_size} {status.st_mtime_ns}\n".encode())
    return cache_dir / digest.hexdigest()[:16]


@contextmanager
def _alone(cache: Path) -> Iterator[set[Path] | None]:
    """On rank 0: hold the cache folder against other jobs, and first remove what a killed one left torn.

    Gives the files that are there; None on the other ranks.
    """
    if torch.distributed.get_rank() != 0:
        yield None
        return
    with locked(cache, wait=True):
        for path in _index_files(cache):
            if _is_torn(path):
                path.unlink()
        yield _index_files(cache)


def _index_files(cache: Path) -> set[Path]:
    return set(cache.glob("*.npy"))


def _is_torn(path: Path) -> bool:
    try:
        array: Any = np.load(path, mmap_mode="r")
    except (ValueError, EOFError):
        return True
    del array
    return False
