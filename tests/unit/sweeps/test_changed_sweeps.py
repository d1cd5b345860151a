"""A sweep that becomes another one: what was started stays in sight, and what is refused changes nothing."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.event_log import append_event
from support.fake_slurm import FakeSlurm

from orchestrator.launch.runs import all_runs, create_run, find_run
from orchestrator.run_directory.checkpoints.commit_markers import write_commit
from orchestrator.run_directory.rundir import RunDir
from orchestrator.sweeps.ending import tell_of_sweep
from orchestrator.sweeps.ledger import SweepDir, sweep_dir
from orchestrator.sweeps.loading import LoadedSweep
from orchestrator.sweeps.plans import write_plan
from tests.unit.sweeps.conftest import Run

PROFILE = "name: alps\npartitions: {gpu: {nodes: 2, gpus_per_node: 2, time_limit: 1d}}\npartition: gpu\ntime: 1h\n"
GRID = "grid: {lr: [1, 2, 3]}"
NOT_SET_UP = "sbatch: fatal: Could not establish a configuration source\n"
Load = Callable[[str], LoadedSweep]


@pytest.fixture
def slurm(folder: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """A profile of a cluster, and commands that answer; sbatch refuses every job."""
    (folder / "clusters").mkdir()
    (folder / "clusters" / "alps.yaml").write_text(PROFILE)
    slurm = FakeSlurm(folder / "slurm")
    slurm.says("squeue")
    slurm.says("srun")
    refused = "sbatch: error: invalid partition specified: gpu\n"
    slurm.says("sbatch", err=refused, code=1, delay='[ "$1" = --version ] && exit 0')
    monkeypatch.setenv("PATH", f"{slurm.bin}:{os.environ['PATH']}")
    return slurm


@pytest.fixture
def finished(load: Load, folder: Path) -> SweepDir:
    """A sweep of three cells that have completed."""
    sweep = sweep_dir("tiny", folder / "runs")
    planned, _ = write_plan(sweep, load(GRID))
    for number, entry in enumerate(planned.cells):
        end(sweep.run(entry), "completed", loss=float(number))
    return sweep


def end(run: RunDir, cause: str, loss: float) -> None:
    append_event(run, "launched", launch_id="l1", host="elsewhere")
    run.metrics_file.write_text(json.dumps({"iteration": 20, "values": {"train/loss": loss}}) + "\n")
    append_event(run, "exited", launch_id="l1", code=0, cause=cause, message="", iteration=20)


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_sweep_is_as_before_when_slurm_is_not_there(
    orchestrator: Run, write: Callable[[str], Path], folder: Path, finished: SweepDir, slurm: FakeSlurm
) -> None:
    for command in ("sbatch", "squeue"):
        slurm.says(command, err=NOT_SET_UP, code=1)
    before = tree(folder / "runs")
    code, out, err = orchestrator("sweep", "run", write(GRID), "--cluster", "alps")
    assert (code, out) == (1, "")
    assert err.startswith("error: SLURM is not set up on this machine")
    assert len(err.splitlines()) == 1
    assert tree(folder / "runs") == before
    code, out, err = orchestrator("sweep", "status", "tiny")
    assert out.splitlines()[-1] == "sweep tiny: 3 cells: 3 completed"


def test_a_refused_change_leaves_the_sweep_and_no_runs(
    orchestrator: Run, write: Callable[[str], Path], finished: SweepDir, slurm: FakeSlurm
) -> None:
    runs, planned = all_runs(finished.runs_dir), finished.planned()
    another = ("--set", "optimizer.weight_decay=0.2", "--new")
    code, out, err = orchestrator("sweep", "run", write(GRID), "--cluster", "alps", *another)
    assert code == 2
    assert "sweep tiny has changed: no cell that it had is in it now" in err
    assert "error: SLURM refuses the job" in err
    assert all_runs(finished.runs_dir) == runs
    assert finished.planned() == planned
    code, out, err = orchestrator("sweep", "list")
    assert out.splitlines()[1].split() == ["tiny", "3", "3", "completed"]


def test_a_refused_first_start_is_no_sweep(
    orchestrator: Run, write: Callable[[str], Path], folder: Path, slurm: FakeSlurm
) -> None:
    assert orchestrator("sweep", "run", write(GRID), "--cluster", "alps")[0] == 2
    assert all_runs(folder / "runs") == []
    assert orchestrator("sweep", "list")[1].startswith("no sweeps in ")
    code, _, err = orchestrator("sweep", "status", "tiny")
    assert code == 2
    assert err.startswith("error: there is no sweep tiny in ")


def test_cells_that_left_stay_in_sight(orchestrator: Run, finished: SweepDir, load: Load) -> None:
    write_plan(finished, load("grid: {lr: [3, 4]}"))
    code, out, err = orchestrator("sweep", "status", "tiny")
    assert (code, err) == (0, "")
    states = {line.split()[0]: line.split()[2:4] for line in out.splitlines()[1:5]}
    assert states["lr=3"][0] == "completed"
    assert states["lr=4"][0] == "missing"
    assert states["lr=1"] == states["lr=2"] == ["completed", "(left)"]
    assert out.splitlines()[-2:] == [
        "sweep tiny: 2 cells: 1 completed, 1 missing; 2 more left the sweep",
        "      1 missing: orchestrator sweep retry tiny",
    ]
    code, out, err = orchestrator("sweep", "results", "tiny")
    assert [line.split()[0] for line in out.splitlines()[1:-1]] == ["1", "2", "3", "4"], "the best first, left or not"
    assert out.count("completed (left)") == 2
    assert out.splitlines()[-1].startswith("the influence of parameters cannot be computed: it takes 4 cells")
    code, out, err = orchestrator("sweep", "results", "tiny", "--csv")
    assert [row["left"] for row in csv.DictReader(io.StringIO(out))] == ["True", "True", "False", "False"]
    code, out, err = orchestrator("sweep", "list")
    assert out.splitlines()[1].split() == ["tiny", "2", "1", "completed,", "1", "missing,", "2", "left"]
    write_plan(finished, load(GRID))
    assert [entry.name for entry in finished.left()] == ["lr=4"]
    assert "left" not in orchestrator("sweep", "status", "tiny")[1], "it was never started"


def test_a_dry_run_says_which_cells_would_leave(
    orchestrator: Run, write: Callable[[str], Path], finished: SweepDir
) -> None:
    code, out, err = orchestrator("sweep", "run", write("grid: {lr: [3, 4]}"), "--dry-run")
    assert code == 0
    assert "sweep tiny has changed: 2 of the 3 cells are not in it now" in err
    assert "without a cluster profile no script can be shown" in out
    assert "lr=4" in out


@pytest.mark.parametrize("options", [("--local",), ("--dry-run",), ("--dry-run", "--local")])
def test_a_cell_whose_run_has_lost_its_spec_does_not_begin_again(
    orchestrator: Run, write: Callable[[str], Path], finished: SweepDir, options: tuple[str, ...]
) -> None:
    run = finished.run(finished.planned().cells[2])
    run.checkpoint(20).mkdir(parents=True)
    write_commit(run.checkpoint(20), iteration=20, consumed_samples=40, files={})
    run.resolved().unlink()
    before = tree(run.path.parent)
    code, out, err = orchestrator("sweep", "run", write("grid: {lr: [4, 1, 2, 3]}"), *options)
    assert (code, out) == (2, "")
    assert f"{run.path} began with this very spec and has saved checkpoints up to iteration 20" in err
    assert "or move that folder away, and the cell begins at iteration 0" in err
    assert tree(run.path.parent) == before


def test_a_jobs_name_means_its_own_run_rather_than_a_cell(orchestrator: Run, load: Load, folder: Path) -> None:
    loaded = load(GRID)
    sweep, runs = sweep_dir("tiny", folder / "runs"), folder / "runs"
    adopted = create_run(loaded.cells.cells[0].job, "", runs)
    planned, _ = write_plan(sweep, loaded)
    assert find_run("tiny", runs) == adopted, "a run that became a cell is still the job's own"
    out = orchestrator("list")[1]
    header, *rows = (line.split() for line in out.splitlines())
    assert header[:5] == ["NAME", "RUN", "SWEEP", "CELL", "STATE"]
    assert {row[1]: row[3] for row in rows} == {
        adopted.run_id: "-",
        **{sweep.run(cell).run_id: cell.name for cell in planned.cells[1:]},
    }
    own = create_run(load("grid: {lr: [9]}").cells.cells[0].job, "", runs)
    assert find_run("tiny", runs) == own


def test_a_jobs_name_means_its_latest_cell_where_it_has_no_other_run(load: Load, folder: Path) -> None:
    sweep = sweep_dir("tiny", folder / "runs")
    planned, _ = write_plan(sweep, load(GRID))
    assert find_run("tiny", sweep.runs_dir) in [sweep.run(cell) for cell in planned.cells]


def test_a_dry_run_shows_what_changes_with_the_layout(
    orchestrator: Run, write: Callable[[str], Path], folder: Path
) -> None:
    job = (folder / "job.yaml").read_text() + "launch: {gpus_per_node: 4}\n"
    (folder / "job.yaml").write_text(job.replace("global_batch_size: 16", "num_micro_batches: 4"))
    sweep = write("grid: {tp: [1, 2]}")
    code, out, err = orchestrator("sweep", "run", sweep, "--dry-run")
    assert (code, err) == (0, "")
    rows = [line.split() for line in out.splitlines()]
    assert ["CELL", "ID", "DP", "GLOBAL", "BATCH"] in rows
    assert [[row[0], *row[2:]] for row in rows if row and row[0].startswith("tp=")] == [
        ["tp=1", "4", "16"],
        ["tp=2", "2", "8"],
    ]
    assert "the global batch differs between cells" in out
    (folder / "job.yaml").write_text(job)
    out = orchestrator("sweep", "run", sweep, "--dry-run")[1]
    assert ["CELL", "ID", "DP"] in [line.split() for line in out.splitlines()]
    assert "the global batch differs" not in out


def test_a_sweep_that_cannot_be_read_is_told_of_to_nobody_and_fails_no_cell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    for path in (tmp_path / "gone", tmp_path / "file" / "below"):
        tell_of_sweep(SweepDir(path), wait=True)
        assert capsys.readouterr().err.startswith("no notification is sent for the sweep: ")
