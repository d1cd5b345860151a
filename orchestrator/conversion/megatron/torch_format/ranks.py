"""The files of all ranks of a checkpoint, which have to be of one training at one time."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from orchestrator.conversion.megatron.arguments import SAME
from orchestrator.conversion.megatron.torch_format.names import RANK_FOLDERS, is_weight
from orchestrator.conversion.megatron.torch_format.pickles import read_pickle
from orchestrator.errors import UserError

_FOLDER = re.compile(r"mp_rank_(\d+)(?:_(\d+))?(_\d+)?")
_DEEPEST = 20
_SIMPLE = (bool, int, float, str, torch.dtype, type(None))
_FILES = ("model_optim_rng.pt", "model_rng.pt")
_SIZES = {
    "TP": ("tensor_model_parallel_size", "model_parallel_size", "intra_layer_model_parallel_size"),
    "PP": ("pipeline_model_parallel_size", "inter_layer_model_parallel_size"),
}
"""What arguments say of the layout, under the names that they have had."""
_COMPARED = (
    *SAME,
    "max_position_embeddings",
    "padded_vocab_size",
    "params_dtype",
    *(name for names in _SIZES.values() for name in names),
)
_CONVERT = "have Megatron-LM write it as torch_dist (--ckpt-convert-format torch_dist) and import that"


@dataclass(frozen=True)
class Rank:
    """What the file of one rank holds."""

    path: Path
    chunks: list[dict[str, torch.Tensor]]
    """The weights of each chunk of its stage by their names, in the order of the model's parameters."""
    arguments: dict[str, Any] | None
    version: float
    """Which order queries, keys and values have."""
    iteration: int
    optimizer: Any


@dataclass(frozen=True)
class RankGrid:
    """The ranks of a checkpoint, `ranks[stage][tensor-parallel rank]`; all have the same version and iteration."""

    folder: Path
    ranks: list[list[Rank]]

    @property
    def first(self) -> Rank:
        return self.ranks[0][0]

    @property
    def tensor_parallel(self) -> int:
        return len(self.ranks[0])

    def in_order(self) -> Iterator[tuple[int, int]]:
        """Stages and their chunks as the network runs through them."""
        for chunk in range(len(self.first.chunks)):
            for stage in range(len(self.ranks)):
                yield stage, chunk


def read_ranks(folder: Path) -> RankGrid:
    """Raises UserError when files are missing or damaged, or are not of one training at one time."""
    paths = _paths(folder)
    stages, parts = (1 + max(place[axis] for place in paths) for axis in (0, 1))
    if missing := [place for stage in range(stages) for part in range(parts) if (place := (stage, part)) not in paths]:
        raise UserError(
            f"{folder} lacks the files of {len(missing)} ranks: {_named(missing[0])}; copy them there too",
            code="missing_rank_files",
        )
    grid = RankGrid(folder, [[_read(paths[stage, part]) for part in range(parts)] for stage in range(stages)])
    _check_layout(grid)
    for row in grid.ranks:
        for rank in row:
            _check_agreement(grid.first, rank)
    return grid


def _paths(folder: Path) -> dict[tuple[int, int], Path]:
    """The file of each stage and tensor-parallel rank."""
    found: dict[tuple[int, int], Path] = {}
    for place in sorted(folder.glob(RANK_FOLDERS)):
        path = next((place / name for name in _FILES if (place / name).is_file()), None)
        match = _FOLDER.fullmatch(place.name)
        if match is None or path is None:
            continue  # the distributed optimizer had folders of its own
        if match[3]:
            raise UserError(
                f"{place} is of a rank of expert parallelism, and such checkpoints are not imported: {_CONVERT}",
                code="expert_parallel_checkpoint",
            )
        index = int(match[2] or 0), int(match[1])
        if index in found:
            raise UserError(
                f"{found[index].parent} and {place} are of the same rank: leave one of them there",
                code="duplicate_rank_files",
            )
        found[index] = path
    if not found:
        raise UserError(
            f"{folder} has no {RANK_FOLDERS}/{_FILES[0]}: it is no checkpoint of Megatron-LM's older format",
            code="not_a_megatron_checkpoint",
        )
    return found


def _named(place: tuple[int, int]) -> str:
    return f"tensor-parallel rank {place[1]} of pipeline stage {place[0]} is not there"


def _read(path: Path) -> Rank:
    content = read_pickle(path)
    names = [name for name in content if re.fullmatch(r"model\d*", str(name))]
    chunks = [dict(_flat(content[name], "", path)) for name in sorted(names, key=lambda name: (len(name), name))]
    if not any(chunks):
        raise UserError(f"{path} is no checkpoint of Megatron-LM: it has no model", code="checkpoint_without_model")
    arguments = content.get("args")
    version, iteration = content.get("checkpoint_version", 0), content.get("iteration", content.get("total_iters", 0))
    if not isinstance(version, int | float) or not isinstance(iteration, int):
        raise UserError(
            f"{path} does not say its checkpoint_version and its iteration as numbers",
            code="missing_checkpoint_version",
        )
    return Rank(
        path=path,
        chunks=chunks,
        arguments=dict(vars(arguments)) if isinstance(arguments, argparse.Namespace) else None,
        version=float(version),
        iteration=iteration,
        optimizer=content.get("optimizer"),
    )


def _flat(state: Any, name: str, path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """The weights of nested states, by names that are joined with points."""
    if name.count(".") > _DEEPEST:
        raise UserError(f"{path} has a model that is nested without end: {name[:80]} …", code="nested_too_deep")
    if isinstance(state, Mapping):
        for key, value in state.items():
            yield from _flat(value, f"{name}.{key}" if name else str(key), path)
    elif is_weight(name):
        if not isinstance(state, torch.Tensor) or not state.is_floating_point():
            raise UserError(f"{path} has no numbers for {name or 'its model'}", code="tensor_not_numeric")
        yield name, state.detach()


def _check_layout(grid: RankGrid) -> None:
    """That there are as many ranks as the arguments say."""
    said = grid.first.arguments or {}
    if said.get("expert_model_parallel_size") not in (None, 0, 1):
        raise UserError(
            f"{grid.folder} was written with expert parallelism, and such checkpoints are not imported: {_CONVERT}",
            code="expert_parallel_checkpoint",
        )
    for axis, there in (("TP", grid.tensor_parallel), ("PP", len(grid.ranks))):
        wanted = next((said[name] for name in _SIZES[axis] if isinstance(said.get(name), int)), there)
        if wanted != there:
            raise UserError(
                f"{grid.folder} was written at {axis} {wanted}, and has the files of {there}: "
                "copy the others there too",
                code="incomplete_rank_grid",
            )


def _check_agreement(first: Rank, rank: Rank) -> None:
    one, other = _said(first), _said(rank)
    for name in one.keys() | other.keys():
        if one.get(name) != other.get(name):
            raise UserError(
                f"{first.path} and {rank.path} are not of one checkpoint: {name} is {one.get(name)} there and "
                f"{other.get(name)} here; copy the whole checkpoint again",
                code="ranks_of_different_checkpoints",
            )
    if len(first.chunks) != len(rank.chunks):
        raise UserError(
            f"{first.path} has {len(first.chunks)} chunks of the model, and {rank.path} {len(rank.chunks)}",
            code="model_chunks_differ",
        )


def _said(rank: Rank) -> dict[str, Any]:
    """What is the same in the files of all ranks."""
    arguments = rank.arguments or {}
    return {
        "checkpoint_version": rank.version,
        "iteration": rank.iteration,
        **{name: arguments[name] for name in _COMPARED if isinstance(arguments.get(name, ...), _SIMPLE)},
    }
