"""Whether data sets hold what a job needs, from their headers and manifests alone: no numpy, no pass over the data."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from orchestrator.data.chat.conversation_packing import loss_mask_prefix, usable
from orchestrator.data.chat.stored_images import images_problem
from orchestrator.data.indexed_dataset.header import (
    HEADER,
    IndexHeader,
    bin_path,
    damaged,
    idx_path,
    read_index,
    sequences_before,
    tokens_before,
)
from orchestrator.data.indexed_dataset.manifest import Manifest, read_manifest
from orchestrator.errors import DataError, UserError
from orchestrator.models.registry import ModelFamily
from orchestrator.spec.sections.data import BlendEntry, DataSpec
from orchestrator.spec.vision import VisionSpec

PARTS = ("train", "validation", "test")
BLEND = "blend"
"""Name of the validation set that draws from all validation sources by weight; no source of its own has it."""
LONGEST_SENTENCE = 512
"""megatron-core passes over a document of several sentences that has a longer one, in tokens."""
_TYPECODES = {"uint8": "B", "int8": "b", "int16": "h", "int32": "i", "int64": "q", "uint16": "H"}
_SAMPLED_TOKENS = 1 << 18


class Part(NamedTuple):
    """One source's share of train, validation or test: the sequences `start` to `stop` of the data set at `path`."""

    name: str
    path: str
    start: int
    stop: int
    first: int
    """The first of what the split counts: documents of sentences, or sequences."""
    documents: int
    """How many of these."""


def split_fractions(weights: Sequence[float]) -> list[tuple[float, float] | None]:
    """Where each part begins and ends, as fractions of a data set; None for a weight of 0. As megatron-core's."""
    total = 0.0
    for weight in weights:  # one after another, as numpy adds so few: the built-in sum rounds otherwise
        total += weight
    fractions: list[tuple[float, float] | None] = []
    start = 0.0
    for weight in weights:
        stop = start + (weight / total if total else 0.0)
        fractions.append((start, stop) if stop > start else None)
        start = stop
    return fractions


def split_bounds(weights: Sequence[float], sequences: int) -> list[tuple[int, int] | None]:
    """Where megatron-core cuts a data set: (start, stop) in sequences for each weight, None for a weight of 0."""
    return [part and (round(part[0] * sequences), round(part[1] * sequences)) for part in split_fractions(weights)]


def source_names(blend: Sequence[BlendEntry]) -> list[str]:
    """A short name for each source of a blend."""
    return path_names([entry.path for entry in blend])


def path_names(paths: Sequence[str]) -> list[str]:
    """A short name for each of some paths: its last part, with more of it where two are alike or one is `BLEND`."""
    for length in range(1, 1 + max(len(Path(path).parts) for path in paths)):
        names = [".".join(Path(path).parts[-length:]).replace("/", "") for path in paths]
        if len(set(names)) == len(names) and BLEND not in names:
            return names
    return [f"{number}.{Path(path).name}" for number, path in enumerate(paths)]


def check_data(
    data: DataSpec,
    *,
    family: ModelFamily,
    sequence_length: int,
    vocab_size: int,
    tokenizer_hash: str,
    samples: Sequence[int],
    vision: VisionSpec | None = None,
) -> None:
    """Check every source that is used. `samples` are those needed for train, validation and test.

    Raises UserError for a data set that is missing, and DataError with every reason why the data do not fit the job:
    made by another tokenizer or with images that its model does not see, ids beyond the vocabulary, a part that is
    empty or shorter than one sequence.
    """
    headers = {entry.path: read_index(Path(entry.path)) for blend in _blends(data) for entry in blend}
    problems: list[str] = []
    for path, header in headers.items():
        problems += _vocabulary_problems(path, header, vocab_size, tokenizer_hash)
        if data.has_conversations and (problem := conversations_problem(path, header, vision)):
            problems.append(problem)
    for part in used_parts(data, family, headers, samples):
        problems += length_problems(part, headers[part.path], data, family, sequence_length, vision)
    if problems:
        raise DataError("\n".join(problems), code="data_does_not_fit_job")


