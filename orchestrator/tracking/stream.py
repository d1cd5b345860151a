"""What is sent to a tracker that takes a run as one stream of steps, whatever the tracker: each record once, in order.

How far it has come is in a file of the run directory, such as `tensorboard.json`; without it everything is sent again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

from orchestrator.errors import OrchestratorError
from orchestrator.files.stored_files import count, size_of
from orchestrator.run_directory.results.record import metric_values, read_result, result_paths
from orchestrator.run_directory.rundir import RunDir, write_atomically
from orchestrator.tracking.description import Description, Ending, State, describe, description_signature
from orchestrator.tracking.locks import alone
from orchestrator.tracking.measurements.metrics import Metric, MetricTail
from orchestrator.tracking.redaction import Redactor

_RECORDS_PER_READ = 1000
_SECONDS_FOR_THE_LOCK = 5.0
"""A follower holds it as long as the run goes on: waiting for that is no use."""
_LONGEST_EXPLANATION = 300
_EVALUATIONS = "evaluations"


@dataclass
class Position:
    """How far a run was sent. `offset`: bytes of metrics.jsonl; `step`: the highest that was written, -1 before any;
    `sent`: digest of each other thing, by name; `run_id`: what the tracker calls the run, and `run_dir`: where it was.
    """

    offset: int = 0
    step: int = -1
    sent: dict[str, str] = field(default_factory=dict)
    run_id: str | None = None
    run_dir: str | None = None


class Sink(Protocol):
    """The tracker's own side. Whatever is written is in order of the file, not of the steps."""

    title: str
    keeps_at_once: bool
    """Whether what is written is kept for good when `write` returns; else it is when `close` does."""
    longest_wait_seconds: float
    """Between two attempts to open it."""

    def open(self, position: Position) -> None:
        """Go on after `position`; where the tracker has no such run, this may set it back to the start."""

    def describe(self, description: Description) -> None:
        """Everything but the metrics, as it is now."""

    def write(self, records: Sequence[Metric]) -> None:
        """Steps."""

    def rewind(self, step: int) -> None:
        """Training fell back: the steps from this one on are written anew."""

    def close(self, state: State) -> None:
        """The run is in this state, and nothing follows from this process. Raises where not all is kept."""

    def drop(self) -> None:
        """Let go after an error, of which there may be more; what this process wrote and is not kept is lost."""


