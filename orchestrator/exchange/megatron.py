"""Checkpoints of Megatron-LM's `torch_dist` format, in and out: the same tensors under the same keys as ours.

DIR/latest_checkpointed_iteration.txt    500
DIR/iter_0000500/                        .metadata, *.distcp, metadata.json
                 common.pt               args, iteration, checkpoint_version, optimizer (without its tensors),
                                         opt_param_scheduler, num_floating_point_operations_so_far
"""

from __future__ import annotations

import argparse
import math
import shutil
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from megatron.core.dist_checkpointing.core import CheckpointingConfig, save_config

from orchestrator.checkpoints import MEGATRON_TRACKER, file_record, read_commit, write_commit
from orchestrator.errors import CheckpointError
from orchestrator.exchange.drafts import drafted, require_free
from orchestrator.exchange.megatron_arguments import scheduler_state, to_arguments
from orchestrator.exchange.reading import StoredWeights
from orchestrator.exchange.reshaping import contents, copy_tensors
from orchestrator.exchange.torch_format.names import WHOLE, is_of_ranks
from orchestrator.exchange.torch_format.weights import RankWeights
from orchestrator.planning.progress import progress_of
from orchestrator.portable import files_to_carry
from orchestrator.rundir import sync_folder, sync_tree
from orchestrator.spec.job import JobSpec

_TABLE = "embedding.word_embeddings.weight"
_OURS_ALONE = ("commit.json", "common.pt")
_NO_WEIGHT = ("optimizer.", "chained_", "rng_state", "rerun_state_machine", "common_state")
_PLAIN = (bool, int, float, str, type(None))
_CHECKPOINT_VERSION = 3.0


@dataclass(frozen=True)
class Described:
    """What a checkpoint of Megatron-LM says of itself, for the command."""

    arguments: dict[str, Any] | None
    """Those that are numbers, texts or lists of them; None where it carries none."""
    iteration: int
    consumed_samples: int | None
    optimizer: str | None
    """Format of the optimizer's state; None where it has none."""
    rows: int | None
    """Of the embedding."""
    weights: int
    """Numbers in all weights."""
    dtype: str
    """Of the weights: bf16, fp16 or fp32."""
    kinds: list[str]
    """First parts of its keys: decoder, embedding, …"""
    left_behind: str | None
    """Why its optimizer's state cannot be taken over, where that is known."""
    unread: str | None
    """Why what it says beside its tensors is not read: it names classes that are not known here, or worse."""


def describe(checkpoint: Path) -> dict[str, Any]:
    """Raises CheckpointError when it is no such checkpoint."""
    if is_of_ranks(checkpoint):
        return asdict(_described_ranks(checkpoint))
    stored, unread = StoredWeights(checkpoint), None
    try:
        shared = stored.shared()
    except CheckpointError as error:
        shared, unread = {}, str(error)
    optimizer = contents(checkpoint).optimizer if isinstance(shared.get("optimizer"), dict) else None
    return asdict(_described(checkpoint, stored, shared, optimizer, None, unread))


def _described_ranks(checkpoint: Path) -> Described:
    """Of one in the older format."""
    stored = RankWeights(checkpoint)
    shared, unread = stored.shared(), None
    if "args" not in shared:
        sizes = ", ".join(f"{name} {size}" for name, size in stored.sizes().items())
        unread = f"{checkpoint} carries no arguments (its weights say {sizes}, and not the number of attention heads)"
    optimizer = None if stored.without_optimizer else WHOLE
    return _described(checkpoint, stored, shared, optimizer, stored.without_optimizer, unread)


def _described(
    checkpoint: Path,
    stored: StoredWeights | RankWeights,
    shared: dict[str, Any],
    optimizer: str | None,
    left_behind: str | None,
    unread: str | None,
) -> Described:
    arguments = shared.get("args")
    plain = None
    if isinstance(arguments, argparse.Namespace):
        plain = {name: value for name, value in vars(arguments).items() if _is_plain(value)}
    consumed = (plain or {}).get("consumed_train_samples")
    keys = [key for key in stored.keys() if _is_weight(key)]  # noqa: SIM118 - it is no mapping
    if not keys:
        raise CheckpointError(f"{checkpoint} has no weights")
    narrow = {torch.bfloat16: "bf16", torch.float16: "fp16"}
    iteration = shared.get("iteration", 0)
    return Described(
        arguments=plain,
        iteration=iteration if isinstance(iteration, int) else 0,
        consumed_samples=consumed if isinstance(consumed, int) else None,
        optimizer=optimizer,
        rows=stored.shape(_TABLE)[0] if _TABLE in stored else None,
        weights=sum(math.prod(stored.shape(key)) for key in keys),
        dtype=narrow.get(stored.dtype(keys[0]), "fp32"),
        kinds=sorted({key.partition(".")[0] for key in keys}),
        left_behind=left_behind,
        unread=unread,
    )


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(isinstance(item, _PLAIN) for item in value)
    return isinstance(value, _PLAIN)


