"""Whether an index is whole within: by its checksum, or as its parts fit each other and the data. Light: no numpy.

Readers believe every length, offset and mark of an index: one that is wrong ends a training somewhere in its middle, or
gives it other documents than those that were meant.
"""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path

from orchestrator.data.chat.conversation_packing import loss_mask_prefix
from orchestrator.data.chat.stored_images import has_images, images_damage, images_prefix
from orchestrator.data.indexed_dataset.header import HEADER, IndexHeader, damaged, idx_path, read_index
from orchestrator.data.indexed_dataset.manifest import manifest_path, read_manifest
from orchestrator.errors import DataError, UserError
from orchestrator.run_directory.checkpoints.commit_markers import file_record

CHUNK = 1 << 12
"""Sequences, or documents, that are looked at together: their numbers stay in a core's cache."""
_SIGNS_32 = int.from_bytes(b"\0\0\0\x80\0\0\0\0" * CHUNK, "little")
_SIGNS_64 = int.from_bytes(b"\0\0\0\0\0\0\0\x80" * (CHUNK + 1), "little")

Read = Callable[[int, int], bytes]
"""Offset in the index, count of bytes -> these bytes."""


def refuse_damage(prefixes: Iterable[Path]) -> None:
    """Raises DataError with all that is wrong within the indices of some data sets and of the masks and images beside
    them."""
    indices = [each for prefix in prefixes for each in (prefix, loss_mask_prefix(prefix), *_images(prefix))]
    if found := [damage for each in indices if (damage := index_damage(each)) is not None]:
        raise DataError("\n".join(found), code="damaged_data_set")


def refuse_lost_images(prefix: Path) -> None:
    """Raises DataError where a data set's images are not all there, or another's; UserError where it is not there
    itself."""
    if (damage := images_damage(str(prefix), read_index(prefix))) is not None:
        raise DataError(damage, code="damaged_images")


def _images(prefix: Path) -> list[Path]:
    """Where its images lie; nothing where it has none, or its manifest, which is told of with it, does not say."""
    try:
        return [images_prefix(prefix)] if has_images(prefix) else []
    except DataError:
        return []


def index_damage(prefix: Path) -> str | None:
    """What is wrong within an index, as one message; None where all is right, and where there is no data set.

    Every byte is read. Of 10 million sequences (0.2 GB in memory) that takes 0.04 s where the manifest has a checksum,
    0.3 s where it has none. Sentences of documents can change places unnoticed only in the latter.
    """
    path = idx_path(prefix)
    try:
        header, manifest = read_index(prefix), read_manifest(prefix)
        if manifest is None or manifest.index_crc32 is None:
            return _misfit(header)
        found = file_record(path).crc32
        if found == manifest.index_crc32:
            return None
        return _misfit(header) or (
            f"{path} is damaged or belongs to other data: its CRC-32 is {found:08x}, and that of "
            f"{manifest_path(prefix)} is "
            f"{manifest.index_crc32:08x}. Tokenize again or copy both again, or remove the manifest if another tool "
            "has since made the data"
        )
    except DataError as error:
        return str(error)
    except UserError:
        return None
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"


def _misfit(header: IndexHeader) -> str | None:
    """Where the parts of an index do not fit each other. Raises DataError where it has become shorter."""
    path = idx_path(header.prefix)
    with open(path, "rb") as file:

        def read(offset: int, count: int) -> bytes:
            found = os.pread(file.fileno(), count, offset)
            if len(found) < count:
                raise damaged(path, "it has become shorter while it was read")
            return found

        what = _wrong_sequence(header, read) or _wrong_document(header, read)
    return None if what is None else str(damaged(path, what))


def _wrong_sequence(header: IndexHeader, read: Read) -> str | None:
    """The first sequence that does not begin where the one before it ends. The last one ends where the data do."""
    lengths_at, offsets_at = HEADER.size, HEADER.size + 4 * header.sequences
    if header.sequences and (begin := _number(read(offsets_at, 8))) != 0:
        return f"its first sequence begins at byte {begin} of the data"
    for first in range(0, header.sequences, CHUNK):
        count = min(CHUNK, header.sequences - first)
        lengths = read(lengths_at + 4 * first, 4 * count)
        if first + count < header.sequences:
            offsets = read(offsets_at + 8 * first, 8 * (count + 1))
        else:
            offsets = read(offsets_at + 8 * first, 8 * count) + struct.pack("<q", header.bin_bytes)
        if not _follow_each_other(lengths, offsets, header.itemsize):
            ends = pairwise(array("q", offsets))
            for number, (length, (begin, end)) in enumerate(zip(array("i", lengths), ends, strict=True), first):
                if length < 0 or begin + length * header.itemsize != end:
                    return (
                        f"its sequence {number} of {length} tokens, {header.itemsize} bytes each, "
                        f"begins at byte {begin} of the data and ends at {end}"
                    )
    return None


def _follow_each_other(lengths: bytes, offsets: bytes, itemsize: int) -> bool:
    """Whether `begin + length * itemsize` is where the next sequence begins, for all of a chunk, in which the first
    begins at a place that was found right.

    The numbers are taken for digits of 64 bits of one large number: Python adds and compares these without looking at
    each. Nothing is carried from one digit to the next: an offset that is right is far below 2**64.
    """
    count = len(lengths) // 4
    wide = bytearray(8 * count)
    memoryview(wide).cast("i")[::2] = memoryview(lengths).cast("i")
    sizes, places = int.from_bytes(wide, "little"), int.from_bytes(offsets, "little")
    return not sizes & _SIGNS_32 and _but_the_last(places, count) + sizes * itemsize == places >> 64


def _wrong_document(header: IndexHeader, read: Read) -> str | None:
    """The first document that ends before it begins. The last one ends with the last sequence."""
    marks_at = HEADER.size + 12 * header.sequences
    if (begin := _number(read(marks_at, 8))) != 0:
        return f"its first document begins with sequence {begin}"
    for first in range(0, header.documents, CHUNK):
        count = min(CHUNK, header.documents - first)
        marks = read(marks_at + 8 * first, 8 * (count + 1))
        if not _is_ascending(marks):
            for number, (begin, end) in enumerate(pairwise(array("q", marks)), first):
                if not 0 <= begin <= end:
                    return f"its document {number} begins with sequence {begin}, and the one after it with {end}"
    return None


def _is_ascending(marks: bytes) -> bool:
    """Whether none of some numbers of 64 bits is negative or less than the one before it.

    Again as digits: of the first difference that is negative the sign is set; or, where it is the last, that of the
    digit above it, which is -1.
    """
    numbers = int.from_bytes(marks, "little")
    differences = (numbers >> 64) - _but_the_last(numbers, len(marks) // 8 - 1)
    return not (numbers | differences) & _SIGNS_64


def _but_the_last(digits: int, count: int) -> int:
    """The lowest `count` digits of 64 bits."""
    return digits & ((1 << 64 * count) - 1)


def _number(field: bytes) -> int:
    return int.from_bytes(field, "little", signed=True)
