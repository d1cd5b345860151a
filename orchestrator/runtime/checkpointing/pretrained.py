"""Starting from the weights of another run's checkpoint, with everything else fresh."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from orchestrator.errors import CheckpointError, UserError
from orchestrator.planning.vocabulary import Vocabulary, vocabulary
from orchestrator.run_directory.checkpoints.commit_markers import Commit, read_commit
from orchestrator.run_directory.checkpoints.pretrained import find_weights
from orchestrator.run_directory.events.types import Pretrained
from orchestrator.run_directory.rundir import RunDir
from orchestrator.runtime.checkpointing.checkpoint_reader import load, tensors_of
from orchestrator.runtime.checkpointing.checkpointer import model_key
from orchestrator.runtime.checkpointing.newest_across_ranks import newest_whole, require_whole_at
from orchestrator.runtime.checkpointing.upcycling import NEW, DenseWeights
from orchestrator.runtime.families.bert import is_task_head, only_predicts_tokens
from orchestrator.runtime.families.multi_token_prediction import is_of_further_tokens
from orchestrator.runtime.families.vision import is_of_images
from orchestrator.runtime.network.fully_sharded.checkpoints import as_kept
from orchestrator.runtime.network.fully_sharded.checkpoints import load_weights as bring_in
from orchestrator.runtime.network.initialization import shards_of
from orchestrator.runtime.network.lora import is_adapter
from orchestrator.runtime.processes.process_groups import Ranks
from orchestrator.runtime.processes.rank_agreement import Control
from orchestrator.self_contained_checkpoints import JOB_FILE, job_of, run_of
from orchestrator.spec.job import JobSpec
from orchestrator.spec.pretrained import in_words, other_network, wrong_experts

_WAY_OUT = "use the model that it was trained with, or another checkpoint.pretrained"
_NO_WEIGHT = re.compile(r"(chained_\d+\.)?optimizer\.|rng/|train_state")
_IMAGES = "the encoder of images"
_MAY_BE_FRESH: dict[str, Callable[[str], bool]] = {
    "adapters": is_adapter,
    "the head of the task": is_task_head,
    _IMAGES: is_of_images,
    "the layers of further tokens": is_of_further_tokens,
}
"""What the model may have and the checkpoint not, and which weights are of it: all of them, or none."""
_SHOWN = 4


@dataclass(frozen=True)
class Source:
    """Where weights come from: a checkpoint, and the run that wrote it, where the checkpoint still lies in one."""

    commit: Commit
    run: RunDir | None

    @property
    def job(self) -> JobSpec | None:
        """What it is of, as far as it says so."""
        return job_of(self.commit.path) if self.run is not None or JOB_FILE in self.commit.files else None

    def event(self, fresh: tuple[str, ...]) -> Pretrained:
        """For the event log."""
        return Pretrained(
            checkpoint=str(self.commit.path),
            from_iteration=self.commit.iteration,
            from_run=None if self.run is None else f"{self.run.name}/{self.run.run_id}",
            fresh=fresh or None,
        )


def find_source(text: str, run: RunDir, control: Control, ranks: Ranks) -> Source:
    """The whole checkpoint that `checkpoint.pretrained` means, on every rank; collective. A relative path leads from
    the folder where the run was created as well: its ranks may work in a copy of the code.

    Raises UserError when there is none, and CheckpointError when it is damaged.
    """
    found: Path | UserError | None = None
    if ranks.is_first:
        try:
            folder = run.events().folder
            found = find_weights(text, run.path.parent.parent, [Path(folder)] if folder else [])
        except UserError as error:
            found = error
    found = control.from_first(found)
    if isinstance(found, UserError):
        raise found
    assert found is not None
    if read_commit(found) is not None:
        commit = require_whole_at(found, control, ranks)
    else:
        newest = newest_whole(RunDir(found), control, ranks)
        if newest is None:
            raise CheckpointError(
                f"checkpoint.pretrained {text}: {found} has no complete checkpoint", code="no_checkpoint"
            )
        commit = newest
    return Source(commit, run_of(commit.path))


def load_weights(
    source: Source, job: JobSpec, chunks: Sequence[Any], optimizer: Any, words: Vocabulary, control: Control
) -> tuple[str, ...]:
    """Fill the network from a checkpoint of any layout, and the optimizer's main copy from the network; collective.
    Returns what the checkpoint has not and the model has: adapters, the head of a task, the encoder of images,
    or layers that predict further tokens.

    Raises UserError, on all ranks, when the checkpoint has other weights, weights of another meaning, or another
    vocabulary; how far the vocabulary is padded does not matter. Raises CheckpointError when it cannot be read.
    """
    path = source.commit.path
    theirs = source.job
    if theirs is not None:
        _check_vocabulary(path, theirs, words)
        _check_experts(path, theirs, job)
    dense = [DenseWeights(chunk, job) for chunk in chunks] if job.checkpoint.upcycle else None
    states = [each.state for each in dense] if dense else [as_kept(chunk.sharded_state_dict()) for chunk in chunks]
    compared = control.from_first(_compare(control.gather_to_first(_wanted(states)), path))
    if isinstance(compared, CheckpointError):
        raise compared
    findings, fresh = compared
    if findings:
        raise UserError(
            f"the weights of {path} do not fit this model: {findings}; {_WAY_OUT}", code="weights_do_not_fit_model"
        )
    if theirs is not None:
        _check_network(path, theirs, job)
    if _IMAGES in fresh and job.model.has_frozen_encoder:
        raise UserError(
            f"{path} has no image encoder, and model.vision.freeze would leave this job's at its random weights: "
            "write freeze: false, or use a vision-language model as checkpoint.pretrained",
            code="no_image_encoder",
        )
    wanted = {}
    for index, state in enumerate(states):
        # What the checkpoint does not have yet stays as it is.
        kept = {name: entry for name, entry in state.items() if not any(_MAY_BE_FRESH[each](name) for each in fresh)}
        wanted[model_key(index, len(chunks))] = kept
    loaded = load(wanted, path, whole=dense is None)
    for index, chunk in enumerate(chunks):
        found = loaded[model_key(index, len(chunks))]
        if dense:
            dense[index].fill(found)
        else:
            bring_in(chunk, {**chunk.state_dict(), **found})
    with torch.no_grad():
        optimizer.reload_model_params()
    return (*fresh, NEW) if dense else tuple(fresh)


def _check_experts(path: Path, theirs: JobSpec, ours: JobSpec) -> None:
    """Experts begin with a dense model's weights where that is asked for, and with no others then."""
    if why := wrong_experts(theirs, ours):
        raise UserError(f"{path} {why.message}; {why.way_out}", code=why.code)


