"""Checkpoints of Megatron-LM's `torch_dist` format, in and out: the same tensors under the same keys as ours. In also
those of its older format, which `torch_format` reads as if they were of this one.

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
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from megatron.core.dist_checkpointing.core import CheckpointingConfig, save_config

from orchestrator.conversion.megatron import bert_and_t5
from orchestrator.conversion.megatron.arguments import scheduler_state, to_arguments
from orchestrator.conversion.megatron.checkpoint_keys import (
    Source,
    find_sources,
    names_there,
    objects_there,
    stacked_object,
    wanted_tensors,
)
from orchestrator.conversion.megatron.optimizer import given_state, is_resumable, plain_state, taken_state
from orchestrator.conversion.megatron.renamed_weights import RenamedWeights
from orchestrator.conversion.megatron.split_weights import JoinedWeights, SplitWeights
from orchestrator.conversion.megatron.torch_format.names import WHOLE, is_of_ranks
from orchestrator.conversion.megatron.torch_format.weights import RankWeights
from orchestrator.conversion.reshaping import contents, copy_tensors
from orchestrator.conversion.staging import drafted, require_free
from orchestrator.conversion.tensors.stored_weights import StoredWeights
from orchestrator.conversion.weight_mapping import DECODER
from orchestrator.errors import CheckpointError, UserError
from orchestrator.planning.training_schedule.progress import progress_of
from orchestrator.run_directory.checkpoints.commit_markers import (
    CONTENT,
    MEGATRON_TRACKER,
    file_record,
    read_commit,
    write_commit,
)
from orchestrator.run_directory.rundir import sync_folder, sync_tree
from orchestrator.self_contained_checkpoints import files_to_carry
from orchestrator.spec.job import JobSpec

_TABLE = "embedding.word_embeddings.weight"
_OURS_ALONE = ("commit.json", "common.pt")
_SHOWN = 4
_SMALL = 1 << 20
"""Numbers in a weight that is read to compare it."""
_ROUNDING = 2.0**-7
_NO_WEIGHT = ("optimizer.", "chained_", "rng_state", "rng/", "rerun_state_machine", "common_state")
_PLAIN = (bool, int, float, str, type(None))
_CHECKPOINT_VERSION = 3.0


@dataclass(frozen=True)
class MegatronCheckpoint:
    """What a checkpoint of Megatron-LM says of itself, for the command."""

    arguments: dict[str, Any] | None
    """Those that are numbers, texts or lists of them; None where it carries none."""
    iteration: int
    consumed_samples: int | None
    optimizer: str | None
    """Format of the optimizer's state; None where it has none."""
    is_resumable: bool
    """Whether what it says of the optimizer beside the tensors is what training goes on from."""
    torn: str | None
    """A weight whose fp32 copy in the optimizer's state is another one: megatron-core 0.16.1 saves those of a stage
    shifted behind a tied output layer that does not fill its bucket."""
    rows: int | None
    """Of the embedding."""
    tensors: dict[str, tuple[int, ...]]
    """Shapes of weights and of the optimizer's state, by key."""
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
    found = _described(checkpoint, stored, shared, optimizer, unread)
    return asdict(replace(found, torn=next((key for key in found.tensors if _is_torn(stored, key)), None)))


def _described_ranks(checkpoint: Path) -> MegatronCheckpoint:
    """Of one in the older format."""
    stored = RankWeights(checkpoint)
    shared, unread = stored.shared(), None
    if "args" not in shared:
        sizes = ", ".join(f"{name} {size}" for name, size in stored.sizes().items())
        unread = f"{checkpoint} carries no arguments (its weights say {sizes}, and not the number of attention heads)"
    optimizer = None if stored.without_optimizer else WHOLE
    found = _described(checkpoint, stored, shared, optimizer, unread)
    return replace(found, left_behind=stored.without_optimizer)


def _described(
    checkpoint: Path,
    stored: StoredWeights | RankWeights,
    shared: dict[str, Any],
    optimizer: str | None,
    unread: str | None,
) -> MegatronCheckpoint:
    arguments = shared.get("args")
    plain = None
    if isinstance(arguments, argparse.Namespace):
        plain = {name: value for name, value in vars(arguments).items() if _is_plain(value)}
    consumed = (plain or {}).get("consumed_train_samples")
    keys = [key for key in stored.keys() if _is_weight(key)]  # noqa: SIM118 - it is no mapping
    if not keys:
        raise CheckpointError(f"{checkpoint} has no weights", code="checkpoint_without_weights")
    joined = JoinedWeights(stored, None)
    narrow = {torch.bfloat16: "bf16", torch.float16: "fp16"}
    iteration = shared.get("iteration", 0)
    return MegatronCheckpoint(
        arguments=plain,
        iteration=iteration if isinstance(iteration, int) else 0,
        consumed_samples=consumed if isinstance(consumed, int) else None,
        optimizer=optimizer,
        is_resumable=is_resumable(shared.get("optimizer")),
        torn=None,
        rows=stored.shape(_TABLE)[0] if _TABLE in stored else None,
        tensors={key: joined.shape(key) for key in joined.keys() if _is_kept(key)},  # noqa: SIM118
        dtype=narrow.get(stored.dtype(keys[0]), "fp32"),
        kinds=sorted({key.partition(".")[0] for key in keys}),
        left_behind=None,
        unread=unread,
    )


def _is_torn(stored: StoredWeights, key: str) -> bool:
    """Of a small weight, as norms and biases are, whether its copy is more than a rounding away."""
    copy = f"optimizer.state.param.{key}"
    if copy not in stored or math.prod(stored.shape(key)) > _SMALL or stored.shape(copy) != stored.shape(key):
        return False
    weight, kept = stored.read(key, ()).float(), stored.read(copy, ()).float()
    return not torch.allclose(weight, kept, rtol=_ROUNDING, atol=1e-6)


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(isinstance(item, _PLAIN) for item in value)
    return isinstance(value, _PLAIN)


