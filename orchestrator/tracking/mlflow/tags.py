"""The tags of a run's MLflow run: what runs are searched and sorted by, and a description for people."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from orchestrator.run_directory.events.labels import Labels
from orchestrator.run_directory.events.log import EventLog
from orchestrator.run_directory.events.types import Exited, Pretrained, Resumed, Started, Submitted
from orchestrator.run_directory.exits.causes import CAUSES, by_word_of_the_ranks
from orchestrator.run_directory.labels import label_events, read_labels
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.schema.canonical import config_hash
from orchestrator.tracking.measurements.goodput import goodput_of
from orchestrator.tracking.mlflow.limits import truncated
from orchestrator.tracking.mlflow.links import dashboard_url
from orchestrator.tracking.redaction import Redactor

RUN_ID_TAG = "orchestrator.run_id"
RUN_DIR_TAG = "orchestrator.run_dir"
NOTE_TAG = "mlflow.note.content"
NAME_TAG = "mlflow.runName"

Event = Mapping[str, Any]
_LONGEST_MESSAGE = 500
_DEGREES = ("tp", "pp", "vp", "cp", "ep", "etp", "dp")
_AS_A_TAG = ("architecture", "parameters", "layout", "world_size", "gpu", "cluster", "job_id", "user", "host")


def run_tags(
    run: RunDir, spec: Mapping[str, Any], events: EventLog, state: str, cause: str | None, commit: str | None
) -> dict[str, str]:
    """All tags of a run, as of its newest start. `commit`: of the code, where the events do not name it."""
    facts = run_facts(run, spec, events)
    own: dict[str, Any] = {"state": state, "exit_cause": cause, "config_hash": config_hash(spec)}
    own |= {name: facts[name] for name in _AS_A_TAG}
    own["code_commit"] = _last(events, "commit") or commit
    own["exit_message"] = _exit_message(run, spec, events) if state == "failed" else None
    own["resumes"] = len(events.all(Resumed))
    own["dashboard"] = dashboard_url(run, section(spec, "tracking").get("dashboard_url"))
    own["latest_checkpoint"] = _latest_checkpoint(run, events)
    if (parent := events.last(Pretrained)) is not None:
        own["pretrained_checkpoint"], own["pretrained_run"] = parent.checkpoint, parent.from_run

    tags = {str(key): str(value) for key, value in section(section(spec, "tracking"), "tags").items()}
    tags |= {f"orchestrator.{name}": "" if value is None else str(value) for name, value in own.items()}
    tags |= {"mlflow.source.type": "JOB", "mlflow.source.name": f"orchestrator {label(run)}"}
    tags |= {"mlflow.user": str(facts["user"])} if facts["user"] else {}
    if own["code_commit"]:
        tags["mlflow.source.git.commit"] = str(own["code_commit"]).removesuffix("+changes")
    if state != "running":
        tags |= _goodput_tags(run)
    tags |= _label_tags(run)
    return tags | {RUN_ID_TAG: run.run_id, RUN_DIR_TAG: str(run.path), NOTE_TAG: note(run, facts, cause, own)}


def label(run: RunDir) -> str:
    """What a run is called in MLflow: as every command takes it."""
    return f"{run.name}/{run.run_id}"


def run_facts(run: RunDir, spec: Mapping[str, Any], events: EventLog) -> dict[str, Any]:
    """What the newest start ran, on what, and for whom; None for what is not known yet."""
    started, submitted = events.last(Started), events.last(Submitted)
    return {
        "architecture": section(spec, "model").get("architecture"),
        "parameters": started.total_parameters if started else None,
        "layout": _layout(started.topology if started else None),
        "world_size": started.world_size if started else None,
        "gpu": started.device if started else None,
        "cluster": submitted.cluster if submitted is not None else "local",
        "job_id": _last(events, "job_id"),
        "user": _owner(run),
        "host": _last(events, "host"),
    }


def note_begins(run: RunDir) -> str:
    """How the description of a run begins."""
    return f"**{label(run)}**:"


def note(run: RunDir, facts: Mapping[str, Any], cause: str | None, own: Mapping[str, Any]) -> str:
    """Markdown: what the run is, why it ended, where it lies, and how to look at it."""
    size = facts["parameters"]
    what = [f"{facts['architecture'] or 'model'}" + (f" of {size:,} parameters" if isinstance(size, int) else "")]
    if facts["layout"]:
        what.append(f"{facts['layout']}, {facts['world_size']} ranks on {facts['gpu']}")
    what += [f"cluster {facts['cluster']}"] if facts["cluster"] != "local" else []
    what += [f"host {facts['host']}"] if facts["host"] else []
    lines = [f"{note_begins(run)} {', '.join(what)}", ""]
    if cause is not None and cause != "completed" and (known := CAUSES.get(cause)) is not None:
        lines += [f"It ended: {known.sentence}.", ""]
    commands = ("status", "logs") if cause == "completed" else ("status", "logs", "resume")
    lines += ["Its directory, and useful commands:", "", f"    {run.path}", ""]
    lines += [*(f"    orchestrator {name} {shlex.quote(str(run.path))}" for name in commands), ""]
    if own["dashboard"]:
        lines += [f"[Its page in the dashboard]({own['dashboard']})", ""]
    if words := read_labels(run.path).note:
        lines += [words, ""]
    return "\n".join(lines)


def _label_tags(run: RunDir) -> dict[str, str]:
    """What people say of it, once anybody has said something. An archived run stays active in MLflow, which would take
    a deleted one for unknown: its tag says so.
    """
    events = label_events(run.path)
    if not events:
        return {}
    labels = Labels.of(events)
    tags = {"tags": ", ".join(labels.tags), "note": labels.note, "archived": str(labels.archived).lower()}
    name = label(run) if labels.name == run.name else labels.name
    return {f"orchestrator.{key}": value for key, value in tags.items()} | ({} if name is None else {NAME_TAG: name})


def section(record: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A section of a stored spec; empty where it has none."""
    value = record.get(name)
    return value if isinstance(value, dict) else {}


