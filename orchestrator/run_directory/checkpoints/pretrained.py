"""The checkpoint that `checkpoint.pretrained` names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from orchestrator.errors import UserError
from orchestrator.run_directory.checkpoints.commit_markers import MEGATRON_TRACKER, committed, read_commit
from orchestrator.run_directory.rundir import RunDir, chosen_at, meant_by_name


def find_weights(text: str, runs_dir: Path, folders: Sequence[Path] = ()) -> Path:
    """What `checkpoint.pretrained` means: the folder of a checkpoint, or that of a run that has one.

    Looked for from the working directory, in `folders`, then in `runs_dir`. Raises UserError when there is none.
    """
    given = Path(text).expanduser()
    places = list(dict.fromkeys((given.absolute(), *(folder.absolute() / given for folder in (*folders, runs_dir)))))
    for place in places:
        if read_commit(place) is not None:
            return place
        runs = [RunDir(place)] if RunDir(place).resolved_generations() else _runs_in(place)
        with_checkpoints = [run for run in meant_by_name(runs) if committed(run)]
        if with_checkpoints:
            return max(with_checkpoints, key=chosen_at).path
        if runs:
            raise UserError(
                f"checkpoint.pretrained {text}: {place} has no committed checkpoint yet", code="no_checkpoint"
            )
    if any((folder / MEGATRON_TRACKER).is_file() for place in places for folder in (place, place.parent)):
        raise UserError(
            f"checkpoint.pretrained {text} is a checkpoint of Megatron-LM: make a run of it first, with "
            f"`orchestrator checkpoint import {text}`, and name that",
            code="checkpoint_not_imported",
        )
    looked = " and ".join(str(place) for place in places)
    raise UserError(
        f"checkpoint.pretrained {text}: there is no checkpoint and no run at {looked}; write the folder of a "
        "checkpoint (it has a commit.json), or of a run, or the name of a job that has runs here",
        code="missing_pretrained",
    )


def _runs_in(folder: Path) -> list[RunDir]:
    if not folder.is_dir():
        return []
    return [run for path in sorted(folder.iterdir()) if (run := RunDir(path)).resolved_generations()]