def _is_weight(key: str) -> bool:
    return not key.startswith(_NO_WEIGHT)


def import_megatron(source: Path, job: JobSpec, target: Path, *, with_optimizer: bool) -> dict[str, Any]:
    """Write a checkpoint of Megatron-LM as the committed checkpoint `target` of a job: its weights, and with the
    optimizer the point of the training that it is of as well. Raises CheckpointError when it cannot be read.
    """
    stored = RankWeights(source, job) if is_of_ranks(source) else StoredWeights(source)
    found = MegatronCheckpoint(**describe(source))
    assert found.rows is not None, "the command has looked"
    is_plain = not job.parallelism.use_distributed_optimizer
    wanted = wanted_tensors(job, found.rows, with_optimizer=with_optimizer and not is_plain)
    sources, missing = find_sources(wanted, found.tensors)
    if missing:
        raise CheckpointError(
            f"{source} has no {', '.join(missing[:_SHOWN])} of the shape that the job describes", code="missing_tensors"
        )
    if with_optimizer and is_plain:  # of the older format alone, which is read as the job's optimizer has it
        sources |= {key: (Source(key),) for key in stored.keys() if not _is_weight(key)}  # noqa: SIM118
    iteration = found.iteration if with_optimizer else 0
    consumed = found.consumed_samples if found.consumed_samples is not None else iteration * job.global_batch_size
    consumed = consumed if with_optimizer else 0
    common: dict[str, Any] = {}
    if with_optimizer:
        taken = taken_state(stored.shared()["optimizer"], job)
        common = {
            "optimizer": plain_state(taken, job) if is_plain else taken,
            "content_metadata": CONTENT,
            "train_state": {"iteration": iteration, "consumed_samples": consumed, "skipped_steps": 0},
        }
    names = {key: key for key in stored.objects() if _is_weight(key) and not bert_and_t5.is_copy(key)}
    if not any(key.startswith(f"{DECODER}0.") for key in wanted):
        names = {stacked_object(key, job.model.num_layers): key for key in names}
    target.mkdir(parents=True)
    try:
        parts = job.parallelism.tensor_model_parallel_size
        copy_tensors(RenamedWeights(JoinedWeights(stored, job.model), sources, names), target, parts)
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


def _is_kept(key: str) -> bool:
    return _is_weight(key) or key.startswith(("optimizer.", "chained_"))


def export_megatron(checkpoint: Path, job: JobSpec, target: Path) -> dict[str, Any]:
    """Write a committed checkpoint of ours as the folder `target`, which appears when it is complete, for Megatron-LM's
    --load. Raises CheckpointError when it cannot be read, UserError when `target` exists.
    """
    require_free(target)
    if job.model.attention_plugin is not None:
        raise UserError(
            f"Megatron-LM has no attention {job.model.attention_plugin} (model.attention_plugin)",
            code="attention_not_in_megatron",
        )
    commit = read_commit(checkpoint)
    if commit is None:
        raise CheckpointError(f"{checkpoint} has no commit.json that can be read", code="no_commit_marker")
    stored = StoredWeights(checkpoint)
    if _TABLE not in stored:
        raise CheckpointError(
            f"{checkpoint} has no {_TABLE}: it does not hold the model that its job describes",
            code="checkpoint_without_model",
        )
    where = {"iteration": commit.iteration, "consumed_samples": commit.consumed_samples}
    arguments = to_arguments(job, **where, padded_vocab=stored.shape(_TABLE)[0])
    shared = stored.shared()
    common: dict[str, Any] = {
        "args": argparse.Namespace(**arguments),
        "checkpoint_version": _CHECKPOINT_VERSION,
        "iteration": commit.iteration,
        "num_floating_point_operations_so_far": 0.0,
        "content_metadata": CONTENT,
    }
    if (
        "optimizer" in shared and not job.optimizer.kind.orthogonalizes
    ):  # Muon, whose state Megatron-LM keeps in another form
        common |= {
            "optimizer": given_state(shared["optimizer"], job),
            "opt_param_scheduler": scheduler_state(job, progress_of(commit, job)),
        }
    else:
        common["args"].no_save_optim = True
    with drafted(target) as draft:
        folder = draft / f"iter_{commit.iteration:07d}"
        folder.mkdir()
        _copy(checkpoint, commit.files, job, folder)
        torch.save(common, folder / "common.pt")
        (draft / MEGATRON_TRACKER).write_text(str(commit.iteration))
    written = [file for file in target.rglob("*") if file.is_file()]
    size = sum(file.stat().st_size for file in written)
    return {"path": str(target), "family": "Megatron-LM", "files": len(written), "bytes": size}


def _copy(checkpoint: Path, files: Iterable[str], job: JobSpec, target: Path) -> None:
    """Write the tensors as Megatron-LM names them: as they are, where it names them as they are."""
    stored = SplitWeights(StoredWeights(checkpoint), job.model)
    shapes = {key: stored.shape(key) for key in stored.keys() if _is_kept(key)}  # noqa: SIM118 - it is no mapping
    sources = names_there(shapes, job.model, local=job.runtime.layers == "torch")
    if sources.keys() == shapes.keys() and not stored.has_others:
        for name in files:
            if name not in _OURS_ALONE and "/" not in name:
                shutil.copyfile(checkpoint / name, target / name)
        return
    objects = objects_there(list(filter(_is_weight, stored.objects())), job.model)
    parts = job.parallelism.tensor_model_parallel_size
    copy_tensors(RenamedWeights(stored, sources, objects), target, parts)
    save_config(CheckpointingConfig("torch_dist", 1), str(target))
