"""Sweeps on a real cluster: one array through submitit, preempted and failed cells, retry and cancel."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest
from slurm.cluster import Cluster
from slurm.machine import wait_until
from support.event_log import lines_of
from support.faults import QUICK_TORCHRUN
from support.light_forks import LightForks
from support.programs import run_instead

from orchestrator.cli.main import main
from orchestrator.launch.runs import all_runs
from orchestrator.run_directory.rundir import RunDir
from orchestrator.sweeps.ledger import find_sweep

pytestmark = pytest.mark.slow(reason="whole sweeps on a real cluster")

FAKES = Path(__file__).parents[1] / "unit"
FAKE_RUNTIMES = (FAKES / "sweeps", FAKES / "launch")
JOB = """\
name: tiny
model: {num_layers: 2, hidden_size: 16, num_attention_heads: 2, seq_length: 8, vocab_size: 256}
batch: {micro_batch_size: 1, global_batch_size: 2}
data: {random_tokens: true}
optimizer: {lr: 1e-3}
schedule: {train_iters: 20}
precision: {dtype: fp32}
checkpoint: {save_interval: 5}
tracking: {mlflow: false}
"""
PROFILE = """\
name: test
partition: low
gpu: H200
gpu_request: none
exclusive: true
time: 30m
options:
  - |-
    --comment=it's "$HOME" `id` #1; ü
