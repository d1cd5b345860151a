"""What a tracker is told about a run beside its metrics: read from the run directory, with no reference resolved."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from orchestrator.causes import by_word_of_the_ranks
from orchestrator.errors import UserError
from orchestrator.lease import read_holder
from orchestrator.rundir import RunDir
from orchestrator.spec.canonical import config_hash
from orchestrator.tracking.goodput import goodput_of

State = Literal["running", "finished", "failed", "killed"]

ENVIRONMENT_FILE = "environment.json"
RUN_ID_TAG = "orchestrator.run_id"
RUN_DIR_TAG = "orchestrator.run_dir"

_STATES: dict[str, State] = {
    "completed": "finished",
    "stopped": "killed",
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

    `params` as of the first start; `current_params` as of the newest, where a resume changed the spec.
    """

    params: Mapping[str, str]
    current_params: Mapping[str, str]
    tags: Mapping[str, str]
    state: State
    ended: float | None
    files: Mapping[str, bytes]


def read_target(run: RunDir) -> Target:
    """Where the newest resolved spec sends its metrics. Raises UserError when there is no spec that can be read."""
    tracking = _section(_read_spec(run.resolved()), "tracking")
    uri = tracking.get("uri")
    return Target(
        enabled=bool(tracking.get("mlflow", True)),
        uri=str(uri) if uri else None,
        experiment=str(tracking.get("experiment") or run.name),
    )


def describe(run: RunDir, ending: Ending | None = None) -> Description:
    """Read the run directory. Raises UserError when there is no spec that can be read."""
    run.resolved()  # says so when this is no run directory
    generations = run.resolved_generations()
    specs = [_read_spec(path) for path in generations]
    events = run.events()
    checkpoints = _checkpoints(run, events)
    environment = dict(flatten(_read_object(run.path / ENVIRONMENT_FILE), "environment."))
    params: dict[str, str] = {}
    for spec in specs:
        params = dict(flatten(spec)) | params
    state, cause, ended = run_state(run, events, ending)

    files = {path.name: path.read_bytes() for path in _files(run, generations) if path.is_file()}
    if checkpoints:
        files["checkpoints.json"] = (json.dumps(checkpoints, indent=1) + "\n").encode()
    return Description(
        params=params | environment,
        current_params=dict(flatten(specs[-1])) | environment,
        tags=_tags(run, specs[-1], events, checkpoints, {"state": state, "exit_cause": cause})
        | ({} if state == "running" else _goodput_tags(run)),
        state=state,
        ended=ended,
        files=files,
    )


def description_signature(run: RunDir) -> object:
    """Changes whenever `describe` may say something else, but for a holder that died without a word. Costs stats."""
    found = []
    for path in [*_files(run, run.resolved_generations()), run.events_file]:
        try:
            stat = path.stat()
        except FileNotFoundError:
            continue
        found.append((path.name, stat.st_size, stat.st_mtime_ns))
    return found


def run_state(
    run: RunDir, events: Sequence[Mapping[str, Any]], ending: Ending | None = None
) -> tuple[State, str | None, float | None]:
    """The state, the cause of the last exit and its time. A run whose holder is gone without a word was killed."""
    ending = ending or Ending()
    holder = read_holder(run)
    if holder is not None and holder.live and not (holder.process.is_here and holder.process.pid == ending.process):
        return "running", None, None
    launch_id, cause, ended = None, None, None
    for event in events:
        match event.get("event"):
            case "started":
                launch_id, cause, ended = event.get("launch_id"), None, None
            case "finished":
                cause, ended = "completed", event.get("time")
            case "exited" if event.get("cause") != "held":  # a start that found the run held changed nothing
                cause = event.get("cause") or ("completed" if event.get("code") == 0 else "bug")
                ended = event.get("time")
    if cause is None and launch_id is not None:
        word = by_word_of_the_ranks(run, str(launch_id))
        cause = word.cause if word is not None else None
    cause = cause or ending.cause or "lost"
    return _STATES.get(cause, "failed"), cause, ended


