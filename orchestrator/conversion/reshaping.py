"""A checkpoint written anew for another layout, a tensor at a time, on one process.

What is stored has no layout: every tensor is complete, in parts that any rank may read from. What a layout changes is
how large these parts are. Written for it, each rank finds its own parts as single pieces and reads nothing else."""

from __future__ import annotations

import io
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from megatron.core.dist_checkpointing.core import CheckpointingConfig, save_config
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType

from orchestrator.conversion.progress import shown
from orchestrator.conversion.tensors.stored_weights import StoredWeights, Tensors
from orchestrator.errors import CheckpointError
from orchestrator.run_directory.checkpoints.commit_markers import file_record, read_commit, write_commit
from orchestrator.run_directory.rundir import sync_folder, sync_tree
from orchestrator.self_contained_checkpoints import JOB_FILE, TOKENIZER_FOLDER, files_to_carry
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import dump_resolved

_ROW_PARALLEL = ("linear_proj.weight", "linear_fc2.weight", "out_proj.weight")
"""Matrices that tensor-parallel ranks share by their last dimension."""
_WHOLE = (
    "norm_weight",
    "norm_bias",
    "norm.weight",
    "norm.bias",
    "router.weight",
    "linear_proj.bias",
    "linear_fc2.bias",
)
"""What every rank has all of; so does it have positions, which are few."""
_OPTIMIZER = "optimizer."


@dataclass(frozen=True)
class CheckpointContents:
    """What a checkpoint has. `optimizer`: None where it has no optimizer's state."""

    optimizer: str | None
    tensors: int
    vocabulary_rows: int | None


def contents(checkpoint: Path) -> CheckpointContents:
    """What matters of a checkpoint before it is reshaped. Raises CheckpointError when it cannot be read."""
    stored = StoredWeights(checkpoint)
    kind = None
    if any(_OPTIMIZER in key for key in stored.keys()):  # noqa: SIM118 - it is no mapping
        metadata = stored.shared().get("content_metadata")
        kind = metadata.get("distrib_optim_sharding_type") if isinstance(metadata, dict) else None
        kind = kind if isinstance(kind, str) else "of a kind that is not said"
    table = "embedding.word_embeddings.weight"
    rows = stored.shape(table)[0] if table in stored else None
    return CheckpointContents(kind, len(stored.keys()), rows)


def reshape(source: Path, job: JobSpec, target: Path) -> dict[str, Any]:
    """Write the checkpoint in `source`, which is committed, as the checkpoint `target` for the layout of `job`.

    Tensors, and everything else that training goes on from, are the same bit for bit. Raises CheckpointError when it
    cannot be read.
    """
    commit = read_commit(source)
    if commit is None:
        raise CheckpointError(f"{source} has no commit.json that can be read", code="no_commit_marker")
    target.mkdir(parents=True)
    try:
        copy_tensors(StoredWeights(source), target, job.parallelism.tensor_model_parallel_size)
        if (source / "common.pt").exists():  # megatron-core 0.19 and later write an object instead, which is copied
            shutil.copyfile(source / "common.pt", target / "common.pt")
        save_config(CheckpointingConfig("torch_dist", 1), str(target))
        files = {file.name: file_record(file) for file in target.iterdir()}
        for name, content in _carried(source, commit.files, job).items():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_bytes(content)
            files[name] = file_record(target / name)
        sync_tree(target)
        # The layout stays that of the generators, which are those of the ranks that drew from them.
        details = {**commit.details, "config_hash": job.config_hash, "time": time.time(), "reshaped_from": str(source)}
        write_commit(
            target, iteration=commit.iteration, consumed_samples=commit.consumed_samples, files=files, **details
        )
        sync_folder(target)
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise
    return {"path": str(target), "iteration": commit.iteration, "bytes": sum(record.bytes for record in files.values())}


def _carried(source: Path, names: Mapping[str, Any], job: JobSpec) -> dict[str, bytes]:
    """The job as it is now, with the tokenizer that the source carries, else the one that the job names."""
    tokenizer = [name for name in names if name.startswith(f"{TOKENIZER_FOLDER}/")]
    if not tokenizer:
        return files_to_carry(job)
    return {JOB_FILE: dump_resolved(job).encode(), **{name: (source / name).read_bytes() for name in tokenizer}}