class Stream:
    """A Tracker, over a sink. The sink is opened once there is something to write, and then held with a lock. `name`:
    that of its files in the run directory.
    """

    def __init__(self, run: RunDir, name: str, sink: Sink) -> None:
        self.ending = Ending()
        self.num_metrics = 0
        self.longest_wait_seconds = sink.longest_wait_seconds
        self._run = run
        self._name = name
        self._sink = sink
        self._state: State = "running"
        self._position: Position | None = None
        self._opened = contextlib.ExitStack()
        self._is_open = False
        self._signature: object = None

    def send(self, lock_seconds: float = 5.0) -> None:
        """Send what is not sent yet. After an error the next pass begins where the run directory says."""
        try:
            self._send(lock_seconds)
        except Exception:
            self._drop()
            raise

    def _send(self, lock_seconds: float) -> None:
        position = self._hold(lock_seconds)
        if MetricTail(self._run.metrics_file, position.offset).poll(1):
            self._open()
        tail = MetricTail(self._run.metrics_file, position.offset)
        while records := tail.poll(_RECORDS_PER_READ):
            for part in runs_of_steps(records, position.step):
                if (undone := _undone(part[0])) <= position.step:
                    self._sink.rewind(undone)
                self._sink.write(part)
                position.step = part[-1].iteration
                self.num_metrics += sum(len(record.values) for record in part)
            position.offset = tail.offset
            self._note()
        self._send_evaluations()
        self._describe()

    def close(self) -> None:
        """Let go of the sink, and of the lock. Raises where not all is kept: the next pass sends that again."""
        if self._is_open:
            try:
                self._sink.close(self._state)
                self._save()
            except Exception:
                self._drop()
                raise
            self._is_open = False
        self._let_go()

    def _drop(self) -> None:
        if self._is_open:
            self._is_open = False
            self._sink.drop()
        self._let_go()

    def _let_go(self) -> None:
        self._opened.close()
        self._position = self._signature = None

    def explain(self, error: BaseException) -> str:
        """One line that says what went wrong, free of secrets."""
        text = str(error) or type(error).__name__
        said = text if isinstance(error, OrchestratorError) else f"{self._sink.title}: {text}"
        line = " ".join(Redactor(None)(said).split())
        return line if len(line) <= _LONGEST_EXPLANATION else line[: _LONGEST_EXPLANATION - 1] + "…"

    def bytes_left(self) -> int:
        """How much of metrics.jsonl is not sent yet."""
        known = self._position if self._sink.keeps_at_once else None
        position = known or _read(self._run, self._name)
        return max(0, size_of(self._run.metrics_file) - position.offset)

    def _hold(self, lock_seconds: float) -> Position:
        if self._position is None:
            path = self._run.path / f"{self._name}.lock"
            busy = f"{self._sink.title}: another process is sending this run"
            self._opened.enter_context(alone(path, min(lock_seconds, _SECONDS_FOR_THE_LOCK), busy))
            self._position = _read(self._run, self._name)
        return self._position

    def _current(self) -> Position:
        assert self._position is not None, "held"
        return self._position

    def _open(self) -> None:
        if not self._is_open:
            self._sink.open(self._current())
            self._is_open = True
            self._save()

    def _send_evaluations(self) -> None:
        """What was measured of checkpoints, each result once; one that was measured again is sent again."""
        position = self._current()
        for path in result_paths(self._run):
            result = read_result(path)
            name, digest = f"{_EVALUATIONS}/{path.name}", "" if result is None else str(result.finished)
            if result is None or position.sent.get(name) == digest:
                continue
            self._open()
            values = metric_values(result)
            self._sink.write([Metric(result.finished, result.iteration, 0, 0, values)])
            position.step = max(position.step, result.iteration)
            position.sent[name] = digest
            self.num_metrics += len(values)
            self._note()

    def _describe(self) -> None:
        signature = (description_signature(self._run), replace(self.ending))
        if signature == self._signature:
            return
        description = describe(self._run, self.ending)
        self._state = description.state
        position, digest = self._current(), _digest(description)
        if position.sent.get("description") != digest:
            self._open()
            self._sink.describe(description)
            position.sent["description"] = digest
            self._note()
        self._signature = signature

    def _note(self) -> None:
        """Keep how far it has come, where the tracker has kept what it got."""
        if self._sink.keeps_at_once:
            self._save()

    def _save(self) -> None:
        path = self._run.path / f"{self._name}.json"
        write_atomically(path, json.dumps(asdict(self._current()), indent=1) + "\n")


def runs_of_steps(records: Sequence[Metric], step: int) -> list[list[Metric]]:
    """The records cut where training fell back, the first being compared with `step`."""
    parts: list[list[Metric]] = []
    for record in records:
        if not parts or _undone(record) <= step:
            parts.append([])
        parts[-1].append(record)
        step = record.iteration
    return parts


def _undone(record: Metric) -> int:
    """The first step that a record takes back where there was one: its own, if it was trained again. An evaluation
    comes after the step that it measures.
    """
    return record.iteration + record.is_evaluation


def _read(run: RunDir, name: str) -> Position:
    """The stored position; the start when there is none or it cannot be read."""
    try:
        record: dict[str, Any] = run.read_json(run.path / f"{name}.json")
        return Position(
            offset=count(record["offset"]) or 0,
            step=int(record["step"]),
            sent={str(key): str(value) for key, value in record["sent"].items()},
            run_id=record.get("run_id"),
            run_dir=record.get("run_dir"),
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return Position()


def _digest(description: Description) -> str:
    told = [dict(description.current_params), dict(description.tags), description.state]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
