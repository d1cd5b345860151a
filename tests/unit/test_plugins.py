"""What another package adds by entry points: it is installed beside this one, and a job that names it has it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.faults import Ranks
from support.training import tiny_job

PACKAGE = Path(__file__).resolve().parents[1] / "support" / "plugin_package"
TOYS = "orchestrator-toys"
Program = Callable[..., str]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages in which that one is installed, by pip."""
    source = tmp_path_factory.mktemp("source") / "package"
    shutil.copytree(PACKAGE, source)
    folder = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
    command = [*pip, "--no-index", "--no-deps", "--no-build-isolation", "--target", folder, source]
    subprocess.run(command, check=True, timeout=120)
    return folder


@pytest.fixture
def program(ranks: Ranks) -> Program:
    """program(site, folder, text): what a Python program prints, with these values as `given`. It is forked, and so is
    what it starts, with the same packages.
    """

    def run(site: Path, folder: Path, text: str, **values: Any) -> str:
        (folder / "plugin_program.py").write_text(f"import json, sys\ngiven = json.loads(sys.argv[1])\n{text}")
        started = "orchestrator.data orchestrator.launch"
        environment = {**os.environ, **ranks.for_commands(site, folder), "FORKED_TOO": started}
        command = [sys.executable, "-P", "-m", "plugin_program", json.dumps(values)]
        finished = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=280)
        assert finished.returncode == 0, finished.stderr
        return finished.stdout

    return run


def spec(**changes: dict[str, Any]) -> dict[str, Any]:
    job = tiny_job("toys", schedule={"train_iters": 4}, runtime={"device": "cpu"}, checkpoint={"save_interval": 4})
    sections: dict[str, Any] = json.loads(job.model_dump_json(exclude_unset=True))
    for section, values in changes.items():
        sections[section] = {**sections.get(section, {}), **values}
    return sections


TRAIN = """
import orchestrator
for job in given["jobs"]:
    run = orchestrator.parse_job(job).run()
    print(json.dumps([str(run.path), run.metrics()["train/loss"].tolist()]))
"""


SUBMIT = """
import time
import orchestrator
job = orchestrator.parse_job(given["job"])
run = job.submit()
states = set()
while (status := run.status()).is_active:
    states.add(status.state)
    time.sleep(0.2)
print(json.dumps([status.state, status.job.executor, sorted(states), len(run.metrics())]))
"""


@pytest.mark.slow(reason="a training")
def test_a_job_is_submitted_to_an_executor_of_another_package(program: Program, site: Path, tmp_path: Path) -> None:
    said = program(site, tmp_path, SUBMIT, job=spec(launch={"executor": "processes"}))
    state, executor, seen, steps = json.loads(said.splitlines()[-1])
    assert (state, executor, steps) == ("completed", "processes", 4)
    assert seen[-1] == "running"


def test_an_executor_that_no_package_has(program: Program, site: Path, tmp_path: Path) -> None:
    refused = """
import orchestrator
try:
    orchestrator.parse_job(given["job"]).submit()
except orchestrator.UserError as error:
    print(error)
"""
    said = program(site, tmp_path, refused, job=spec(launch={"executor": "process"}))
    assert "orchestrator.executors" in said
    assert "processes" in said
    assert "this package has slurm, local, ssh" in said
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow(reason="three trainings")
def test_a_job_trains_with_an_attention_and_a_tracker_of_another_package(
    program: Program, site: Path, tmp_path: Path
) -> None:
    scaled = {"attention_plugin": "scaled"}
    tracked = {"plugins": {"curves": {"file": "curves.txt"}}}
    jobs = [
        spec(),
        spec(model={**scaled, "attention_options": {"scale": 1.0}}),
        spec(model={**scaled, "attention_options": {"scale": 0.5}}, tracking=tracked),
    ]
    said = program(site, tmp_path, TRAIN, jobs=[{**job, "name": f"toys-{n}"} for n, job in enumerate(jobs)])
    (_, plain), (_, same), (run, half) = map(json.loads, said.splitlines())
    assert same == plain
    assert half != plain
    lines = (Path(run) / "curves.txt").read_text().splitlines()
    steps = [line.split()[1:] for line in lines if line.startswith("step ")]
    assert steps == [[str(number), repr(loss)] for number, loss in enumerate(half, 1)]
    assert lines[0] == "open after -1"
    assert lines[-2:] == ["state finished", "close finished"]
    position = json.loads((Path(run) / "tracker-curves.json").read_text())
    assert position["step"] == 4


REFUSED = """
import orchestrator
for job in given["jobs"]:
    try:
        orchestrator.parse_job(job).plan().require()
        print("fine")
    except orchestrator.SpecError as error:
        print(json.dumps([[each.paths[0], each.message] for each in error.problems]))
print(any(name.startswith("orchestrator_toys") for name in sys.modules))
"""


def tracker(name: str, **options: Any) -> dict[str, Any]:
    return spec(tracking={"plugins": {name: options}})