def flatten(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """('optimizer.lr', '0.001') for each value of a nested record; a list is one value, as JSON."""
    for key, item in value.items():
        if isinstance(item, dict):
            yield from flatten(item, f"{prefix}{key}.")
        elif isinstance(item, str):
            yield f"{prefix}{key}", item
        else:
            yield f"{prefix}{key}", json.dumps(item, separators=(",", ":"))


def _files(run: RunDir, generations: list[Path]) -> list[Path]:
    names = ("launch.sh", "code.json", "code.diff", ENVIRONMENT_FILE)
    return [*generations, *sorted(run.path.glob("job*.yaml")), *(run.path / name for name in names)]


def _tags(
    run: RunDir,
    spec: Mapping[str, Any],
    events: Sequence[Mapping[str, Any]],
    checkpoints: list[dict[str, Any]],
    exit_tags: Mapping[str, str | None],
) -> dict[str, str]:
    own: dict[str, Any] = dict(exit_tags)
    own["config_hash"] = config_hash(spec)
    own["code_commit"] = next((event["commit"] for event in reversed(events) if event.get("commit")), _commit(run))
    own["host"] = next((event["host"] for event in reversed(events) if "host" in event), None)
    own["resumes"] = sum(event.get("event") == "resumed" for event in events)
    own["latest_checkpoint"] = checkpoints[-1]["path"] if checkpoints else None
    parent = next((event for event in reversed(events) if event.get("event") == "pretrained"), None)
    if parent is not None:
        own["pretrained_checkpoint"], own["pretrained_run"] = parent.get("checkpoint"), parent.get("from_run")
    tags = {str(key): str(value) for key, value in _section(_section(spec, "tracking"), "tags").items()}
    tags |= {f"orchestrator.{name}": "" if value is None else str(value) for name, value in own.items()}
    if own["code_commit"]:
        tags["mlflow.source.git.commit"] = str(own["code_commit"]).removesuffix("+changes")
    return tags | {RUN_ID_TAG: run.run_id, RUN_DIR_TAG: str(run.path)}


def _goodput_tags(run: RunDir) -> dict[str, str]:
    """At the end of a start: how well the run's time was used. Tags and not metrics: they are replaced by the next end,
    and a store that was lost is filled with the same again.
    """
    said = {name: value for name, value in goodput_of(run).to_json().items() if value is not None}
    texts = {name: f"{value:.4f}" if isinstance(value, float) else str(value) for name, value in said.items()}
    fraction = {"orchestrator.goodput": texts.pop("fraction")} if "fraction" in texts else {}
    return fraction | {f"orchestrator.goodput.{name}": text for name, text in texts.items()}


def _commit(run: RunDir) -> str | None:
    """Commit of the folder that the run was created in, else of the package, as code.json has them in this order."""
    repositories = _read_object(run.path / "code.json").get("repositories")
    match repositories:
        case [{"commit": str(commit), **rest}, *_]:
            return commit + ("+changes" if rest.get("dirty") else "")
        case _:
            return None


def _checkpoints(run: RunDir, events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Every checkpoint that was saved, oldest first, and whether it is still kept."""
    saved: dict[int, dict[str, Any]] = {}
    for event in events:
        if event.get("event") == "checkpoint_saved" and isinstance(event.get("iteration"), int):
            path = run.checkpoint(event["iteration"])
            saved[event["iteration"]] = {
                "iteration": event["iteration"],
                "path": str(path),
                "time": event.get("time"),
                "bytes": event.get("bytes"),
                "kept": (path / "commit.json").is_file(),
            }
    return [saved[iteration] for iteration in sorted(saved)]


def _read_spec(path: Path) -> dict[str, Any]:
    spec = _read_object(path)
    if not spec:
        raise UserError(f"{path} cannot be read as a resolved spec")
    return spec


def _read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty where there is none."""
    try:
        value = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _section(record: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = record.get(name)
    return value if isinstance(value, dict) else {}
