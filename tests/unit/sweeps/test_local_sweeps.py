"""Whole sweeps on this machine: submitit's local executor, the real launcher, a fake training program."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.event_log import lines_of
from support.gate import Gate
from support.light_forks import LightForks
from support.refusals import after

from orchestrator.launch.runs import all_runs
from orchestrator.run_directory.rundir import RunDir
from orchestrator.sweeps.ledger import find_sweep
from tests.unit.sweeps.conftest import JOB, Run, wait_until

pytestmark = pytest.mark.slow(reason="each cell is a launch of torchrun")


@pytest.fixture
def folder(folder: Path) -> Path:
    """The same folder; its job says that it trains on the CPU, so that nothing is to be warned of."""
    (folder / "job.yaml").write_text(f"{JOB}runtime: {{device: cpu}}\n")
    return folder


def cells(orchestrator: Run) -> dict[str, dict[str, Any]]:
    """name → what `sweep status --json` says of a cell."""
    code, out, err = orchestrator("sweep", "status", "tiny", "--json")
    assert (code, err) == (0, "")
    return {cell["name"]: cell for cell in json.loads(out)["cells"]}


def states(orchestrator: Run) -> dict[str, str]:
    return {name: cell["state"] for name, cell in cells(orchestrator).items()}


def launches(folder: Path) -> dict[str, int]:
    """run id → how often it was launched."""
    runs = all_runs(folder / "runs")
    return {run.run_id: sum(event["event"] == "launched" for event in lines_of(run)) for run in runs}


def trained(folder: Path) -> list[RunDir]:
    """The runs that have done a step."""
    return [run for run in all_runs(folder / "runs") if run.metrics_file.exists()]


def told(folder: Path) -> list[dict[str, Any]]:
    """What the command of the job's notifications was told, in order."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("told/*.json"))]


def test_failed_cells_are_retried_and_no_others_and_new_values_start_new_cells(
    orchestrator: Run, write: Callable[[str], Path], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_BAD_LR", "0.001,0.003")
    monkeypatch.setenv("FAKE_MENDED", str(folder / "mended"))
    # A file for each: two cells may end at the same time.
    (folder / "told").mkdir()
    keeps = 'cat >"$0/$$.draft"; mv "$0/$$.draft" "$0/$(date +%s%N).json"'
    tells = {"command": ["sh", "-c", keeps, str(folder / "told")]}
    (folder / "job.yaml").write_text(f"{JOB}runtime: {{device: cpu}}\nnotifications: {json.dumps(tells)}\n")
    sweep = write("grid: {lr: [1e-3, 2e-3, 3e-3], tp: [1, 3]}")
    code, out, err = orchestrator("sweep", "run", sweep, "--local", "--max-parallel", "3")
    assert code == 1
    assert "3 cells cannot run and are left out" in out
    assert "num_attention_heads / TP must be whole: 4 / 3" in out
    assert "lr=1e-3,tp=1: failed (" in out
    assert "sweep tiny: 3 cells: 2 failed, 1 completed; 3 more cannot run" in out
    assert "2 failed: orchestrator sweep retry tiny" in out
    assert states(orchestrator) == {
        "lr=1e-3,tp=1": "failed",
        "lr=2e-3,tp=1": "completed",
        "lr=3e-3,tp=1": "failed",
    }
    before = launches(folder)
    assert set(before.values()) == {1}
    wait_until(lambda: len(told(folder)) == 3)  # each cell that failed, and the whole
    *failures, whole = sorted(told(folder), key=lambda notice: "sweep" in notice)
    assert [notice["run"]["state"] for notice in failures] == ["failed", "failed"]
    assert (whole["occasion"], whole["sweep"]["failed_cells"]) == ("failed", ["lr=1e-3,tp=1", "lr=3e-3,tp=1"])
    assert whole["text"].startswith("sweep tiny has ended: 3 cells: 2 failed, 1 completed\nbest train/loss: ")

    # The exit code says so in every way, whoever started the cells that failed.
    code, out, err = orchestrator("sweep", "run", sweep, "--local")
    assert (code, err) == (1, "")
    assert "nothing to start" in out
    for options in (["--detach"], ["--json"]):
        assert orchestrator("sweep", "run", sweep, "--local", *options)[0] == 1
    assert launches(folder) == before, "what has failed is not started unasked"

    (folder / "mended").touch()
    code, out, err = orchestrator("sweep", "retry", "tiny", "--json")
    assert (code, err) == (0, "")
    failed = {cell["cell"] for name, cell in cells(orchestrator).items() if "2e-3" not in name}
    assert set(json.loads(out)["started"]) == failed
    assert set(states(orchestrator).values()) == {"completed"}
    wait_until(lambda: len(told(folder)) == 4)
    assert told(folder)[-1]["text"].startswith("sweep tiny has ended: 3 cells: 3 completed\n")
    after = launches(folder)
    assert {run for run in after if after[run] != before[run]} == {cell[:8] for cell in failed}
    for run in all_runs(folder / "runs"):
        if run.run_id[:8] in {cell[:8] for cell in failed}:
            assert [event["iteration"] for event in lines_of(run) if event["event"] == "resumed"] == [5]

    write("grid: {lr: [1e-3, 2e-3, 3e-3, 4e-3]}")
    code, out, err = orchestrator("sweep", "run", sweep, "--local")
    assert (code, err) == (0, "")
    assert {run: count for run, count in launches(folder).items() if run not in after} != {}
    assert {run: count for run, count in launches(folder).items() if run in after} == after
    assert len(states(orchestrator)) == 4

    code, out, err = orchestrator("sweep", "results", "tiny", "--json")
    losses = [cell["values"]["train/loss"] for cell in json.loads(out)]
    assert losses == sorted(losses)
    code, out, err = orchestrator("sweep", "results", "tiny", "--csv", "--sort", "train/loss", "--reverse")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["optimizer.lr"] for row in rows] == ["4e-3", "3e-3", "2e-3", "1e-3"]
    assert [float(row["train/loss"]) for row in rows] == losses[::-1]
    code, out, err = orchestrator("sweep", "results", "tiny")
    assert out.splitlines()[0].split() == ["lr", "STATE", "ITERATION", "train/loss", "RUN"]
    assert out.splitlines()[-1].startswith("what explains the differences in train/loss: lr ")
    code, out, err = orchestrator("sweep", "results", "tiny", "--sort", "train/los")
    assert (code, err) == (2, "error: no cell has measured train/los: did you mean train/loss?\n")
    code, out, err = orchestrator("sweep", "list")
    assert out.splitlines()[1].split() == ["tiny", "4", "4", "completed"]
    code, out, err = orchestrator("list", "--json")
    assert len(json.loads(out)) == 4, "cells are ordinary runs"