def copy_tensors(stored: Tensors, target: Path, parts: int, keep: Callable[[str], bool] = lambda key: True) -> None:
    """Write all tensors and objects of a checkpoint into a folder, matrices in as many parts as there are
    tensor-parallel ranks. Holds no more than one layer of one tensor at a time. `keep`: which keys.
    """
    entries: dict[str, Any] = {}
    items: list[WriteItem] = []
    for key in filter(keep, stored.objects()):
        entries[key] = BytesStorageMetadata()
        items.append(WriteItem(MetadataIndex(key), WriteItemType.BYTE_IO))
    for key in filter(keep, stored.keys()):
        size, properties = torch.Size(stored.shape(key)), TensorProperties(dtype=stored.dtype(key))
        chunks = list(_chunks(key, size, stored.places(key), parts))
        entries[key] = TensorStorageMetadata(properties, size, chunks)
        items += [
            WriteItem(
                MetadataIndex(key, chunk.offsets, number),
                WriteItemType.SHARD,
                tensor_data=TensorWriteData(chunk, properties, size),
            )
            for number, chunk in enumerate(chunks)
        ]
    writer = FileSystemWriter(target, thread_count=1)
    writer.set_up_storage_writer(is_coordinator=True)
    [plan] = writer.prepare_global_plan([writer.prepare_local_plan(SavePlan(items))])
    results = writer.write_data(plan, _Planner(stored, len(items))).wait()
    writer.finish(Metadata(entries), [results])


def _chunks(key: str, size: torch.Size, places: int, parts: int) -> Iterator[ChunkStorageMetadata]:
    """The parts of a tensor: single layers and experts, each cut for the ranks."""
    rest = size[places:]
    axis = _axis(key, len(rest))
    count = 1 if axis is None else _pieces(key, rest[axis], parts)
    for number in range(size[:places].numel()):
        place = _unravel(number, size[:places])
        for piece in range(count):
            offsets, sizes = [0] * len(rest), list(rest)
            if axis is not None:
                sizes[axis] = rest[axis] // count
                offsets[axis] = piece * sizes[axis]
            yield ChunkStorageMetadata(torch.Size([*place, *offsets]), torch.Size([*(1 for _ in place), *sizes]))


def _unravel(number: int, size: torch.Size) -> list[int]:
    place: list[int] = []
    for dimension in reversed(size):
        place.insert(0, number % dimension)
        number //= dimension
    return place


def _axis(key: str, dimensions: int) -> int | None:
    """The dimension, behind layers and experts, that tensor-parallel ranks share a weight by; None: they do not."""
    if key.endswith(_ROW_PARALLEL):
        return dimensions - 1
    return 0 if dimensions and not key.endswith(_WHOLE) and "position_embeddings" not in key else None


def _pieces(key: str, length: int, parts: int) -> int:
    """How many pieces make single ones for every rank: a gated MLP's first matrix holds two, one behind the other."""
    wanted = 2 * parts if "linear_fc1." in key and parts > 1 else parts
    return wanted if length % wanted == 0 else 1


class _Planner(DefaultSavePlanner):
    """Reads each part when torch's writer asks for it; those of one layer are read together."""

    def __init__(self, stored: Tensors, count: int) -> None:
        super().__init__()
        self._stored = stored
        self._progress = shown(range(count), count, "reshaping")
        self._read: tuple[str, tuple[int, ...]] | None = None
        self._layer = torch.empty(0)

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor | io.BytesIO:
        next(self._progress)
        key, data = write_item.index.fqn, write_item.tensor_data
        if data is None:
            return self._stored.read_object(key)
        places = self._stored.places(key)
        place = tuple(data.chunk.offsets[:places])
        if self._read != (key, place):
            self._layer = self._stored.read(key, place)
            self._read = key, place
        part = self._layer
        for dimension, (start, length) in enumerate(
            zip(data.chunk.offsets[places:], data.chunk.sizes[places:], strict=True)
        ):
            part = part.narrow(dimension, start, length)
        return part.reshape(data.chunk.sizes).contiguous()
