"""Whether the disk has room for what a job keeps of its checkpoints and exports, and what makes it suffice."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import NamedTuple

from orchestrator.errors import Problem
from orchestrator.planning.checks.preflight_checks import runs_dir_of
from orchestrator.planning.forecast import Forecast
from orchestrator.planning.plan import Plan
from orchestrator.quantities import disk_size
from orchestrator.spec.cluster import ClusterSpec
from orchestrator.spec.sections.precision import DTYPE_BYTES

_LAST, _EVERY, _EXPORTS = "checkpoint.keep_last", "checkpoint.keep_every", "checkpoint.export.keep_last"


class _Writing(NamedTuple):
    """What a job writes in all, and how large each is."""

    saves: int
    steps: int
    checkpoint_bytes: int
    exports: int
    export_bytes: int

    def kept(self, keep_last: int, keep_every: int | None) -> int:
        """Checkpoints at once: the newest, one that is written before the oldest of them goes, those kept for good."""
        return min(self.saves, keep_last + 1) + self.for_good(keep_every)

    def for_good(self, keep_every: int | None) -> int:
        return self.steps // keep_every if keep_every else 0

    def exports_kept(self, keep_last: int | None) -> int:
        """One that is being written included."""
        return self.exports if keep_last is None else min(self.exports, keep_last + 1)


CHECKPOINT_ROOM = "checkpoint_room"
"""The code of that warning."""


def room_for_checkpoints(
    plan: Plan, forecast: Forecast, cluster: ClusterSpec | None, runs_dir: Path | None = None, held: int = 0
) -> Iterator[Problem]:
    """A warning, where the folder of runs has less free than what is kept at once. `held`: bytes of checkpoints that
    the run has already, which later ones take the place of.
    """
    there = _folder_there(runs_dir_of(plan.job, runs_dir))
    if there is None:
        return
    saving, writing = plan.job.checkpoint, _writing(plan, forecast)
    free = shutil.disk_usage(there).free + held
    kept = writing.kept(saving.keep_last, saving.keep_every)
    exports = writing.exports_kept(_exports_wanted(plan))
    if kept * writing.checkpoint_bytes + exports * writing.export_bytes <= free:
        return
    several = f"{kept} checkpoints" if kept > 1 else "a checkpoint"
    exported = f" and {exports} exports of {disk_size(writing.export_bytes)}" if exports else ""
    message = (
        f"{several} of {disk_size(writing.checkpoint_bytes)}{exported} "
        f"{'are kept at once' if kept > 1 or exports else 'is kept'}, and {there} has {disk_size(free - held)} free"
        + (f", besides {disk_size(held)} of this run" if held else "")
    )
    paths = (_LAST, _EVERY, *((_EXPORTS,) if exports else ()), "launch.runs_dir")
    yield Problem(message, paths, _way_out(plan, writing, free), code=CHECKPOINT_ROOM)


def bytes_kept(plan: Plan, forecast: Forecast) -> int:
    """What a job keeps at once of its checkpoints and exports."""
    saving, writing = plan.job.checkpoint, _writing(plan, forecast)
    exports = writing.exports_kept(_exports_wanted(plan))
    kept = writing.kept(saving.keep_last, saving.keep_every)
    return kept * writing.checkpoint_bytes + exports * writing.export_bytes


def room_for_all(runs: int, wanted: int, runs_dir: Path) -> Iterator[Problem]:
    """The same warning of several runs together, which want so many bytes more."""
    there = _folder_there(runs_dir)
    if there is None or wanted <= (free := shutil.disk_usage(there).free):
        return
    message = f"{runs} runs keep {disk_size(wanted)} of checkpoints and exports, and {there} has {disk_size(free)} free"
    hint = "keep fewer of each, or write to another disk with launch.runs_dir"
    yield Problem(message, (_LAST, "launch.runs_dir"), hint, code=CHECKPOINT_ROOM)


def _folder_there(folder: Path) -> Path | None:
    """The folder, or the first above it that is there. os.path.exists: one that may not be looked into is none, where
    Path.exists raises.
    """
    folder = folder.absolute()
    return next((parent for parent in (folder, *folder.parents) if os.path.exists(parent)), None)


def _exports_wanted(plan: Plan) -> int | None:
    """None for all."""
    export = plan.job.checkpoint.export
    return None if export is None else export.keep_last


def _writing(plan: Plan, forecast: Forecast) -> _Writing:
    saving, steps = plan.job.checkpoint, plan.batch.train_iters
    saves = 1  # at the end
    if saving.save_interval is not None:
        saves += steps // saving.save_interval
    if saving.save_seconds is not None:
        saves += int(forecast.training_seconds // saving.save_seconds)
    exports = 0 if saving.export is None else steps // saving.export.interval
    export_bytes = plan.parameters.total * DTYPE_BYTES[plan.job.precision.dtype]
    return _Writing(saves, steps, forecast.checkpoint_bytes, exports, export_bytes)


def _way_out(plan: Plan, writing: _Writing, free: int) -> str:
    """Keeping less where that suffices, with the most that does; else how large a disk has to be."""
    if (fewer := _fewer(plan, writing, free)) is not None:
        return f"there is room with {fewer}; or write to another disk with launch.runs_dir"
    kept = writing.kept(1, None)
    least = kept * writing.checkpoint_bytes + writing.exports_kept(1) * writing.export_bytes
    elsewhere = f"write to a disk with {disk_size(least)} free, with launch.runs_dir"
    if kept == 1:
        return elsewhere
    return f"keeping fewer does not suffice, because a new one is written before the old one is removed: {elsewhere}"


def _fewer(plan: Plan, writing: _Writing, free: int) -> str | None:
    """The mildest options with which there is room; None where none do."""
    saving, own = plan.job.checkpoint, _exports_wanted(plan)
    for exported, every in product(dict.fromkeys((own, 1)), dict.fromkeys((saving.keep_every, None))):
        room = (free - writing.exports_kept(exported) * writing.export_bytes) // writing.checkpoint_bytes
        room -= writing.for_good(every)
        options = [f"{_EXPORTS}=1"] if exported != own else []
        options += [f"{_EVERY}=null"] if every != saving.keep_every else []
        if room < min(writing.saves, saving.keep_last + 1):
            if room < 2:  # the one that is kept, and the one that is written
                continue
            options.append(f"{_LAST}={room - 1}")
        return " ".join(f"--set {option}" for option in options)
    return None