"""
COMMENT = 'it\'s "$HOME" `id` #1; ü'
FOUR = "base: job.yaml\ngrid: {lr: [1e-3, 2e-3], runtime.seed: [1, 2]}\n"


class Sweeps:
    """The command line, in a folder with a job and a profile of the cluster. No cell goes beyond step 6 before
    `go_on`, unless it is told to stop.
    """

    def __init__(self, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capfd = capfd

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        code = main(["sweep", *arguments])
        said = self._capfd.readouterr()
        return code, said.out, said.err

    def go_on(self) -> None:
        (self.folder / "go_on").touch()

    def cells(self) -> dict[str, dict[str, Any]]:
        code, out, err = self("status", "tiny", "--json")
        assert (code, err) == (0, "")
        return {cell["name"]: cell for cell in json.loads(out)["cells"]}

    def states(self) -> dict[str, str]:
        return {name: cell["state"] for name, cell in self.cells().items()}

    def runs(self) -> dict[str, RunDir]:
        return {name: RunDir(Path(cell["path"])) for name, cell in self.cells().items()}

    def wait(self, condition: Callable[[dict[str, str]], bool], what: str) -> None:
        wait_until(lambda: condition(self.states()), lambda: f"{what}: {self.cells()}", timeout=600, pause=3)

    def wait_until_training(self, count: int) -> None:
        runs = self.runs().values()

        def training() -> int:
            return sum(run.metrics_file.exists() and not events(run, "exited") for run in runs)

        wait_until(lambda: training() >= count, f"{count} cells train", timeout=300)


@pytest.fixture
def sweeps(
    tmp_path: Path, light_forks: LightForks, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Sweeps:
    """What starts cells, and what they are, is forked."""
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "clusters").mkdir()
    (tmp_path / "clusters" / "test.yaml").write_text(PROFILE)
    monkeypatch.chdir(tmp_path)
    for name, value in light_forks.variables(*FAKE_RUNTIMES, QUICK_TORCHRUN).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("ORCHESTRATOR_RUNS_DIR", str(tmp_path / "runs"))
    monkeypatch.setenv("FAKE_MENDED", str(tmp_path / "mended"))
    monkeypatch.setenv("FAKE_HOLD", f"6:{tmp_path / 'go_on'}")
    run_instead(monkeypatch, "sweep_runtime", "sweeps on clusters")
    return Sweeps(tmp_path, capfd)


def events(run: RunDir, kind: str) -> list[dict[str, Any]]:
    return [event for event in lines_of(run) if event["event"] == kind]


def most_at_once(runs: Collection[RunDir]) -> int:
    """How many of the runs were under way at once."""
    changes = [(event["time"], 1) for run in runs for event in events(run, "launched")]
    changes += [(event["time"], -1) for run in runs for event in events(run, "exited")]
    return max(itertools.accumulate(change for _, change in sorted(changes)))


def arrays_of(cluster: Cluster) -> set[str]:
    """The ids of all arrays, and jobs, that the controller knows."""
    return set(cluster.call("squeue", "--noheader", "--states=all", "--array", "--format=%F").split())


@pytest.mark.timeout(900)
def test_retry_touches_exactly_the_cells_that_failed(
    cluster: Cluster, sweeps: Sweeps, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = {"lr=1e-3,runtime.seed=2", "lr=2e-3,runtime.seed=1"}
    monkeypatch.setenv("FAKE_BAD_CELLS", "0.001/2,0.002/1")
    (sweeps.folder / "sweep.yaml").write_text(FOUR)
    known = arrays_of(cluster)
    code, out, err = sweeps("run", "sweep.yaml", "--max-parallel", "2")
    assert (code, err) == (0, "")
    submitted = re.search(r"submitted 4 cells as array (\d+) on test, at most 2 at once", out)
    assert submitted is not None, out
    assert arrays_of(cluster) - known == {submitted.group(1)}, "one array"

    sweeps.wait_until_training(2)
    preempted = sweeps.runs()["lr=1e-3,runtime.seed=1"]
    [launched] = events(preempted, "launched")
    cluster.submit(
        "sleep 1", f"--nodelist={launched['nodes'][0]}", "--exclusive", "--partition=main", folder=sweeps.folder
    )
    wait_until(lambda: events(preempted, "exited"), "the cell makes room")
    sweeps.go_on()

    sweeps.wait(lambda states: not {"pending", "running"} & set(states.values()), "every cell has ended")
    assert most_at_once(sweeps.runs().values()) == 2
    states = sweeps.states()
    assert {name for name, state in states.items() if state == "failed"} == bad
    assert {state for name, state in states.items() if name not in bad} == {"completed"}
    assert len(events(preempted, "launched")) == 2
    assert [event["cause"] for event in events(preempted, "exited")] == ["preempted", "completed"]
    assert events(preempted, "resumed")[0]["iteration"] > 0

    before = {name: len(events(run, "launched")) for name, run in sweeps.runs().items()}
    (sweeps.folder / "mended").touch()
    code, out, err = sweeps("retry", "tiny")
    assert (code, err) == (0, "")
    assert "submitted 2 cells as array" in out
    sweeps.wait(lambda states: set(states.values()) == {"completed"}, "the two cells have completed")
    after = {name: len(events(run, "launched")) for name, run in sweeps.runs().items()}
    assert {name for name in after if after[name] != before[name]} == bad
    for name in bad:
        assert [event["iteration"] for event in events(sweeps.runs()[name], "resumed")] == [5]
    code, out, err = sweeps("retry", "tiny")
    assert "nothing to start" in out
    code, out, err = sweeps("results", "tiny", "--json")
    losses = [cell["values"]["train/loss"] for cell in json.loads(out)]
    assert len(losses) == 4
    assert losses == sorted(losses)


@pytest.mark.timeout(600)
def test_submitit_carries_on_a_cell_that_has_got_slurm_s_notice(
    cluster_without_accounting: Cluster, sweeps: Sweeps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """submitit's program is not forked: it is the process that SLURM has started."""
    monkeypatch.setenv("FORKED_TOO", "orchestrator.batch orchestrator.batch.node")
    (sweeps.folder / "sweep.yaml").write_text("base: job.yaml\ngrid: {lr: [1e-3]}\n")
    assert sweeps("run", "sweep.yaml")[0] == 0
    first = sweeps.runs()["lr=1e-3"]
    wait_until(first.metrics_file.exists, "the first cell trains", timeout=300)
    [submitted] = events(first, "submitted")
    call = cluster_without_accounting.call
    assert call("squeue", "--noheader", f"--jobs={submitted['job_id']}", "--format=%k") == COMMENT
    call("scancel", "--signal=USR1", "--batch", submitted["job_id"])
    wait_until(lambda: events(first, "stop_requested"), "the first cell has heard of it")
    sweeps.go_on()
    sweeps.wait(lambda states: set(states.values()) == {"completed"}, "all cells have completed")
    assert [event["cause"] for event in events(first, "exited")] == ["preempted", "completed"]
    [stopped] = events(first, "stop_requested")
    assert [event["iteration"] for event in events(first, "resumed")] == [stopped["iteration"]]
    said = "".join(path.read_text() for path in (sweeps.folder / "runs/sweeps/tiny/submitit").glob("*_0_log.*"))
    assert "Calling checkpoint method" in said
    # What submitit says after its `scontrol requeue` may be lost: that ends the process itself.
    assert int(cluster_without_accounting.job(submitted["job_id"])["Restarts"]) == 1


