"""The batch script of an array, as submitit writes it: exact text, and nothing of a profile that a shell interprets."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.light_forks import LightForks
from support.refused import refused

from orchestrator.executors.slurm.arrays import array_parameters, cluster_request, submit
from orchestrator.executors.slurm.batch_script import Place
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.cluster import ClusterSpec
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_text
from orchestrator.sweeps.ledger import SweepDir
from orchestrator.sweeps.request import Array, Request, Task
from orchestrator.sweeps.submission import CellStart, SweepStart
from tests.unit.sweeps.conftest import JOB

GOLDEN = Path(__file__).parents[2] / "golden" / "sweep-array.sbatch"
HOSTILE = ["it's", "$(touch pwned)", "a;touch pwned", 'quo"te', "sp ace", "back`tick`", "ünïcode", "#hash", "&", "*"]
TP2 = "parallelism.tensor_model_parallel_size=2"


@pytest.fixture(autouse=True)
def _program_is_forked(light_forks: LightForks, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that writes scripts."""
    for name, value in light_forks.variables().items():
        monkeypatch.setenv(name, value)


def job(*overrides: str) -> JobSpec:
    return load_text(JOB, overrides=overrides).job


def script(sweep: Path, place: Place, cluster: dict[str, Any], *overrides: str, tasks: int = 12) -> str:
    """The script that a dry run shows."""
    profile = ClusterSpec(**{"name": "alps", "time": 5400, "python": "/opt/venv/bin/python", **cluster})
    parameters = array_parameters(SweepDir(sweep), job(*overrides), profile, place)
    array = Array(parameters, [Task(str(number), "cell", "/runs/x", ["true"]) for number in range(tasks)])
    request = Request(str(sweep), [array], 3, "alps", profile.python, dry_run=True)
    [answer] = submit(dataclasses.replace(request, python=quoted(str(profile.python))))
    return str(answer["script"])


def quoted(text: str) -> str:
    return "'" + text.replace("'", "'\"'\"'") + "'"


def place(folder: str, run: str = "/scratch/runs/tiny/0123abcd") -> Place:
    return Place(RunDir(Path(run)), Path(folder), "/usr/bin/python3")


def test_script_is_exactly_the_golden_one() -> None:
    """After a wanted change: write the new text to tests/golden and read the difference."""
    cluster = {
        "partition": "booster",
        "account": "project7",
        "gpu_type": "h200",
        "cpus_per_gpu": 12,
        "exclude": ["n13", "n14"],
        "options": ["--mail-type=FAIL", "--comment=it's $HOME #1"],
        "modules": ["CUDA/13", "Python"],
        "virtual_env": "/opt/my venv",
        "setup": ["ulimit -c 0"],
    }
    text = script(
        Path("/scratch/runs/sweeps/lr"),
        place("/shared/ada/code"),
        cluster,
        "parallelism.tensor_model_parallel_size=2",
        "launch.stop_margin=5m",
    )
    assert text == GOLDEN.read_text()


def test_one_cell_is_no_array() -> None:
    text = script(Path("/scratch/runs/sweeps/lr"), place("/shared"), {}, tasks=1)
    assert "--array" not in text
    assert "%j_0_log.out" in text


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_reach_no_shell(name: str, tmp_path: Path) -> None:
    work = tmp_path / name
    bin_ = work / "bin"
    bin_.mkdir(parents=True)
    program = bin_ / "python"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$PWD" "$@" > "$OUT"\n')
    program.chmod(0o755)
    (bin_ / "activate").write_text("")
    cluster = {"python": str(program), "virtual_env": str(work), "options": [f"--comment={name}"]}
    text = script(work / "sweeps" / "lr", place(str(work)), cluster)
    batch = tmp_path / "batch.sh"
    batch.write_text(text)
    out = tmp_path / "out"
    subprocess.run(["bash", str(batch)], check=True, cwd=tmp_path, env={"PATH": os.environ["PATH"], "OUT": str(out)})
    expected = [str(work), "-P", "-u", "-m", "submitit.core._submit", str(work / "sweeps" / "lr" / "submitit")]
    assert out.read_text().splitlines() == expected
    assert not list(tmp_path.rglob("pwned"))
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", "--shell=bash", "--exclude=SC1090,SC1091,SC2016", str(batch)], check=True)


def test_what_a_script_cannot_carry_is_refused(tmp_path: Path) -> None:
    with refused("percent_in_path"):
        script(Path("/scratch/100%/sweeps/lr"), place("/shared"), {})
    with refused("no_time_limit"):
        script(Path("/scratch/sweeps/lr"), place("/shared"), {"time": None})


def test_cells_that_ask_for_the_same_are_one_array(tmp_path: Path) -> None:
    sweep = SweepDir(tmp_path / "runs" / "sweeps" / "lr")
    cluster = ClusterSpec(name="alps", time=3600)
    jobs = {
        "a": job("optimizer.lr=1"),
        "b": job("optimizer.lr=2"),
        "c": job("parallelism.tensor_model_parallel_size=2"),
        "d": job("optimizer.lr=3"),
        "e": job("launch.time=2h"),
    }
    starts = [CellStart(name, name, spec, RunDir(tmp_path / "runs" / name)) for name, spec in jobs.items()]
    request = cluster_request(SweepStart(sweep, starts, cluster, max_parallel=2, dry_run=True))
    assert [[task.cell for task in array.tasks] for array in request.arrays] == [["a", "b", "d"], ["c"], ["e"]]
    assert [array.parameters["time"] for array in request.arrays] == [60, 60, 120]
    assert not sweep.path.exists(), "a dry run writes nothing"
