"""Sources that lie elsewhere than when a run began to read them: told by their content. Light."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os.path import abspath
from pathlib import Path
from typing import Any

from orchestrator.data.indexed_dataset.header import bin_path, idx_path
from orchestrator.data.samples.position import DataPosition
from orchestrator.spec.job_sections import JobSections

_SAMPLE_BYTES = 1 << 16
_DIGEST_DIGITS = 16


def files_digest(files: Sequence[Path]) -> str:
    """Of the sizes of some files and of how each begins and ends: the same for a copy, and cheap for any size. Raises
    OSError.
    """
    digest = hashlib.sha256()
    for path in files:
        size = path.stat().st_size
        digest.update(str(size).encode())
        with open(path, "rb") as file:
            digest.update(file.read(_SAMPLE_BYTES))
            file.seek(max(0, size - _SAMPLE_BYTES))
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:_DIGEST_DIGITS]


def source_digest(prefix: Path) -> str:
    """That of an indexed data set. Raises OSError."""
    return files_digest([idx_path(prefix), bin_path(prefix)])


def at_new_places(
    position: DataPosition | None, job: JobSections, recorded: Sequence[Mapping[str, Any]]
) -> DataPosition | None:
    """A run's position, with the new path of each source that the job names by another one: it goes on there behind
    what was drawn from it. `recorded`: what the run has read (`tracking.measurements.inputs`).
    """
    if position is None:
        return None
    before = {abspath(source.path) for source in (*position.sources, *position.others)}
    here = {abspath(entry.path): entry.path for entry in job.data.blend or []}
    left: dict[str, list[str]] = {}
    for each in recorded:
        path = abspath(str(each["path"]))
        if each["part"] == "training" and path in before - set(here):
            of_content = left.setdefault(str(each["digest"]), [])
            if path not in of_content:
                of_content.append(path)
    moved = {}
    for place in (place for place in here if place not in before and left):
        try:
            found = left.get(source_digest(Path(place)))
        except OSError:  # whoever reads it says so
            continue
        if found:
            moved[found.pop(0)] = here[place]
    sources, others = (
        tuple(replace(source, path=moved.get(abspath(source.path), source.path)) for source in group)
        for group in (position.sources, position.others)
    )
    return replace(position, sources=sources, others=others)
