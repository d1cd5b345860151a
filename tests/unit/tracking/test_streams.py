"""TensorBoard and Weights & Biases, sent for real and read back: by TensorBoard's own reader, and from wandb's file."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from wandb.proto.wandb_internal_pb2 import Record

from orchestrator.run_directory.lease import Lease
from orchestrator.run_directory.rundir import RunDir
from orchestrator.tracking.description import Description, State
from orchestrator.tracking.follower import finish_follower, start_follower
from orchestrator.tracking.measurements.metrics import Metric, MetricLog
from orchestrator.tracking.stream import Position, Stream, runs_of_steps
from tests.unit.tracking.conftest import log_steps, make_run, once, only_run, wait_for, write_spec

BOARD = {"mlflow": False, "tensorboard": True}
OFFLINE = {"mlflow": False, "wandb": {"project": "ours", "entity": None, "mode": "offline"}, "tags": {"team": "nlp"}}


def curve(run: RunDir, key: str = "train/loss") -> list[tuple[int, float]]:
    """What TensorBoard shows of a run: (step, value)."""
    board = EventAccumulator(str(run.path / "tensorboard"), size_guidance={"scalars": 0})
    board.Reload()
    return [(event.step, round(event.value, 3)) for event in board.Scalars(key)]


def board_text(run: RunDir, tag: str) -> str:
    board = EventAccumulator(str(run.path / "tensorboard"))
    board.Reload()
    text: bytes = board.Tensors(tag)[-1].tensor_proto.string_val[0]
    return text.decode()


def falling(steps: range, by: float = 1000) -> list[tuple[int, float]]:
    return [(step, round(3 - step / by, 3)) for step in steps]


@pytest.mark.usefixtures("forked_sending")
def test_tensorboard_goes_on_after_a_resume_and_forgets_what_is_trained_again(tmp_path: Path) -> None:
    run = make_run(tmp_path, tracking=BOARD)
    log_steps(run, range(1, 11))
    code, [record] = once(run)
    assert (code, record["state"], record["metrics"], record["mlflow_run_id"]) == (0, "sent", 10, None)
    assert curve(run) == falling(range(1, 11))
    assert curve(run, "progress/tokens")[-1] == (10, 10240.0)
    assert "| `optimizer.lr` | 0.001 |" in board_text(run, "spec")

    assert once(run)[1][0]["metrics"] == 0  # nothing new: no further file
    assert len(list((run.path / "tensorboard").iterdir())) == 1

    write_spec(run, {**json.loads(run.resolved().read_text()), "optimizer": {"lr": 0.5}})
    log_steps(run, range(6, 9), lambda step: 3 - step / 100)  # resumed from 5: 9 and 10 are gone
    assert once(run)[1][0]["metrics"] == 3
    log_steps(run, range(9, 12), lambda step: 3 - step / 100)
    assert once(run)[1][0]["metrics"] == 3
    assert curve(run) == falling(range(1, 6)) + falling(range(6, 12), by=100)
    assert "| `optimizer.lr` | 0.5 |" in board_text(run, "spec")

    for path in [*(run.path / "tensorboard").iterdir(), run.path / "tensorboard.json"]:
        path.unlink()
    assert once(run)[1][0]["metrics"] == 16  # a lost log is written anew from the run directory
    assert curve(run) == falling(range(1, 6)) + falling(range(6, 12), by=100)


@pytest.mark.usefixtures("forked_sending")
def test_what_a_killed_process_wrote_and_could_not_note_is_there_once(tmp_path: Path) -> None:
    run = make_run(tmp_path, tracking=BOARD)
    log_steps(run, range(1, 4))
    once(run)
    noted = (run.path / "tensorboard.json").read_bytes()
    log_steps(run, range(4, 7))
    once(run)
    (run.path / "tensorboard.json").write_bytes(noted)
    once(run)
    assert curve(run) == falling(range(1, 7))


def test_the_follower_sends_to_every_tracker_and_one_that_is_missing_or_broken_stops_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path, tracking={**OFFLINE, "mlflow": True, "tensorboard": True})
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "wandb.py").write_text("raise ModuleNotFoundError('no wandb', name='wandb')\n")
    (hidden / "mlflow.py").write_text("raise TypeError('a descriptor of\\nprotobuf')\n")
    monkeypatch.setenv("PYTHONPATH", f"{hidden}:{os.environ.get('PYTHONPATH', '')}")
    lease = Lease.acquire(run, launch_id="l1")
    follower = start_follower(run, drain_seconds=200)
    log_steps(run, range(1, 4))
    wait_for(lambda: (run.path / "tensorboard.json").exists())
    missing = "nothing is sent to Weights & Biases: wandb is not installed (pip install 'megatron-orchestrator[wandb]')"
    broken = "nothing is sent to mlflow: its package cannot be used: TypeError: a descriptor of protobuf"
    assert once(run)[1][0]["message"] == f"{broken}; {missing}"
    log_steps(run, range(4, 7))
    assert not finish_follower(follower, 240, cause="completed")  # not everything was sent
    lease.release()
    assert curve(run) == falling(range(1, 7))
    assert "`orchestrator.state` | finished" in board_text(run, "run")
    log = (run.logs / "mlflow.log").read_text().splitlines()
    assert [line.split(maxsplit=2)[2] for line in log] == [broken, missing]


def records(folder: Path) -> Iterator[Record]:
    """What a .wandb file holds: a header of 7 bytes, then blocks of 32 KiB of records in parts, as in LevelDB's log."""
    [path] = folder.glob("*.wandb")
    data, place, whole = path.read_bytes(), 7, b""
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + 7])
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # the whole, or the last part
            yield Record.FromString(whole)
            whole = b""


