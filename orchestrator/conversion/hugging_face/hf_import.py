"""The weights of a Hugging Face folder as a committed checkpoint, a tensor at a time."""

from __future__ import annotations

import functools
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from megatron.core.dist_checkpointing.core import CheckpointingConfig, save_config

from orchestrator.conversion.hugging_face.config_json import read_config
from orchestrator.conversion.hugging_face.config_keys import fp8_block
from orchestrator.conversion.hugging_face.transforms import TRANSFORMS
from orchestrator.conversion.progress import progress
from orchestrator.conversion.shapes import shape_of, shapes_of_weight
from orchestrator.conversion.staging import require_room
from orchestrator.conversion.tensors.safetensors_reader import PublishedWeights
from orchestrator.conversion.tensors.tensor_writer import TensorPart, write_tensors
from orchestrator.conversion.weight_mapping import FURTHER, Family, Weight, stack_of
from orchestrator.errors import UserError
from orchestrator.planning.vocabulary import Vocabulary, vocabulary
from orchestrator.run_directory.checkpoints.commit_markers import file_record, write_commit
from orchestrator.run_directory.rundir import sync_file, sync_folder
from orchestrator.self_contained_checkpoints import files_to_carry
from orchestrator.spec.job import JobSpec
from orchestrator.spec.model import ModelSpec


def import_weights(source: Path, job: JobSpec, family: Family, target: Path, threads: int) -> dict[str, Any]:
    """Write the weights in `source`, which are of the family and of the job's model, as the checkpoint `target` of
    iteration 0, committed last; says what was written.

    Raises UserError when the files are damaged or hold something else, OSError when there is no room.
    """
    words = vocabulary(job)
    published = PublishedWeights(source, family, fp8_block(read_config(source)))
    weights = list(family.weights(job.model))
    left_out = sorted(name for name in published if family.leaves_out(name, job.model))
    published.check(_their_shapes(weights, job.model, words), ignored=(*family.copies_of(job.model), *left_out))
    check_copies(published, weights)
    check_further_copies(published, job.model)
    parts = _parts(published, weights, job.model, words)
    carried = files_to_carry(job)
    total = sum(part.bytes for part in parts)
    require_room(target, total)
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    try:
        with progress(total, "importing") as advance:
            files = dict(write_tensors(target, parts, _objects(weights), threads, advance))
        torch.save({}, target / "common.pt")
        save_config(CheckpointingConfig("torch_dist", 1), str(target))
        for name, content in carried.items():
            (target / name).parent.mkdir(exist_ok=True)
            (target / name).write_bytes(content)
        for path in target.rglob("*"):
            name = str(path.relative_to(target))
            if path.is_file() and name not in files:
                sync_file(path)
                files[name] = file_record(path)
        sync_folder(target)
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
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise
    size = sum(record.bytes for record in files.values())
    return {"path": str(target), "family": family.name, "bytes": size, "left_out": left_out}


def check_copies(published: PublishedWeights, weights: list[Weight]) -> None:
    """Raises UserError where an output layer is stored that is not the embedding, which it is said to be."""
    used = {name for weight in weights for name in weight.theirs}
    for name, of in published.family.copies.items():
        if name in published and name not in used and not torch.equal(published.read(name), published.read(of)):
            raise UserError(
                f"config.json says tie_word_embeddings: true, and {name} is not {of}: "
                "write false there if the output layer has weights of its own",
                code="tied_weights_differ",
            )


def check_further_copies(published: PublishedWeights, model: ModelSpec) -> None:
    """Raises UserError where a layer that predicts further tokens has tables of its own."""
    for name, of in published.family.further_copies_of(model).items():
        if name in published and not torch.equal(published.read(name), published.read(of)):
            raise UserError(
                f"{name} is not {of}, and such a layer has no table of its own in this version: leave out "
                "model.mtp_num_layers",
                code="further_tables_differ",
            )


def _their_shapes(weights: list[Weight], model: ModelSpec, words: Vocabulary) -> dict[str, tuple[int, ...]]:
    shapes = {}
    for weight in weights:
        whole = torch.empty(shape_of(weight.rule.ours, model, words.size), device="meta")
        parts = TRANSFORMS[weight.rule.transform].to_theirs(whole, model, words.size)
        named = zip(weight.theirs, parts, strict=True)
        shapes.update({name: (*weight.stacked, *part.shape) for name, part in named})
    return shapes


def _parts(
    published: PublishedWeights, weights: list[Weight], model: ModelSpec, words: Vocabulary
) -> tuple[TensorPart, ...]:
    """All tensors, each made of what is read when it is written."""
    dtypes = _dtypes(published, weights)

    def parts(weight: Weight) -> Iterator[TensorPart]:
        dtype, first = dtypes[weight.rule.ours], 0
        for key, shape in shapes_of_weight(weight, model, words.padded_size).items():
            yield TensorPart(
                key, weight.place, weight.within, shape, dtype, functools.partial(make, weight, first, shape[0])
            )
            first += shape[0]

    def make(weight: Weight, first: int, rows: int) -> torch.Tensor:
        at = weight.place[-1] if weight.rule.stacked else None
        theirs = [published.read(name, at) for name in weight.theirs]
        tensor = TRANSFORMS[weight.rule.transform].to_ours(theirs, model, words.padded_size)
        return tensor.narrow(0, first, rows).to(dtypes[weight.rule.ours]).contiguous()

    return tuple(part for weight in weights for part in parts(weight))


def _dtypes(published: PublishedWeights, weights: list[Weight]) -> dict[str, torch.dtype]:
    """Of each key the narrowest that holds all that becomes it: those of all layers are one tensor."""
    found: dict[str, torch.dtype] = {}
    for weight in weights:
        for name in weight.theirs:
            key, dtype = weight.rule.ours, published.dtype(name)
            found[key] = torch.promote_types(found.get(key, dtype), dtype)
    return found


def _objects(weights: list[Weight]) -> list[str]:
    """What megatron-core keeps for FP8, beside the weights of a layer's modules, of the two matrices behind images, of
    the last norm and of the output.
    """
    found = ["output_layer._extra_state/shard_0_1"]
    for weight in weights:
        module = weight.rule.ours.rpartition(".")[0]
        if weight.within:
            numbers = (".".join(map(str, indices)) for indices in (weight.place, weight.within))
            found.append(f"{module}._extra_state/shard_{'_'.join(numbers)}")
        elif (
            stack_of(module)
            or module.startswith(FURTHER)
            or module.endswith(("final_layernorm", "projector.linear_fc1", "projector.linear_fc2"))
        ):
            found.append(f"{module}._extra_state/shard_0_1")
    return list(dict.fromkeys(found))
