"""A run directory: the one truth of a run. Every path of it, atomic writes, and the event log.

    runs/<name>/<run_id>/
        job.yaml              the spec as written (all files, joined), for people
        resolved.json         the complete spec of the first start; resolved.2.json, … after a resume that changed it
        launch.sh             the script as it was started; launch.sbatch: as it was submitted to a cluster
        data.sbatch           the script of the job that makes its data, where there was one (its output: logs/data.log)
        code.json, code.diff  commit and uncommitted changes of the code that ran
        code/1/, code/2/, …   copies of the code, one per submission, where the job asks for them (launch.snapshot)
        events.jsonl          what happened, one JSON object a line
        metrics.jsonl         what was measured, one JSON object a line
        logs/                 launcher.log, rank-00000.log, mlflow.log, notifications.log, …
        stacks/               Python stacks of every rank, when a step hung
        exits/<launch_id>/    why each rank ended, where it could say
        health/<launch_id>.json  what the check before the first step found
        checkpoints/          iter_0000500/ with a commit marker each
        exports/hf/           iter_0000500/: checkpoints as other tools read them, whole (their log: logs/export.log)
        evaluations/          what was measured of checkpoints, one file for each task (see results/)
        lease/                who may write (see lease.py)
        stop                  present when a stop was requested
        label.1.json, …       name, tags, note and whether it is archived: one file for each change (see labels.py)
        sweep.json            the sweep that it is a cell of, if any
        bench/                what `orchestrator bench` asked for and found: request.json, result.json, trace.json
        environment.json      versions of Python and of the packages that trained
        datasets.json         the sources that it read: sizes, weights, digests
        system/               use of each node's processors, memory, disk, network and GPUs, one JSON object a line
        mlflow.json, tensorboard.json, wandb.json, tracker-NAME.json
                              how far the run was sent to each tracker (mlflow.lock, …: who is sending)
        tensorboard/, wandb/  event files, and what Weights & Biases' own library keeps

Files are appended to or renamed into place, never rewritten in place. They are read through `stored_files`: what is no
regular file below the run directory is none.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from orchestrator.errors import UserError, is_full_disk
from orchestrator.files.file_numbers import NUMBER, next_number
from orchestrator.files.stored_files import (
    listed,
    open_stored,
    open_to_append,
    read_json,
    read_json_lines,
    read_object,
    read_stored,
)
from orchestrator.run_directory.events.log import EventLog, read_events
from orchestrator.run_directory.events.types import Created, Event, Launched, Submitted

RUNS_DIR_VARIABLE = "ORCHESTRATOR_RUNS_DIR"
DEFAULT_RUNS_DIR = "runs"
STOP_AT_VARIABLE = "ORCHESTRATOR_STOP_AT"
"""The step after which a start saves and stops, in its environment; its schedule stays that of the whole training."""

_GENERATION = re.compile(rf"resolved(?:\.{NUMBER})?\.json", re.ASCII)
_ITERATION = re.compile(r"iter_(\d{7,18})", re.ASCII)


@dataclass(frozen=True)
class RunDir:
    """Paths of one run. Creating the object touches nothing on disk."""

    path: Path

    @property
    def run_id(self) -> str:
        return self.path.name

    @property
    def name(self) -> str:
        return self.path.parent.name

    @property
    def job_yaml(self) -> Path:
        return self.path / "job.yaml"

    @property
    def launch_script(self) -> Path:
        return self.path / "launch.sh"

    @property
    def batch_script(self) -> Path:
        return self.path / "launch.sbatch"

    @property
    def data_script(self) -> Path:
        return self.path / "data.sbatch"

    @property
    def events_file(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def metrics_file(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def launcher_log(self) -> Path:
        return self.logs / "launcher.log"

    @property
    def data_log(self) -> Path:
        return self.logs / "data.log"

    def rank_log(self, rank: int) -> Path:
        return self.logs / f"rank-{rank:05d}.log"

    @property
    def stacks(self) -> Path:
        return self.path / "stacks"

    def exit_record(self, launch_id: str, rank: int) -> Path:
        """Why a rank of one launch ended, where it could say: {"cause": …, "message": …, "iteration": …}."""
        return self.path / "exits" / launch_id / f"rank-{rank:05d}.json"

    def health_report(self, launch_id: str) -> Path:
        """What the check before the first step of one launch found."""
        return self.path / "health" / f"{launch_id}.json"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def checkpoint(self, iteration: int) -> Path:
        return self.checkpoints / f"iter_{iteration:07d}"

    def exports(self, layout: str) -> Path:
        """The checkpoints that were exported during the training, in one layout (`hf`)."""
        return self.path / "exports" / layout

    @property
    def evaluations(self) -> Path:
        return self.path / "evaluations"

    @property
    def bench(self) -> Path:
        return self.path / "bench"

    @property
    def bench_request(self) -> Path:
        """How to measure: {"warm_up": steps, "steps": steps, "trace": whether one is wanted}."""
        return self.bench / "request.json"

    @property
    def bench_result(self) -> Path:
        """What all ranks found."""
        return self.bench / "result.json"

    @property
    def bench_trace(self) -> Path:
        """Rank 0's profile in Chrome's format, where one was asked for."""
        return self.bench / "trace.json"

    @property
    def datasets_file(self) -> Path:
        """What it read, all starts together: a list of {"part": training, validation or test, "path", "digest",
        "bytes"}, of indexed data sets with "weight", "share" (the part of it that the split gives), "tokens",
        "documents", "sequences" and "dtype".
        """
        return self.path / "datasets.json"

    @property
    def system(self) -> Path:
        return self.path / "system"

    def system_log(self, node: int) -> Path:
        """How busy a node of the job is, by its number: {"time", "iteration", "host", "values": {name: number, or a
        list with one for each GPU}}, one a line.
        """
        return self.system / f"node-{node:05d}.jsonl"

    @property
    def lease(self) -> Path:
        return self.path / "lease"

    @property
    def stop_file(self) -> Path:
        return self.path / "stop"

    def stop_request(self) -> dict[str, Any]:
        """What the stop file says: {"by": …, "at_once": …, "time": …}; {} where it is missing or a file of any other
        content.
        """
        return self.read_object(self.stop_file)

    @property
    def membership(self) -> Path:
        """The sweep that it is a cell of: {"sweep": …, "sweep_dir": …, "cell": …, "values": {…}}, and "adopted": true
        for a run that was there before the sweep; often absent.
        """
        return self.path / "sweep.json"

    def resolved_generations(self) -> list[Path]:
        """The resolved specs, oldest first: one, and one more for each resume that changed it."""
        return [path for _, path in self._generations()]

    def _generations(self) -> list[tuple[int, Path]]:
        found = ((_GENERATION.fullmatch(path.name), path) for path in self.path.glob("resolved*.json"))
        return sorted((int(match.group(1) or 1), path) for match, path in found if match)

    def resolved(self) -> Path:
        """The newest resolved spec. Raises UserError when there is none."""
        generations = self.resolved_generations()
        if not generations:
            raise UserError(f"{self.path} is not a run directory: it has no resolved.json", code="not_a_run_directory")
        return generations[-1]

    def next_resolved(self) -> Path:
        """Where the next resolved spec goes: behind the newest, also where one before that is gone. Raises UserError
        where nothing can follow that.
        """
        generations = self._generations()
        if not generations:
            return self.path / "resolved.json"
        return self.path / f"resolved.{next_number(generations[-1][0], self.path)}.json"

    def checkpoint_dirs(self) -> list[tuple[int, Path]]:
        """(iteration, folder) of everything named like a checkpoint, committed or not, oldest first."""
        return _iterations(self.checkpoints)

    def export_dirs(self, layout: str) -> list[tuple[int, Path]]:
        """(iteration, folder) of every export, oldest first."""
        return _iterations(self.exports(layout))

    def open(self, path: Path) -> BinaryIO:
        """Open one of its files, to read. Raises as `stored_files.open_stored`."""
        return open_stored(path, self.path)

    def open_to_append(self, path: Path) -> BinaryIO:
        """Open one of its files, to append to. Raises as `stored_files.open_to_append`."""
        return open_to_append(path, self.path)

    def read_bytes(self, path: Path) -> bytes:
        """The content of one of its files. Raises as `stored_files.read_stored`."""
        return read_stored(path, self.path)

    def read_json(self, path: Path) -> Any:
        """The JSON value in one of its files. Raises as `stored_files.read_json`."""
        return read_json(path, self.path)

    def read_object(self, path: Path) -> dict[str, Any]:
        """The JSON object in one of its files; empty where there is none that can be read."""
        return read_object(path, self.path)

    def listed(self, folder: Path) -> list[Path]:
        """The names in one of its folders; none if it leads outside or cannot be listed."""
        return [folder / name for name in listed(folder, self.path)]

    def append(self, *events: Event) -> None:
        """Add to the event log; of events that belong together a reader sees all or none."""
        append_lines(self.events_file, [event.record() for event in events])

    def events(self) -> EventLog:
        """All events so far. Raises as `events.log.read_events`."""
        return read_events(self.events_file)


def _iterations(folder: Path) -> list[tuple[int, Path]]:
    """Folders named by an iteration, oldest first."""
    try:
        names = os.listdir(folder)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise
        return []
    found = ((iteration_of(folder / name), folder / name) for name in names)
    return sorted((iteration, path) for iteration, path in found if iteration is not None)


def iteration_of(checkpoint: Path) -> int | None:
    """The iteration that a checkpoint's folder is named by; None for any other folder."""
    match = _ITERATION.fullmatch(checkpoint.name)
    return None if match is None else int(match.group(1))