def _last(events: EventLog, name: str) -> Any:
    return next((found for event in reversed(events) if (found := getattr(event, name, None))), None)


def _exit_message(run: RunDir, spec: Mapping[str, Any], events: EventLog) -> str:
    """What the newest start said about its end: the launcher, or else the rank whose word counts. Free of the values
    that the spec refers to.
    """
    message = ""
    for event in reversed(events):
        if isinstance(event, Exited) and event.cause != "held":
            message = event.message or ""
            break
        if isinstance(event, Started):
            word = by_word_of_the_ranks(run, str(event.launch_id))
            message = word.message if word is not None else ""
            break
    return truncated(" ".join(Redactor.of_spec(spec)(message).split()), _LONGEST_MESSAGE)


def _layout(topology: object) -> str | None:
    """'tp2 pp2 dp4': the degrees above 1, and data parallelism always."""
    if not isinstance(topology, dict):
        return None
    degrees = [(name, topology.get(name)) for name in _DEGREES]
    return " ".join(
        f"{name}{degree}" for name, degree in degrees if isinstance(degree, int) and (degree > 1 or name == "dp")
    )


def _owner(run: RunDir) -> str | None:
    """Who the run directory belongs to."""
    try:
        return run.path.owner()
    except (KeyError, OSError):  # nobody of this machine
        return None


def _latest_checkpoint(run: RunDir, events: EventLog) -> str | None:
    return str(run.checkpoint(max(events.saved))) if events.saved else None


def _goodput_tags(run: RunDir) -> dict[str, str]:
    """At the end of a start: how well the run's time was used. Tags and not metrics: they are replaced by the next end,
    and a store that was lost is filled with the same again.
    """
    said = {name: value for name, value in goodput_of(run).to_json().items() if value is not None}
    texts = {name: f"{value:.4f}" if isinstance(value, float) else str(value) for name, value in said.items()}
    fraction = {"orchestrator.goodput": texts.pop("fraction")} if "fraction" in texts else {}
    return fraction | {f"orchestrator.goodput.{name}": text for name, text in texts.items()}