@pytest.mark.timeout(600)
def test_a_cancelled_sweep_leaves_nothing_in_the_queue_and_goes_on_when_it_is_run_again(
    cluster_without_accounting: Cluster, sweeps: Sweeps
) -> None:
    (sweeps.folder / "sweep.yaml").write_text("base: job.yaml\ngrid: {lr: [1e-3, 2e-3, 3e-3]}\n")
    assert sweeps("run", "sweep.yaml", "--max-parallel", "1")[0] == 0
    first = sweeps.runs()["lr=1e-3"]
    wait_until(first.metrics_file.exists, "the first cell trains", timeout=300)
    code, out, err = sweeps("cancel", "tiny")
    assert (code, out, err) == (0, "sweep tiny: 2 cells will not start, 1 save and stop\n", "")
    sweeps.wait(lambda states: set(states.values()) == {"cancelled"}, "nothing is under way")
    wait_until(lambda: not cluster_without_accounting.call("squeue", "--noheader"), "the queue is empty")
    assert [event["cause"] for event in events(first, "exited")] == ["stopped"]
    assert sorted(len(events(run, "launched")) for run in all_runs(sweeps.folder / "runs")) == [0, 0, 1]

    sweeps.go_on()
    assert sweeps("run", "sweep.yaml")[0] == 0
    sweeps.wait(lambda states: set(states.values()) == {"completed"}, "all cells have completed")
    assert len(events(first, "resumed")) == 1


@pytest.mark.timeout(600)
def test_cells_whose_submission_was_killed_before_it_was_written_down_are_trained_once(
    cluster_without_accounting: Cluster, sweeps: Sweeps
) -> None:
    sweeps.go_on()
    (sweeps.folder / "clusters" / "test.yaml").write_text(f"{PROFILE}  - --hold\n")
    (sweeps.folder / "sweep.yaml").write_text("base: job.yaml\ngrid: {lr: [1e-3, 2e-3]}\n")
    call, arrays = cluster_without_accounting.call, []
    for _ in range(2):
        known = arrays_of(cluster_without_accounting)
        assert sweeps("run", "sweep.yaml")[0] == 0
        arrays += arrays_of(cluster_without_accounting) - known
        if len(arrays) == 1:
            for log in (sweeps.folder / "runs").rglob("*.jsonl"):
                lines = log.read_text().splitlines(keepends=True)
                log.write_text("".join(line for line in lines if '"submitted"' not in line))
    for array in arrays:
        call("scontrol", "release", array)
        wait_until(lambda array=array: array not in call("squeue", "-h", "--format=%F").split(), f"{array} has ended")
    assert set(sweeps.states().values()) == {"completed"}
    launched = [event["job_id"] for run in sweeps.runs().values() for event in events(run, "launched")]
    assert sorted(launched) == [f"{arrays[1]}_0", f"{arrays[1]}_1"]