def membership_of(run: RunDir) -> dict[str, Any]:
    """What a sweep wrote beside its cell; empty where no sweep did, or it cannot be read."""
    return run.read_object(run.membership)


def cell_of(run: RunDir) -> str | None:
    """The name of the cell that a run was made for by a sweep; None for any other run."""
    membership = membership_of(run)
    return None if not membership or membership.get("adopted") else str(membership.get("cell"))


def meant_by_name(runs: Sequence[RunDir]) -> list[RunDir]:
    """Those of a job's runs that its name may mean: the cells of sweeps only where there is no other."""
    return [run for run in runs if cell_of(run) is None] or list(runs)


def chosen_at(run: RunDir) -> float:
    """When a person last made, started or submitted a run, in seconds since the epoch; 0 where nobody did, or it cannot
    be read: such a one must not stand for its job's latest. A job on a cluster was chosen when it was submitted.
    """
    try:
        events = run.events()
    except OSError:
        return 0.0
    chosen = (each for each in events if isinstance(each, Created | Submitted | Launched))
    here = (each.time for each in chosen if not (isinstance(each, Launched) and each.job_id is not None))
    return max((time for time in here if time is not None), default=0.0)


def default_runs_dir() -> Path:
    """Where runs are looked for: $ORCHESTRATOR_RUNS_DIR, or `runs` here."""
    return Path(os.environ.get(RUNS_DIR_VARIABLE) or DEFAULT_RUNS_DIR)


