"""What the built index of a data set holds, read from the index itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from megatron.core.datasets.masked_dataset import MaskedWordPieceDataset

from orchestrator.data.families.chat import ChatDataset
from orchestrator.data.samples.index_requests import IndexedSource
from orchestrator.data.samples.predicted_blend import samples_of

_CHUNK = 1 << 22
"""Entries of an index that are read at once: it may be larger than the memory."""


def measured(dataset: Any, samples: int, sequence_length: int) -> tuple[IndexedSource, ...]:
    """The sources of a data set that `build_datasets` made, of which a job draws the first `samples` samples."""
    order = getattr(dataset, "dataset_index", None)
    if order is None:  # a single source: the set is its own index
        return (_source(dataset, samples, sequence_length, lambda number: number),)
    order = order[:samples]
    counts = _counts(order, len(dataset.datasets))
    return tuple(
        _source(index, counts[source], sequence_length, partial(_place, order, source))
        for source, index in enumerate(dataset.datasets)
    )


def _source(index: Any, samples: int, sequence_length: int, place: Callable[[int], int]) -> IndexedSource:
    """`place` tells where in the whole set a sample of this source is."""
    if isinstance(index, MaskedWordPieceDataset):
        return _source_of_sentences(index, samples)
    if isinstance(index, ChatDataset):
        return _source_of_conversations(index, samples, place)
    tokens = int(np.sum(index.dataset.sequence_lengths[index.indices], dtype=np.int64))
    one_epoch = samples_of(tokens, sequence_length)
    return IndexedSource(
        path=index.dataset_path,
        samples=samples,
        tokens_held=tokens,
        documents=len(index.indices),
        epochs_built=len(index.document_index) // len(index.indices),
        samples_built=len(index),
        second_epoch_at=place(one_epoch) if samples > one_epoch else None,
    )


def _source_of_conversations(index: ChatDataset, samples: int, place: Callable[[int], int]) -> IndexedSource:
    """Each epoch is the same sequences, read to its end before the next begins."""
    return IndexedSource(
        path=index.dataset_path,
        samples=samples,
        tokens_held=int(np.sum(index.dataset.sequence_lengths[index.indices], dtype=np.int64)),
        documents=len(index.indices),
        epochs_built=-(-len(index) // index.sequences),
        samples_built=len(index),
        second_epoch_at=place(index.sequences) if samples > index.sequences else None,
        samples_per_epoch=index.sequences,
    )


def _source_of_sentences(index: MaskedWordPieceDataset, samples: int) -> IndexedSource:
    """Its epochs are shuffled together, so no sample is the first that comes again."""
    first, stop = index.indices[0], index.indices[-1] + 1
    marks = index.dataset.document_indices[first : stop + 1]
    # Every epoch begins a sample with the first sentence of each document that gives any.
    starts = np.asarray(index.sample_index[:, 0])
    begun = np.bincount(np.searchsorted(marks, starts[np.isin(starts, marks[:-1])]))
    return IndexedSource(
        path=index.dataset_path,
        samples=samples,
        tokens_held=int(np.sum(index.dataset.sequence_lengths[marks[0] : marks[-1]], dtype=np.int64)),
        documents=len(index.indices),
        epochs_built=int(begun.max()),
        samples_built=len(index),
        second_epoch_at=None,
    )


def _counts(order: Any, sources: int) -> list[int]:
    """How many entries name each source."""
    counts = np.zeros(sources, dtype=np.int64)
    for first in range(0, len(order), _CHUNK):
        counts += np.bincount(order[first : first + _CHUNK], minlength=sources)
    return [int(count) for count in counts]


def _place(order: Any, source: int, number: int) -> int:
    """Where the entry `number` of a source is, counted from 0."""
    before = 0
    for first in range(0, len(order), _CHUNK):
        places = np.flatnonzero(order[first : first + _CHUNK] == source)
        if before + len(places) > number:
            return int(first + places[number - before])
        before += len(places)
    raise ValueError(f"source {source} has only {before} entries")
