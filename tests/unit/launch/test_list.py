"""`orchestrator list`: which runs, in which order, and which of their fields."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.refused import refused

import orchestrator as interface
from orchestrator.launch.code.code_version import CodeState
from orchestrator.launch.runs import create_run
from orchestrator.review.index import RunIndex
from orchestrator.run_directory.events.labels import Archived, Renamed, Tagged
from orchestrator.run_directory.labels import write_label
from orchestrator.run_directory.rundir import RunDir, append_line
from orchestrator.run_directory.runs_folder import misplaced_runs
from orchestrator.spec.job import JobSpec

Orchestrator = Callable[..., tuple[int, str, str]]
MakeJob = Callable[..., JobSpec]

NO_CODE = CodeState({}, b"")


@pytest.fixture(scope="module")
def originals(make_job: MakeJob, tmp_path_factory: pytest.TempPathFactory) -> list[RunDir]:
    """Four runs of one job with falling losses; the second is tagged, the third called otherwise, the last archived."""
    runs, runs_dir = [], tmp_path_factory.mktemp("originals")
    for number, rate in enumerate((1e-2, 1e-3, 1e-4, 1e-5)):
        run = create_run(make_job(optimizer={"lr": rate}), "", runs_dir, NO_CODE)
        values = {"train/loss": 4.0 - number, "train/accuracy": number / 4}
        append_line(run.metrics_file, {"time": 1.0, "iteration": 5, "samples": 1, "tokens": 1, "values": values})
        runs.append(run)
    write_label(runs[1].path, Tagged(tags=("best", "to keep")))
    write_label(runs[2].path, Renamed(to="baseline", former="tiny"))
    write_label(runs[3].path, Archived())
    return runs


@pytest.fixture
def made(originals: list[RunDir], runs_dir: Path) -> list[RunDir]:
    """Copies of them."""
    shutil.copytree(originals[0].path.parents[1], runs_dir)
    return [RunDir(runs_dir / run.name / run.run_id) for run in originals]


@pytest.fixture
def listed(orchestrator: Orchestrator, made: list[RunDir]) -> Callable[..., str]:
    """listed(words): the numbers of the runs that are listed, in their order: the table, and as JSON."""
    numbers = {run.run_id: str(number) for number, run in enumerate(made)}

    def run(*words: str) -> str:
        code, out, err = orchestrator("list", *words)
        table = "".join(numbers[line.split()[1]] for line in out.splitlines()[1:] if line.split()[1] in numbers)
        code, out, err = orchestrator("list", *words, "--json")
        assert (code, err) == (0, "")
        found = "".join(numbers[record["run_id"]] for record in json.loads(out))
        assert table == found
        return found

    return run


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ((), "012"),
        (("--archived",), "0123"),
        (("tiny",), "012"),
        (("baseline",), "2"),
        (("--name", "tin"), "012"),
        (("--name", "base"), "2"),
        (("--state", "created"), "012"),
        (("--state", "failed,lost"), ""),
        (("--state", "created", "--state", "failed"), "012"),
        (("--tag", "to keep"), "1"),
        (("--tag", "best", "--tag", "other"), ""),
        (("--user", "nobody at all"), ""),
        (("--since", "2d"), "012"),
        (("--since", "1week"), "012"),
        (("--since", "7 days ago"), "012"),
        (("--since", "2999-01-01"), ""),
        (("--where", "optimizer.lr > 1e-4 and loss < 3.5"), "1"),
        (("--where", "accuracy >= 0.5"), "2"),
        (("--where", "loss < 3.5", "--where", "lr < 1e-3"), "2"),
        (("--where", "archived=true"), "3"),
        (("--sort", "loss"), "210"),
        (("--sort", "-lr"), "012"),
        (("--sort", "lr", "--limit", "2", "--archived"), "32"),
        (("--limit", "2"), "12"),
    ],
)
def test_the_runs_that_are_meant(listed: Callable[..., str], words: tuple[str, ...], found: str) -> None:
    assert listed(*words) == found


def test_columns_of_ones_choice(orchestrator: Orchestrator, made: list[RunDir]) -> None:
    words = ("list", "--columns", "name,lr,loss,train/accuracy,tag,eta", "--sort", "loss")
    code, out, err = orchestrator(*words)
    assert (code, err) == (0, "")
    assert [line.split() for line in out.splitlines()] == [
        ["NAME", "LR", "LOSS", "TRAIN/ACCURACY", "TAG", "ETA"],
        ["baseline", "0.0001", "2", "0.5", "-", "-"],
        ["tiny", "0.001", "3", "0.25", "best,", "to", "keep", "-"],
        ["tiny", "0.01", "4", "0", "-", "-"],
    ]
    first = json.loads(orchestrator(*words, "--json")[1])[1]
    assert first["tag"] == ["best", "to keep"]
    assert (first["name"], first["lr"], first["loss"], first["eta"]) == ("tiny", 0.001, 3.0, None)


def test_figures_in_columns_are_rounded_for_people_alone(
    orchestrator: Orchestrator, make_job: MakeJob, runs_dir: Path
) -> None:
    job = make_job(
        optimizer={"lr": 0.00030000000000000003}, schedule__train_iters=1_234_567, tracking__tags={"v": "1.10"}
    )
    run = create_run(job, "", runs_dir)
    values = {"train/loss": 1 / 3}
    append_line(run.metrics_file, {"time": 1.0, "iteration": 1_000_001, "samples": 1, "tokens": 1, "values": values})
    words = ("list", "--columns", "lr,loss,step,train_iters,tracking.tags.v")
    assert orchestrator(*words)[1].splitlines()[1].split() == ["0.0003", "0.333333", "1000001", "1234567", "1.10"]
    [record] = json.loads(orchestrator(*words, "--json")[1])
    assert list(record.values()) == [0.00030000000000000003, 1 / 3, 1_000_001.0, 1_234_567, 1.1]


def test_archived_runs_say_so(orchestrator: Orchestrator, made: list[RunDir]) -> None:
    lines = orchestrator("list", "--archived")[1].splitlines()
    assert [line.split()[:4:2] for line in lines[3:]] == [["baseline", "created"], ["tiny", "created,"]]
    assert "created, archived" in lines[4]
    records = json.loads(orchestrator("list", "--archived", "--json")[1])
    assert [record.get("labels", {}).get("archived", False) for record in records] == [False, False, False, True]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--state", "fialed"), "--state: there is no state fialed: did you mean failed?"),
        (
            ("--since", "soon"),
            "--since: created expects a date like 2026-11-01 or 2026-11-01T12:30, or an age like 30min",
        ),
        (("--sort", "losss"), "there is no field losss: did you mean loss?"),
        (("--columns", "name,,loss"), "there is no field : there are state, "),
        (
            ("--where", "loss < 3 and optimiser.lr > 1"),
            "--where: there is no field optimiser.lr: did you mean optimizer.lr?\n"
            "      loss < 3 and optimiser.lr > 1\n"
            "                   ^\n",
        ),
    ],
)
def test_what_makes_no_sense(orchestrator: Orchestrator, made: list[RunDir], words: tuple[str, ...], said: str) -> None:
    code, out, err = orchestrator("list", *words)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {said}")


def test_a_name_that_no_run_has(orchestrator: Orchestrator, made: list[RunDir], runs_dir: Path) -> None:
    assert orchestrator("list", "tinyy")[:2] == (0, f"no runs of tinyy in {runs_dir}: did you mean tiny?\n")
    (made[0].path / "sweep.json").write_text('{"sweep": "rates", "sweep_dir": "sweeps/rates", "cell": "lr=1"}')
    said = f"no runs of rates in {runs_dir}: `orchestrator list --where sweep=rates` lists the cells of that sweep\n"
    assert orchestrator("list", "rates")[:2] == (0, said)


def test_cells_show_their_sweep(orchestrator: Orchestrator, made: list[RunDir], listed: Callable[..., str]) -> None:
    assert "SWEEP" not in orchestrator("list")[1]
    (made[1].path / "sweep.json").write_text('{"sweep": "rates", "sweep_dir": "sweeps/rates", "cell": "lr=1"}')
    lines = [line.split() for line in orchestrator("list")[1].splitlines()]
    assert [line[2:4] for line in lines] == [["SWEEP", "CELL"], ["-", "-"], ["rates", "lr=1"], ["-", "-"]]
    records = json.loads(orchestrator("list", "--json")[1])
    assert [record["sweep"] for record in records] == [None, "rates", None]
    assert orchestrator("list", "--columns", "sweep", "--where", "sweep:rat")[1].split() == ["SWEEP", "rates"]
    assert (listed("--where", "sweep=rates"), listed("--where", "not sweep:rates")) == ("1", "02")


def test_copies_that_are_not_where_runs_are(orchestrator: Orchestrator, made: list[RunDir], runs_dir: Path) -> None:
    run = made[0]
    words = ("list", "--columns", "name,id,state,disk")  # an age is another one a second later
    _, table, err = orchestrator(*words)
    assert err == ""
    (run.path.parent / "notes").mkdir()
    shutil.copytree(run.path, run.path.parent / f".new-{run.run_id}")
    assert misplaced_runs(runs_dir) == []
    shutil.copytree(run.path, run.path.with_name("backup"))
    shutil.copytree(run.path, runs_dir / "saved")
    assert misplaced_runs(runs_dir) == sorted([f"{run.name}/backup", "saved"])
    code, out, err = orchestrator(*words)
    assert (code, out) == (0, table)
    assert f"{run.name}/backup" in err
    index = RunIndex(runs_dir)
    index.look()
    assert index.misplaced == misplaced_runs(runs_dir)
    assert len(index.runs) == len(made)
    orchestrator("delete", "--yes", run.run_id)
    assert misplaced_runs(runs_dir) == sorted([f"{run.name}/backup", "saved"])
    shutil.move(run.path.with_name("backup"), run.path)
    shutil.rmtree(runs_dir / "saved")
    assert orchestrator("list")[2] == ""


def test_runs_that_match_in_python(made: list[RunDir], runs_dir: Path) -> None:
    found = interface.runs(where="loss < 3.5 and lr >= 1e-4", runs_dir=runs_dir)
    assert [run.path for run in found] == [made[1].path, made[2].path]
    assert [run.path for run in interface.runs("baseline", runs_dir=runs_dir)] == [made[2].path]
    assert len(interface.runs(runs_dir=runs_dir)) == 4
    with refused("malformed_filter", "where"):
        interface.runs(where="(loss < 3", runs_dir=runs_dir)


def test_it_starts_without_the_spec() -> None:
    """Importing the spec takes longer than listing thousands of runs out of the index."""
    look = "import sys, orchestrator.cli.runs.list; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True).stdout.split()
    assert "orchestrator.review.table" in loaded
    assert "orchestrator.spec.job" not in loaded
