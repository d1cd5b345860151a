"""What a tracker is told about a run beside its metrics: read from the run directory, with no reference resolved."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from orchestrator.errors import UserError
from orchestrator.files.stored_files import NotStoredError, read_object, read_stored, size_of
from orchestrator.run_directory.events.log import EventLog
from orchestrator.run_directory.events.types import Exited, Finished, Started
from orchestrator.run_directory.exits.causes import by_word_of_the_ranks
from orchestrator.run_directory.labels import label_files
from orchestrator.run_directory.lease import read_holder
from orchestrator.run_directory.rundir import RunDir
from orchestrator.tracking.measurements.inputs import read_inputs
from orchestrator.tracking.measurements.log_ends import log_ends
from orchestrator.tracking.measurements.metrics import MetricTail
from orchestrator.tracking.mlflow.tags import run_tags, section

State = Literal["running", "finished", "failed", "killed"]

ENVIRONMENT_FILE = "environment.json"

_TAIL_BYTES = 1 << 16
_MOST_BYTES = 64 << 20
"""Size limit of a file that is sent: code changes may be large."""
_STATES: dict[str, State] = {
    "completed": "finished",
    "stopped": "killed",
    "cancelled": "killed",
    "killed": "killed",
    "lost": "killed",
    "lease_lost": "killed",
}
"""How a run that ended for this cause ended; every other cause is a failure."""


@dataclass(frozen=True)
class Target:
    """Where a run is to be sent. `uri` as written, references unresolved; None is the store in the runs folder."""

    enabled: bool
    uri: str | None
    experiment: str


@dataclass
class Ending:
    """What is known of a run's end beside its files. `process`: pid of a lease holder of this host that has ended,
    though its lease may look alive; `cause`: why, for as long as the files do not say.
    """

    process: int | None = None
    cause: str | None = None


@dataclass(frozen=True)
class Description:
    """Everything but the metrics. Times in seconds since the epoch; `files` by name.

    `params` as of the first start; `current_params` as of the newest, where a resume changed the spec. `inputs`: the
    records of datasets.json.
    """

    params: Mapping[str, str]
    current_params: Mapping[str, str]
    tags: Mapping[str, str]
    state: State
    ended: float | None
    files: Mapping[str, bytes]
    inputs: Sequence[Mapping[str, Any]] = ()


def read_target(run: RunDir) -> Target:
    """Where the newest resolved spec sends its metrics. Raises UserError when there is no spec that can be read."""
    tracking = section(_read_spec(run.resolved()), "tracking")
    uri = tracking.get("uri")
    return Target(
        enabled=bool(tracking.get("mlflow", True)),
        uri=str(uri) if uri else None,
        experiment=str(tracking.get("experiment") or run.name),
    )


def read_spec(run: RunDir) -> dict[str, Any]:
    """The newest resolved spec as it is stored. Raises UserError when there is none that can be read."""
    return _read_spec(run.resolved())


def describe(run: RunDir, ending: Ending | None = None) -> Description:
    """Read the run directory. Raises UserError when there is no spec that can be read."""
    run.resolved()  # says so when this is no run directory
    generations = run.resolved_generations()
    specs = [_read_spec(path) for path in generations]
    events = run.events()
    checkpoints = _checkpoints(run, events)
    environment = dict(flatten(run.read_object(run.path / ENVIRONMENT_FILE), "environment."))
    params: dict[str, str] = {}
    for spec in specs:
        params = dict(flatten(spec)) | params
    state, cause, ended = run_state(run, events, ending)

    files = {path.name: content for path in _files(run, generations) if (content := _content(run, path)) is not None}
    if checkpoints:
        files["checkpoints.json"] = (json.dumps(checkpoints, indent=1) + "\n").encode()
    if state != "running":
        ended = ended if ended is not None else last_sign(run, events)
        files |= log_ends(run, specs[-1], next((each.of_launch for each in reversed(events) if each.of_launch), None))
    return Description(
        params=params | environment,
        current_params=dict(flatten(specs[-1])) | environment,
        tags=run_tags(run, specs[-1], events, state, cause, _commit(run)),
        state=state,
        ended=ended,
        files=files,
        inputs=read_inputs(run),
    )


def description_signature(run: RunDir) -> object:
    """Changes whenever `describe` may say something else, but for a holder that died without a word. Costs stats."""
    found = []
    for path in [*_files(run, run.resolved_generations()), *label_files(run.path), run.events_file]:
        try:
            stat = path.stat()
        except OSError:
            continue
        found.append((path.name, stat.st_size, stat.st_mtime_ns))
    return found


def run_state(run: RunDir, events: EventLog, ending: Ending | None = None) -> tuple[State, str | None, float | None]:
    """The state, the cause of the last exit and its time. A run whose holder is gone without a word was killed."""
    ending = ending or Ending()
    holder = read_holder(run)
    if holder is not None and holder.live and not (holder.process.is_here and holder.process.pid == ending.process):
        return "running", None, None
    launch_id, cause, ended = None, None, None
    for event in events:
        match event:
            case Started():
                launch_id, cause, ended = event.launch_id, None, None
            case Finished():
                cause, ended = "completed", event.time
            case Exited() if event.cause != "held":  # a start that found the run held changed nothing
                cause = event.cause or ("completed" if event.code == 0 else "bug")
                ended = event.time
    if cause is None and launch_id is not None:
        word = by_word_of_the_ranks(run, str(launch_id))
        cause = word.cause if word is not None else None
    cause = cause or ending.cause or "lost"
    return _STATES.get(cause, "failed"), cause, ended


def last_sign(run: RunDir, events: EventLog) -> float | None:
    """When a run was last heard of, in seconds since the epoch: the end of one that could not say when it ended."""
    times = [event.time for event in events[-1:] if event.time is not None]
    try:
        tail = MetricTail(run.metrics_file, max(0, size_of(run.metrics_file) - _TAIL_BYTES))
        return max([*times, *(metric.time for metric in tail.poll())], default=None)
    except NotStoredError:
        return max(times, default=None)


_JSON_WORDS = {None: "null", True: "true", False: "false"}


def flatten(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """('optimizer.lr', '0.001') for each value of a nested record; a list is one value, as JSON."""
    for key, item in value.items():
        if isinstance(item, dict):
            yield from flatten(item, f"{prefix}{key}.")
        elif isinstance(item, str):
            yield f"{prefix}{key}", item
        elif item is None or isinstance(item, bool):
            yield f"{prefix}{key}", _JSON_WORDS[item]
        elif isinstance(item, int):  # by far the most frequent ones: JSON without its encoder
            yield f"{prefix}{key}", int.__repr__(item)
        else:
            yield f"{prefix}{key}", json.dumps(item, separators=(",", ":"))


def _files(run: RunDir, generations: list[Path]) -> list[Path]:
    names = ("launch.sh", "code.json", "code.diff", ENVIRONMENT_FILE, run.datasets_file.name)
    return [*generations, *sorted(run.path.glob("job*.yaml")), *(run.path / name for name in names)]


def _content(run: RunDir, path: Path) -> bytes | None:
    """The content of a file of the run; None if there is none, or if a link leads outside the run."""
    try:
        return read_stored(path, run.path, _MOST_BYTES)
    except (FileNotFoundError, IsADirectoryError, NotStoredError):
        return None


def _commit(run: RunDir) -> str | None:
    """Commit of the folder that the run was created in, else of the package, as code.json has them in this order."""
    repositories = run.read_object(run.path / "code.json").get("repositories")
    match repositories:
        case [{"commit": str(commit), **rest}, *_]:
            return commit + ("+changes" if rest.get("dirty") else "")
        case _:
            return None


def _checkpoints(run: RunDir, events: EventLog) -> list[dict[str, Any]]:
    """Every checkpoint that was saved, oldest first, and whether it is still kept."""
    return [
        {
            "iteration": iteration,
            "path": str(run.checkpoint(iteration)),
            "time": saved.time,
            "bytes": saved.bytes,
            "kept": (run.checkpoint(iteration) / "commit.json").is_file(),
        }
        for iteration, saved in sorted(events.saved.items())
    ]


def _read_spec(path: Path) -> dict[str, Any]:
    spec = read_object(path, path.parent)
    if not spec:
        raise UserError(f"{path} cannot be read as a resolved spec", code="unreadable_stored_spec")
    return spec
