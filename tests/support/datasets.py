"""Reading back what tokenization wrote."""

from __future__ import annotations

from pathlib import Path

from orchestrator.data.indexed_dataset.header import bin_path, idx_path


def files_of(prefix: Path) -> tuple[bytes, bytes]:
    """The bytes of a data set and of its index."""
    return bin_path(prefix).read_bytes(), idx_path(prefix).read_bytes()