def test_a_cancelled_sweep_saves_and_goes_on_when_it_is_run_again(
    orchestrator: Run,
    write: Callable[[str], Path],
    folder: Path,
    gate: Gate,
    until: Callable[..., None],
) -> None:
    sweep = write("grid: {lr: [1e-3, 2e-3]}")
    code, out, err = orchestrator("sweep", "run", sweep, "--local", "--detach")
    assert (code, err) == (0, "")
    until(lambda: trained(folder))
    [running] = trained(folder)
    assert sorted(states(orchestrator).values()) == ["pending", "running"]
    code, out, err = orchestrator("sweep", "run", sweep, "--local")
    assert "nothing to start" in out, "what is under way is left alone"

    code, out, err = orchestrator("sweep", "cancel", "tiny")
    assert (code, out, err) == (0, "sweep tiny: 1 cells will not start, 1 save and stop\n", "")
    until(lambda: set(states(orchestrator).values()) == {"cancelled"})
    assert sorted(launches(folder).values()) == [0, 1]
    code, out, err = orchestrator("sweep", "cancel", "tiny")
    assert out == "sweep tiny: no cell is under way\n"
    code, out, err = orchestrator("sweep", "retry", "tiny")
    assert "nothing to start" in out, "what a person stopped has not failed"

    gate.open()
    code, out, err = orchestrator("sweep", "run", sweep, "--local", "--max-parallel", "2")
    assert (code, err) == (0, "")
    assert set(states(orchestrator).values()) == {"completed"}
    assert [event["iteration"] for event in lines_of(running) if event["event"] == "resumed"] == [1]


