"""The weights that a person names: a run, by what `find_run` takes, or the folder of one checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.common import warn
from orchestrator.errors import CheckpointError, RunNotFound, UserError
from orchestrator.launch.runs import find_run, runs_named
from orchestrator.run_directory.checkpoints.commit_markers import COMMIT_FILE, MEGATRON_TRACKER, committed, verify
from orchestrator.run_directory.checkpoints.newest import latest_valid
from orchestrator.run_directory.rundir import RunDir, meant_by_name
from orchestrator.self_contained_checkpoints import Weights, open_weights

WeightsName = Annotated[
    str,
    typer.Argument(
        metavar="RUN|CHECKPOINT",
        help="A run (id or its beginning, a job's name, or a path), or the folder of one checkpoint.",
        show_default=False,
    ),
]
Iteration = Annotated[
    int | None, typer.Option("--iteration", min=0, help="Iteration of the checkpoint; the latest by default.")
]


def weights_named(which: str, iteration: int | None, runs_dir: Path) -> Weights:
    """What is named, with a checkpoint in it that is committed: that of `iteration` where this is given.

    Raises UserError when there is none, and when a checkpoint is named and an iteration as well.
    """
    path = Path(which).absolute()
    if is_checkpoint(path):
        if iteration is not None:
            raise UserError(
                f"{which} is one checkpoint: --iteration selects a checkpoint of a run", code="iteration_without_effect"
            )
        return open_weights(path)
    try:
        run = find_run(which, runs_dir)
    except RunNotFound as error:
        if path.is_dir():
            raise UserError(
                f"{which} is neither a run nor a checkpoint: {_what_else(path)}", code="neither_run_nor_checkpoint"
            ) from error
        raise
    weights = open_weights(run.path)
    assert weights.run is not None
    iterations = [commit.iteration for commit in committed(weights.run)]
    if not iterations:
        raise UserError(f"{weights.label} has no checkpoint yet", code="no_checkpoint")
    if iteration is not None and iteration not in iterations:
        known = ", ".join(str(number) for number in iterations)
        raise UserError(
            f"{weights.label} has no checkpoint of iteration {iteration}; it has {known}", code="no_checkpoint"
        )
    return weights


def is_checkpoint(path: Path) -> bool:
    """Whether a folder is one checkpoint, whole or not."""
    return (path / COMMIT_FILE).exists() or (path.is_dir() and path.parent.name == RunDir(path).checkpoints.name)


def tell_new_meaning(run: RunDir, runs_dir: Path) -> None:
    """Say that a job's name means another run than before, where it does."""
    others = meant_by_name([other for other in runs_named(run.name, runs_dir) if other.run_id != run.run_id])
    if others:
        typer.echo(f"{run.name} names this run from now on; the one before is {others[-1].run_id}")


def _what_else(folder: Path) -> str:
    """What a folder may be that is taken for weights."""
    if (folder / MEGATRON_TRACKER).is_file() or (folder / "config.json").is_file():
        return f"make a run of it with `orchestrator checkpoint import {folder}`"
    return "it has no resolved spec and no commit.json that can be read"


def whole_checkpoint(weights: Weights, iteration: int | None, *, contents: bool = True) -> Path:
    """The folder of the checkpoint to read: the one named, that of an iteration, or the newest whole one of a run.
    Reads every byte, or where whoever reads it does so himself, not its `contents`; warns of those passed over.

    Raises UserError when a run has no whole one, CheckpointError when the one asked for is damaged.
    """
    if weights.run is not None and iteration is None:
        newest = latest_valid(
            weights.run,
            lambda _, message: warn(f"skipped a checkpoint: {message}"),
            lambda path: verify(path, contents=contents),
        )
        if newest is None:
            raise UserError(f"{weights.label} has no complete checkpoint", code="no_checkpoint")
        return newest.path
    chosen = weights.path if weights.run is None or iteration is None else weights.run.checkpoint(iteration)
    if findings := verify(chosen, contents=contents):
        raise CheckpointError("; ".join(findings), code="damaged_checkpoint")
    return chosen
