"""What a run reads: each source's size and digest, kept in the run directory, where the data may be gone one day."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from orchestrator.data.indexed_dataset.header import read_index
from orchestrator.data.samples.moved_sources import files_digest, source_digest
from orchestrator.errors import UserError, is_full_disk
from orchestrator.files.folder_tree import folder_tree
from orchestrator.planning.blend import split_shares
from orchestrator.run_directory.lease import Lease
from orchestrator.run_directory.rundir import RunDir, write_atomically
from orchestrator.spec.job import JobSpec
from orchestrator.tracking.measurements.inputs import read_inputs

_DIGEST_DIGITS = 16

logger = logging.getLogger(__name__)


def record_sources(run: RunDir, lease: Lease, job: JobSpec) -> None:
    """Add to datasets.json what this start reads and no earlier one did. A full disk is only warned about. Raises
    LeaseLost.
    """
    known = read_inputs(run)
    added = [record for record in source_records(job) if record not in known]
    if not added:
        return
    lease.check()
    try:
        write_atomically(run.datasets_file, json.dumps([*known, *added], indent=1) + "\n")
    except OSError as error:
        if not is_full_disk(error):
            raise
        logger.warning("%s could not be written: %s", run.datasets_file, error)


def source_records(job: JobSpec) -> Iterator[dict[str, Any]]:
    """One record for each source of training, validation and test that is there; see RunDir.datasets_file. None for
    random tokens. What no part of the training reads may be missing or damaged.
    """
    for record in _sources(job):
        try:
            yield record()
        except (UserError, OSError):
            continue


def _sources(job: JobSpec) -> Iterator[Callable[[], dict[str, Any]]]:
    if job.data.random_tokens:
        return
    if job.has_task:
        for part, paths in (("training", job.labelled_task.train), ("validation", job.labelled_task.validation or [])):
            yield from (partial(_files_record, part, Path(path)) for path in paths)
        return
    own = {"validation": job.data.validation, "test": job.data.test}
    for part, share in zip(("training", *own), split_shares(job.data), strict=True):
        sources = own.get(part)
        for entry in sources or job.data.blend or ():
            if sources or share > 0:
                yield partial(_indexed_record, part, Path(entry.path), entry.weight, 1.0 if sources else share)


def _indexed_record(part: str, prefix: Path, weight: float, share: float) -> dict[str, Any]:
    header = read_index(prefix)
    return {
        "part": part,
        "path": str(prefix.absolute()),
        "weight": weight,
        "share": share,
        "tokens": header.tokens,
        "documents": header.documents,
        "sequences": header.sequences,
        "bytes": header.bin_bytes,
        "dtype": header.dtype,
        "digest": source_digest(prefix),
    }


def _files_record(part: str, path: Path) -> dict[str, Any]:
    files = folder_tree(path).files if path.is_dir() else [path]
    size = sum(file.stat().st_size for file in files)
    if path.is_dir():  # of thousands of small files: their names and sizes, which cost no reading
        listed = "\n".join(f"{file.relative_to(path)} {file.stat().st_size}" for file in files)
        digest = hashlib.sha256(listed.encode()).hexdigest()[:_DIGEST_DIGITS]
    else:
        digest = files_digest(files)
    return {"part": part, "path": str(path.absolute()), "bytes": size, "digest": digest}
