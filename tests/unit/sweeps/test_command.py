"""What `orchestrator sweep` says and refuses, without anything being started."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.event_log import append_event, append_to_ledger
from support.limits import set_limits

from orchestrator.cli.runs.sweeps import tables
from orchestrator.cli.runs.sweeps.tables import describe_cells
from orchestrator.launch.runs import all_runs
from orchestrator.launch.start_checks import saved_nothing
from orchestrator.run_directory.rundir import RunDir
from orchestrator.sweeps.ledger import SweepDir, SweepPlan, find_sweep, sweep_dir
from orchestrator.sweeps.loading import LoadedSweep
from orchestrator.sweeps.plans import write_plan
from orchestrator.sweeps.states import CellStatus, State, cell_statuses
from tests.unit.sweeps.conftest import Run

PROFILE = "name: alps\npartitions: {gpu: {nodes: 2, gpus_per_node: 2, time_limit: 1d}}\npartition: gpu\ntime: 1h\n"
Load = Callable[[str], LoadedSweep]


@pytest.fixture
def profile(folder: Path) -> None:
    (folder / "clusters").mkdir()
    (folder / "clusters" / "alps.yaml").write_text(PROFILE)


@pytest.mark.usefixtures("profile")
def test_a_dry_run_shows_cells_scripts_and_what_the_cluster_cannot_give(
    orchestrator: Run, write: Callable[[str], Path], folder: Path
) -> None:
    sweep = write("grid: {tp: [1, 2, 4], lr: [1e-3, 2e-3], runtime.device: [cuda]}\nmax_parallel: 1")
    code, out, err = orchestrator("sweep", "run", sweep, "--dry-run")
    assert (code, err) == (0, "")
    assert "#SBATCH --array=0-1%1" in out
    assert "#SBATCH --gres=gpu:2" in out
    assert out.count("What the task of the first cell, tp=1,lr=1e-3,device=cuda, runs:") == 1
    assert out.count("-m orchestrator.batch ") == 1, "one cell's script stands for all"
    assert "sweep tiny: 4 cells" in out
    assert "the GPUs of these cells are not known, so none is left out for its memory" in out
    on_l4 = orchestrator("sweep", "run", sweep, "--dry-run", "--set", "launch.gpu=L4")[1]
    assert "nothing says which GPUs" not in on_l4
    assert "tp=4,lr=1e-3,device=cuda and 1 more: " in out
    assert not (folder / "runs").exists()
    code, out, err = orchestrator("sweep", "run", sweep, "--dry-run", "--json")
    answer = json.loads(out)
    assert [len(answer[key]) for key in ("cells", "pruned", "arrays")] == [4, 2, 2]
    assert "orchestrator.batch" in answer["script"]
    code, out, err = orchestrator("sweep", "run", write("grid: {tp: [4], runtime.device: [cuda]}"))
    assert code == 2
    assert err.startswith("error: no cell of this sweep can run:\n    tp=4,device=cuda: ")
    code, out, err = orchestrator("sweep", "run", write("grid: {lr: [1, 2], tp: [1, 2]}\nwhen: tp > 10"))
    assert (code, out) == (2, "")
    assert err == "error: no cell is left of this sweep: sweep.when leaves out all 4 combinations; loosen it\n"


def test_mistakes_are_one_clear_message(orchestrator: Run, write: Callable[[str], Path]) -> None:
    sweep = write("grid: {lr: [1, 2]}")
    code, out, err = orchestrator("sweep", "run", sweep)
    assert (code, out) == (2, "")
    assert err.startswith("error: on which cluster? There is no profile yet.")
    assert "--local" in err
    code, out, err = orchestrator("sweep", "run", sweep, "--cluster", "alpps")
    assert code == 2
    assert "there is no cluster profile 'alpps'" in err
    code, out, err = orchestrator("sweep", "status", "tiny")
    assert code == 2
    assert err.startswith("error: there is no sweep tiny in ")
    assert err.endswith("runs: `orchestrator sweep run` starts one\n")
    for command in ("run", "submit", "validate", "plan"):
        code, out, err = orchestrator(command, sweep)
        assert code == 2
        assert "this file describes several jobs" in err
        assert "orchestrator sweep run" in err


@pytest.mark.usefixtures("profile")
def test_a_gpu_that_the_cluster_profile_names_wrong_is_told_there_beside_what_else_is(
    orchestrator: Run, write: Callable[[str], Path], folder: Path
) -> None:
    (folder / "clusters" / "alps.yaml").write_text(f"{PROFILE}gpu: H20O\n")
    place = f"clusters/alps.yaml:{len(PROFILE.splitlines()) + 1}:1: gpu: unknown GPU 'H20O': did you mean H200"
    asked = ("--set", "launch.cluster=alps", "--set", "launch.time=2d")
    for cells, *others in (
        ("lr: [1, 2]", "launch.time=2d: launch.time: "),
        ("lr: [1, fast]", "launch.time=2d: launch.time: ", "optimizer.lr: expects a number"),
    ):
        code, out, err = orchestrator("sweep", "run", write(f"grid: {{{cells}}}"), *asked)
        assert (code, out) == (2, "")
        assert [each for each in (place, *others) if each not in err] == []
    for who_does_not_ask in ("launch.gpu: [H200]", "runtime.device: [cpu]"):
        cells = write(f"grid: {{{who_does_not_ask}, lr: [1, fast]}}")
        assert "H20O" not in orchestrator("sweep", "run", cells, *asked)[2]
    code, out, err = orchestrator("sweep", "run", write("grid: {launch.gpu: [H200, H20O]}"), *asked)
    assert err.startswith("sweep.yaml:2:27: launch.gpu: "), err
    assert not (folder / "runs").exists()


@pytest.fixture
def sweep(load: Load, folder: Path, monkeypatch: pytest.MonkeyPatch) -> SweepDir:
    """A sweep of three cells that was written down; nothing was started."""
    monkeypatch.setenv("ORCHESTRATOR_RUNS_DIR", str(folder / "runs"))
    sweep = sweep_dir("tiny", folder / "runs")
    write_plan(sweep, load("grid: {lr: [1, 2, 3]}"))
    return sweep


def test_the_same_sweep_again_changes_nothing_and_a_changed_one_is_a_new_plan(sweep: SweepDir, load: Load) -> None:
    first = sweep.planned()
    assert write_plan(sweep, load("grid: {lr: [1, 2, 3]}"))[0].cells == first.cells
    assert len(sweep.ledger.read_text().splitlines()) == 1
    second, new = write_plan(sweep, load("grid: {lr: [2, 3, 4]}\nmetric: train/loss"))
    assert [run.run_id for run in new] == [second.cells[2].id[:8]]
    assert second.generation == 2
    assert sweep.planned() == second
    assert {path.name for path in sweep.path.glob("*.yaml")} == {"sweep.yaml", "sweep.2.yaml"}
    assert [cell.run for cell in second.cells[:2]] == [cell.run for cell in first.cells[1:]]
    assert len(all_runs(sweep.runs_dir)) == 4
    record = json.loads(sweep.run(first.cells[0]).membership.read_text())
    assert record == {"sweep": "tiny", "sweep_dir": str(sweep.path), "cell": "lr=1", "values": {"optimizer.lr": "1"}}


def test_a_torn_ledger_is_read_up_to_the_tear(sweep: SweepDir) -> None:
    with open(sweep.ledger, "a") as file:
        file.write('{"time": 1, "event": "plan')
    assert len(sweep.planned().cells) == 3
    append_to_ledger(sweep, "cancelled", cells=["x"])
    assert sweep.cancels("x") == 1


def test_states_follow_from_the_runs_and_the_ledger(sweep: SweepDir) -> None:
    def states() -> list[str]:
        return [status.state for status in cell_statuses(sweep, sweep.planned())]

    assert states() == ["missing", "missing", "missing"]
    first, second, third = (sweep.run(cell) for cell in sweep.planned().cells)
    ids = [cell.id for cell in sweep.planned().cells]
    append_to_ledger(sweep, "submitted", how="local", cluster=None, jobs=dict.fromkeys(ids, "local"), driver={"pid": 1})
    assert states() == ["missing", "missing", "missing"], "its driver is gone"
    for run, cause in ((first, "completed"), (second, "out_of_memory"), (third, "stopped")):
        end(run, cause)
    assert states() == ["completed", "failed", "stopped"]
    append_to_ledger(sweep, "cancelled", cells=ids)
    assert states() == ["completed", "failed", "cancelled"]


def end(run: RunDir, cause: str) -> None:
    append_event(run, "launched", launch_id="l1", host="elsewhere")
    append_event(run, "exited", launch_id="l1", code=0, cause=cause, message="", iteration=3)


def test_a_run_begins_anew_only_if_it_never_saved(sweep: SweepDir) -> None:
    run = sweep.run(sweep.planned().cells[0])
    assert not saved_nothing(run, run.events())
    append_event(run, "started", launch_id="l1")
    assert saved_nothing(run, run.events())
    append_event(run, "checkpoint_saved", iteration=5)
    assert not saved_nothing(run, run.events()), "what has saved must find what it saved"


def test_two_commands_do_not_start_cells_at_once(sweep: SweepDir, orchestrator: Run) -> None:
    with open(sweep.path / ".starting", "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        code, out, err = orchestrator("sweep", "retry", "tiny")
    assert (code, out) == (2, "")
    assert err == "error: sweep tiny: another command is starting its cells right now\n"


def test_a_sweep_is_found_by_name_or_place(sweep: SweepDir, orchestrator: Run) -> None:
    assert find_sweep("tiny", sweep.runs_dir) == sweep
    assert find_sweep(str(sweep.path), Path("elsewhere")) == sweep
    code, out, err = orchestrator("sweep", "status", "tinny")
    assert (code, out) == (2, "")
    assert "did you mean tiny?" in err
    code, out, err = orchestrator("sweep", "cancel", "tiny")
    assert (code, out, err) == (0, "sweep tiny: no cell is under way\n", "")
    assert isinstance(sweep.planned(), SweepPlan)


def test_in_a_pipe_running_cells_say_how_far_they_are(
    sweep: SweepDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    planned = sweep.planned()
    cell = cell_statuses(sweep, planned)[0]

    def at(state: State, iteration: int | None) -> tuple[SweepPlan, list[CellStatus]]:
        values = {} if iteration is None else {"train/loss": 6.0 - iteration}
        return planned, [replace(cell, state=state, status=replace(cell.status, iteration=iteration, values=values))]

    looks = [at("pending", None), at("running", None), at("running", 2), at("running", 2), at("completed", 4)]
    monkeypatch.setattr(tables, "look", lambda sweep: looks.pop(0))
    set_limits(monkeypatch, between_looks_at_a_sweep=0.0, between_lines_about_a_sweep=0.0)
    tables.follow(sweep)
    said = [line.removeprefix(f"{cell.entry.name}: ") for line in capsys.readouterr().out.splitlines()]
    assert said == ["running", "running, iteration 2, train/loss 4", "completed, iteration 4, train/loss 2"]


def test_cells_that_sequence_parallelism_leaves_out_come_back_with_sp(load: Load) -> None:
    said = describe_cells(load("grid: {tp: [1, 2], sp: [true]}"))
    assert "sweep tiny: 1 cells" in said
    assert "sweep `sp: [false]`" in said
    without = describe_cells(load("grid: {tp: [1, 2], sp: [false]}"))
    assert "sweep tiny: 2 cells" in without
    assert "sp: [false]" not in without


def test_a_sweep_for_which_the_disk_has_no_room(write: Callable[[str], Path], folder: Path) -> None:
    """In a repository with a module that git does not track, whose record needs room for a while."""
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    (folder / "new.py").touch()
    words = ["sweep", "run", str(write("grid: {lr: [1, 2]}")), "--local", "--runs-dir=runs"]
    command = ["bash", "-c", 'ulimit -f 0; exec "$@"', "-", sys.executable, "-m", "orchestrator", *words]
    said = subprocess.run(command, capture_output=True, text=True, timeout=100)
    message = f"error: no run can be created in {folder}/runs/tiny: File too large\n"
    assert (said.returncode, said.stderr) == (2, message)