def sources_read(data: DataSpec, samples: Sequence[int]) -> list[str]:
    """The paths of all data sets of which `samples` (train, validation, test) are needed, each once."""
    paths = [entry.path for number, blend in enumerate(_blends(data)) if samples[number] for entry in blend]
    return list(dict.fromkeys(paths))


def _blends(data: DataSpec) -> list[Sequence[BlendEntry]]:
    """The sources of train, validation and test."""
    blend = data.blend or []
    return [blend, data.validation or blend, data.test or blend]


def used_parts(
    data: DataSpec, family: ModelFamily, headers: Mapping[str, IndexHeader], samples: Sequence[int]
) -> Iterator[Part]:
    """Every part of which `samples` (train, validation, test) are needed, of the data sets that `headers` has."""
    for number, blend in enumerate(_blends(data)):
        for entry in blend if samples[number] else ():
            if entry.path in headers:
                yield part_of(data, family, number, headers[entry.path], entry.path)


def part_of(data: DataSpec, family: ModelFamily, number: int, header: IndexHeader, path: str) -> Part:
    """What train (0), validation (1) or test (2) takes of a data set: from 0 to 0 where the split leaves it nothing."""
    of_sentences = family.least_sentences > 0  # these are split by documents, other data by sequences
    units = header.documents if of_sentences else header.sequences
    start, stop = 0, units
    if not (None, data.validation, data.test)[number]:
        start, stop = split_bounds(data.split_weights, units)[number] or (0, 0)
    counted = start, stop - start
    if of_sentences:
        start, stop = sequences_before(header, start), sequences_before(header, stop)
    return Part(PARTS[number], path, start, stop, *counted)


def length_problems(
    part: Part,
    header: IndexHeader,
    data: DataSpec,
    family: ModelFamily,
    sequence_length: int,
    vision: VisionSpec | None = None,
) -> Iterator[str]:
    """Why a part cannot be built: it is empty, shorter than one sequence, or has no document that gives a sample."""
    tokens = tokens_before(header, part.stop) - tokens_before(header, part.start)
    if data.has_conversations and conversations_problem(part.path, header, vision) is not None:
        return  # which is a problem of the data set, not of its parts
    what = f"the {part.name} part of {part.path}"
    way_out = "use more data or another data.split"
    if part.name != "train":
        way_out += f", or sources of its own (data.{part.name})"
    needed = family.least_sentences
    if part.stop <= part.start or tokens == 0:
        units = header.documents if needed else header.sequences
        documents = "conversations" if data.has_conversations else "documents"
        yield f"{what} is empty: {units} {documents}, split {data.split}; {way_out}"
    elif data.has_conversations:
        found = usable(header, part.start, part.stop, data.conversations, sequence_length, vision)
        if not found.kept and found.crowded:
            yield (
                f"{what} has no conversation that fits: {found.crowded} of {part.documents} have more images than "
                "model.vision.images_per_sequence, and the others are too long; raise it, or use other data"
            )
        elif not found.kept:
            cuts = data.conversations.long_conversations == "truncate"
            fate = "nothing that counts is before the cut" if cuts else "long_conversations is drop"
            yield (
                f"{what} has no conversation that fits: all {part.documents} are longer than model.seq_length + 1 = "
                f"{sequence_length + 1} tokens, and {fate}; raise model.seq_length, or use other data"
            )
    elif not needed and tokens < sequence_length + 1:
        yield (
            f"{what} has {tokens} tokens in {part.stop - part.start} documents, fewer than one sequence of "
            f"{sequence_length} + 1; {way_out}, or a shorter model.seq_length"
        )
    elif needed and not _gives_samples(part, header, needed):
        sentences = "a sentence" if needed == 1 else f"{needed} sentences"
        yield (
            f"{what} has no document of at least {sentences} and of none above {LONGEST_SENTENCE} tokens, from which "
            f"{family.name} makes its samples; make it again with `data tokenize --split-sentences`"
        )


