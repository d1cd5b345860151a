"""What state a run is in, derived from its events, its lease and its exit records. Nothing is stored."""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass
from typing import Any, Literal

from orchestrator.causes import Exit, by_word_of_the_ranks, cause_of
from orchestrator.checkpoints import Commit, committed
from orchestrator.launch.local import last_launch
from orchestrator.lease import Holder, read_holder
from orchestrator.process import Process
from orchestrator.rundir import RunDir

State = Literal["created", "running", "stopping", "completed", "stopped", "failed", "lost"]

_STATES: dict[str, State] = {"completed": "completed", "stopped": "stopped", "lost": "lost"}
_SECONDS_TO_TAKE_THE_LEASE = 600.0
_METRIC_TAIL_BYTES = 64 << 10


@dataclass(frozen=True)
class RunStatus:
    """One run as it is now. `cause` and `message` are None while it runs; `iteration` is the last one measured."""

    run: RunDir
    state: State
    cause: str | None
    message: str | None
    iteration: int | None
    values: dict[str, float]
    checkpoints: list[Commit]
    holder: Holder | None
    launch_id: str | None
    created: float | None
    launched: float | None
    ended: float | None
    launches: int

    @property
    def is_live(self) -> bool:
        """Whether some process works on it."""
        return self.state in ("running", "stopping")

    def describe(self) -> str:
        """The state in one sentence."""
        if self.cause is None or self.state == "completed":
            return self.state
        sentence = cause_of(self.cause).sentence
        if self.state == "stopped":
            return sentence
        return f"{self.state}: {sentence}" + (f" ({self.message})" if self.message else "")

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "run_id": self.run.run_id,
            "name": self.run.name,
            "path": str(self.run.path),
            "state": self.state,
            "cause": self.cause,
            "message": self.message,
            "iteration": self.iteration,
            "values": {key: value if math.isfinite(value) else str(value) for key, value in self.values.items()},
            "checkpoints": [commit.iteration for commit in self.checkpoints],
            "holder": None
            if self.holder is None or not self.holder.live
            else {
                "host": self.holder.process.host,
                "pid": self.holder.process.pid,
                "since": self.holder.since,
                "token": self.holder.token,
            },
            "launch_id": self.launch_id,
            "created": self.created,
            "launched": self.launched,
            "ended": self.ended,
            "launches": self.launches,
        }


def status_of(run: RunDir) -> RunStatus:
    """The status of a run."""
    events = run.events()
    launched = last_launch(events)
    holder = read_holder(run)
    state, end = _state(run, launched, holder)
    iteration, values = last_metrics(run)
    return RunStatus(
        run=run,
        state=state,
        cause=end.cause if end else None,
        message=(end.message or None) if end else None,
        iteration=iteration if iteration is not None else (end.iteration if end else None),
        values=values,
        checkpoints=committed(run),
        holder=holder,
        launch_id=launched["launch_id"] if launched else None,
        created=_first_time(events, "created"),
        launched=launched["time"] if launched else None,
        ended=launched["exited"]["time"] if launched and launched["exited"] else None,
        launches=sum(event.get("event") == "launched" for event in events),
    )


def _state(run: RunDir, launched: dict[str, Any] | None, holder: Holder | None) -> tuple[State, Exit | None]:
    lives = holder is not None and holder.live
    if launched is None:
        return ("running" if lives else "created"), None
    exited = launched["exited"]
    if exited is not None and not (lives and holder is not None and holder.launch_id != launched["launch_id"]):
        end = Exit(str(exited.get("cause")), str(exited.get("message") or ""), exited.get("iteration"), 0)
        return _state_of(end.cause), end
    if lives or (exited is None and not _launcher_is_gone(launched, holder)):
        return ("stopping" if run.stop_file.exists() else "running"), None
    end = by_word_of_the_ranks(run, str(launched["launch_id"])) or Exit("lost", "", None, cause_of("lost").exit_code)
    return _state_of(end.cause), end


def _state_of(cause: str) -> State:
    return _STATES.get(cause, "failed")


def _launcher_is_gone(launched: dict[str, Any], holder: Holder | None) -> bool:
    """Whether a launcher without an `exited` event has ended.

    One on another host is judged by the lease of its ranks, which they take within minutes of the start.
    """
    process = Process.from_record(launched)
    if process.is_here:
        return process.is_dead
    took_lease = holder is not None and holder.launch_id == launched["launch_id"]
    return took_lease or time.time() - float(launched["time"]) > _SECONDS_TO_TAKE_THE_LEASE


def last_metrics(run: RunDir) -> tuple[int | None, dict[str, float]]:
    """The last iteration measured, and the last value of every key, from the end of metrics.jsonl."""
    try:
        with open(run.metrics_file, "rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _METRIC_TAIL_BYTES))
            lines = file.read().splitlines()
    except FileNotFoundError:
        return None, {}
    iteration: int | None = None
    values: dict[str, float] = {}
    for line in lines:
        try:
            record = json.loads(line)
            iteration = int(record["iteration"])
            values |= {str(key): float(value) for key, value in record["values"].items()}
        except (ValueError, TypeError, KeyError, AttributeError):
            continue
    return iteration, values


def _first_time(events: list[dict[str, Any]], kind: str) -> float | None:
    return next((float(event["time"]) for event in events if event.get("event") == kind), None)
