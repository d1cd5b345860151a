"""Indexed data sets written by hand."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path


def write_indexed(prefix: Path, lengths: Sequence[int]) -> str:
    """An indexed data set of documents of these lengths, all of the two-byte token 0; returns its prefix."""
    count = len(lengths)
    offsets = [2 * before for before in accumulate(lengths, initial=0)][:-1]
    prefix.with_name(prefix.name + ".bin").write_bytes(bytes(2 * sum(lengths)))
    prefix.with_name(prefix.name + ".idx").write_bytes(
        struct.pack("<9sQBQQ", b"MMIDIDX\x00\x00", 1, 8, count, count + 1)
        + struct.pack(f"<{count}i", *lengths)
        + struct.pack(f"<{count}q", *offsets)
        + struct.pack(f"<{count + 1}q", *range(count + 1))
    )
    return str(prefix)