def rows(folder: Path) -> list[dict[str, Any]]:
    found = (record.history for record in records(folder) if record.WhichOneof("record_type") == "history")
    return [{item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in row.item} for row in found]


def offline_runs(run: RunDir) -> list[Path]:
    return sorted((run.path / "wandb").glob("offline-run-*"), key=lambda path: path.stat().st_mtime_ns)


@pytest.mark.usefixtures("forked_sending")
def test_a_run_of_wandb_is_one_run_across_resumes(tmp_path: Path) -> None:
    run = make_run(tmp_path, tracking=OFFLINE)
    log_steps(run, range(1, 4))
    code, [record] = once(run)
    assert (code, record["metrics"]) == (0, 3)
    [first] = offline_runs(run)
    [begun] = [record.run for record in records(first) if record.WhichOneof("record_type") == "run"]
    assert (begun.project, begun.display_name, list(begun.tags)) == ("ours", f"tiny/{run.run_id}", ["team:nlp"])
    sent = rows(first)
    assert [(row["iteration"], row["train/loss"], row["progress/samples"]) for row in sent] == [
        (step, 3 - step / 1000, step * 8.0) for step in (1, 2, 3)
    ]
    measured = [json.loads(line)["time"] for line in run.metrics_file.read_text().splitlines()]
    assert [row["_timestamp"] for row in sent] == pytest.approx(measured)
    axes = [record.metric for record in records(first) if record.WhichOneof("record_type") == "metric"]
    assert "iteration" in {metric.step_metric for metric in axes}
    changed = [record.config for record in records(first) if record.WhichOneof("record_type") == "config"]
    config = {item.key: json.loads(item.value_json) for each in changed for item in each.update}
    assert config["optimizer"] == {"lr": 0.001}
    assert config["launch"] == {"env": {"TOKEN": "${env:HUB_TOKEN}"}}

    log_steps(run, range(3, 5))  # resumed from 2
    assert once(run)[1][0]["metrics"] == 2
    second = offline_runs(run)[-1]
    assert [row["iteration"] for row in rows(second)] == [3, 4]
    [again] = [record.run for record in records(second) if record.WhichOneof("record_type") == "run"]
    assert again.run_id == begun.run_id
    assert once(run)[1][0]["metrics"] == 0
    assert len(offline_runs(run)) == 2

    (run.path / "wandb.json").unlink()
    assert once(run)[1][0]["metrics"] == 5  # a run of its own, with everything in it
    third = offline_runs(run)[-1]
    [anew] = [record.run for record in records(third) if record.WhichOneof("record_type") == "run"]
    assert anew.run_id != begun.run_id
    assert [row["iteration"] for row in rows(third)] == [1, 2, 3, 3, 4]


@pytest.mark.usefixtures("forked_sending")
def test_without_a_key_one_line_says_so(tmp_path: Path) -> None:
    run = make_run(tmp_path, tracking={**OFFLINE, "wandb": {"mode": "online"}})
    log_steps(run, range(1, 4))
    environment = {"WANDB_BASE_URL": "http://127.0.0.1:9", "HOME": str(tmp_path), "NETRC": str(tmp_path / "none")}
    code, [record] = once(run, environment=environment)
    assert (code, record["state"], record["metrics"]) == (1, "failed", 0)
    assert record["message"].startswith("Weights & Biases: ")
    assert "\n" not in record["message"]
    assert "login" in record["message"] or "key" in record["message"]
    assert list((run.path / "wandb").glob("*run-*")) == []