def _is_weight(key: str) -> bool:
    return not key.startswith(_NO_WEIGHT)


def import_megatron(source: Path, job: JobSpec, target: Path, *, with_optimizer: bool) -> dict[str, Any]:
    """Write a checkpoint of Megatron-LM as the committed checkpoint `target` of a job: its weights, and with the
    optimizer the point of the training that it is of as well. Raises CheckpointError when it cannot be read.
    """
    stored = RankWeights(source, job) if is_of_ranks(source) else StoredWeights(source)
    found = Described(**describe(source))
    iteration = found.iteration if with_optimizer else 0
    consumed = found.consumed_samples if found.consumed_samples is not None else iteration * job.global_batch_size
    consumed = consumed if with_optimizer else 0
    common: dict[str, Any] = {}
    if with_optimizer:
        shared = stored.shared()
        common = {
            "optimizer": shared["optimizer"],
            "content_metadata": shared.get("content_metadata"),
            "train_state": {"iteration": iteration, "consumed_samples": consumed, "skipped_steps": 0},
        }
    target.mkdir(parents=True)
    try:
        parts = job.parallelism.tensor_model_parallel_size
        copy_tensors(stored, target, parts, keep=lambda key: _is_kept(key, with_optimizer))
        torch.save(common, target / "common.pt")
        save_config(CheckpointingConfig("torch_dist", 1), str(target))
        for name, content in files_to_carry(job).items():
            (target / name).parent.mkdir(exist_ok=True)
            (target / name).write_bytes(content)
        files = {str(file.relative_to(target)): file_record(file) for file in target.rglob("*") if file.is_file()}
        sync_tree(target)
        write_commit(
            target,
            iteration=iteration,
            consumed_samples=consumed,
            files=files,
            config_hash=job.config_hash,
            time=time.time(),
            imported_from=str(source),
            family="Megatron-LM",
        )
        sync_folder(target)
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise
    return {"path": str(target), "iteration": iteration, "bytes": sum(record.bytes for record in files.values())}


def _is_kept(key: str, with_optimizer: bool) -> bool:
    return _is_weight(key) or (with_optimizer and key.startswith(("optimizer.", "chained_")))


def export_megatron(checkpoint: Path, job: JobSpec, target: Path) -> dict[str, Any]:
    """Write a committed checkpoint of ours as the folder `target`, which appears when it is whole, for Megatron-LM's
    --load. Raises CheckpointError when it cannot be read, UserError when `target` exists.
    """
    require_free(target)
    commit = read_commit(checkpoint)
    if commit is None:
        raise CheckpointError(f"{checkpoint} has no commit.json that can be read")
    stored = StoredWeights(checkpoint)
    if _TABLE not in stored:
        raise CheckpointError(f"{checkpoint} has no {_TABLE}: it does not hold the model that its job describes")
    where = {"iteration": commit.iteration, "consumed_samples": commit.consumed_samples}
    arguments = to_arguments(job, **where, padded_vocab=stored.shape(_TABLE)[0])
    shared = stored.shared()
    common: dict[str, Any] = {
        "args": argparse.Namespace(**arguments),
        "checkpoint_version": _CHECKPOINT_VERSION,
        "iteration": commit.iteration,
        "num_floating_point_operations_so_far": 0.0,
        "content_metadata": shared.get("content_metadata", {}),
    }
    if "optimizer" in shared:
        common |= {
            "optimizer": shared["optimizer"],
            "opt_param_scheduler": scheduler_state(job, progress_of(commit, job)),
        }
    else:
        common["args"].no_save_optim = True
    with drafted(target) as draft:
        folder = draft / f"iter_{commit.iteration:07d}"
        folder.mkdir()
        for name in commit.files:
            if name not in _OURS_ALONE and "/" not in name:
                shutil.copyfile(checkpoint / name, folder / name)
        torch.save(common, folder / "common.pt")
        (draft / MEGATRON_TRACKER).write_text(str(commit.iteration))
    written = [file for file in target.rglob("*") if file.is_file()]
    size = sum(file.stat().st_size for file in written)
    return {"path": str(target), "family": "Megatron-LM", "files": len(written), "bytes": size}
