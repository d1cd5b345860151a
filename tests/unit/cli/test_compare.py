"""`orchestrator compare`, over run directories as trainings leave them."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import Commands
from support.training import tiny_job
from unit.cli.conftest import Orchestrator

from orchestrator.launch.code.code_version import CodeState
from orchestrator.launch.runs import create_run
from orchestrator.run_directory.events.labels import Renamed
from orchestrator.run_directory.labels import write_label
from orchestrator.run_directory.rundir import RunDir
from orchestrator.tracking.measurements.metrics import MetricLog

RATES = (1e-3, 3e-4)


@pytest.fixture
def runs(tmp_path: Path) -> list[RunDir]:
    """Two runs that differ in their learning rate, the first twice as long; the second is at its end torn."""
    made = []
    for number, lr in enumerate(RATES):
        job = tiny_job("small", optimizer={"lr": lr})
        run = create_run(job, "name: small\n", tmp_path / "runs", CodeState({}, ""))
        log = MetricLog(run, check=lambda: None)
        for step in range(1, 41 - 20 * number):
            log.append(step, step * 8, step * 64, {"train/loss": 5 - lr * 100 * step}, measured=1e9 + 60.0 * step)
        made.append(run)
    with open(made[1].metrics_file, "a") as log_file:
        log_file.write('{"time": 1e9, "iterat')
    return made


def test_the_difference_the_measures_and_the_curves(orchestrator: Orchestrator, runs: list[RunDir]) -> None:
    done = orchestrator("compare", *(run.run_id for run in runs))
    assert done.code == 0, done.err
    assert "\x1b" not in done.out
    for run, letter, lr in zip(runs, "AB", ("0.001", "0.0003"), strict=True):
        assert f"{letter}  lr={lr}" in done.out
        assert f"small/{run.run_id}" in done.out
    [line] = [line for line in done.out.splitlines() if line.startswith("optimizer.lr")]
    assert line.split() == ["optimizer.lr", "0.001", "0.0003"]
    [line] = [line for line in done.out.splitlines() if line.startswith("loss at step 20")]
    assert line.split()[-3:] == ["3", "*", "4.4"]
    assert "model.num_layers" not in done.out, "only what differs"
    assert done.out.count("AA") > 5
    assert done.out.count("BB") > 2
    assert all(len(line) <= 100 for line in done.out.splitlines())


def test_a_run_goes_by_the_name_that_it_was_given(orchestrator: Orchestrator, runs: list[RunDir]) -> None:
    write_label(runs[0].path, Renamed(to="champion", former="small"))
    out = orchestrator("compare", *(run.run_id for run in runs)).out
    assert f"A  champion  champion/{runs[0].run_id}" in out
    assert f"B  small     small/{runs[1].run_id}" in out


def test_as_json(orchestrator: Orchestrator, runs: list[RunDir]) -> None:
    found = orchestrator("compare", str(runs[0].path), runs[1].run_id, "--x", "time", "--json").json
    assert [run["label"] for run in found["runs"]] == ["lr=0.001", "lr=0.0003"]
    assert found["differences"] == [{"path": "optimizer.lr", "values": ["0.001", "0.0003"]}]
    assert found["common_step"] == 20
    [tokens] = [row for row in found["measures"] if row["name"] == "tokens"]
    assert tokens == {"name": "tokens", "goal": None, "values": [40 * 64, 20 * 64], "best": []}
    assert found["curves"][1]["x"] == pytest.approx([step / 60 for step in range(20)])


def test_smoothing_and_other_metrics(orchestrator: Orchestrator, runs: list[RunDir]) -> None:
    names = [run.run_id for run in runs]
    plain = orchestrator("compare", *names, "--json").json["curves"][0]["y"]
    smooth = orchestrator("compare", *names, "--smooth", "0.9", "--json").json["curves"][0]["y"]
    assert smooth[0] == plain[0]
    assert smooth[-1] > plain[-1] + 0.1
    wrong = orchestrator("compare", *names, "--metric", "train/los")
    assert wrong.code == 2
    assert "did you mean train/loss" in wrong.err


def test_damaged_and_empty_runs(orchestrator: Orchestrator, runs: list[RunDir], tmp_path: Path) -> None:
    runs[0].resolved().write_text("{")
    empty = create_run(tiny_job("empty"), "name: empty\n", tmp_path / "runs", CodeState({}, ""))
    (empty.events_file).write_text("[[[\n{}\n")
    done = orchestrator("compare", runs[0].run_id, runs[1].run_id, "empty")
    assert done.code == 0, done.err
    assert "cannot be read" in done.out
    assert f"empty/{empty.run_id}" in done.out
    assert "BB" in done.out
    alone = orchestrator("compare", "empty", str(empty.path))
    assert (alone.code, "one run" in alone.err) == (2, True)


def test_runs_that_measured_nothing(orchestrator: Orchestrator, tmp_path: Path) -> None:
    for name in ("first", "second"):
        create_run(tiny_job(name), f"name: {name}\n", tmp_path / "runs", CodeState({}, ""))
    done = orchestrator("compare", "first", "second")
    assert done.code == 0, done.err
    assert "nothing to draw" in done.out
    assert [line.split() for line in done.out.splitlines() if line.startswith("name ")] == [["name", "first", "second"]]


@pytest.mark.parametrize(("variables", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_colours_only_in_a_terminal_that_wants_them(
    runs: list[RunDir], tmp_path: Path, commands: Commands, variables: dict[str, str], coloured: bool
) -> None:
    ours, its = pty.openpty()
    environment = {**{key: value for key, value in os.environ.items() if key != "NO_COLOR"}, "TERM": "xterm"}
    env = {**environment, "COLUMNS": "90", "LINES": "30", **variables}
    going = commands.start("compare", *(run.run_id for run in runs), cwd=tmp_path, env=env, out=its)
    os.close(its)
    said = b""
    with going.answer, going.answer.makefile("rb") as told:
        while True:
            try:
                part = os.read(ours, 1 << 16)
            except OSError:  # the end of a terminal
                break
            said += part
        assert told.read() == b"0"
    os.close(ours)
    assert (b"\x1b[" in said) == coloured
    assert "A  lr=0.001" in said.decode() or coloured
    assert ("⠤" in said.decode()) == coloured


def test_help_does_not_draw(orchestrator: Orchestrator, tmp_path: Path) -> None:
    program = (
        "import sys\nfrom orchestrator.cli.main import main\nmain(['list', '--help'])\n"
        "assert 'plotext' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "orchestrator compare 1a2b3c4d 5e6f7a8b" in orchestrator("compare", "--help").out
