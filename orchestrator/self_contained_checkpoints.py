"""What a checkpoint carries so that its folder alone is enough: the resolved spec and the tokenizer.

    iter_0000500/
        job.json        the resolved spec of the job that wrote it
        tokenizer/      the files of its tokenizer, under the names of tokenizer_copies; a byte-level one has none

Both are named in the commit marker. A checkpoint that an older version wrote has neither, and is read with the spec of
the run that it lies in.

A checkpoint may come from anywhere: its spec says what the network is, and never what is run. Nothing that it says of
programs, templates, environments and steps of one's own is taken over.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from orchestrator.data.tokenizers.copies import carried, files_to_copy
from orchestrator.errors import UserError
from orchestrator.files.stored_files import open_stored
from orchestrator.kernel_selection.changes import diff_jobs
from orchestrator.run_directory.checkpoints.commit_markers import (
    COMMIT_FILE,
    Commit,
    committed,
    damage_of_marker,
    read_commit,
)
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import dump_resolved, load_resolved
from orchestrator.spec.schema.diff import Change
from orchestrator.spec.sections.launch import LaunchSpec
from orchestrator.spec.sections.tracking import TrackingSpec

JOB_FILE = "job.json"
TOKENIZER_FOLDER = "tokenizer"


@dataclass(frozen=True)
class Weights:
    """Weights that a person named: those of a run, one of whose checkpoints is still to be chosen, or of a checkpoint.

    `job` has the network, and a tokenizer that can be read.
    """

    path: Path
    """The folder of the run or of the checkpoint."""
    job: JobSpec
    run: RunDir | None
    """None where a checkpoint was named, also where that lies in a run."""

    @property
    def label(self) -> str:
        """What to call it in messages."""
        return f"run {self.run.name}/{self.run.run_id}" if self.run is not None else f"checkpoint {self.path}"


def files_to_carry(job: JobSpec) -> dict[str, bytes]:
    """Name in the checkpoint -> content of what is written beside the weights.

    A tokenizer that cannot be read on this machine, which a job of random tokens may have, is left out.
    """
    try:
        copies = {name: path.read_bytes() for name, path in files_to_copy(job.data.tokenizer).items()}
    except (UserError, OSError):
        copies = {}
    return {
        JOB_FILE: dump_resolved(job).encode(),
        **{f"{TOKENIZER_FOLDER}/{name}": content for name, content in copies.items()},
    }


def open_weights(path: Path) -> Weights:
    """The weights in the folder of a run or of a committed checkpoint.

    Raises UserError when it is neither, or the checkpoint does not say what it holds.
    """
    run = RunDir(path)
    if run.resolved_generations():
        job = load_resolved(run.resolved())
        newest = committed(run)[-1:]
        return Weights(path, _with_tokenizer_of(newest[0], job) if newest else job, run)
    return Weights(path, job_of(path), None)


def spec_to_go_on_with(weights: Weights) -> JobSpec:
    """The spec of a run as it is; that of a checkpoint alone without what would be run for it, at the size that it had.
    Its tokenizer is where the spec says, whether that is on this machine or not.
    """
    if weights.run is not None:
        return load_resolved(weights.run.resolved())
    commit = read_commit(weights.path)
    assert commit is not None, "it was opened"
    return without_programs(load_resolved(spec_of(commit)))


def job_of(path: Path) -> JobSpec:
    """The job that wrote a committed checkpoint, with the tokenizer that it carries and without anything that is run:
    by the checkpoint itself, or else by the run that it lies in.

    Raises UserError when it is no checkpoint, or neither is there, or what is there cannot be read.
    """
    commit = read_commit(path)
    if commit is None:
        if (path / COMMIT_FILE).exists():
            raise UserError(
                damage_of_marker(path) or f"{path / COMMIT_FILE} changed while it was read",
                code="unreadable_commit_marker",
            )
        raise UserError(
            f"{path} is neither a run nor a committed checkpoint: it has no commit.json that can be read",
            code="neither_run_nor_checkpoint",
        )
    return _with_tokenizer_of(commit, without_programs(load_resolved(spec_of(commit))))


def spec_of(commit: Commit) -> Path:
    """The file that holds a checkpoint's spec. Raises UserError when there is none."""
    if JOB_FILE in commit.files:
        return commit.path / JOB_FILE
    run = run_of(commit.path)
    if run is None:
        raise UserError(
            f"{commit.path} does not describe its model: it has no {JOB_FILE}, like checkpoints of earlier versions, "
            "and is not in a run; move it back into the checkpoints folder of its run",
            code="checkpoint_without_spec",
        )
    return run.resolved()


def run_of(path: Path) -> RunDir | None:
    """The run that a checkpoint lies in."""
    run = RunDir(path.absolute().parent.parent)
    return run if path.absolute().parent == run.checkpoints and run.resolved_generations() else None


def without_programs(job: JobSpec) -> JobSpec:
    """A job of unknown origin without what would be run, imported or written for it, and without its machine."""
    own = job.changed(
        parallelism={"data_parallel_size": job.data_parallel_size},  # the launch section may have said it
        runtime={"train_step": None, "train_step_arguments": {}, "device": "auto"},
        checkpoint={"pretrained": None},
    )
    return own.model_copy(update={"launch": LaunchSpec(), "tracking": TrackingSpec(mlflow=False)})


def left_behind(weights: Weights, job: JobSpec) -> list[Change]:
    """What the spec of a checkpoint that was named alone says of programs, trackers and machines, and `job`, which was
    made of it, leaves to the defaults.
    """
    commit = read_commit(weights.path)
    if weights.run is not None or commit is None:
        return []
    stored = load_resolved(spec_of(commit))
    left = {change.path: change.new for change in diff_jobs(stored, without_programs(stored))}
    left.pop("parallelism.data_parallel_size", None)  # written where it followed before: the same size
    return [change for change in diff_jobs(stored, job) if change.path in left and change.new == left[change.path]]


def _with_tokenizer_of(commit: Commit, job: JobSpec) -> JobSpec:
    prefix = f"{TOKENIZER_FOLDER}/"
    names = {name.removeprefix(prefix) for name in commit.files if name.startswith(prefix)}
    for name in sorted(names):  # libraries open them by their names, whatever they are
        with contextlib.suppress(FileNotFoundError):
            open_stored(commit.path / TOKENIZER_FOLDER / name, commit.path).close()
    tokenizer = carried(job.data.tokenizer, commit.path / TOKENIZER_FOLDER, names)
    return job.changed(data={"tokenizer": tokenizer})
