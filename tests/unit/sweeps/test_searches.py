"""Whole searches on this machine: the commands, the program that searches, submitit, the launcher, a fake training."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.gate import Gate
from support.programs import run_instead

from orchestrator.run_directory.rundir import STOP_AT_VARIABLE
from orchestrator.sweeps.ledger import find_sweep
from tests.unit.sweeps.conftest import JOB, Run, wait_until

ASHA = "grid: {lr: [1e-4, 1e-3, 3e-3]}\nsearch: {strategy: asha, first_rung: 2}\n"
BAYESIAN = "random: {count: 8, fields: {lr: {loguniform: [1e-5, 1e-1]}}}\nsearch: {strategy: bayesian}\n"


@pytest.fixture
def folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same folder; its job says that it trains on the CPU, and its training has a planted optimum."""
    (folder / "job.yaml").write_text(f"{JOB}runtime: {{device: cpu}}\n".replace("iters: 20", "iters: 8"))
    run_instead(monkeypatch, "search_runtime", "searches")
    return folder


def status(orchestrator: Run) -> dict[str, Any]:
    code, out, err = orchestrator("sweep", "status", "tiny", "--json")
    assert (code, err) == (0, "")
    return dict(json.loads(out))


def states(orchestrator: Run) -> dict[str, str]:
    return {cell["name"]: cell["state"] for cell in status(orchestrator)["cells"]}


@pytest.mark.slow(reason="each trial is a launch of torchrun")
def test_a_search_whose_program_was_killed_goes_on_with_the_same_command(
    orchestrator: Run, write: Callable[[str], Path], folder: Path, gate: Gate
) -> None:
    sweep = write(ASHA)
    code, out, _ = orchestrator("sweep", "run", sweep, "--local", "--detach")
    assert code == 0
    assert "asha search: cells are compared by train/loss (the smaller the better) after 2, 8 steps, and 1 in 3" in out
    assert "trains on: about 12 of 24 steps (50%)" in out
    wait_until(lambda: "running" in states(orchestrator).values())
    assert sorted(states(orchestrator).values()) == ["pending", "pending", "running"]
    search = find_sweep("tiny", folder / "runs").search()
    assert search is not None
    assert search.driver is not None
    os.kill(search.driver.pid, signal.SIGKILL)
    wait_until(lambda: not status(orchestrator)["search"]["running"])
    gate.open()
    assert "its program does not run on this machine" in orchestrator("sweep", "status", "tiny")[1]

    code, out, err = orchestrator("sweep", "run", sweep, "--local")
    assert (code, err) == (0, "")
    assert "sweep tiny: 3 cells: 2 stopped, 1 completed\n" in out
    assert "asha search: 3 of 3 trials begun, 3 reached rung 1, 1 trained to the end; over" in out
    assert states(orchestrator) == {"lr=1e-4": "stopped", "lr=1e-3": "completed", "lr=3e-3": "stopped"}
    code, out, _ = orchestrator("sweep", "status", "tiny")
    assert "stopped (at step 2: rank 3 of 3 at rung 1 by train/loss 1)" in out
    starts = find_sweep("tiny", folder / "runs").ledger.read_text().count('"trial_started"')
    assert starts == 4, "what ran when the program was killed ran on"

    code, out, err = orchestrator("sweep", "continue", "tiny", "--cell", "lr=2e-4")
    assert (code, err) == (2, "error: sweep tiny has no cell lr=2e-4: did you mean lr=1e-4?\n")
    code, out, err = orchestrator("sweep", "continue", "tiny", "--cell", "lr=1e-3")
    assert (code, err) == (2, "error: cell lr=1e-3 was not stopped by the search: it is completed\n")


@pytest.mark.slow(reason="each trial is a launch of torchrun")
def test_a_bayesian_search_draws_on_where_it_has_ended_when_it_is_made_longer(
    orchestrator: Run, write: Callable[[str], Path], folder: Path
) -> None:
    code, out, err = orchestrator("sweep", "run", write(BAYESIAN.replace("8", "1")), "--local")
    assert (code, err) == (0, "")
    assert "bayesian search: 1 of 1 trials begun, 1 trained to the end; over" in out
    first = status(orchestrator)["cells"]
    code, out, err = orchestrator("sweep", "run", write(BAYESIAN.replace("8", "2")), "--local")
    assert (code, err) == (0, "")
    cells = status(orchestrator)["cells"]
    assert cells[:1] == first
    assert [cell["state"] for cell in cells] == ["completed", "completed"]
    code, out, err = orchestrator("sweep", "run", write(BAYESIAN), "--local", "--set", "batch.global_batch_size=8")
    assert code == 2
    assert "the job of sweep tiny has changed since its search drew 2 cells" in err


def test_what_a_search_cannot_do_is_said_before_anything_starts(
    orchestrator: Run, write: Callable[[str], Path], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(text: str, *options: str) -> str:
        code, _, err = orchestrator("sweep", "run", write(text), "--dry-run", *(options or ("--local",)))
        assert code == 2
        return err

    rates = "grid: {lr: [1e-4, 1e-3]}\n"
    assert "first_rung: 5 steps are more than half of the training's 8: write at most 4" in refused(
        f"{rates}search: {{strategy: asha, first_rung: 5}}\n"
    )
    assert "5 steps are not the same share of every cell: they have 8 to 80 steps" in refused(
        "grid: {train_iters: [8, 80]}\nsearch: {strategy: asha, first_rung: 5}\n"
    )
    assert "compares cells by validation/loss, which this job never measures: set evaluation.eval_interval" in refused(
        f"{rates}metric: validation/loss\nsearch: {{strategy: halving}}\n"
    )
    assert "bayesian trains every cell to its end: leave out reduction" in refused(
        f"{BAYESIAN.replace('bayesian', 'bayesian, reduction: 2')}"
    )
    assert "sweep.grid: bayesian draws every value from a range: write grid as random" in refused(f"{rates}{BAYESIAN}")
    assert "bayesian draws from the ranges of random, which is missing" in refused("search: {strategy: bayesian}\n")
    assert "sweep.search.first_rung: is a number of steps, or at most half of the training" in refused(
        f"{rates}search: {{strategy: asha, first_rung: 70%}}\n"
    )
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "optuna", None)
        assert "a bayesian search needs optuna: pip install 'megatron-orchestrator[search]'" in refused(BAYESIAN)
    job = (folder / "job.yaml").read_text()
    (folder / "job.yaml").write_text(f"{job}launch: {{executor: ssh, hosts: [a]}}\n")
    assert "asha stops cells at rungs, which is done on SLURM, and on this machine without launch.hosts" in refused(
        f"{rates}search: {{strategy: asha}}\n"
    )
    assert not (folder / "runs").exists()


def test_a_dry_run_of_a_bayesian_search_shows_examples(orchestrator: Run, write: Callable[[str], Path]) -> None:
    code, out, err = orchestrator("sweep", "run", write(BAYESIAN), "--dry-run", "--local")
    assert (code, err) == (0, "")
    assert "bayesian search: 8 cells, drawn by train/loss (the smaller the better); the cells above are examples" in out


def test_commands_do_without_optuna_and_so_do_searches_that_draw_nothing() -> None:
    modules = ["orchestrator.cli.main", "orchestrator.cli.runs.sweep", "orchestrator.sweeps.search.program"]
    code = f"import sys, {', '.join(modules)}; print(sorted(m for m in sys.modules if m.split('.')[0] == 'optuna'))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "[]\n"
    assert STOP_AT_VARIABLE not in os.environ