def in_command(run: RunDir) -> str:
    """The words that name a run in a printed command: with its folder of runs, where no command would look there."""
    return named_in_command(run.run_id, run.path.parent.parent)


def named_in_command(name: str, runs_dir: Path) -> str:
    """The same of anything that a folder of runs knows by name, as a sweep."""
    folder = runs_dir.resolve()
    elsewhere = folder != default_runs_dir().resolve()
    return shlex.join([name, *(["--runs-dir", str(folder)] if elsewhere else [])])


def append_line(path: Path, record: dict[str, Any]) -> None:
    """Append a record as one JSON line with one write call, after mending a torn line left by a crash.

    Raises OSError when the disk refuses, wholly or in part.
    """
    append_lines(path, [record])


def append_lines(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """`append_line` for several records, still with one write call."""
    lines = "".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records).encode()
    with open_to_append(path, path.parent) as file:
        descriptor = file.fileno()
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            lines = b"\n" + lines
        if os.write(descriptor, lines) != len(lines):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The JSON objects of a line file that lies in its folder. See `stored_files.read_json_lines`."""
    return read_json_lines(path, path.parent)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file so that a reader sees the old content or the new, never a part; durable when this returns."""
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except BaseException as error:
        with suppress(OSError):  # the disk says once more what it says already
            temporary.unlink()
        if isinstance(error, OSError):
            error.filename = str(path)  # a full disk names none, any other trouble the temporary one
        raise


def write_refusal(error: OSError, *, elsewhere: bool = True) -> UserError | None:
    """What a person should read where the system refused to write: the folder, why, and the way out. None for an error
    that does not say where, or is about anything else; reading what is not ours is. `elsewhere`: whether another folder
    would do.
    """
    if not isinstance(error.filename, str | bytes | os.PathLike):
        return None
    path = Path(os.fsdecode(error.filename)).absolute()
    if isinstance(error.filename2, str | bytes | os.PathLike) and os.access(path.parent, os.W_OK):
        path = Path(os.fsdecode(error.filename2)).absolute()  # a rename is refused by either folder
    if is_full_disk(error):
        way_out = f"make room there{', or name another folder' if elsewhere else ''}"
    elif error.errno == errno.EROFS or (
        error.errno in (errno.EACCES, errno.EPERM) and (error.filename2 is not None or _was_written(path))
    ):
        whose = "" if error.errno == errno.EROFS else _from_whom(path.parent)
        way_out = f"{'name another folder, or ' if elsewhere else ''}get permission to write to this one{whose}"
    else:
        return None
    return UserError(
        f"nothing can be written in {path.parent}: {error.strerror}; {way_out}",
        code="disk_full" if is_full_disk(error) else "unwritable_folder",
    )


def _was_written(path: Path) -> bool:
    """Whether an access that was forbidden can have been a write only."""
    if os.path.lexists(path):
        is_ours = os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)
        return os.access(path, os.R_OK) and not is_ours
    return os.access(path.parent, os.X_OK)  # else not even its absence is known


def _from_whom(folder: Path) -> str:
    """` from ann`: who can give permission for a folder; empty for one's own."""
    with suppress(OSError, KeyError):
        return f" from {folder.owner()}" if folder.stat().st_uid != os.geteuid() else ""
    return ""


def nearest_folder(folder: Path) -> Path:
    """The folder itself, or the first above it that is there: where it would be made."""
    return next(each for each in (folder.absolute(), *folder.absolute().parents) if os.path.lexists(each))


def sync_folder(folder: Path) -> None:
    """Make names that were created or renamed in a folder durable."""
    sync_file(folder)


def sync_tree(folder: Path) -> None:
    """Make a folder durable with everything that is in it."""
    for path in (*folder.rglob("*"), folder):
        sync_file(path)


def sync_file(path: Path) -> None:
    """Make what was written to a file durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