def _gives_samples(part: Part, header: IndexHeader, needed: int) -> bool:
    """Whether any document of a part gives megatron-core a sample: without one it looks for one for ever."""
    with open(idx_path(header.prefix), "rb") as file:
        for document in range(part.first, part.first + part.documents):
            file.seek(HEADER.size + header.sequences * 12 + document * 8)
            first, last = array("q", file.read(16))
            if not 0 <= first <= last <= header.sequences:
                raise damaged(file.name, f"its document {document} consists of the sequences {first} to {last}")
            file.seek(HEADER.size + first * 4)
            sentences = array("i", file.read((last - first) * 4))
            is_passed_over = len(sentences) > 1 and max(sentences) > LONGEST_SENTENCE
            if len(sentences) >= needed and any(sentences) and not is_passed_over:
                return True
    return False


def tokenizer_problem(path: str, tokenizer_hash: str) -> str | None:
    """What is wrong when a data set was made with another tokenizer than the job's; None too when nobody knows."""
    manifest = read_manifest(Path(path))
    if manifest is None or manifest.tokenizer_hash == tokenizer_hash:
        return None
    made_by = f"{tokenizer_name(manifest)}, hash {manifest.tokenizer_hash[:12]}"
    return (
        f"{path} was made with another tokenizer ({made_by}) than data.tokenizer (hash {tokenizer_hash[:12]}); "
        "name that one, or tokenize again"
    )


def conversations_problem(path: str, header: IndexHeader, vision: VisionSpec | None) -> str | None:
    """Why a data set is none of conversations, or none that the job's model sees; None when it is."""
    return mask_problem(path, header) or images_problem(path, header, vision)


def mask_problem(path: str, header: IndexHeader) -> str | None:
    """Why a data set is none of conversations; None when it is."""
    prefix = loss_mask_prefix(Path(path))
    try:
        mask = read_index(prefix)
    except DataError as error:
        return str(error)
    except UserError:
        mask = None
    if (
        mask is not None
        and mask.dtype == "uint8"
        and (mask.sequences, mask.tokens) == (header.sequences, header.tokens)
    ):
        return None
    what = "has no mask" if mask is None else "does not belong to the mask"
    return (
        f"{path} {what} of the assistant's turns, {prefix}.bin and .idx: make it with "
        "`orchestrator data tokenize --chat`, copy the mask with it, or leave data.chat out of the job"
    )


def _vocabulary_problems(path: str, header: IndexHeader, vocab_size: int, tokenizer_hash: str) -> Iterator[str]:
    if problem := tokenizer_problem(path, tokenizer_hash):
        yield problem
        return
    manifest = read_manifest(Path(path))
    if header.dtype not in _TYPECODES:
        yield f"{path} holds {header.dtype}, not token ids; tokenize again"
        return
    largest = manifest.largest_token_id if manifest is not None else _largest_sampled(header)
    if largest >= vocab_size:
        yield (
            f"{path} holds token id {largest}, but the vocabulary has {vocab_size} tokens (ids 0 to {vocab_size - 1}); "
            "it was made with another tokenizer than data.tokenizer"
        )


def tokenizer_name(manifest: Manifest) -> str:
    """What a data set was made with, as a spec names it: `wordpiece vocab.txt, lower_case: false`."""
    tokenizer = manifest.tokenizer
    case = "" if tokenizer.lower_case is None else f", lower_case: {str(tokenizer.lower_case).lower()}"
    return f"{tokenizer.type} {tokenizer.path or ''}".strip() + case


def _largest_sampled(header: IndexHeader) -> int:
    """The largest id at the beginning, in the middle and at the end of data that have no manifest."""
    largest = -1
    count = min(_SAMPLED_TOKENS, header.tokens)
    with open(bin_path(header.prefix), "rb") as file:
        for first in {0, (header.tokens - count) // 2, header.tokens - count}:
            file.seek(first * header.itemsize)
            ids = array(_TYPECODES[header.dtype], file.read(count * header.itemsize))
            largest = max(largest, max(ids, default=-1))
    return largest
