"""Indexed data sets written by hand."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path


def write_indexed(prefix: Path, lengths: Sequence[int], marks: Sequence[int] | None = None) -> str:
    """An indexed data set of sequences of these lengths, all of the two-byte token 0; returns its prefix. `marks`: with
    which sequence each document begins, and their number; each is a document otherwise.
    """
    count = len(lengths)
    if marks is None:
        marks = range(count + 1)
    offsets = [2 * before for before in accumulate(lengths, initial=0)][:-1]
    prefix.with_name(prefix.name + ".bin").write_bytes(bytes(2 * sum(lengths)))
    prefix.with_name(prefix.name + ".idx").write_bytes(
        struct.pack("<9sQBQQ", b"MMIDIDX\x00\x00", 1, 8, count, len(marks))
        + struct.pack(f"<{count}i", *lengths)
        + struct.pack(f"<{count}q", *offsets)
        + struct.pack(f"<{len(marks)}q", *marks)
    )
    return str(prefix)
