"""TensorBoard: event files in the run directory, written by its own writer, which needs no TensorFlow."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.plugins.text.metadata import create_summary_metadata
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from orchestrator.run_directory.rundir import RunDir
from orchestrator.tracking.description import Description, State
from orchestrator.tracking.measurements.metrics import Metric
from orchestrator.tracking.stream import Position, Stream
from orchestrator.tracking.trackers import LONGEST_WAIT_SECONDS

FOLDER = "tensorboard"
"""In the run directory."""


class EventFiles:
    """A sink. Each process writes a file of its own; a START in it takes back later steps of the files before."""

    def __init__(self, run: RunDir) -> None:
        self.title, self.keeps_at_once = "TensorBoard", True
        self.longest_wait_seconds = LONGEST_WAIT_SECONDS
        self._run = run
        self._writer: EventFileWriter | None = None
        self._step = 0

    def open(self, position: Position) -> None:
        """Begin a file after the ones that are there. What is beyond `position` in those is taken back."""
        self._writer = EventFileWriter(str(self._run.path / FOLDER))
        self.rewind(position.step + 1)
        self._step = max(position.step, 0)

    def describe(self, description: Description) -> None:
        """The spec and the tags as tables, on the page of texts."""
        for name, values in (("spec", description.current_params), ("run", description.tags)):
            rows = [f"| `{key}` | {_cell(value)} |" for key, value in sorted(values.items())]
            self._add(Event(wall_time=time.time(), step=self._step, summary=_text(name, ["| | |", "|---|---|", *rows])))
        self._flush()

    def write(self, records: Sequence[Metric]) -> None:
        """One event for each record, at its own time."""
        for record in records:
            values = [Summary.Value(tag=key, simple_value=value) for key, value in record.with_progress.items()]
            self._add(Event(wall_time=record.time, step=record.iteration, summary=Summary(value=values)))
            self._step = record.iteration
        self._flush()

    def rewind(self, step: int) -> None:
        """What readers know of this step and later ones counts no more."""
        self._add(Event(wall_time=time.time(), step=step, session_log=SessionLog(status=SessionLog.START)))

    def close(self, state: State) -> None:
        """The file is whole."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def drop(self) -> None:
        """The file ends here; the next one takes back what is too much in it."""
        writer, self._writer = self._writer, None
        if writer is not None:
            with contextlib.suppress(Exception):  # its thread may have ended by the error that is known already
                writer.close()

    def _add(self, event: Event) -> None:
        assert self._writer is not None, "open"
        self._writer.add_event(event)

    def _flush(self) -> None:
        assert self._writer is not None, "open"
        self._writer.flush()


def _text(name: str, lines: Sequence[str]) -> Summary:
    tensor = TensorProto(dtype=DT_STRING, string_val=["\n".join(lines).encode()])
    metadata = create_summary_metadata(display_name=name, description="")
    return Summary(value=[Summary.Value(tag=name, metadata=metadata, tensor=tensor)])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def tracker(run: RunDir) -> Stream:
    """The tracker of a run."""
    return Stream(run, "tensorboard", EventFiles(run))