class _Failing:
    """A sink that fails when it is told to, as a disk or a server does, and works again afterwards."""

    name, title, longest_wait_seconds = "failing", "Failing", 60.0

    def __init__(self, *, keeps_at_once: bool) -> None:
        self.keeps_at_once = keeps_at_once
        self.opened: list[int] = []
        self.written: list[int] = []
        self.fails = ""

    def open(self, position: Position) -> None:
        self.opened.append(position.step)

    def describe(self, description: Description) -> None:
        pass

    def write(self, records: Sequence[Metric]) -> None:
        self._fail("write")
        self.written += [record.iteration for record in records]

    def rewind(self, step: int) -> None:
        raise AssertionError("training went on")

    def close(self, state: State) -> None:
        self._fail("close")

    def drop(self) -> None:
        self.written = [step for step in self.written if step <= self.opened[-1] or self.keeps_at_once]

    def _fail(self, at: str) -> None:
        if self.fails == at:
            raise ConnectionError("key-of-wandb is refused")


@pytest.mark.parametrize("keeps_at_once", [True, False])
def test_a_stream_that_failed_goes_on_from_what_is_kept(
    keeps_at_once: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "key-of-wandb")
    run = make_run(tmp_path)
    sink = _Failing(keeps_at_once=keeps_at_once)
    stream = Stream(run, "fake", sink)
    log_steps(run, range(1, 4))
    stream.send()
    log_steps(run, range(4, 6))
    sink.fails = "write"
    for _ in range(2):
        with pytest.raises(ConnectionError) as refused:
            stream.send()
    assert stream.explain(refused.value) == "Failing: ${env:WANDB_API_KEY} is refused"
    sink.fails = "close"
    stream.send()
    with pytest.raises(ConnectionError):
        stream.close()
    assert (stream.bytes_left() == 0) == keeps_at_once
    sink.fails = ""
    stream.send()
    stream.close()
    assert sink.written == [1, 2, 3, 4, 5]
    assert sink.opened == ([-1, 3, 3] if keeps_at_once else [-1, -1, -1, -1])
    assert stream.bytes_left() == 0
    stream.send()
    assert sink.written == [1, 2, 3, 4, 5]


@given(st.lists(st.integers(0, 8)), st.integers(-1, 8))
def test_steps_are_cut_where_they_fall_back(steps: list[int], last: int) -> None:
    parts = runs_of_steps([Metric(0.0, step, 0, 0, {"train/loss": 1.0}) for step in steps], last)
    assert [record.iteration for part in parts for record in part] == steps
    for part in parts:
        iterations = [record.iteration for record in part]
        assert iterations == sorted(set(iterations))
    before = last
    for number, part in enumerate(parts):
        assert number == 0 or part[0].iteration <= before
        before = part[-1].iteration


@pytest.mark.usefixtures("forked_sending")
def test_a_validation_leaves_the_point_of_its_step_and_adds_no_second_one_of_progress(
    tmp_path: Path, store_in: Path
) -> None:
    run = make_run(tmp_path, tracking={**OFFLINE, "mlflow": True, "tensorboard": True})
    log = MetricLog(run, lambda: None)
    validations = {"validation/loss": 4.0, "validation/perplexity": 55.0}
    for step in (1, 2, 3, 4):
        log_steps(run, range(step, step + 1))
        if step % 2 == 0:
            log.append(step, step * 8, step * 1024, validations)
    log.append(4, 32, 4096, {"test/loss": 5.0})
    log.append(2, 16, 2048, validations)  # resumed from 2, whose evaluation was interrupted: 3 and 4 are trained again
    log.append(3, 24, 3072, {"train/loss": 1.0}, measured=time.time() + 1)
    assert once(run)[0] == 0

    assert curve(run) == [*falling(range(1, 3)), (3, 1.0)]
    assert curve(run, "progress/samples") == [(1, 8.0), (2, 16.0), (3, 24.0)]
    assert curve(run, "validation/loss") == [(2, 4.0), (2, 4.0)]
    stored = only_run(store_in).metrics
    assert stored["progress/tokens"] == [(1, 1024), (2, 2048), (3, 3072), (3, 3072), (4, 4096)]
    assert [step for step, _ in stored["progress/samples"]] == [step for step, _ in stored["train/loss"]]
    [folder] = offline_runs(run)
    assert [row["iteration"] for row in rows(folder) if "progress/tokens" in row] == [1, 2, 3, 4, 3]
    assert [row["iteration"] for row in rows(folder) if "validation/loss" in row] == [2, 4, 2]


def test_the_program_loads_no_tracker_that_nobody_asked_for() -> None:
    program = "import sys, orchestrator.tracking.program; print({'mlflow', 'wandb', 'tensorboard'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "set()\n"
