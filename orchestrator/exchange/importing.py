"""The weights of a Hugging Face folder as a committed checkpoint, a tensor at a time."""

from __future__ import annotations

import io
import shutil
import time
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

from orchestrator.checkpoints import file_record, write_commit
from orchestrator.errors import UserError
from orchestrator.exchange.progress import shown
from orchestrator.exchange.published import PublishedWeights
from orchestrator.exchange.shapes import shape_of
from orchestrator.exchange.table import Family, Weight
from orchestrator.exchange.transforms import TRANSFORMS
from orchestrator.planning.vocabulary import Vocabulary, vocabulary
from orchestrator.portable import files_to_carry
from orchestrator.rundir import sync_folder
from orchestrator.spec.job import JobSpec
from orchestrator.spec.model import ModelSpec


def import_weights(source: Path, job: JobSpec, family: Family, target: Path) -> dict[str, Any]:
    """Write the weights in `source`, which are of the family and of the job's model, as the checkpoint `target` of
    iteration 0, committed last; says what was written.

    Raises UserError when the files are damaged or hold something else.
    """
    words = vocabulary(job)
    with PublishedWeights(source, family) as published:
        weights = list(family.weights(job.model))
        published.check(_their_shapes(weights, job.model, words), ignored=tuple(family.copies))
        _check_copies(published, weights)
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        try:
            _write(published, weights, job.model, words, target)
            torch.save({}, target / "common.pt")
            save_config(CheckpointingConfig("torch_dist", 1), str(target))
            carried = files_to_carry(job)
            for name, content in carried.items():
                (target / name).parent.mkdir(exist_ok=True)
                (target / name).write_bytes(content)
            names = {*carried, *(file.name for file in target.iterdir() if file.is_file())}
            files = {name: file_record(target / name) for name in names}
            write_commit(
                target,
                iteration=0,
                consumed_samples=0,
                files=files,
                config_hash=job.config_hash,
                time=time.time(),
                imported_from=str(source),
                family=family.name,
            )
            sync_folder(target)
        except BaseException:
            shutil.rmtree(target, ignore_errors=True)
            raise
    return {"path": str(target), "family": family.name, "bytes": sum(record.bytes for record in files.values())}


def _check_copies(published: PublishedWeights, weights: list[Weight]) -> None:
    """Raises UserError where an output layer is stored that is not the embedding, which it is said to be."""
    used = {name for weight in weights for name in weight.theirs}
    for name, of in published.family.copies.items():
        if name in published and name not in used and not torch.equal(published.read(name), published.read(of)):
            raise UserError(
                f"config.json says tie_word_embeddings: true, and {name} is not {of}: "
                "write false there if the output layer has weights of its own"
            )


def _their_shapes(weights: list[Weight], model: ModelSpec, words: Vocabulary) -> dict[str, tuple[int, ...]]:
    shapes = {}
    for weight in weights:
        whole = torch.empty(shape_of(weight.rule.ours, model, words.size), device="meta")
        parts = TRANSFORMS[weight.rule.transform].to_theirs(whole, model, words.size)
        shapes.update({name: tuple(part.shape) for name, part in zip(weight.theirs, parts, strict=True)})
    return shapes


def _write(
    published: PublishedWeights, weights: list[Weight], model: ModelSpec, words: Vocabulary, target: Path
) -> None:
    """All tensors, in megatron-core's distributed format, each read when it is written."""
    entries: dict[str, Any] = {}
    items: list[WriteItem] = []
    of_index: dict[MetadataIndex, Weight] = {}
    dtypes = _dtypes(published, weights)
    for weight in weights:
        key, shape = weight.rule.ours, shape_of(weight.rule.ours, model, words.padded_size)
        properties = TensorProperties(dtype=dtypes[key])
        offsets = torch.Size([*weight.place, *(0 for _ in shape)])
        chunk = ChunkStorageMetadata(offsets, torch.Size([*(1 for _ in weight.place), *shape]))
        entry = entries.setdefault(key, TensorStorageMetadata(properties, torch.Size([*weight.within, *shape]), []))
        entry.chunks.append(chunk)
        index = MetadataIndex(key, offsets)
        of_index[index] = weight
        items.append(WriteItem(index, WriteItemType.SHARD, tensor_data=TensorWriteData(chunk, properties, entry.size)))
    for key in _objects(weights):
        entries[key] = BytesStorageMetadata()
        items.append(WriteItem(MetadataIndex(key), WriteItemType.BYTE_IO))
    planner = _Planner(published, of_index, dtypes, model, words.padded_size)
    writer = FileSystemWriter(target, thread_count=1)
    writer.set_up_storage_writer(is_coordinator=True)
    [plan] = writer.prepare_global_plan([writer.prepare_local_plan(SavePlan(items))])
    results = writer.write_data(plan, planner).wait()
    writer.finish(Metadata(entries), [results])


def _dtypes(published: PublishedWeights, weights: list[Weight]) -> dict[str, torch.dtype]:
    """Of each key the narrowest that holds all that becomes it: those of all layers are one tensor."""
    found: dict[str, torch.dtype] = {}
    for weight in weights:
        for name in weight.theirs:
            key, dtype = weight.rule.ours, published.dtype(name)
            found[key] = torch.promote_types(found.get(key, dtype), dtype)
    return found


def _objects(weights: list[Weight]) -> list[str]:
    """What megatron-core keeps for FP8, beside the weights of a layer's modules, of the last norm and of the output."""
    found = ["output_layer._extra_state/shard_0_1"]
    for weight in weights:
        module = weight.rule.ours.rpartition(".")[0]
        if weight.within:
            numbers = (".".join(map(str, indices)) for indices in (weight.place, weight.within))
            found.append(f"{module}._extra_state/shard_{'_'.join(numbers)}")
        elif module.endswith("final_layernorm"):
            found.append(f"{module}._extra_state/shard_0_1")
    return list(dict.fromkeys(found))


class _Planner(DefaultSavePlanner):
    """Makes each tensor when torch's writer asks for it."""

    def __init__(
        self,
        published: PublishedWeights,
        weights: dict[MetadataIndex, Weight],
        dtypes: dict[str, torch.dtype],
        model: ModelSpec,
        rows: int,
    ) -> None:
        super().__init__()
        self._published, self._weights, self._dtypes = published, weights, dtypes
        self._model, self._rows = model, rows
        self._progress = shown(weights, len(weights), "importing")

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor | io.BytesIO:
        if write_item.type == WriteItemType.BYTE_IO:
            nothing = io.BytesIO()
            torch.save([None], nothing)
            return nothing
        next(self._progress)
        weight = self._weights[write_item.index]
        parts = [self._published.read(name) for name in weight.theirs]
        tensor = TRANSFORMS[weight.rule.transform].to_ours(parts, self._model, self._rows)
        tensor = tensor.to(self._dtypes[weight.rule.ours]).contiguous()
        return tensor[(None,) * len(weight.place)]