def test_what_cannot_be_used_is_named_and_stops_its_job_alone(program: Program, site: Path, tmp_path: Path) -> None:
    jobs = [
        spec(),
        tracker("curve"),
        tracker("broken"),
        tracker("curves", folder="here"),
        spec(model={"attention_plugin": "scaled", "attention_options": {"scale": 2}}),
        spec(model={"attention_options": {"scale": 1}}),
        spec(model={"attention_plugin": "scaled"}, parallelism={"context_parallel_size": 2}),
        spec(model={"attention_plugin": "scaled", "kv_lora_rank": 16, "linear_attention_freq": 2}),
    ]
    said = program(site, tmp_path, REFUSED, jobs=jobs).splitlines()
    assert said[0] == "fine"
    curve, broken, option, scale, alone, sequences, others = map(json.loads, said[1:-1])
    group = "orchestrator.trackers"
    assert curve == [
        [
            "tracking.plugins.curve",
            f"no installed package has an entry point curve in the group {group}; there is curves",
        ]
    ]
    where = f"{TOYS} (entry point broken = orchestrator_toys.broken:Tracker, group {group})"
    assert broken == [["tracking.plugins.broken", f"{where} cannot be loaded: RuntimeError: this package is broken"]]
    assert option[0][1].startswith(
        f"{TOYS} (entry point curves = orchestrator_toys.curves:Curves, group {group}) does not"
    )
    assert scale[0][0] == "model.attention_plugin"
    assert scale[0][1].endswith("does not accept these options: scale is between 0 and 1, not 2")
    assert alone == [["model.attention_options", "no attention supports them"]]
    assert ["parallelism.context_parallel_size", "does not go with model.attention_plugin"] in sequences
    assert ["model.attention_plugin", "does not go with model.kv_lora_rank"] in others
    assert ["model.linear_attention_freq", "does not go with model.attention_plugin"] in others


PREPARE = """
import orchestrator
from pathlib import Path
for job in given["jobs"]:
    try:
        run = orchestrator.parse_job(job).run(say=print)
        print(run.status().state)
    except orchestrator.OrchestratorError as error:
        print(error)
    print("----")
"""


@pytest.mark.slow(reason="text is written, tokenized and trained on")
def test_a_job_trains_on_text_that_another_package_writes(program: Program, site: Path, tmp_path: Path) -> None:
    def reading(file: str, **options: Any) -> dict[str, Any]:
        data = {"random_tokens": False, "blend": [{"path": "letters", "text": file}], "split": "1,0,0"}
        sources = {file: {"plugin": "letters", "options": options}}
        job = spec(data={**data, "sources": sources}, model={"vocab_size": None})
        return {**job, "name": "letters"}

    jobs = [
        reading("away.jsonl", count=90, fails_at=50),
        reading("text.jsonl", number=90),
        reading("text.txt", count=90),
        reading("text.jsonl", count=90),
    ]
    away, options, ending, done, _ = program(site, tmp_path, PREPARE, jobs=jobs).split("----\n")
    where = "(entry point letters = orchestrator_toys.letters:Letters, group orchestrator.data_sources)"
    assert away == f"{TOYS} {where} failed: OSError: the server is away\n"
    assert f"data.sources: {TOYS} {where} does not accept these options: " in options
    assert "text.txt is written as lines of JSON" in ending
    assert done.endswith("\ncompleted\n")
    lines = (tmp_path / "text.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines[:2]] == [{"text": "a" * 100, "number": 0}, {"text": "b" * 100}]
    assert len(lines) == 90
    assert not list(tmp_path.glob("*away*")) + list(tmp_path.glob(".*.jsonl*"))


def test_no_package_is_looked_for_where_a_job_names_none(program: Program, site: Path, tmp_path: Path) -> None:
    watch = """
import importlib.metadata
look = importlib.metadata.entry_points
def refuse(group):
    assert not group.startswith("orchestrator"), group
    return look(group=group)
importlib.metadata.entry_points = refuse
"""
    assert program(site, tmp_path, watch + REFUSED, jobs=[spec()]).splitlines() == ["fine", "False"]


def test_a_run_whose_package_is_gone_is_read_all_the_same(program: Program, site: Path, tmp_path: Path) -> None:
    make = """
from pathlib import Path
from orchestrator.launch.runs import create_run
from orchestrator.spec.job import JobSpec
print(create_run(JobSpec.model_validate(given["job"]), "", Path("runs")).path)
"""
    job = spec(model={"attention_plugin": "scaled"}, tracking={"plugins": {"curves": {"file": "a"}}})
    program(site, tmp_path, make, job=job)
    read = """
import orchestrator
[run] = orchestrator.runs()
print(run.status().state, run.spec().model.attention_plugin)
try:
    run.resume()
except orchestrator.UserError as error:
    print(error)
"""
    said = program(tmp_path / "nothing", tmp_path, read).splitlines()
    assert said[0] == "created scaled"
    assert "no installed package has an entry point scaled in the group orchestrator.blocks" in said[1]
