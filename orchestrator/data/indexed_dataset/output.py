"""Writing an indexed data set so that a kill loses little and nothing half-written looks whole.

Everything grows in the folder PREFIX.partial. After each shard of input the files are made durable and one line is
added to its commits.jsonl: how long each file is, and where reading stands. A rerun cuts the files back to the last
such line and goes on from there. At the end the files are renamed into place, PREFIX.idx last.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from orchestrator.data.indexed_dataset.header import DTYPES, HEADER, MAGIC, bin_path, idx_path
from orchestrator.data.indexed_dataset.locking import locked
from orchestrator.data.indexed_dataset.manifest import Manifest, manifest_path
from orchestrator.data.input.sources import Position
from orchestrator.data.tokenizers.encoding import EncodedChunk
from orchestrator.errors import JobError, UserError
from orchestrator.files.stored_files import read_object
from orchestrator.run_directory.checkpoints.commit_markers import file_record
from orchestrator.run_directory.rundir import append_line, read_lines, sync_folder, write_atomically

_BLOCK = 1 << 20
_DTYPE_CODES = {name: code for code, (name, _) in DTYPES.items()}


@dataclass
class KeyProgress:
    """What was written for one key. Its sequences are its documents, or their sentences."""

    tokens: int = 0
    documents: int = 0
    sequences: int = 0
    empty: int = 0
    cut: int = 0
    counted: int = 0
    unpictured: int = 0
    shortened: int = 0
    largest: int = -1


@dataclass
class Progress:
    """How far a tokenization has come: the state that a commit keeps."""

    keys: list[KeyProgress]
    position: Position = field(default_factory=Position)
    text_bytes: int = 0
    disk_bytes: int = 0
    skipped: int = 0
    skipped_bytes: int = 0
    finished: bool = False

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Progress:
        """The progress of one line of commits.jsonl."""
        values = {name: record[name] for name in cls.__dataclass_fields__}
        keys = [KeyProgress(**{"sequences": key["documents"], **key}) for key in values.pop("keys")]
        return cls(keys=keys, position=Position(**values.pop("position")), **values)


def skipped_path(prefix: Path) -> Path:
    """PREFIX.skipped.jsonl."""
    return prefix.with_name(prefix.name + ".skipped.jsonl")


class PartialOutput:
    """The growing data sets, each with its prefix and type. With `sentences` each sentence is a sequence. Use
    `open_output`."""

    def __init__(
        self,
        folder: Path,
        prefixes: Sequence[Path],
        dtypes: Sequence[np.dtype[Any]],
        sentences: bool,
        progress: Progress,
    ) -> None:
        self.folder, self.prefixes, self.dtypes, self.progress = folder, prefixes, dtypes, progress
        self._has_sentences = sentences
        sizes = [key.tokens * dtype.itemsize for key, dtype in zip(progress.keys, dtypes, strict=True)]
        self._tokens = [self._open(f"{i}.bin", size) for i, size in enumerate(sizes)]
        self._lengths = [self._open(f"{i}.lengths", key.sequences * 4) for i, key in enumerate(progress.keys)]
        self._sentences = [
            self._open(f"{i}.sentences", key.documents * 4) for i, key in enumerate(progress.keys) if sentences
        ]
        self._skipped = self._open("skipped.jsonl", progress.skipped_bytes)

    def _open(self, name: str, size: int) -> int:
        """A file cut back to what was committed. After the finish its data may have been renamed away already."""
        if self.progress.finished:
            return -1
        descriptor = os.open(self.folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        if os.fstat(descriptor).st_size < size:
            os.close(descriptor)
            raise JobError(
                f"{self.folder / name} is shorter than was committed; run again with --overwrite", code="shard_shrank"
            )
        os.ftruncate(descriptor, size)
        return descriptor

    def append(self, chunk: EncodedChunk, position: Position, text_bytes: int, disk_bytes: int) -> None:
        """Add what became of a chunk."""
        progress = self.progress
        for i, (new, key) in enumerate(zip(chunk.keys, progress.keys, strict=True)):
            self._write(self._tokens[i], new.tokens)
            self._write(self._lengths[i], new.lengths)
            if self._has_sentences:
                self._write(self._sentences[i], new.sentences)
            key.tokens += len(new.tokens) // self.dtypes[i].itemsize
            key.sequences += len(new.lengths) // 4
            key.documents += len(new.sentences if self._has_sentences else new.lengths) // 4
            key.empty += new.empty
            key.cut += new.cut
            key.counted += new.counted
            key.unpictured += new.unpictured
            key.shortened += new.shortened
            key.largest = max(key.largest, new.largest)
        skipped = [{"path": each.path, "line": each.line, "reason": each.reason} for each in chunk.malformed]
        report = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in skipped)
        encoded = report.encode(errors="backslashreplace")
        self._write(self._skipped, encoded)
        progress.skipped += len(chunk.malformed)
        progress.skipped_bytes += len(encoded)
        progress.position, progress.disk_bytes = position, disk_bytes
        progress.text_bytes += text_bytes

    def _write(self, descriptor: int, data: bytes) -> None:
        rest = memoryview(data)
        with self._explained():
            while rest:
                rest = rest[os.write(descriptor, rest) :]

    def commit(self) -> None:
        """Make everything so far durable: a rerun goes on from here."""
        with self._explained():
            for descriptor in (*self._tokens, *self._lengths, *self._sentences, self._skipped):
                if descriptor >= 0:
                    os.fsync(descriptor)
            append_line(self.folder / "commits.jsonl", asdict(self.progress))

    def finish(self, manifests: Sequence[Manifest], left_over: Path | None = None) -> list[Manifest]:
        """Rename the data sets into place, the index of each last, those of the last first, and remove the folder.

        `manifests` are those of the first data sets; what has none belongs to the first. Gives them with the checksums
        of the indices, as they were written. What an earlier data set has at the prefix `left_over` goes with it; one
        with a manifest stays, as it is a data set by itself.
        """
        self.progress.finished = True
        self.commit()
        written: list[Manifest] = []
        with self._explained():
            for i, prefix in enumerate(self.prefixes):
                self._write_index(i)
                idx_path(prefix).unlink(missing_ok=True)
                if (self.folder / f"{i}.bin").exists():
                    os.replace(self.folder / f"{i}.bin", bin_path(prefix))
                if i < len(manifests):
                    crc = file_record(self.folder / f"{i}.idx").crc32
                    written.append(manifests[i].model_copy(update={"index_crc32": crc}))
                    write_atomically(manifest_path(prefix), written[i].model_dump_json(indent=1))
            self._place_skipped()
            if left_over is not None and not manifest_path(left_over).exists():
                idx_path(left_over).unlink(missing_ok=True)
                bin_path(left_over).unlink(missing_ok=True)
            for i, prefix in reversed(list(enumerate(self.prefixes))):
                os.replace(self.folder / f"{i}.idx", idx_path(prefix))
            sync_folder(self.folder.parent)
            self.discard()
        return written

    def _place_skipped(self) -> None:
        """The report of what was skipped lies beside the first data set."""
        target, report = skipped_path(self.prefixes[0]), self.folder / "skipped.jsonl"
        if not self.progress.skipped:
            target.unlink(missing_ok=True)
        elif report.exists():
            os.replace(report, target)

    def _write_index(self, number: int) -> None:
        """The .idx of one key."""
        key, dtype = self.progress.keys[number], self.dtypes[number]
        with open(self.folder / f"{number}.idx", "wb") as file:
            file.write(HEADER.pack(MAGIC, 1, _DTYPE_CODES[dtype.name], key.sequences, key.documents + 1))
            with open(self.folder / f"{number}.lengths", "rb") as lengths:
                shutil.copyfileobj(lengths, file, _BLOCK)
            offset = 0
            with open(self.folder / f"{number}.lengths", "rb") as lengths:
                while block := lengths.read(_BLOCK):
                    sizes = np.frombuffer(block, dtype="<i4").astype("<i8") * dtype.itemsize
                    ends = np.cumsum(sizes, dtype="<i8") + offset
                    file.write((ends - sizes).tobytes())
                    offset = int(ends[-1])
            if self._has_sentences:
                self._write_sentence_marks(number, file)
            else:
                for first in range(0, key.documents + 1, _BLOCK):
                    file.write(np.arange(first, min(first + _BLOCK, key.documents + 1), dtype="<i8").tobytes())
            file.flush()
            os.fsync(file.fileno())

    def _write_sentence_marks(self, number: int, file: BinaryIO) -> None:
        """The document index: with which sentence each document begins, and the number of all sentences."""
        total = 0
        file.write(np.zeros(1, dtype="<i8").tobytes())
        with open(self.folder / f"{number}.sentences", "rb") as counts:
            while block := counts.read(_BLOCK):
                ends = np.cumsum(np.frombuffer(block, dtype="<i4"), dtype="<i8") + total
                file.write(ends.tobytes())
                total = int(ends[-1])

    def discard(self) -> None:
        """Remove the folder; its commits first, so that a half-removed one is not taken for work to go on with."""
        (self.folder / "commits.jsonl").unlink(missing_ok=True)
        shutil.rmtree(self.folder)

    def close(self) -> None:
        """Close the files."""
        for descriptor in (*self._tokens, *self._lengths, *self._sentences, self._skipped):
            if descriptor >= 0:
                os.close(descriptor)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
            way_out = "make room and run" if full else "run"
            raise JobError(
                f"cannot write to {self.folder}: {error.strerror}. Finished shards are kept: "
                f"{way_out} the same command again to continue",
                code="unwritable_output",
            ) from error


@contextmanager
def open_output(
    folder: Path,
    prefixes: Sequence[Path],
    dtypes: Sequence[np.dtype[Any]],
    sentences: bool,
    job: dict[str, Any],
    overwrite: bool,
    wait: bool = False,
) -> Iterator[PartialOutput]:
    """The output of a job: what an earlier run of the same job left is continued.

    Raises DataIsHeld when another process writes it and `wait` is false, and UserError when there is a data set already
    or an unfinished one that was made from other input or with other options; with `overwrite` the old one stays until
    the new one is whole.
    """
    with locked(folder, wait), _only_if_used(folder):
        progress = _earlier_progress(folder, job, overwrite)
        if not overwrite and not (progress and progress.finished):
            _refuse_existing(prefixes)
        if progress is None:
            for leftover in folder.iterdir():
                if leftover.name != "lock":
                    leftover.unlink()
            write_atomically(folder / "job.json", json.dumps(job))
            progress = Progress([KeyProgress() for _ in prefixes])
        output = PartialOutput(folder, prefixes, dtypes, sentences, progress)
        try:
            yield output
        finally:
            output.close()


@contextmanager
def _only_if_used(folder: Path) -> Iterator[None]:
    """Leave no folder behind in which no work was kept."""
    try:
        yield
    finally:
        if folder.exists() and not (folder / "commits.jsonl").exists():
            shutil.rmtree(folder)


def unfinished_job(folder: Path) -> dict[str, Any]:
    """The job that an earlier run left in a folder; empty where there is none to go on with."""
    return read_object(folder / "job.json", folder)


def _earlier_progress(folder: Path, job: dict[str, Any], overwrite: bool) -> Progress | None:
    commits = list(read_lines(folder / "commits.jsonl"))
    if not commits:
        return None
    earlier = unfinished_job(folder)
    different = sorted(name for name in job if earlier.get(name) != job[name])
    if not different:
        return Progress.from_record(commits[-1])
    if overwrite:
        return None
    raise UserError(
        f"{folder} holds an unfinished tokenization with other {' and '.join(different)}. "
        "Run the earlier command again to finish it, or start over with --overwrite or by removing that folder",
        code="unfinished_output_differs",
    )


def _refuse_existing(prefixes: Sequence[Path]) -> None:
    for prefix in prefixes:
        for path in (idx_path(prefix), bin_path(prefix)):
            if path.exists():
                raise UserError(
                    f"{path} exists already; add --overwrite to replace it, or choose another prefix",
                    code="output_exists",
                )