def _check_network(path: Path, theirs: JobSpec, ours: JobSpec) -> None:
    """Shapes do not tell everything: the same weights are others with another number of heads."""
    if other := other_network(theirs, ours):
        raise UserError(
            f"the weights of {path} belong to another network: {in_words(other)}; {_WAY_OUT}", code="network_differs"
        )


def _check_vocabulary(path: Path, job: JobSpec, words: Vocabulary) -> None:
    try:
        theirs = vocabulary(job)
    except UserError as error:
        print(f"warning: it is not known whether {path} has this job's vocabulary: {error}", flush=True)
        return
    if theirs.size != words.size:
        raise UserError(
            f"the vocabulary of {path} has {theirs.size} tokens, and this job's has {words.size}: "
            "token ids would mean something else; use the tokenizer that it was trained with",
            code="vocabulary_differs",
        )


_Shapes = dict[str, tuple[int, ...] | None]
"""Of each weight its global shape; None where that may differ, as it does for a padded vocabulary."""


def _wanted(states: Sequence[dict[str, Any]]) -> _Shapes:
    """What this rank has a part of."""
    return {
        shard.key: None if shard.allow_shape_mismatch else tuple(shard.global_shape)
        for state in states
        for shard in shards_of(state.values())
    }


def _compare(wanted: list[_Shapes] | None, path: Path) -> tuple[str, list[str]] | CheckpointError:
    """On rank 0, what the ranks' weights and those of a checkpoint have not in common (empty where nothing differs),
    and what of `_MAY_BE_FRESH` the model has and the checkpoint not; or why it cannot be read.
    """
    if wanted is None:
        return "", []
    ours: _Shapes = {key: shape for shapes in wanted for key, shape in shapes.items()}
    try:
        saved = tensors_of(path)
    except CheckpointError as error:
        return error
    theirs: Mapping[str, tuple[int, ...]] = {
        key: tuple(entry.global_shape) for key, entry in saved.items() if _NO_WEIGHT.match(key) is None
    }
    if any(is_task_head(key) for key in ours):
        theirs = {key: shape for key, shape in theirs.items() if not only_predicts_tokens(key)}
    if not any(map(is_of_further_tokens, ours)):
        theirs = {key: shape for key, shape in theirs.items() if not is_of_further_tokens(key)}
    fresh = [what for what, is_of_it in _MAY_BE_FRESH.items() if any(map(is_of_it, ours)) > any(map(is_of_it, theirs))]
    ours = {key: shape for key, shape in ours.items() if not any(_MAY_BE_FRESH[each](key) for each in fresh)}
    other = [
        f"{key} is {theirs[key]} there and {shape} here"
        for key, shape in ours.items()
        if shape is not None and key in theirs and theirs[key] != shape
    ]
    findings = {
        "it lacks": [key for key in ours if key not in theirs],
        "it has, and the model has not,": [key for key in theirs if key not in ours],
        "other shapes:": other,
    }
    return "; ".join(f"{what} {_listed(keys)}" for what, keys in findings.items() if keys), fresh


def _listed(keys: Sequence[str]) -> str:
    more = f" and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
    return ", ".join(sorted(keys)[:_SHOWN]) + more