PROGRAM = """
import functools, sys
from orchestrator.cli.runs.sweeps import start
start.local_request = functools.partial(start.local_request, module="sweep_runtime")
from orchestrator.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def test_ctrl_c_lets_the_cells_save_and_stop(
    orchestrator: Run,
    write: Callable[[str], Path],
    folder: Path,
    light_forks: LightForks,
    gate: Gate,
    until: Callable[..., None],
) -> None:
    (folder / "sweeps_fakes.py").write_text(PROGRAM)
    command = ("sweeps_fakes", "sweep", "run", write("grid: {lr: [1e-3, 2e-3]}"), "--local")
    said, err = folder / "said", folder / "err"
    with said.open("wb") as output, err.open("wb") as errors:
        process = light_forks.start(*command, env=os.environ, output=output, errors=errors)
    with contextlib.closing(process):
        until(lambda: "lr=1e-3: running" in said.read_text())
        until(lambda: trained(folder))
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 1
    assert err.read_text() == "\nthe cells save and stop; Ctrl-C again leaves them to it\n"
    out = said.read_text()
    assert "sweep tiny: 2 cells: 2 cancelled" in out
    [stopped] = trained(folder)
    assert [event["cause"] for event in lines_of(stopped) if event["event"] == "exited"] == ["stopped"]
    assert stopped.checkpoint_dirs()


def test_ctrl_c_before_the_cells_are_followed_stops_them_too(
    orchestrator: Run, write: Callable[[str], Path], folder: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*started: object) -> None:
        signal.raise_signal(signal.SIGINT)

    after(monkeypatch, "orchestrator.cli.runs.sweeps.start.start_driver", interrupt)
    for way in ("--local", "--detach"):
        code, out, err = orchestrator("sweep", "run", write("grid: {lr: [1e-3, 2e-3]}"), "--local", way)
        assert code == 1
        assert err == (
            "\nthe cells are being started, and will be stopped then\n"
            "\nthe cells save and stop; Ctrl-C again leaves them to it\n"
        )
        assert "sweep tiny: 2 cells: 2 cancelled" in out
        assert set(states(orchestrator).values()) == {"cancelled"}
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_submitit_carries_on_a_cell_that_is_told_to_make_room(
    orchestrator: Run,
    write: Callable[[str], Path],
    folder: Path,
    gate: Gate,
    until: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Who forks is the parent of what is forked: the task and its launcher are not.
    monkeypatch.setenv("FORKED_TOO", "orchestrator.sweeps")
    assert orchestrator("sweep", "run", write("grid: {lr: [1e-3]}"), "--local", "--detach")[0] == 0
    [run] = all_runs(folder / "runs")
    until(run.metrics_file.exists)
    os.kill(task_of(run), signal.SIGUSR1)
    until(lambda: any(event["event"] == "stop_requested" for event in lines_of(run)))
    gate.open()
    until(lambda: states(orchestrator) == {"lr=1e-3": "completed"})
    kinds = [event["event"] for event in lines_of(run)]
    assert kinds.count("launched") == 2
    assert [event["iteration"] for event in lines_of(run) if event["event"] == "resumed"] == [1]
    said = "".join(path.read_text() for path in find_sweep("tiny", folder / "runs").submitit.glob("*_log.*"))
    assert "Calling checkpoint method" in said


def task_of(run: RunDir) -> int:
    """Pid of the submitit task of a run: the parent of its launcher."""
    launcher = next(event["pid"] for event in lines_of(run) if event["event"] == "launched")
    return int(Path(f"/proc/{launcher}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_driver_that_is_killed_leaves_its_cells_missing_and_they_are_retried(
    orchestrator: Run,
    write: Callable[[str], Path],
    folder: Path,
    gate: Gate,
    until: Callable[..., None],
) -> None:
    sweep = write("grid: {lr: [1e-3, 2e-3]}")
    assert orchestrator("sweep", "run", sweep, "--local", "--detach")[0] == 0
    until(lambda: trained(folder))
    driver = next(iter(find_sweep("tiny", folder / "runs").submissions().values())).driver
    assert driver is not None
    os.kill(driver.pid, signal.SIGKILL)
    gate.open()
    until(lambda: sorted(states(orchestrator).values()) == ["completed", "missing"])
    assert orchestrator("sweep", "status", "tiny")[1].endswith("\n      1 missing: orchestrator sweep retry tiny\n")
    assert orchestrator("sweep", "retry", "tiny")[0] == 0
    assert set(states(orchestrator).values()) == {"completed"}
    assert set(launches(folder).values()) == {1}


def test_a_job_that_its_launcher_starts_needs_no_option(
    orchestrator: Run, write: Callable[[str], Path], folder: Path
) -> None:
    (folder / "job.yaml").write_text(f"{JOB}runtime: {{device: cpu}}\nlaunch: {{executor: local}}\n")
    code, out, err = orchestrator("sweep", "run", write("grid: {lr: [1e-3]}"))
    assert code == 0, out + err
    assert states(orchestrator) == {"lr=1e-3": "completed"}