@pytest.mark.timeout(600)
def test_a_scheduler_that_refuses_or_is_away_loses_nothing_and_cells_may_have_several_nodes(
    cluster: Cluster, sweeps: Sweeps, tmp_path: Path
) -> None:
    sweeps.go_on()
    # Two nodes would be checked before the start, with the real torch: see test_health.py.
    (sweeps.folder / "job.yaml").write_text(
        f"{JOB}launch: {{health_check: false}}\nparallelism: {{tensor_model_parallel_size: 2}}\n"
    )
    (sweeps.folder / "sweep.yaml").write_text("base: job.yaml\ngrid: {lr: [1e-3, 2e-3]}\n")
    (tmp_path / "clusters" / "test.yaml").write_text(PROFILE.replace("low", "nowhere"))
    code, _, err = sweeps("run", "sweep.yaml")
    assert code == 2
    assert err.startswith("error: SLURM refuses the job: ")
    assert "--partition=nowhere" in err
    assert len(err.splitlines()) == 1
    assert sweeps("status", "tiny")[0] == 2, "what was refused is no sweep"
    (tmp_path / "clusters" / "test.yaml").write_text(PROFILE)
    cluster.stop_controller()
    code, _, err = sweeps("run", "sweep.yaml")
    assert code == 1
    assert err.startswith("error: slurmctld, SLURM's controller, does not answer")
    assert sweeps("status", "tiny")[0] == 2
    cluster.start_controller()
    (sweeps.folder / "sweep.yaml").write_text("base: job.yaml\ngrid: {lr: [1e-3, 2e-3], launch.nodes: [1, 2]}\n")
    code, out, err = sweeps("run", "sweep.yaml")
    assert code == 0, err
    assert out.count("submitted 2 cells as array") == 2, "cells of one node and of two"
    assert "cannot share an array" in out
    sweeps.wait(lambda states: set(states.values()) == {"completed"}, "all cells have completed")
    nodes = {name: len(events(run, "launched")[0]["nodes"]) for name, run in sweeps.runs().items()}
    assert nodes == {"lr=1e-3,nodes=1": 1, "lr=1e-3,nodes=2": 2, "lr=2e-3,nodes=1": 1, "lr=2e-3,nodes=2": 2}


@pytest.mark.timeout(600)
def test_a_search_submits_each_rung_as_an_array_and_goes_on_after_its_program_was_killed(
    cluster_without_accounting: Cluster, sweeps: Sweeps, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_instead(monkeypatch, "sweep_runtime", "searches")
    (sweeps.folder / "sweep.yaml").write_text(
        "base: job.yaml\ngrid: {lr: [1e-3, 2e-3, 3e-3]}\nsearch: {strategy: halving, first_rung: 7}\n"
    )
    known = arrays_of(cluster_without_accounting)
    code, out, err = sweeps("run", "sweep.yaml")
    assert (code, err) == (0, "")
    assert "halving search: cells are compared by train/loss (the smaller the better) after 7, 20 steps" in out
    sweeps.wait_until_training(1)  # no cell goes beyond step 6 yet
    search = find_sweep("tiny", sweeps.folder / "runs").search()
    assert search is not None
    assert search.driver is not None
    os.kill(search.driver.pid, signal.SIGKILL)
    sweeps.go_on()
    assert sweeps("run", "sweep.yaml")[0] == 0
    sweeps.wait(lambda states: sorted(states.values()) == ["completed", "stopped", "stopped"], "the search is over")
    assert len(arrays_of(cluster_without_accounting) - known) == 2, "an array of three cells, and a job"
    best = sweeps.runs()["lr=1e-3"]
    assert [event["cause"] for event in events(best, "exited")] == ["stopped", "completed"]
    assert [event["iteration"] for event in events(best, "resumed")] == [7]
    assert "stopped (at step 7: rank 3 of 3 at rung 1 by train/loss " in sweeps("status", "tiny")[1]
    wait_until(lambda: "; over" in sweeps("status", "tiny")[1], "the program has ended")
